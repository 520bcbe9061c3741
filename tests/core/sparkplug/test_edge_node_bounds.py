"""How much an edge node keeps, its bookmark, and the options that it takes."""

from __future__ import annotations

import pytest

from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.edge_node import EdgeNode, NodeState
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    Bookmark,
    EdgeMessage,
    Flag,
    Kind,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    Status,
)
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.errors import CapacityExceeded, InvalidArgument
from tests.core.sparkplug.edge_script import Script, nbirth, ndata, ndeath


def test_what_waits_for_a_birth_is_bounded():
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD, capacity=2)
    script.send(ndata(1))
    script.wait(2)
    script.send(ndata(2), ndata(3))
    assert script.ledger == [("overflow", "ndata 3")]
    released = Script(before_birth=BeforeBirth.HOLD, capacity=2)
    assert released.send(ndata(1), ndata(2), ndata(3)) == ["ndata 1", "ndata 2", "ndata 3"]


def test_what_is_held_behind_a_gap_is_bounded():
    script = Script(on_timeout=OnTimeout.HOLD, capacity=2)
    assert script.send(nbirth(0), ndata(2), ndata(4), ndata(6)) == ["nbirth 0"]
    assert script.ledger == [("overflow", "ndata 6")]
    assert script.send(ndata(1), ndata(3)) == ["ndata 1", "ndata 2", "ndata 3", "ndata 4"]


def test_a_bookmark_is_read_as_it_was_written():
    for bookmark in (Bookmark(7, 3, 5, 9, True, 11), Bookmark(7, 3, 0, 0, False), Bookmark(1, 1, 0, 0, True, 0)):
        assert Bookmark.unpack(bookmark.pack()) == bookmark


def test_a_resumed_node_goes_on_where_its_bookmark_left_it_and_repeats_nothing():
    script = Script()
    script.send(nbirth(200, bd=7, at=1), *[ndata(seq % 256, at=seq) for seq in range(201, 300)])
    bookmark = Bookmark.unpack(script.node.bookmark().pack())
    assert bookmark == Bookmark(100, 1, 7, 300 % 256, True, 299)
    script.node = EdgeNode.resume(bookmark, NodeOrdering(), "g/n")
    assert script.send(ndata(299 % 256, at=299), ndata(300 % 256, at=300)) == ["ndata 44"]
    assert script.ledger == [("duplicate", "ndata 43")]
    assert script.flags[-1] is Flag.STALE
    assert script.send(ndeath(7)) == ["ndeath"]
    assert script.node.bookmark().pack() > bookmark.pack()


