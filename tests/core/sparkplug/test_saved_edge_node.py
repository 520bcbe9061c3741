"""What can be seen of an edge node, and what it saves and goes on from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch
from seriatim.core.sparkplug.edge_node import EdgeNode, NodeState, SavedNode
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    HeldMessage,
    NodeOrdering,
    NodeSnapshot,
    RebirthRequested,
    SequenceGap,
    Status,
)
from tests.core.sparkplug.edge_script import Script, dbirth, ddata, nbirth, ndata, ndeath

KEY = "g/n"


def test_a_snapshot_shows_everything_that_is_known_of_a_node():
    script = Script()
    script.send(nbirth(0, 3, 10), dbirth(1, 11))
    script.wait(1.0)
    script.send(ndata(4, 14), ndata(6, 16))
    script.node.ask("a metric without a name", 1.0)
    assert script.node.snapshot() == NodeSnapshot(
        key=KEY,
        status=Status.ONLINE,
        devices={"d": Status.ONLINE},
        epoch=1,
        bd_seq=3,
        expected=2,
        held=(HeldMessage(ndata(4, 14), 1.0), HeldMessage(ndata(6, 16), 1.0)),
        waiting=(),
        gaps=(SequenceGap(2, 3), SequenceGap(5, 5)),
        deadline=3.0,
        rebirth_outstanding=True,
    )


def test_a_snapshot_shows_what_waits_for_a_birth_without_what_was_cleared_and_does_not_change():
    script = Script(before_birth=BeforeBirth.HOLD)
    script.wait(5.0)
    script.send(ndata(7), ddata(8))
    before = script.node.snapshot()
    assert before.waiting == (HeldMessage(ndata(7), 5.0), HeldMessage(ddata(8), 5.0))
    assert (before.deadline, before.expected, before.bd_seq, before.held) == (7.0, None, None, ())
    script.node.clear_device("d", 5.0)
    assert script.node.snapshot().waiting == (HeldMessage(ndata(7), 5.0),)
    assert len(before.waiting) == 2


# -- saved and restored -----------------------------------------------------------------------------------------------------


def never_spoke(script: Script) -> None:
    pass


def waits_for_its_birth(script: Script) -> None:
    script.wait(1.0)
    script.send(dbirth(3, 13), ddata(4, 14))


def is_assumed(script: Script) -> None:
    script.send(ndata(3, 13), ndata(5, 15))


def is_held_up(script: Script) -> None:
    script.send(nbirth(100, 3, 10), dbirth(101, 11), ndata(103, 13), ndata(20, 20), ndata(102, 12))
    script.wait(1.0)
    script.send(ndata(105, 19))


def lost_its_connection(script: Script) -> None:
    script.send(nbirth(0, 3, 10), dbirth(1, 11))
    script.node.disconnect()


def is_dead(script: Script) -> None:
    script.wait(1.0)
    script.send(nbirth(0, 3, 10), ndata(1, 11), ndeath(3), ndeath(1))


STORIES = [never_spoke, waits_for_its_birth, is_assumed, is_held_up, lost_its_connection, is_dead]
OPTIONS: dict[str, Any] = {"capacity": 3, "on_session_end": OnEpoch.DISCARD, "reorder_timeout": 2.5}


@pytest.mark.parametrize("story", STORIES)
def test_a_restored_node_looks_like_the_saved_one(story: Callable[[Script], None]):
    script = Script(**OPTIONS)
    story(script)
    restored: EdgeNode[str] = EdgeNode.restore(script.node.save(), NodeOrdering(**OPTIONS), KEY)
    assert restored.save() == script.node.save()
    assert (restored.snapshot().waiting, restored.snapshot().held) == (
        script.node.snapshot().waiting,
        script.node.snapshot().held,
    )
    assert (restored.state, restored.bookmark()) == (script.node.state, script.node.bookmark())


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize(
    "then",
    [
        [ndata(2, 12), ndata(104, 14), ndata(105, 15)],
        [ndata(107, 21), ndata(108, 22), ndata(109, 23), ndata(110, 24), ndata(111, 25)],
        [nbirth(0, 3, 12), ndata(2, 14), ndata(1, 13)],
        [nbirth(0, 1, 30), ndata(2, 11), ndata(1, 31)],
        [ndeath(3), nbirth(200, 4, 40)],
    ],
)
def test_a_restored_node_goes_on_like_the_saved_one(story: Callable[[Script], None], then: list[Any]):
    saved, restored = Script(**OPTIONS), Script(**OPTIONS)
    for script in (saved, restored):
        story(script)
        script.effects.clear()
    restored.node = EdgeNode.restore(saved.node.save(), NodeOrdering(**OPTIONS), KEY)
    for script in (saved, restored):
        script.send(*then)
        script.wait(20.0)
    assert without_requests(restored) == without_requests(saved)


def without_requests(script: Script) -> list[Any]:
    """A restored node was asked for no rebirth."""
    return [effect for effect in script.effects if not isinstance(effect, RebirthRequested)]


def test_what_is_saved_is_plain_data():
    script = Script()
    is_held_up(script)
    saved = script.node.save()
    assert saved == SavedNode(
        state=NodeState.BORN,
        status=Status.ONLINE,
        devices=(("d", Status.ONLINE),),
        epoch=1,
        given=4,
        birth=(3, 100, 10),
        born_at=0.0,
        deaths=(),
        newest=13,
        began=10,
        adrift=False,
        waiting=((ndata(20, 20), 0.0),),
        waiting_due=2.0,
        moved_on=True,
        queue=saved.queue,
    )
    assert saved.queue.held


def test_a_death_that_was_remembered_is_saved():
    script = Script()
    is_dead(script)
    assert script.node.save().deaths == ((3, 1.0, 11), (1, 1.0, None))


def test_that_nobody_knows_what_was_missed_is_saved():
    script = Script()
    lost_its_connection(script)
    assert script.node.save().adrift is True


def test_entries_of_a_restored_node_name_it():
    script = Script()
    is_held_up(script)
    script.node = EdgeNode.restore(script.node.save(), NodeOrdering(reorder_timeout=2.0), KEY)
    script.wait(10.0)
    entries = [effect for effect in script.effects if isinstance(effect, LedgerEntry)]
    assert [(entry.key, entry.first) for entry in entries if entry.first == 104] == [(KEY, 104)]
