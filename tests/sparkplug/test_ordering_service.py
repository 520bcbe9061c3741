"""The ordering service: threads, callbacks, time, and arguments that can't work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seriatim.core.sparkplug.messages import BeforeBirth, EdgeMessage, NodeOrdering, OnTimeout, Ordered
from seriatim.errors import CapacityExceeded, FailedPrecondition, InvalidArgument, InvalidSequence
from seriatim.sparkplug import (
    HeldMessage,
    MessageOrderingService,
    NodeId,
    NodeSnapshot,
    OrderingService,
    SequenceGap,
    Status,
)
from seriatim.testing.clock import ManualClock
from tests.core.sparkplug.edge_script import dbirth, ddata, nbirth, ndata, ndeath

NODE = NodeId("g", "n")


def bodies(ordered: list[Any]) -> list[str]:
    return [each.message.body for each in ordered]


class Heard:
    """A service under a manual clock, and what its callbacks were told."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.said: list[Any] = []
        self.service: OrderingService[str] = OrderingService(
            lambda ordered: self.said.append(ordered.message.body),
            NodeOrdering(**options),
            on_rebirth=lambda request: self.said.append(("rebirth", str(request.key))),
            on_ledger=lambda entry: self.said.append((entry.reason.value, entry.first)),
            on_status=lambda change: self.said.append((change.device or "node", change.status.value)),
            on_ignored=lambda death: self.said.append(("ignored", death.message.bd_seq)),
            clock=self.clock.now,
            timer=False,
        )


def test_messages_are_processed_in_order_and_returned():
    heard = Heard()
    process = heard.service.process
    assert bodies(process(NODE, nbirth(254))) == ["nbirth 254"]
    assert process(NODE, ndata(0)) == []
    assert bodies(process(NODE, ndata(255))) == ["ndata 255", "ndata 0"]
    assert heard.said == [("node", "online"), "nbirth 254", "ndata 255", "ndata 0"]


def test_a_timeout_releases_what_was_held_and_asks_for_a_rebirth():
    heard = Heard()
    heard.service.process(NODE, nbirth(0))
    heard.service.process(NODE, ndata(2))
    heard.clock.advance(2)
    assert bodies(heard.service.advance()) == ["ndata 2"]
    assert heard.said[2:] == [("lost", 1), "ndata 2", ("rebirth", "g/n")]


def test_what_a_timeout_released_is_also_told_as_one_list_before_the_rebirth_is_asked_for():
    told: list[Any] = []
    clock = ManualClock()
    service: OrderingService[str] = OrderingService(
        lambda ordered: told.append((ordered.message.body, ordered.released_by.value)),
        on_pending_messages=lambda pending: told.append(bodies(pending)),
        on_rebirth=lambda request: told.append(request.key),
        clock=clock.now,
        timer=False,
    )
    for message in (nbirth(0), ndata(2), ndata(1), ndata(4), ndata(5), ndata(7)):
        service.process(NODE, message)
    assert told == [("nbirth 0", "order"), ("ndata 1", "order"), ("ndata 2", "gap-filled")]
    clock.advance(2)
    assert bodies(service.advance()) == ["ndata 4", "ndata 5", "ndata 7"]
    timeouts = [(body, "timeout") for body in ("ndata 4", "ndata 5", "ndata 7")]
    assert told[3:] == [*timeouts, ["ndata 4", "ndata 5", "ndata 7"], NODE]


def test_pending_messages_are_told_by_whichever_call_notices_that_their_time_is_over():
    told: list[Any] = []
    clock = ManualClock()
    service: OrderingService[str] = OrderingService(
        lambda ordered: told.append(ordered.message.body),
        on_pending_messages=lambda pending: told.append(bodies(pending)),
        on_rebirth=lambda _: None,
        clock=clock.now,
        timer=False,
    )
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(2))
    clock.advance(2)
    assert bodies(service.process(NODE, ndata(3))) == ["ndata 2", "ndata 3"]
    assert told == ["nbirth 0", "ndata 2", ["ndata 2"], "ndata 3"]


