"""What an edge node says about each message, to the last word."""

from __future__ import annotations

from typing import Any

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch, Reason
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    Bookmark,
    DeathIgnored,
    Flag,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    Status,
    StatusChanged,
)
from tests.core.sparkplug.edge_script import Script, dbirth, ddata, ddeath, nbirth, ndata, ndeath


def entries(effects: list[Any]) -> list[tuple[Any, ...]]:
    """Ledger entries with everything that they say, apart from numbers."""
    return [(e.key, e.reason.value, e.time, e.detail) for e in effects if isinstance(e, LedgerEntry)]


def test_entries_name_the_node_also_after_a_device_was_cleared_or_a_birth_took_out_what_it_brings():
    script = Script()
    script.send(nbirth(0, at=10), dbirth(1, at=11), ndata(3, at=13), ddata(5, at=15))
    script.node.clear_device("d", script.clock.now())
    script.wait(2)
    assert {key for key, *_ in entries(script.effects)} == {"g/n"}
    script = Script()
    script.send(nbirth(0, at=10), ndata(3, at=13), ndata(2, at=22), ndata(5, at=15))
    assert script.send(nbirth(1, bd=1, at=20)) == ["ndata 3", "ndata 5", "nbirth 1", "ndata 2"]
    assert {key for key, *_ in entries(script.effects)} == {"g/n"}
    assert script.ledger == [("lost", (1, 2)), ("lost", (4, 4))]


def test_what_waits_for_a_birth_when_a_node_is_cleared_is_reported_with_its_time():
    script = Script(before_birth=BeforeBirth.HOLD)
    script.send(ndata(1))
    assert entries(script.node.clear(1.5)) == [("g/n", "discarded", 1.5, "cleared")]


def test_a_cleared_device_is_reported_with_the_time():
    script = Script()
    script.send(nbirth(0), dbirth(1), ddata(3))
    assert entries(script.node.clear_device("d", 1.5)) == [("g/n", "discarded", 1.5, "its device was cleared")]


def test_what_is_discarded_with_its_session_is_reported_with_its_time():
    script = Script(on_session_end=OnEpoch.DISCARD)
    script.send(nbirth(59, at=100), ndata(1, at=201))
    script.clock.set(1.5)
    script.send(nbirth(0, bd=1, at=300))
    assert entries(script.effects) == [("g/n", "discarded", 1.5, "its session ended")]


def test_a_birth_of_a_session_that_has_ended_is_late():
    script = Script()
    script.send(nbirth(0, bd=3, at=10), ndeath(3))
    script.clock.set(1.5)
    assert script.send(nbirth(0, bd=3, at=10)) == []
    assert entries(script.effects) == [("g/n", "late", 1.5, "its session has already ended")]


def test_a_death_that_is_ignored_says_why_and_is_given_back():
    script = Script()
    for message in (ndeath(None), ndeath(7), nbirth(0, bd=3), ndeath(None), ndeath(7)):
        script.send(message)
    nobody = "it carries no bdSeq, so it is unknown which session ended"
    assert [effect for effect in script.effects if isinstance(effect, DeathIgnored)] == [
        DeathIgnored("g/n", nobody, ndeath(None)),
        DeathIgnored("g/n", "it ends session 7, and no session lives", ndeath(7)),
        DeathIgnored("g/n", nobody, ndeath(None)),
        DeathIgnored("g/n", "it ends session 7, and session 3 lives", ndeath(7)),
    ]


def test_without_a_broker_only_what_was_online_is_stale_and_nobody_is_asked():
    script = Script()
    script.send(nbirth(0), dbirth(1, device="a"), dbirth(2, device="b"), ddeath(3, device="b"), ndata(5))
    script.node.disconnect()
    assert script.node.devices == {"a": Status.STALE, "b": Status.OFFLINE}
    script.wait(100)
    assert script.requests == []
    script.effects += script.node.reconnect(script.clock.now())
    assert [request.attempt for request in script.requests] == [1]


def test_the_bookmark_of_a_node_that_never_spoke_is_empty():
    assert Script().node.bookmark() == Bookmark(0, 0, 0, 0, False, None)


def test_a_new_birth_makes_devices_stale_at_its_own_time():
    script = Script()
    script.send(nbirth(0, at=10), dbirth(1, at=11), nbirth(0, bd=1, at=20))
    assert script.statuses[-1] == ("d", "stale", 20)


