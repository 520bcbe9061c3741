"""The walk of one message through the code: ``python -m bench.walk``.

Two messages of one key are published, delivered one after the other and acknowledged through the public API, on a SQLite store
in a temporary folder. Every call of a function of this package is counted, in every thread, from the first ``publish`` until
the second ack is durable. A pair of messages goes ahead uncounted, so that nothing is counted that happens only once (imports,
caches, prepared statements).

Three figures tell how far a reader has to walk to follow a message: how many functions are *called* (a coroutine counts each
time it goes on), in how many *modules*, and how often the next function called is in another
module (*hops*, thread by thread).

Another commit is measured with its own sources: ``PYTHONPATH=<worktree>/src python bench/walk.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import seriatim
from seriatim import PubSub

SOURCE = str(Path(seriatim.__file__).parent) + "/"
MESSAGES = (b"first", b"second")


class Walk:
    """What is called while ``is_on``, in this thread and in all that begin later."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self.hops: Counter[tuple[str, str]] = Counter()
        self._last: dict[int, str] = {}  # where each thread is
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)

    def _observe(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if not self.is_on or event != "call" or not path.startswith(SOURCE):
            return
        module, thread = path[len(SOURCE) : -len(".py")].replace("/", "."), threading.get_ident()
        self.calls[module, frame.f_code.co_qualname] += 1
        last, self._last[thread] = self._last.get(thread, module), module
        if last != module:
            self.hops[last, module] += 1

    @property
    def modules(self) -> list[str]:
        return sorted({module for module, _ in self.calls})


async def measure(url: str, walk: Walk) -> None:
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("walk").create()
        subscription = await topic.subscription("walker").create(enable_message_ordering=True)
        messages = aiter(subscription.messages())
        for walk.is_on in (False, True):
            published = [topic.publish(data, ordering_key="key") for data in MESSAGES]
            for data in MESSAGES:
                message = await anext(messages)
                assert message.data == data
                await message.ack_durable()
            await asyncio.gather(*published)
        walk.is_on = False


def main() -> None:
    parser = argparse.ArgumentParser(description="Count calls, modules and hops on the way of two messages of one key.")
    parser.add_argument("--functions", action="store_true", help="list every function with its calls")
    parser.add_argument("--hops", action="store_true", help="list every pair of modules with its hops")
    given = parser.parse_args()
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(f"sqlite:///{folder}/walk.db", walk))
    if given.functions:
        for (module, function), count in sorted(walk.calls.items()):
            print(f"{count:5} {module} {function}")
    if given.hops:
        for (begin, end), count in walk.hops.most_common():
            print(f"{count:5} {begin} -> {end}")
    print(f"{walk.calls.total()} calls, {len(walk.modules)} modules, {walk.hops.total()} hops between modules")


if __name__ == "__main__":
    main()