@pytest.mark.parametrize("settle", ["death", "clear", "drop"])
def test_what_no_timeout_released_is_no_pending_message(settle: str):
    told: list[Any] = []
    clock = ManualClock()
    service: OrderingService[str] = OrderingService(
        lambda _: None,
        NodeOrdering(on_timeout=OnTimeout.DROP),
        on_pending_messages=told.append,
        on_rebirth=lambda _: None,
        clock=clock.now,
        timer=False,
    )
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(2))
    if settle == "death":
        service.process(NODE, ndeath(0))
    elif settle == "clear":
        service.clear(NODE)
    clock.advance(2)
    service.advance()
    assert told == []


class Recorder:
    """Another implementation: it orders nothing and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def process_message_order(self, node: NodeId, message: EdgeMessage[str]) -> list[Ordered[str]]:
        self.calls.append((node, message))
        return [Ordered(node, 0, message.seq, message)]

    def clear_message_order_cache(self, node: NodeId, device: str | None = None) -> list[EdgeMessage[str]]:
        self.calls.append((node, device))
        return []


def play(service: MessageOrderingService[str]) -> list[str]:
    """What code does that does not know whose implementation it was given."""
    released = [
        ordered.message.body
        for message in (nbirth(0), ddata(2), ndata(3), ndata(1))
        for ordered in service.process_message_order(NODE, message)
    ]
    service.clear_message_order_cache(NODE, "d")
    service.clear_message_order_cache(NODE)
    return released


def test_the_service_is_one_implementation_of_its_interface_and_others_can_take_its_place():
    heard, recorder = Heard(), Recorder()
    ours: MessageOrderingService[str] = heard.service
    others: MessageOrderingService[str] = recorder
    assert play(ours) == ["nbirth 0", "ndata 1", "ddata 2", "ndata 3"]
    assert play(others) == ["nbirth 0", "ddata 2", "ndata 3", "ndata 1"]
    assert recorder.calls[-2:] == [(NODE, "d"), (NODE, None)]
    assert heard.service.nodes() == []


def test_what_the_service_knows_of_a_node_can_be_looked_at():
    heard = Heard()
    heard.clock.advance(10)
    for message in (nbirth(253), dbirth(254), ndata(0)):
        heard.service.process(NODE, message)
    heard.clock.advance(1)
    heard.service.process(NODE, ddata(3))
    assert heard.service.snapshot(NODE) == NodeSnapshot(
        key=NODE,
        status=Status.ONLINE,
        devices={"d": Status.ONLINE},
        epoch=1,
        bd_seq=0,
        expected=255,
        held=(HeldMessage(ndata(0), 10), HeldMessage(ddata(3), 11)),
        waiting=(),
        gaps=(SequenceGap(255, 255), SequenceGap(1, 2)),
        deadline=12,
        rebirth_outstanding=False,
    )
    heard.service.clear(NODE, "d")
    after = heard.service.snapshot(NODE)
    assert after is not None
    assert (dict(after.devices), after.held) == ({}, (HeldMessage(ndata(0), 10),))
    heard.clock.advance(2)
    heard.service.advance()
    later = heard.service.snapshot(NODE)
    assert later is not None
    assert (later.expected, later.held, later.gaps, later.rebirth_outstanding) == (4, (), (), True)


def test_a_snapshot_shows_what_waits_for_a_birth_and_does_not_change():
    heard = Heard(before_birth=BeforeBirth.HOLD)
    heard.service.process(NODE, dbirth(1))
    before = heard.service.snapshot(NODE)
    assert before is not None
    assert (before.waiting, before.expected, before.status) == ((HeldMessage(dbirth(1), 0),), None, Status.OFFLINE)
    heard.service.process(NODE, nbirth(0))
    assert (len(before.waiting), dict(before.devices)) == (1, {})


def test_the_nodes_that_are_known_are_listed_until_they_are_cleared():
    heard, other = Heard(), NodeId("g", "other")
    assert (heard.service.nodes(), heard.service.snapshot(NODE)) == ([], None)
    heard.service.process(NODE, nbirth(0))
    heard.service.process(other, nbirth(0))
    assert heard.service.nodes() == [NODE, other]
    heard.service.clear(NODE)
    assert (heard.service.nodes(), heard.service.snapshot(NODE)) == ([other], None)
    with pytest.raises(InvalidArgument):
        heard.service.snapshot("g/n")  # type: ignore[arg-type]


def test_nodes_are_kept_apart():
    heard = Heard()
    for node in (NodeId("a:b", "c"), NodeId("a", "b:c")):
        heard.service.process(node, nbirth(0))
        assert bodies(heard.service.process(node, ndata(1))) == ["ndata 1"]


def test_clearing_a_node_returns_what_was_held_and_says_so():
    heard = Heard()
    heard.service.process(NODE, nbirth(0))
    heard.service.process(NODE, ndata(3))
    heard.service.process(NODE, ndata(2))
    assert [message.body for message in heard.service.clear(NODE)] == ["ndata 2", "ndata 3"]
    assert heard.said[2:] == [("discarded", 2), ("discarded", 3), ("node", "offline")]
    assert heard.service.clear(NODE) == []


def test_a_service_whose_nodes_are_cleared_is_never_full():
    heard = Heard(max_nodes=3)
    for number in range(20):
        heard.service.process(NodeId("g", str(number)), nbirth(0))
        heard.service.clear(NodeId("g", str(number)))
    assert heard.said.count("nbirth 0") == 20


def test_clearing_a_device_returns_what_was_held_of_it_and_leaves_the_rest_of_the_node():
    heard = Heard()
    for message in (nbirth(0), dbirth(1), ddata(5), ndata(4), ddata(3)):
        heard.service.process(NODE, message)
    before = len(heard.said)
    assert [message.body for message in heard.service.clear(NODE, "d")] == ["ddata 3", "ddata 5"]
    assert heard.said[before:] == [("discarded", 3), ("discarded", 5), ("d", "offline")]
    assert heard.service.clear(NODE, "d") == []
    assert bodies(heard.service.process(NODE, ndata(2))) == ["ndata 2", "ndata 4"]
    assert bodies(heard.service.process(NODE, ndata(6))) == ["ndata 6"]


def test_clearing_what_is_not_known_is_fine():
    heard = Heard()
    assert heard.service.clear(NODE) == heard.service.clear(NODE, "d") == []
    assert heard.said == []


def test_a_lost_broker_and_an_ignored_death_are_reported():
    heard = Heard()
    heard.service.process(NODE, nbirth(0))
    heard.service.process(NODE, ndeath(9))
    heard.service.disconnected()
    heard.service.connected()
    assert heard.said[2:] == [("ignored", 9), ("node", "stale"), ("rebirth", "g/n")]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (None, ndata(1)),
        (("g", "n"), ndata(1)),
        (NodeId("g", ""), ndata(1)),
        (NodeId("g/h", "n"), ndata(1)),
        (NodeId(None, "n"), ndata(1)),  # type: ignore[arg-type]
        (NODE, None),
        (NODE, "NDATA"),
        (NODE, ndata(1)._replace(seq=None)),
        (NODE, ndata(256)),
    ],
)
def test_none_or_a_wrong_type_raises_and_changes_nothing(node: Any, message: Any):
    heard = Heard()
    heard.service.process(NODE, nbirth(0))
    before = list(heard.said)
    with pytest.raises(InvalidArgument):
        heard.service.process(node, message)
    assert heard.said == before
    assert bodies(heard.service.process(NODE, ndata(1))) == ["ndata 1"]


def test_a_wrong_callback_or_device_is_refused():
    with pytest.raises(InvalidArgument, match="callable"):
        OrderingService(None, timer=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        Heard().service.clear(NODE, 5)  # type: ignore[arg-type]


def test_callbacks_run_outside_any_lock_and_may_call_the_service():
    order: list[str] = []

    def on_message(ordered: Any) -> None:
        order.append(ordered.message.body)
        if ordered.sequence == 1:
            service.process(NODE, ndata(2))
            other = threading.Thread(target=service.process, args=(NodeId("g", "other"), nbirth(0)))
            other.start()
            other.join(10)  # it would wait for ever if a lock were held
            assert not other.is_alive()
            order.append("end of 1")

    service: OrderingService[str] = OrderingService(on_message, timer=False)
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(1))
    assert order == ["nbirth 0", "ndata 1", "nbirth 0", "end of 1", "ndata 2"], "node by node, one at a time"


def test_a_callback_that_raises_loses_nothing_else():
    got: list[str] = []

    def on_message(ordered: Any) -> None:
        if ordered.sequence == 1:
            raise RuntimeError("the consumer's own mistake")
        got.append(ordered.message.body)

    service: OrderingService[str] = OrderingService(on_message, timer=False)
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(2))
    with pytest.raises(RuntimeError, match="own mistake"):
        service.process(NODE, ndata(1))
    service.process(NODE, ndata(3))
    assert got == ["nbirth 0", "ndata 2", "ndata 3"]


def test_after_a_callback_that_raised_the_rest_is_delivered_and_the_first_error_is_raised(caplog):
    asked: list[Any] = []

    def on_message(ordered: Any) -> None:
        raise RuntimeError(ordered.message.body)

    service: OrderingService[str] = OrderingService(on_message, on_rebirth=asked.append, timer=False)
    with pytest.raises(RuntimeError, match="ndata 5"):
        service.process(NODE, ndata(5))
    assert [request.key for request in asked] == [NODE], "although the callback before it failed"
    service.process(NODE, ndata(7))
    with pytest.raises(RuntimeError, match="ndata 6"):
        service.process(NODE, ndata(6))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["ndata 7"]


def test_an_interrupt_in_a_callback_leaves_the_rest_for_the_next_delivery():
    got: list[str] = []

    def on_message(ordered: Any) -> None:
        got.append(ordered.message.body)
        if ordered.sequence == 1:
            raise KeyboardInterrupt

    service: OrderingService[str] = OrderingService(on_message, timer=False)
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(2))
    with pytest.raises(KeyboardInterrupt):
        service.process(NODE, ndata(1))
    service.process(NODE, ndata(3))
    assert got == ["nbirth 0", "ndata 1", "ndata 2", "ndata 3"]


class Blockade:
    """A callback that stays in the messages of one node until it is let go."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.entered, self.go = threading.Event(), threading.Event()
        self.got: dict[Any, list[str]] = {}
        self.released = threading.Event()

    def on_message(self, ordered: Any) -> None:
        self.got.setdefault(ordered.key, []).append(ordered.message.body)
        if ordered.key == self.node and ordered.sequence:
            self.entered.set()
            assert self.go.wait(60)
        elif ordered.sequence == 2:
            self.released.set()


