"""Phone calls: a queue shared by threads. Nobody sees 'ended' before 'pushed 7', and no call waits for another.

The events of a call are its key. The billing of call-B fails until its event is a dead letter; the call goes on, and once the
tariff is known, the event is sent again.

Prints:

    call-A: ringing, answered, pushed 7, ended
    call-B: ringing, ended
    dead letter: call-B answered, after 2 attempts: KeyError: 'no tariff'
    later: call-B answered
"""

import threading
from collections import defaultdict

from seriatim import Queue, RetryPolicy
from seriatim.errors import QueueEmpty

EVENTS = [
    ("call-A", "ringing"),
    ("call-B", "ringing"),
    ("call-A", "answered"),
    ("call-B", "answered"),
    ("call-A", "pushed 7"),
    ("call-B", "ended"),
    ("call-A", "ended"),
]

billed: dict[str, list[str]] = defaultdict(list)
tariffs = {"call-A"}


def bill(call: str, event: str) -> None:
    if event == "answered" and call not in tariffs:
        raise KeyError("no tariff")
    billed[call].append(event)


def work(queue: Queue) -> None:
    """Bill events until there are none."""
    while True:
        try:
            with queue.reserve(timeout=0.5) as item:  # commits at the end of the block, rolls back when it raises
                bill(str(item.key), item.data.decode())
        except QueueEmpty:
            return
        except KeyError:
            continue  # rolled back; it comes again, before anything else of its call


def main() -> None:
    with Queue("sqlite:///phone-calls.db", "calls", retry=RetryPolicy(max_attempts=2)) as queue:
        for call, event in EVENTS:
            queue.push(event.encode(), call)
        threads = [threading.Thread(target=work, args=[queue]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for call, events in sorted(billed.items()):
            print(f"{call}: {', '.join(events)}")

        (letter,) = queue.dead_letters()
        print(f"dead letter: {letter.ordering_key} answered, after {letter.attempts} attempts: {letter.error}")
        tariffs.add("call-B")
        # 'ended' of this call is settled, so it can't go back to its place any more: it is sent again at the end.
        queue.redrive(letter.id, append=True)
        again = queue.pop(timeout=5)
        print(f"later: {again.ordering_key} {again.data.decode()}")


if __name__ == "__main__":
    main()
