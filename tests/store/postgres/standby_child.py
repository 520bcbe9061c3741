"""The other process of the standby tests: it opens a store, and then does what it is told, line by line."""

from __future__ import annotations

import sys

from seriatim.errors import SeriatimError
from seriatim.store import open_store
from seriatim.store.base import Record, Standby


def obey(url: str, *, standing_by: bool) -> None:
    with Standby() as standby:
        store = open_store(url, standby=standby if standing_by else None)
    say(f"active {store.epoch}")
    for line in sys.stdin:
        verb, number = line.split()
        try:
            VERBS[verb](store, int(number))
        except SeriatimError as error:
            say(type(error).__name__)
        else:
            say("done")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def write(store, number: int) -> None:
    with store.transaction() as work:
        work.append(1, [record(number)])


def write_in_two_parts(store, number: int) -> None:
    """The first part is on the server, locks and all, while the process says so; the commit is not."""
    with store.transaction() as work:
        work.append(1, [record(number)])
        work.claim_batch("waits for an answer", number)
        say("inside")
        sys.stdin.readline()


def write_without_waiting(store, number: int) -> None:
    """The first part was sent, and no answer was asked for."""
    write(store, number)  # so that nothing is left to be asked
    with store.transaction() as work:
        work.append(1, [record(number + 1)])
        say("inside")
        sys.stdin.readline()


def close(store, _: int) -> None:
    store.close()


def upkeep(store, _: int) -> None:
    store.upkeep(0.0)


VERBS = {
    "write": write,
    "write_in_two_parts": write_in_two_parts,
    "write_without_waiting": write_without_waiting,
    "upkeep": upkeep,
    "close": close,
}


def record(number: int) -> Record:
    return Record(number, "k", f"{number}".encode(), None, 0.0)


if __name__ == "__main__":
    obey(sys.argv[1], standing_by=bool(sys.argv[2:]))