def test_a_node_whose_callback_blocks_holds_up_no_other_node():
    slow, other = NodeId("g", "slow"), NodeId("g", "other")
    blockade = Blockade(slow)
    service: OrderingService[str] = OrderingService(blockade.on_message, timer=False)
    service.process(slow, nbirth(0))
    thread = threading.Thread(target=service.process, args=(slow, ndata(1)))
    thread.start()
    assert blockade.entered.wait(20)
    service.process(other, nbirth(0))
    service.process(other, ndata(1))
    service.process(slow, ndata(2))
    assert blockade.got == {slow: ["nbirth 0", "ndata 1"], other: ["nbirth 0", "ndata 1"]}
    assert service.nodes() == [slow, other]
    blockade.go.set()
    thread.join(20)
    assert blockade.got[slow] == ["nbirth 0", "ndata 1", "ndata 2"]


def test_a_timeout_whose_callback_blocks_holds_up_no_other_nodes_timeout():
    slow, other = NodeId("g", "slow"), NodeId("g", "other")
    blockade = Blockade(slow)
    options = NodeOrdering(reorder_timeout=0.01)
    with OrderingService[str](blockade.on_message, options, on_rebirth=lambda _: None) as service:
        service.process(slow, nbirth(0))
        service.process(slow, ndata(2))
        assert blockade.entered.wait(20)
        service.process(other, nbirth(0))
        service.process(other, ndata(2))
        assert blockade.released.wait(10), "by its own timeout, while the other callback blocks"
        blockade.go.set()


