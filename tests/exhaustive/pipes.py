"""The small worlds of pipes: every kind and level, ends that remember and ends that don't, crashes of either."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from seriatim.core.guarantees import Level
from seriatim.core.pipes.protocol import OnFull, PipeKind, PipeOptions
from seriatim.core.resequencing.options import OnGap
from tests.exhaustive.explorer import Scope
from tests.exhaustive.pipe_world import PipeScope, PipeWorld, both_tables

SMALL: dict[str, Any] = {
    "window": 2,
    "queue": 4,
    "capacity": 4,
    "timeout": 1.0,
    "min_timeout": 1.0,
    "max_timeout": 1.0,
    "request_after": 1.0,
    "confirm_after": 1.0,
    "frame_messages": 1,
}
STRICT: dict[str, Any] = {"level": Level.STRICT, "gap_timeout": 2.0}
OLDEST: dict[str, Any] = {"on_full": OnFull.DROP_OLDEST}
NEWEST: dict[str, Any] = {"on_full": OnFull.DROP_NEWEST}
PROMPT: dict[str, Any] = {"prompt_output": True}

KINDS: dict[str, dict[str, Any]] = {
    "absolute indexed": {},
    "continuous indexed": {"level": Level.CONTINUOUS},
    "strict indexed": STRICT,
    "monotonic indexed": {"level": Level.MONOTONIC, "gap_timeout": 2.0},
    "absolute sequential": {"kind": PipeKind.SEQUENTIAL},
    "continuous sequential": {"kind": PipeKind.SEQUENTIAL, "level": Level.CONTINUOUS},
    "strict sequential": {"kind": PipeKind.SEQUENTIAL, "level": Level.STRICT},
    "monotonic sequential": {"kind": PipeKind.SEQUENTIAL, "level": Level.MONOTONIC},
    "resend": {"kind": PipeKind.RESEND},
    "strict, holds": {"level": Level.STRICT, "on_gap": OnGap.HOLD},
}


def pipe(name: str, options: dict[str, Any], **scope: Any) -> PipeWorld:
    return PipeWorld(PipeScope(name, PipeOptions(**{**SMALL, **options}), **scope))


def small() -> Iterator[PipeWorld]:
    forgetful: dict[str, Any] = {"durable_sender": False, "durable_receiver": False}
    yield pipe("absolute indexed", {}, ready=3)
    yield pipe("absolute indexed, short queue", {"queue": 1}, messages=2)
    yield pipe("absolute indexed, room for one", {"capacity": 1}, ready=2, messages=2)
    yield pipe("absolute indexed, frames of two", {"frame_messages": 2, "confirm_every": 2}, messages=2)
    yield pipe("absolute indexed, receiver crashes", {}, ready=2, messages=2, receiver_crashes=1, **PROMPT)
    yield pipe("absolute indexed, sender crashes", {}, ready=2, messages=2, sender_crashes=1, **PROMPT)
    yield pipe(
        "absolute indexed without memory, both crash", {}, messages=1, sender_crashes=1, receiver_crashes=1, **forgetful
    )
    yield pipe(
        "absolute indexed without outbox, sender crashes",
        {},
        ready=1,
        messages=2,
        sender_crashes=1,
        durable_sender=False,
        **PROMPT,
    )
    yield pipe("continuous indexed", {"level": Level.CONTINUOUS}, ready=2, messages=2)
    yield pipe("continuous sequential", KINDS["continuous sequential"], ready=2, messages=2)
    yield pipe("strict indexed, receiver crashes", STRICT, ready=2, messages=2, receiver_crashes=1, **forgetful)
    yield pipe(
        "strict sequential, drops the oldest", {**KINDS["strict sequential"], **OLDEST, "queue": 2}, ready=3, **PROMPT
    )
    yield pipe("strict indexed, drops the oldest", {**STRICT, **OLDEST, "queue": 2, "window": 3}, ready=1, **PROMPT)
    yield pipe("strict indexed, drops the newest", {**STRICT, **NEWEST, "queue": 1}, messages=2)
    yield pipe("strict sequential, room for one", {**KINDS["strict sequential"], "capacity": 1}, ready=2, messages=2)
    yield pipe("resend", {"kind": PipeKind.RESEND}, ready=3)
    yield pipe("strict, holds", KINDS["strict, holds"], ready=2, messages=2, loses_frames=False)


def large() -> Iterator[PipeWorld]:
    for name, options in KINDS.items():
        yield pipe(name, options)
        for durable_sender, durable_receiver in product((True, False), repeat=2):
            if durable_receiver and options.get("kind") is PipeKind.RESEND:
                continue  # there is none: a position says nothing about what was handed over in any order
            memory: dict[str, Any] = {"durable_sender": durable_sender, "durable_receiver": durable_receiver}
            ends = f"{_end(durable_sender, 'sender')}, {_end(durable_receiver, 'receiver')}"
            is_slow = not options and durable_sender == durable_receiver
            memory["prompt_output"] = not is_slow  # a slow output multiplies the states by ten: one kind has to do
            two: dict[str, Any] = {"ready": 2 if durable_sender else 1, "messages": 2, **memory}
            yield pipe(f"{name}, {ends}, sender crashes", options, sender_crashes=1, **two)
            yield pipe(f"{name}, {ends}, receiver crashes", options, receiver_crashes=1, **two)
            one: dict[str, Any] = {"ready": 1, "messages": 1, **memory}
            yield pipe(f"{name}, {ends}, both crash", options, sender_crashes=1, receiver_crashes=1, **one)
    yield from _large_in_other_ways()


def _end(durable: bool, end: str) -> str:
    return f"durable {end}" if durable else f"{end} without memory"


def _large_in_other_ways() -> Iterator[PipeWorld]:
    # If both crashed twice there would be hundreds of thousands of states, in which frames of more lives arrive in vain.
    one: dict[str, Any] = {"ready": 1, "messages": 1, **PROMPT}
    yield pipe("absolute indexed, sender crashes twice", {}, sender_crashes=2, receiver_crashes=1, **one)
    yield pipe("absolute indexed, receiver crashes twice", {}, sender_crashes=1, receiver_crashes=2, **one)
    yield pipe("absolute indexed, window of 3, capacity of 2", {"window": 3, "capacity": 2})
    yield pipe("absolute indexed, frames of 2", {"frame_messages": 2, "confirm_every": 2})
    yield pipe("absolute indexed, requests one range at a time", {"window": 3}, ready=3, max_ranges=1)
    yield pipe("strict indexed, requires room", {**STRICT, "window": 3, "capacity": 2}, ready=3)
    # Two gaps that fall due one after the other need four messages. Requests would multiply the states by fifty.
    four: dict[str, Any] = {"ready": 4, "messages": 4, "is_idle_at_times": True, **PROMPT}
    silent: dict[str, Any] = {**STRICT, "window": 4, "gap_timeout": 1.0, "request_after": 100.0, "confirm_every": 4}
    yield pipe("strict indexed, four messages, no requests", silent, **four)
    yield pipe("strict indexed, drops the oldest", {**STRICT, **OLDEST, "queue": 2})
    yield pipe("strict sequential, drops the oldest", {**KINDS["strict sequential"], **OLDEST, "queue": 2})
    yield pipe("strict indexed, drops the newest", {**STRICT, **NEWEST, "queue": 2})
    yield pipe("strict, holds, loses no frames", KINDS["strict, holds"], loses_frames=False)


SCOPE = Scope("pipes", both_tables(), tuple(small()), tuple(large()))
