"""Many edge nodes at once: one schedule, one limit on rebirth requests, and room for a bounded number."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import NodeOrdering, Ordered, RebirthRequested, Status, StatusChanged
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.errors import CapacityExceeded, InvalidArgument
from tests.core.sparkplug.edge_script import dbirth, ddata, nbirth, ndata

LOST_SIGHT = "what was sent while there was no connection is unknown"


def many(*keys: str, **options: Any) -> EdgeNodes[str]:
    """Nodes that were born at time 0."""
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(**{"reorder_timeout": 2.0, **options}))
    for key in keys:
        nodes.receive(key, nbirth(0), 0.0)
    return nodes


def released(effects: list[Any]) -> list[tuple[Any, str]]:
    return [(effect.key, effect.message.body) for effect in effects if isinstance(effect, Ordered)]


def asked(effects: list[Any]) -> list[RebirthRequested]:
    return [effect for effect in effects if isinstance(effect, RebirthRequested)]


def test_each_node_counts_for_itself_and_all_of_them_are_listed():
    nodes = many("a", "b")
    assert released(nodes.receive("a", ndata(1), 0.0)) == [("a", "ndata 1")]
    assert released(nodes.receive("b", ndata(2), 0.0)) == []
    assert released(nodes.receive("b", ndata(1), 0.0)) == [("b", "ndata 1"), ("b", "ndata 2")]
    assert ([node.key for node in nodes], len(nodes)) == (["a", "b"], 2)
    assert ("a" in nodes, "c" in nodes) == (True, False)
    with pytest.raises(KeyError):
        nodes["c"]


def test_a_message_that_is_refused_makes_no_node_known():
    nodes = many("a")
    for key in ("a", "b"):
        with pytest.raises(InvalidArgument):
            nodes.receive(key, None, 0.0)  # type: ignore[arg-type]
    assert [node.key for node in nodes] == ["a"]


def test_gaps_of_several_nodes_are_given_up_when_each_is_due():
    nodes = many("a", "b", "c")
    nodes.receive("a", ndata(2), 1.0)
    nodes.receive("b", ndata(2), 0.5)
    nodes.receive("c", ndata(2), 5.0)
    assert nodes.next_deadline == 2.5
    assert nodes.advance(2.4) == []
    effects = nodes.advance(3.0)
    assert released(effects) == [("b", "ndata 2"), ("a", "ndata 2")]
    assert [(request.key, request.reason, request.attempt) for request in asked(effects)] == [
        ("b", "messages are missing", 1),
        ("a", "messages are missing", 1),
    ]
    assert nodes.next_deadline == 7.0, "the gap of c comes before the next requests to a and b"


def test_a_gap_that_is_filled_leaves_nothing_to_do():
    nodes = many("a")
    deadlines = []
    for number, now in ((2, 1.0), (1, 2.0)):
        nodes.receive("a", ndata(number), now)
        deadlines.append(nodes.next_deadline)
    assert deadlines == [3.0, None]
    assert nodes.advance(100.0) == []


def test_requests_that_fall_due_while_time_passes_are_limited_too():
    nodes = many("a", "b", rebirths_per_second=1, rebirth_attempts=1)
    for key in "ab":
        nodes.receive(key, ndata(2), 0.0)
    effects = nodes.advance(2.0)
    assert released(effects) == [("a", "ndata 2"), ("b", "ndata 2")]
    assert [request.key for request in asked(effects)] == ["a"]
    assert nodes.next_deadline == 3.0
    assert [request.key for request in asked(nodes.advance(3.0))] == ["b"]
    assert nodes.next_deadline is None


def test_a_lost_broker_makes_every_node_stale_and_each_is_asked_within_the_limit_when_it_is_back():
    nodes = many("a", "b", "c", rebirths_per_second=2, rebirth_attempts=1)
    stale = nodes.disconnect()
    assert stale == [StatusChanged(key, None, Status.STALE, None) for key in "abc"]
    assert nodes.reconnect(10.0) == [RebirthRequested(key, LOST_SIGHT, 1) for key in "ab"]
    assert nodes.next_deadline == 10.5
    assert nodes.advance(10.5) == [RebirthRequested("c", LOST_SIGHT, 1)]


def test_without_a_broker_no_request_falls_due():
    nodes = many("a", rebirth_backoff=5)
    nodes.ask("a", "a metric without a name", 1.0)
    nodes.disconnect()
    assert nodes.next_deadline is None
    assert nodes.take_due(100.0) == ([], [])


def test_after_a_broker_is_back_a_request_without_an_answer_is_repeated():
    nodes = many("a", rebirth_backoff=5)
    nodes.disconnect()
    nodes.reconnect(10.0)
    assert nodes.next_deadline == 15.0
    assert nodes.advance(15.0) == [RebirthRequested("a", LOST_SIGHT, 2)]


def test_a_known_node_can_be_asked_for_any_reason():
    nodes = many("a", "b", rebirths_per_second=1, rebirth_backoff=5)
    assert nodes.ask("a", "a metric without a name", 1.0) == [RebirthRequested("a", "a metric without a name", 1)]
    assert nodes.ask("b", "another one", 1.0) == [], "it waits for its turn"
    assert nodes.advance(2.0) == [RebirthRequested("b", "another one", 1)]
    assert nodes.next_deadline == 6.0
    with pytest.raises(KeyError):
        nodes.ask("c", "who is that?", 1.0)


def test_a_node_that_was_alive_is_resumed_where_it_was_and_asked_for_its_birth():
    past = many("a", "b", rebirths_per_second=1)
    past.receive("a", ndata(1), 0.0)
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(reorder_timeout=7, rebirths_per_second=1, rebirth_backoff=20))
    assert nodes.resume("a", past["a"].bookmark(), 100.0) == [RebirthRequested("a", LOST_SIGHT, 1)]
    assert nodes.resume("b", past["b"].bookmark(), 100.0) == [], "its request waits for its turn"
    assert nodes.next_deadline == 101.0
    assert nodes.advance(101.0) == [RebirthRequested("b", LOST_SIGHT, 1)]
    assert (nodes["a"].key, nodes["a"].status, nodes["a"].expected) == ("a", Status.STALE, 2)
    nodes.receive("a", ndata(3), 102.0)
    assert nodes.next_deadline == 109.0, "with the options of those who resume it"


def test_a_node_that_was_never_born_is_resumed_without_a_request():
    nodes: EdgeNodes[str] = EdgeNodes()
    unborn: EdgeNode[str] = EdgeNode()
    assert nodes.resume("a", unborn.bookmark(), 0.0) == []
    assert nodes.next_deadline is None


def test_a_resumed_node_needs_room():
    nodes = many("a", max_nodes=1)
    with pytest.raises(CapacityExceeded, match=r"^there are already 1 edge nodes, the maximum: raise max_nodes$"):
        nodes.resume("b", nodes["a"].bookmark(), 0.0)
    nodes.clear("a", 0.0)
    nodes.resume("b", nodes["a"].bookmark(), 1.0)
    assert [node.key for node in nodes] == ["b"]


def test_a_device_is_cleared_where_it_is_known():
    nodes = many("a")
    nodes.receive("a", dbirth(1), 0.0)
    nodes.receive("a", ddata(3), 1.0)
    (entry, change) = nodes.clear_device("a", "d", 2.0)
    assert isinstance(entry, LedgerEntry)
    assert (entry.message, entry.time, entry.detail) == (ddata(3), 2.0, "its device was cleared")
    assert change == StatusChanged("a", "d", Status.OFFLINE, None)
    assert nodes.clear_device("b", "d", 2.0) == []
    assert nodes.clear("b", 2.0) == []
    assert len(nodes) == 1


def test_nothing_falls_due_of_a_node_that_was_cleared():
    nodes = many("a")
    nodes.receive("a", ndata(2), 1.0)
    nodes.clear("a", 2.0)
    assert nodes.next_deadline is None


def test_a_node_is_forgotten_only_if_it_may_be_and_is_asked_about_again_later():
    kept = {"a"}
    questions = []

    def may_forget(key: object) -> bool:
        questions.append(key)
        return key not in kept

    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=3), may_forget)
    for key in "abc":
        nodes.receive(key, nbirth(0), 0.0)
    for key in "abc":
        nodes.clear(key, 0.0)
    nodes.receive("b", nbirth(0), 1.0)
    nodes.receive("d", nbirth(0), 2.0)
    assert ([node.key for node in nodes], questions) == (["a", "b", "d"], ["a", "c"]), "b has spoken since"
    with pytest.raises(CapacityExceeded):
        nodes.receive("e", nbirth(0), 2.0)
    kept.clear()
    nodes.receive("e", nbirth(0), 3.0)
    assert [node.key for node in nodes] == ["b", "d", "e"]