def test_a_closed_service_has_called_back_about_every_timeout_that_it_decided():
    slow = NodeId("g", "slow")
    blockade = Blockade(slow)
    done: list[str] = []
    service: OrderingService[str] = OrderingService(
        blockade.on_message, NodeOrdering(reorder_timeout=0.01), on_rebirth=lambda _: done.append("rebirth")
    )
    service.process(slow, nbirth(0))
    service.process(slow, ndata(2))
    assert blockade.entered.wait(20)
    closing = threading.Thread(target=service.close)
    closing.start()
    blockade.go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert done == ["rebirth"]


def test_a_callback_of_a_timeout_may_close_the_service():
    closed = threading.Event()

    def on_message(ordered: Any) -> None:
        if ordered.sequence == 2:
            service.close()
            closed.set()

    service: OrderingService[str] = OrderingService(
        on_message, NodeOrdering(reorder_timeout=0.01), on_rebirth=lambda _: None
    )
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(2))
    assert closed.wait(20)
    with pytest.raises(FailedPrecondition):
        service.process(NODE, ndata(3))


def test_a_node_that_is_forgotten_between_its_look_up_and_its_lock_is_looked_up_again():
    other, got = NodeId("g", "other"), list[Any]()
    service: OrderingService[str] = OrderingService(got.append, NodeOrdering(max_nodes=1), timer=False)

    class Overtaken(dict[Any, Any]):
        """Another thread takes the room of the node that was just found."""

        def get(self, key: Any, default: Any = None) -> Any:
            found = super().get(key, default)
            service._guarded = dict(self)
            service.process(other, nbirth(0))
            service.clear(other)
            return found

    service.process(NODE, nbirth(0))
    service.clear(NODE)
    service._guarded = Overtaken(service._guarded)
    service.process(NODE, nbirth(0))
    service.process(NODE, ndata(1))
    assert [(ordered.key, ordered.sequence, ordered.flag) for ordered in got[1:]] == [
        (other, 0, None),
        (NODE, 0, None),
        (NODE, 1, None),
    ]