def test_whatever_is_given_out_is_counted_in_the_bookmark():
    script = Script()
    script.send(ndeath(None), ndeath(7), nbirth(0, bd=3), ndeath(7), ndeath(8), ndata(1), ndata(1), ndata(3))
    script.wait(2)
    script.send(ndeath(3))
    given = [effect for effect in script.effects if isinstance(effect, Ordered | LedgerEntry | DeathIgnored)]
    assert script.node.bookmark().given == len(given) == 10


def test_a_death_is_the_last_message_of_its_session():
    script = Script()
    script.send(nbirth(0, bd=3), ndeath(3))
    assert script.effects[-1] == Ordered("g/n", 1, None, ndeath(3))


def test_a_birth_that_comes_after_its_death_is_late_for_as_long_as_a_message_may_be():
    for wait, released in ((2.0, []), (2.1, ["nbirth 0"])):
        script = Script()
        script.clock.set(5.0)
        script.send(nbirth(0, bd=3, at=10), ndeath(3))
        script.clock.set(5.0 + wait)
        assert script.send(nbirth(0, bd=3, at=10)) == released


def counts_elsewhere(**options: Any) -> Script:
    """A node with a device that is online and one that is dead, which was not followed when its numbers began anew."""
    script = Script(**options)
    script.send(nbirth(59, bd=3, at=100), dbirth(60, at=101), dbirth(61, at=101, device="e"))
    script.send(ddeath(62, at=102, device="e"), ndata(1, at=201), ndata(2, at=202))
    script.effects.clear()
    script.wait(2)
    return script


OUT_OF_SYNC = [
    LedgerEntry(
        "g/n", 1, Reason.SYNC_LOST, 1, 1, 1, 2.0, "1 is behind 63, the next expected number, and no birth came"
    ),
    LedgerEntry(
        "g/n", 1, Reason.LOST, 63, 0, 194, 2.0, "sync was lost; at least 194 missing: numbers repeat after 256"
    ),
    StatusChanged("g/n", "d", Status.STALE, None),
    StatusChanged("g/n", None, Status.STALE, None),
]
NO_BIRTH = RebirthRequested("g/n", "messages waited for a birth that did not come", 1)


def test_a_node_that_is_followed_elsewhere_says_what_was_lost_and_goes_on_in_another_epoch():
    script = counts_elsewhere()
    assert script.effects == [
        *OUT_OF_SYNC,
        *(
            Ordered("g/n", 2, number, ndata(number, at=200 + number), Flag.STALE, ReleasedBy.TIMEOUT)
            for number in (1, 2)
        ),
        NO_BIRTH,
    ]
    assert script.node.bookmark() == Bookmark(8, 2, 3, 3, True, 202)
    assert script.send(ndata(3, at=203)) == ["ndata 3"]


def test_a_node_that_is_followed_elsewhere_without_what_waited_says_so_for_each_message():
    script = counts_elsewhere(on_timeout=OnTimeout.DROP)
    assert script.effects == [
        *OUT_OF_SYNC,
        *(
            LedgerEntry(
                "g/n", 2, Reason.DISCARDED, number, number, 1, 2.0, "no birth came", ndata(number, at=200 + number)
            )
            for number in (1, 2)
        ),
        NO_BIRTH,
    ]
    assert script.node.bookmark()[:5] == (8, 2, 3, 3, True)
    assert script.send(ndata(3, at=203)) == ["ndata 3"]


def test_what_finds_no_room_or_no_birth_is_reported_with_its_time():
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.HOLD, capacity=1)
    script.clock.set(1.5)
    script.send(ndata(1), ndata(2))
    assert entries(script.effects) == [("g/n", "overflow", 1.5, "no room to wait for a birth")]
    script = Script(before_birth=BeforeBirth.HOLD, on_timeout=OnTimeout.DROP)
    script.send(ndata(1))
    script.wait(2)
    assert entries(script.effects) == [("g/n", "discarded", 2.0, "no birth came")]


def test_a_node_without_room_is_asked_for_a_rebirth_at_once():
    script = Script(capacity=1)
    script.send(nbirth(0), ndata(2), ndata(4))
    assert script.requests == [RebirthRequested("g/n", "messages are missing", 1)]
    unborn = Script(before_birth=BeforeBirth.HOLD, capacity=1)
    unborn.send(ndata(1), ndata(2))
    assert [effect.released_by for effect in unborn.effects if isinstance(effect, Ordered)] == ["capacity", "order"]
    assert unborn.requests == [NO_BIRTH]


def test_data_before_any_birth_is_released_in_order():
    script = Script()
    script.send(ndata(5))
    assert script.effects[0] == Ordered("g/n", 1, 5, ndata(5), Flag.BEFORE_BIRTH, ReleasedBy.ORDER)
