"""Random traces of edge nodes, with every race there is: for whoever has to come out as the session machine does."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import hypothesis.strategies as st

from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import (
    OF_DEVICES,
    BeforeBirth,
    EdgeMessage,
    Kind,
    NodeOrdering,
    OnTimeout,
    RebirthRequested,
    StatusChanged,
)

DELAYS = (0, 0, 0, 0, 0.5, 2.5, 6.5, 30)
DATA = (Kind.NDATA, Kind.NDATA, Kind.DDATA, Kind.DBIRTH, Kind.DDEATH)
ORDERINGS = st.builds(
    NodeOrdering,
    reorder_timeout=st.sampled_from([0.0, 1.0, 4.0]),
    on_timeout=st.sampled_from(OnTimeout),
    before_birth=st.sampled_from(BeforeBirth),
    on_session_end=st.sampled_from(OnEpoch),
    capacity=st.sampled_from([2, 5, 127]),
)


def edge_trace(random: Random, sessions: int) -> list[tuple[EdgeMessage[str], float]]:
    """What a node sent in some sessions, and when each of it arrived, in that order; no two at the same time.

    Messages are lost, repeated, late by much or little, ahead of their birth and behind their session's end; deaths race with
    births, also those of several sessions that were over at once; the capture may begin within a session; sessions begin at
    any number, may be rebirths or restarts under the same bdSeq, and may be long enough to wrap. Runs of messages are lost that
    are longer than half the circle, or than all of it. Clocks are set forward and back, begin anew after a reboot, as bdSeq
    does, stand still, or were wrong for the time of a birth only. Some nodes stamp nothing.
    """
    is_stamped, arrived = random.random() < 0.8, []
    silence = random.randrange(300)
    unheard = range(silence, silence + random.choice((0, 0, 0, 130, 200, 256, 300)))
    for number, (message, time) in enumerate(_sent(random, sessions)):
        if number in unheard and message.kind is not Kind.NBIRTH:
            continue
        for copy in range(random.choice((0, 1, 1, 1, 1, 1, 1, 2))):
            at = time + random.choice(DELAYS) + copy / 7 + number / 1e6
            stamp = message.timestamp if is_stamped else None
            arrived.append((message._replace(body=f"{number}:{copy} {message.body}", timestamp=stamp), at))
    return sorted(arrived, key=lambda arrival: arrival[1])


def _sent(random: Random, sessions: int) -> Iterator[tuple[EdgeMessage[str], float]]:
    time, stamp, bd_seq, seq = 0.0, 0, random.choice((0, 254)), random.randrange(256)
    begins_within = random.random() < 0.4
    for session in range(sessions):
        bd_seq = 0 if random.random() > 0.9 else (bd_seq + random.choice((0, 1, 1))) % 256
        size = 600 if random.random() > 0.98 else random.choice((1, 2, 5, 12, 12, 30, 30, 280))
        ticks = random.choice(((0, 1, 1, 1), (0, 1, 1, 1), (1,), (0,)))
        wrong_at_birth = random.choice((0, 0, 0, 0, 1, 1000))
        stamp = max(0, stamp + random.choice((0, 0, 0, 500, -500, -(10**9))))
        set_at, set_by = random.choice((0, 3, 20)), random.choice((0, 0, -300, -20, 300))
        for place in range(size):
            stamp, time = stamp + random.choice(ticks), time + random.choice((0.01, 0.1, 1, 1))
            if place == set_at:
                stamp = max(0, stamp + set_by)
            if place or (begins_within and session == 0):
                kind, seq = random.choice(DATA), (seq + 1) % 256
            else:
                kind, seq = Kind.NBIRTH, random.choice((0, 0, 255, random.randrange(256)))
            device = random.choice("de") if kind in OF_DEVICES else None
            is_birth = kind is Kind.NBIRTH
            said = stamp + wrong_at_birth if is_birth else stamp
            yield EdgeMessage(kind, f"{kind} {seq}", seq, said, device, bd_seq if is_birth else None), time
        if random.random() < 0.6:
            ended = random.choice((bd_seq, bd_seq, bd_seq, (bd_seq + 1) % 256, None))
            yield EdgeMessage(Kind.NDEATH, "NDEATH", None, None, None, ended), time
        time += random.choice((0, 0, 3, 50))


def of_order(effects: list[Any]) -> list[Any]:
    """The effects that are about messages, and not about rebirths and statuses."""
    return [effect for effect in effects if not isinstance(effect, RebirthRequested | StatusChanged)]


def advance(node: EdgeNode[Any], now: float) -> list[Any]:
    """What timers that fire at their deadlines let fall due, up to ``now``."""
    effects: list[Any] = []
    while (deadline := node.deadline) is not None and deadline <= now:
        effects += node.advance(deadline)
    return effects