ROUNDS_OF_CLEARING = 150


def test_nodes_that_are_cleared_and_come_again_in_many_threads_lose_nothing():
    """There is room for fewer nodes than there are, so that each is forgotten again and again while others want it."""
    got: dict[Any, list[Any]] = {}
    nodes = [NodeId("g", str(number)) for number in range(8)]

    def on_message(ordered: Any) -> None:
        got.setdefault(ordered.key, []).append((ordered.sequence, ordered.flag))

    def send(node: NodeId) -> None:
        for _ in range(ROUNDS_OF_CLEARING):
            while True:
                try:
                    service.process(node, nbirth(0))
                    break
                except CapacityExceeded:
                    time.sleep(0)
            service.process(node, ndata(1))
            service.clear(node)

    service: OrderingService[str] = OrderingService(on_message, NodeOrdering(max_nodes=6), timer=False)
    with threads_that_switch_often():
        threads = [threading.Thread(target=send, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert got == dict.fromkeys(nodes, [(0, None), (1, None)] * ROUNDS_OF_CLEARING)
    assert service.nodes() == []


def test_the_timer_thread_lets_time_pass_and_survives_a_callback_that_raises(caplog):
    released = threading.Event()
    asked = threading.Event()

    def on_message(ordered: Any) -> None:
        if ordered.sequence == 2:
            released.set()
            raise RuntimeError("the consumer's own mistake")

    with OrderingService[str](
        on_message, NodeOrdering(reorder_timeout=0.01), on_rebirth=lambda _: asked.set()
    ) as service:
        service.process(NODE, nbirth(0))
        service.process(NODE, ndata(2))
        assert released.wait(10)
        other = NodeId("g", "other")
        service.process(other, nbirth(0))
        service.process(other, ndata(5))
        assert asked.wait(10)
    with pytest.raises(FailedPrecondition, match="closed"):
        service.process(NODE, ndata(3))


def test_many_threads_get_each_nodes_messages_in_order_and_each_once():
    got: dict[Any, list[int]] = {}

    def on_message(ordered: Any) -> None:
        got.setdefault(ordered.key, []).append(ordered.message.timestamp)

    def send(service: OrderingService[str], node: NodeId, part: int) -> None:
        barrier.wait()
        for number in range(1 + part, 121, 4):  # never more than 127 ahead, whoever is first
            service.process(node, ndata(number % 256, at=number))

    nodes = [NodeId("g", str(number)) for number in range(3)]
    barrier = threading.Barrier(4 * len(nodes))
    with OrderingService[str](on_message, NodeOrdering(reorder_timeout=60, capacity=127)) as service:
        for node in nodes:
            service.process(node, nbirth(0, at=0))
        threads = [threading.Thread(target=send, args=(service, n, part)) for n in nodes for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for node in nodes:
        assert got[node] == list(range(121))


ROUNDS = 10
SENT = [1000 * turn + number for turn in range(ROUNDS) for number in range(121) if number % 7 or not number]
"""The stamps of ten sessions in which every seventh number never comes."""


class Account:
    """What became of each message of each node, by its stamp."""

    def __init__(self) -> None:
        self.ordered: dict[Any, list[tuple[int, int]]] = {}
        self.entered: dict[Any, list[int]] = {}
        self.lost = 0
        self.last = threading.Event()
        self.released_by: list[str] = []

    def on_message(self, ordered: Any) -> None:
        time.sleep(0)  # let another thread overtake, if it can
        self.ordered.setdefault(ordered.key, []).append((ordered.epoch, ordered.message.timestamp))
        if ordered.message.timestamp > SENT[-1]:
            self.released_by.append(threading.current_thread().name)
            self.last.set()

    def on_ledger(self, entry: Any) -> None:
        if entry.message is None:
            self.lost += entry.size
        else:
            self.entered.setdefault(entry.key, []).append(entry.message.timestamp)


@contextmanager
def threads_that_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_what_a_timeout_releases_is_in_order_with_what_other_threads_send_at_that_moment():
    """The time of a gap is over at once, so that the timer releases all the time."""
    account = Account()
    nodes = [NodeId("g", str(number)) for number in range(3)]
    barrier = threading.Barrier(4 * len(nodes), timeout=20)

    def send(node: NodeId, part: int) -> None:
        for turn in range(ROUNDS):
            stamps = [stamp for stamp in SENT if stamp // 1000 == turn]
            if part == 0:
                service.process(node, nbirth(0, bd=turn, at=stamps[0]))
            barrier.wait()
            for stamp in stamps[1 + part :: 4]:
                service.process(node, ndata(stamp % 1000, at=stamp))
            barrier.wait()

    options = NodeOrdering(reorder_timeout=0.0005)
    with (
        threads_that_switch_often(),
        OrderingService[str](
            account.on_message, options, on_ledger=account.on_ledger, on_rebirth=lambda _: None
        ) as service,
    ):
        threads = [threading.Thread(target=send, args=(node, part)) for node in nodes for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for node in nodes:
            account.last.clear()
            service.process(node, ndata(126, at=SENT[-1] + 6))
            assert account.last.wait(10)
    for node in nodes:
        ordered = account.ordered[node]
        assert ordered == sorted(set(ordered)), "in order, and nothing twice"
        assert sorted([stamp for _, stamp in ordered] + account.entered.get(node, [])) == [*SENT, SENT[-1] + 6]
    assert account.lost >= ROUNDS * len(nodes)
    names = {name.rpartition("_")[0] for name in account.released_by}
    assert names == {"seriatim-sparkplug"}, "the last of it only time could release"


def test_an_absent_seq_is_refused_with_the_reason():
    with pytest.raises(InvalidSequence, match="must be an integer, not NoneType"):
        Heard().service.process(NODE, ndata(1)._replace(seq=None))
