"""The address of a topic: the options that source and sink share, and the two ways to its store.

Logs are read directly (``open_reader``). Changes are requested from the owner of the store (``ask``); if there is none, this
process owns the store for the duration of the call. A store in a file works only on one machine.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound
from seriatim.store import open_store, store_file
from seriatim.store.base import StoreReader, TopicRow

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker

T = TypeVar("T")

COMMON = ("url", "topic")
SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark may put among our options."""


@dataclass(frozen=True, slots=True)
class TopicAddress:
    url: str
    topic: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TopicAddress:
        """The topic that options name. A relative path is one of the driver's: executors may have another working folder."""
        if missing := [name for name in COMMON if not options.get(name)]:
            raise InvalidArgument(f"format 'seriatim' needs the option {missing[0]!r}: .option({missing[0]!r}, ...)")
        url = options["url"]
        file = store_file(url)
        return cls(url if file is None else f"sqlite:///{file.absolute()}", options["topic"])

    @property
    def file(self) -> Path | None:
        return store_file(self.url)

    @contextmanager
    def open_reader(self) -> Iterator[StoreReader]:
        with closing(open_store(self.url, read_only=True)) as store:
            yield store

    def find_topic(self, store: StoreReader) -> TopicRow:
        for row in store.catalog().topics:
            if row.name == self.topic:
                return row
        raise NotFound(f"topic {self.topic!r} does not exist in '{store.url}': create it first")

    def require_one_machine(self, host: str) -> None:
        """Raise when the store is a file and ``host`` is not this one: under the same path another machine has another."""
        here = socket.gethostname()
        if self.file is not None and host != here:
            raise FailedPrecondition(
                f"the store '{self.file}' is on one machine, and Spark runs on {host} and on {here}: use PostgreSQL "
                "for a cluster of several machines"
            )

    def require_topic(self) -> None:
        with self.open_reader() as store:
            self.find_topic(store)

    def ask(self, question: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the owner of the store; without one, own it for the duration of the call."""
        if self.file is not None and not self.file.is_file():
            raise NotFound(f"there is no store at '{self.file}'")
        import asyncio  # tasks need no event loop and no engine: only the driver asks

        return asyncio.run(self._ask(question))

    async def _ask(self, question: Callable[[Broker], Awaitable[T]]) -> T:
        from seriatim.engine.connect import open_broker

        broker = await open_broker(self.url)
        try:
            return await question(broker)
        finally:
            await broker.close()


def refuse_unknown(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse unknown options: a misspelt one must not be ignored."""
    names = {name.lower(): name for name in (*COMMON, *known)}
    for name in options:
        if name.lower() not in names and name.lower() not in SPARKS_OWN:
            raise InvalidArgument(
                f"format 'seriatim' has no option {name!r} here: there are {', '.join(names.values())}"
            )


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a number of 1 or more."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgument(f"option {name!r} must be a whole number of 1 or more, not {text!r}")
    return int(text)


def yes_or_no(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise InvalidArgument(f"option {name!r} must be true or false, not {text!r}")
    return text == "true"
