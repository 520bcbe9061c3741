"""The ordering service: threads, callbacks, time, and arguments that can't work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from seriatim.core.edge_messages import NodeOrdering
from seriatim.errors import FailedPrecondition, InvalidArgument, InvalidSequence
from seriatim.sparkplug import NodeId, OrderingService
from seriatim.testing.clock import ManualClock
from tests.core.edge_script import dbirth, ddata, nbirth, ndata, ndeath

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
    assert order == ["nbirth 0", "ndata 1", "end of 1", "ndata 2", "nbirth 0"]


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
    assert set(account.released_by) == {"seriatim-sparkplug"}, "the last of it only time could release"


def test_an_absent_seq_is_refused_with_the_reason():
    with pytest.raises(InvalidSequence, match="must be an integer, not NoneType"):
        Heard().service.process(NODE, ndata(1)._replace(seq=None))
