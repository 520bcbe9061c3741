"""The small worlds of edge nodes: one node and a broker without manners, a correct node, and several nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from seriatim.core.resequencing.options import OnEpoch
from seriatim.core.sparkplug.edge_node import TABLE
from seriatim.core.sparkplug.messages import BeforeBirth, NodeOrdering, OnTimeout
from tests.core.sparkplug.edge_script import dbirth, ddata, ddeath, nbirth, ndata, ndeath
from tests.exhaustive.edge_honest_world import HonestWorld, Sent, session
from tests.exhaustive.edge_nodes_world import NodesScope, NodesWorld
from tests.exhaustive.edge_world import EdgeScope, EdgeWorld, Message
from tests.exhaustive.explorer import Scope

NEVER_AGAIN: dict[str, Any] = {"rebirth_backoff": 0.0, "rebirth_backoff_limit": 0.0, "rebirth_attempts": 1}
"""Keeps the governor of rebirths out of worlds that are about order."""
PERSISTENT: dict[str, Any] = {"rebirth_backoff": 1.0, "rebirth_backoff_limit": 2.0, "rebirth_attempts": 2}
LIMITED: dict[str, Any] = {
    "rebirth_backoff": 1.0,
    "rebirth_backoff_limit": 1.0,
    "rebirth_attempts": 1,
    "rebirths_per_second": 0.5,
}
AT_ONCE: dict[str, Any] = {"rebirth_backoff": 0.0, "rebirth_backoff_limit": 0.0, "rebirths_per_second": 1.0}
CONNECTION = ("disconnect", "reconnect")
OPERATIONS = (*CONNECTION, "ask", "clear", "resume")

TWO_SESSIONS = (nbirth(0, 0, 10), ndata(1, 11), ndeath(0), nbirth(0, 1, 20), ndata(1, 21))
NEXT_NUMBER = (nbirth(0, 0, 10), ndeath(1), nbirth(0, 1, 20), ndata(1, 21))
SAME_NUMBER = (nbirth(0, 0, 10), ndata(1, 11), ndeath(0), nbirth(0, 0, 20))
REBIRTH = (nbirth(0, 0, 10), ndata(1, 11), ndata(2, 12), nbirth(3, 0, 13), ndata(4, 14))
ELSEWHERE = (nbirth(0, 0, 10), ndata(1, 11), ndata(140, 12), ndata(141, 13), ndata(142, 14))
DEVICE = (nbirth(0, 0, 10), dbirth(1, 11), ddata(2, 12), ddeath(3, 13))
TWO_DEVICES = (nbirth(0, 0, 10), dbirth(1, 11, "d"), dbirth(2, 12, "e"), ddata(3, 13, "e"), ddeath(4, 14, "d"))
WRAPPING = (nbirth(254, 0, 10), ndata(255, 11), ndata(0, 12), ndata(1, 13))
SET_BACK = (nbirth(0, 0, 100), ndata(1, 101), nbirth(0, 1, 5), ndata(1, 6), ndeath(0), ndeath(1))
NO_STAMPS = (nbirth(0), ndata(1), ndata(2), ndata(3), ndeath(0), ndeath(None))
WRONG_AT_BIRTH = (nbirth(100, 0, 1000), ndata(101, 11), nbirth(0, 1, 20), ndata(1, 21))


def node(name: str, messages: Iterable[Message], verbs: Iterable[str] = (), **options: Any) -> EdgeWorld:
    ordering = NodeOrdering(**{"reorder_timeout": 1.0, "capacity": 2, **NEVER_AGAIN, **options})
    return EdgeWorld(EdgeScope(name, ordering, tuple(messages), tuple(verbs)))


def correct(name: str, *sessions: tuple[Message, ...], wrong_at_birth: bool = False) -> HonestWorld:
    options = NodeOrdering(reorder_timeout=1.0, before_birth=BeforeBirth.HOLD)
    return HonestWorld(Sent(name, options, sessions, wrong_at_birth))


def correct_nodes() -> Iterator[HonestWorld]:
    following = session(0, 1, 20, 21, 22)
    yield correct("begins behind", session(100, 0, 10, 11, 12, 13), following)
    yield correct("begins ahead", session(0, 0, 10, 11, 12, 13), session(100, 1, 20, 21, 22))
    yield correct("wraps", session(254, 0, 10, 11, 12, 13), session(100, 1, 20, 21, 22))
    yield correct("is reborn", session(100, 0, 10, 11, 12, 13), session(0, 0, 20, 21, 22))
    yield correct("clock wrong at birth", session(100, 0, 1000, 11, 12, 13), following, wrong_at_birth=True)


def several(name: str, *verbs: str, **options: Any) -> NodesWorld:
    return NodesWorld(NodesScope(name, NodeOrdering(**{"reorder_timeout": 1.0, **LIMITED, **options}), verbs=verbs))


def small() -> Iterator[EdgeWorld | HonestWorld | NodesWorld]:
    yield node("two sessions", TWO_SESSIONS)
    yield node("two sessions, drops", TWO_SESSIONS, on_timeout=OnTimeout.DROP, on_session_end=OnEpoch.DISCARD)
    yield node("never born, holds", TWO_SESSIONS[:3], before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD)
    yield node("death under the next number", NEXT_NUMBER)
    yield node("restart under the same number", SAME_NUMBER)
    yield node("cleared", TWO_SESSIONS[:3], ("clear",))
    yield node("rebirth", REBIRTH)
    yield node("clock wrong at birth", WRONG_AT_BIRTH)
    yield node("counts elsewhere", ELSEWHERE[:4])
    yield node("devices", DEVICE, ("clear device of d",))
    yield node("wraps", WRAPPING, ("resume",))
    yield node("asked for rebirths", DEVICE[:1], ("ask", "clear", *CONNECTION), **PERSISTENT)
    yield from correct_nodes()
    yield several("one place for two nodes", "birth", "data", "clear", "ask", "tick", max_nodes=1)
    yield several("two nodes take turns", "birth", "ask", "tick", "late", reorder_timeout=0.0, **AT_ONCE)
    yield several("one node loses its connection", "birth", "ask", "tick", *CONNECTION, max_nodes=1)


def large() -> Iterator[EdgeWorld | HonestWorld | NodesWorld]:
    for on_timeout, before_birth, on_session_end in product(OnTimeout, BeforeBirth, OnEpoch):
        policies = {"on_timeout": on_timeout, "before_birth": before_birth, "on_session_end": on_session_end}
        name = f"timeout {on_timeout}, before birth {before_birth}, session end {on_session_end}"
        yield node(f"two sessions, {name}", TWO_SESSIONS, **policies)
        yield node(f"counts elsewhere, {name}", ELSEWHERE, **policies)
    yield node("two sessions, two ticks of patience", TWO_SESSIONS, reorder_timeout=2.0)
    yield node("two sessions, room for one", TWO_SESSIONS, capacity=1)
    yield node("two sessions, restarts", TWO_SESSIONS, ("clear", "resume"))
    yield node("rebirth, operations", REBIRTH, OPERATIONS)
    yield node("two devices", TWO_DEVICES, ("clear device of d",))
    yield node("clock set back", SET_BACK)
    yield node("no stamps", NO_STAMPS)
    yield node("wraps, operations", WRAPPING, OPERATIONS)
    yield node("asked for rebirths", TWO_SESSIONS[:2], OPERATIONS, **PERSISTENT)
    yield from correct_nodes()
    yield several("two nodes take turns", "birth", "ask", "tick", "late")
    yield several("two nodes lose their connection", "birth", "tick", *CONNECTION)
    yield several("two nodes are cleared", "birth", "ask", "clear", "tick")
    yield several("one place for two nodes", "birth", "data", "clear", "ask", "tick", *CONNECTION, max_nodes=1)


SCOPE = Scope("edge nodes", TABLE, tuple(small()), tuple(large()))