def test_a_resumed_node_does_not_claim_to_know_whether_what_is_behind_is_a_copy_or_late():
    script = Script()
    script.send(nbirth(0, at=1), ndata(2, at=3))
    script.wait(2)
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    script.effects = []
    script.send(ndata(1, at=2), ndata(2, at=3))
    details = [effect.detail for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert details == ["behind what was released before a restart: a copy, or late"] * 2
    script.send(nbirth(0, at=9), nbirth(0, at=9), ndata(1, at=10), ndata(1, at=10))
    details = [effect.detail for effect in script.effects if isinstance(effect, LedgerEntry)][2:]
    assert details == ["this birth was seen before", "released before"]


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("unheard", [1, 100, 150, 250, 400])
def test_what_is_new_after_a_restart_or_a_lost_connection_is_not_called_a_duplicate(unheard, stamped):
    def data(number: int) -> EdgeMessage[str]:
        return ndata(number % 256, at=number if stamped else None)

    for restart in (True, False):
        script = Script()
        script.send(nbirth(0, at=0 if stamped else None), *map(data, range(1, 11)))
        if restart:
            script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
        else:
            script.node.disconnect()
            script.node.reconnect(script.clock.now())
        following = range(11 + unheard, 21 + unheard)
        released = script.send(*map(data, following)) + script.wait(2)
        assert released == [f"ndata {number % 256}" for number in following]
        assert {reason for reason, _ in script.ledger} <= {"lost", "sync-lost"}
        assert set(script.flags[-10:]) == {Flag.STALE}


def test_after_a_restart_one_or_two_without_stamps_before_the_expected_number_are_taken_for_copies():
    script = Script()
    script.send(nbirth(0), *[ndata(number) for number in range(1, 11)])
    script.node = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    assert script.send(ndata(9), ndata(10), ndata(11)) + script.wait(2) == ["ndata 11"]
    assert script.ledger == [("duplicate", "ndata 9"), ("duplicate", "ndata 10")]


def test_a_bookmark_of_an_earlier_version_is_read_without_a_stamp():
    packed = 7
    for value, bits in ((3, 32), (2**64 - 1, 64), (255, 8), (1, 1)):
        packed = packed << bits | value
    assert Bookmark.unpack(packed) == (7, 3, 2**64 - 1, 255, True, None)
    newer = Bookmark(7, 3, 2**64 - 1, 255, True, 2**64 - 1)
    assert Bookmark.unpack(newer.pack()) == newer
    assert newer.pack() > packed, "a place never goes back"


def test_the_bookmark_of_a_dead_node_does_not_revive_it():
    script = Script()
    script.send(nbirth(0, bd=7), ndeath(7))
    resumed: EdgeNode[str] = EdgeNode.resume(script.node.bookmark(), NodeOrdering(), "g/n")
    assert (resumed.status, resumed.state) == (Status.OFFLINE, NodeState.UNBORN)


def test_nodes_that_are_cleared_make_room_for_others():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=2))
    for number in range(10):
        nodes.receive(number, nbirth(0), 0.0)
        nodes.clear(number, 0.0)
    assert len(nodes) == 2
    nodes.receive("a", nbirth(0), 0.0)
    nodes.receive("b", nbirth(0), 0.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("c", nbirth(0), 0.0)
    assert "a" in nodes


def test_a_cleared_node_that_speaks_again_is_not_forgotten_and_counts_on():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=1))
    nodes.receive("a", nbirth(0), 0.0)
    nodes.clear("a", 0.0)
    nodes.receive("a", nbirth(0), 1.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("b", nbirth(0), 1.0)
    assert nodes["a"].epoch == 2


def test_clearing_a_node_is_no_way_around_the_backoff_of_its_rebirths():
    options = NodeOrdering(max_nodes=1, rebirth_backoff=5.0, rebirth_backoff_limit=10.0, rebirths_per_second=0.001)
    nodes: EdgeNodes[str] = EdgeNodes(options)
    assert [type(effect) for effect in nodes.receive("a", ndata(1), 0.0)] == [Ordered, RebirthRequested]
    nodes.clear("a", 0.0)
    with pytest.raises(CapacityExceeded):
        nodes.receive("b", ndata(1), 20.0)
    assert [type(effect) for effect in nodes.receive("a", ndata(1), 20.0)] == [Ordered], (
        "its request waits for its turn"
    )
    nodes.clear("a", 20.0)
    nodes.receive("b", nbirth(0), 50.0)
    assert list(nodes) == [nodes["b"]]
    assert nodes.advance(2000.0) == [], "nobody asks a node that was forgotten"


def test_the_number_of_nodes_is_bounded():
    nodes: EdgeNodes[str] = EdgeNodes(NodeOrdering(max_nodes=1))
    nodes.receive("a", nbirth(0), 0.0)
    with pytest.raises(CapacityExceeded, match="raise max_nodes"):
        nodes.receive("b", nbirth(0), 0.0)
    with pytest.raises(InvalidArgument):
        EdgeNodes(NodeOrdering()).receive("a", None, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *(
            ({name: -1}, f"{name} must be a finite number of 0 or more, not -1")
            for name in ("reorder_timeout", "rebirth_backoff", "rebirth_backoff_limit", "rebirths_per_second")
        ),
        (
            {"capacity": 128},
            "capacity 128 is more than the 127 numbers that can be told to be ahead modulo 256; choose 127 or less",
        ),
        (
            {"rebirth_backoff": 10, "rebirth_backoff_limit": 5},
            "rebirth_backoff_limit must not be less than rebirth_backoff",
        ),
        ({"rebirths_per_second": 0}, "rebirths_per_second must be more than 0: it is a limit, not a switch"),
        ({"rebirth_attempts": 0}, "rebirth_attempts must be a whole number of 1 or more, not 0"),
        ({"max_nodes": 0}, "max_nodes must be a whole number of 1 or more, not 0"),
        ({"on_timeout": "skip"}, "on_timeout must be one of 'release', 'drop', 'hold', not 'skip'"),
        ({"before_birth": "drop"}, "before_birth must be one of 'release', 'hold', not 'drop'"),
        ({"on_session_end": None}, "on_session_end must be one of 'release', 'discard', not None"),
        ({"send_rebirth_when_timeout": "no"}, "send_rebirth_when_timeout must be a bool, not 'no'"),
    ],
)
def test_options_that_can_not_work_are_refused(wrong, text):
    with pytest.raises(InvalidArgument) as refusal:
        NodeOrdering(**wrong)
    assert refusal.value.message == text


def test_a_backoff_may_be_constant_and_one_attempt_and_one_node_are_enough():
    NodeOrdering(rebirth_backoff=5, rebirth_backoff_limit=5, rebirth_attempts=1, max_nodes=1)


def test_a_choice_may_be_given_as_text():
    script = Script(before_birth="hold", on_timeout="hold", on_session_end="discard")
    assert script.send(ndata(1)) == script.wait(10) == []
    assert script.send(nbirth(0), ndata(3), ndeath(0)) == ["nbirth 0", "ndata 1", "ndeath"]
    assert script.ledger == [("discarded", "ndata 3")]


def test_the_kinds_are_those_of_an_edge_node():
    assert set(Kind) == {"NBIRTH", "NDEATH", "NDATA", "DBIRTH", "DDEATH", "DDATA"}
