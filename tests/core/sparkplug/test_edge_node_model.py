"""Whatever an edge node sends and the network does to it, the session machine keeps its promises."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seriatim.core.resequencing.options import LedgerEntry, OnEpoch, Reason, Released
from seriatim.core.sparkplug.edge_node import EdgeNode, NodeState
from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    DeathIgnored,
    EdgeMessage,
    Kind,
    NodeOrdering,
    OnTimeout,
    Ordered,
    RebirthRequested,
    Status,
)
from tests.core.resequencing.naive_resequencer import NaiveResequencer
from tests.core.sparkplug.edge_traces import ORDERINGS, advance, edge_trace, of_order

OPTIONS = st.builds(
    NodeOrdering,
    reorder_timeout=st.sampled_from([0.0, 1.0, 4.0]),
    on_timeout=st.sampled_from(OnTimeout),
    before_birth=st.sampled_from(BeforeBirth),
    on_session_end=st.sampled_from(OnEpoch),
    capacity=st.sampled_from([2, 5, 127]),
    rebirth_backoff=st.just(3.0),
    rebirth_backoff_limit=st.just(6.0),
    rebirth_attempts=st.just(2),
)
STAMPS = st.one_of(st.none(), st.integers(0, 60))
NUMBERS = st.one_of(st.integers(0, 12), st.integers(250, 255), st.integers(0, 255))


class AnyTraffic(RuleBasedStateMachine):
    """Any messages at all, however little sense they make."""

    @initialize(options=OPTIONS)
    def begin(self, options: NodeOrdering) -> None:
        self.node: EdgeNode[int] = EdgeNode(options, "k")
        self.now = 0.0
        self.received = 0
        self.accounted: Counter[int] = Counter()
        self.last = (0, -1)
        self.asked_at: list[float] = []
        self.given_out = 0

    @rule(kind=st.sampled_from(Kind), seq=NUMBERS, stamp=STAMPS, bd_seq=st.integers(0, 3), device=st.sampled_from("ab"))
    def message_arrives(self, kind: Kind, seq: int, stamp: int | None, bd_seq: int, device: str) -> None:
        session = kind in (Kind.NBIRTH, Kind.NDEATH)
        message = EdgeMessage(
            kind,
            self.received,
            None if kind is Kind.NDEATH else seq,
            stamp,
            device if kind.startswith("D") else None,
            bd_seq if session else None,
        )
        self.received += 1
        self.look_at(self.node.receive(message, self.now))

    @rule(steps=st.integers(1, 8))
    def messages_continue(self, steps: int) -> None:
        for _ in range(steps):
            self.message_arrives(Kind.NDATA, self.node.expected or 0, None, 0, "a")

    @rule(time=st.sampled_from([0.5, 1.0, 3.0, 20.0]))
    def time_passes(self, time: float) -> None:
        self.now += time
        self.look_at(self.node.advance(self.now))

    @rule()
    def node_is_cleared(self) -> None:
        self.look_at(self.node.clear(self.now))
        assert self.node.held_count == 0

    @rule()
    def broker_is_lost_and_found(self) -> None:
        self.look_at(self.node.disconnect())
        self.look_at(self.node.reconnect(self.now))

    def look_at(self, effects: list[Any]) -> None:
        self.given_out += sum(isinstance(effect, Ordered | LedgerEntry | DeathIgnored) for effect in effects)
        for effect in effects:
            if isinstance(effect, Ordered):
                self.accounted[effect.message.body] += 1
                assert effect.epoch >= self.last[0], "never back to an earlier epoch"
                self.last = (effect.epoch, effect.message.body)
            elif isinstance(effect, DeathIgnored | LedgerEntry) and effect.message is not None:
                self.accounted[effect.message.body] += 1
            elif isinstance(effect, RebirthRequested):
                assert not self.asked_at or self.now - self.asked_at[-1] >= 3.0, "never more often than the backoff"
                self.asked_at.append(self.now)

    @invariant()
    def every_message_is_given_out_or_in_the_ledger_or_held_and_only_one_of_them(self) -> None:
        assert all(count == 1 for count in self.accounted.values())
        assert len(self.accounted) + self.node.held_count == self.received

    @invariant()
    def nothing_is_overdue_and_what_waits_has_an_end(self) -> None:
        deadline = self.node.deadline
        assert deadline is None or deadline > self.now
        forever = self.node._options.on_timeout is OnTimeout.HOLD
        assert not self.node.held_count or deadline is not None or forever

    @invariant()
    def the_bookmark_counts_everything_that_was_given_out_so_it_grows_with_it(self) -> None:
        assert self.node.bookmark().pack() >> 170 == self.given_out


TestAnyTraffic = AnyTraffic.TestCase


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[EdgeMessage[int], float]]:
    """What a correct node sends, one message a time unit, and when each arrives.

    Births are further apart than messages are displaced, and begin far from the numbers before them, so that no number is one
    that the session before may be waiting for: such a message, ahead of its birth, nobody could tell from that session's own.
    """
    sent: list[tuple[EdgeMessage[int], float]] = []
    seq = 0
    for session in range(draw(st.integers(1, 5))):
        bd_seq = session // 2  # every other birth is a rebirth
        for number in range(draw(st.integers(8, 20))):
            kind = draw(st.sampled_from([Kind.NDATA, Kind.DDATA, Kind.DBIRTH])) if number else Kind.NBIRTH
            seq = (seq + (1 if number else draw(st.sampled_from([60, 180])))) % 256
            time = len(sent)
            device = "d" if kind.startswith("D") else None
            message = EdgeMessage(kind, time, seq, time, device, None if number else bd_seq)
            sent.append((message, time + draw(st.sampled_from([0.0, 0.0, 0.0, 2.5, 5.5]))))
    return sent


@given(traffic(), st.lists(st.integers(0, 60)))
def test_what_comes_out_is_in_the_order_in_which_it_was_sent(sent, lost):
    node: EdgeNode[int] = EdgeNode(NodeOrdering(reorder_timeout=8.0, before_birth=BeforeBirth.HOLD), "k")
    # Births arrive: without one, the numbers of the session after the next may be those that the last one awaits.
    lost = {number for number in lost if number < len(sent) and sent[number][0].kind is not Kind.NBIRTH}
    arrivals = sorted((arrival, message.body) for message, arrival in sent if message.body not in lost)
    out: list[int] = []
    for arrival, number in arrivals:
        effects = node.receive(sent[number][0], arrival)
        # Without any birth nobody knows what the numbers mean.
        out += [e.message.body for e in effects if isinstance(e, Ordered) and node.state is not NodeState.ASSUMED]
    assert out == sorted(out)


@given(st.integers(0, 255), st.integers(1, 12), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_however_births_and_deaths_race_the_last_session_lives_if_it_does(
    first, sessions, lives, stamped, random: Random
):
    """MQTT keeps order among births and among deaths, and not between them."""
    numbers = [(first + session) % 256 for session in range(sessions)]
    births = [
        EdgeMessage(Kind.NBIRTH, at, 0, at if stamped else None, None, bd_seq) for at, bd_seq in enumerate(numbers)
    ]
    deaths = [EdgeMessage(Kind.NDEATH, -1, None, None, None, bd_seq) for bd_seq in numbers[: -1 if lives else None]]
    node: EdgeNode[int] = EdgeNode(NodeOrdering(reorder_timeout=60.0), "k")
    while births or deaths:
        topic = random.choice([topic for topic in (births, deaths) if topic])
        node.receive(topic.pop(0), 0.0)
    assert (node.status is Status.ONLINE) == lives
    assert not lives or node.bd_seq == numbers[-1]


@given(st.integers(0, 255), st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.5, 2.5]), max_size=60))
def test_a_session_that_is_displaced_by_less_than_the_timeout_comes_out_whole(start, delays):
    node: EdgeNode[int] = EdgeNode(NodeOrdering(reorder_timeout=3.0), "k")
    node.receive(EdgeMessage(Kind.NBIRTH, -1, start, 0, None, 0), -1.0)
    arrivals = sorted((number + delay, number) for number, delay in enumerate(delays))
    effects = [
        effect
        for arrival, number in arrivals
        for effect in node.receive(EdgeMessage(Kind.NDATA, number, (start + 1 + number) % 256, number), arrival)
    ]
    assert [effect.message.body for effect in effects if isinstance(effect, Ordered)] == list(range(len(delays)))
    assert len(effects) == len(delays), "no ledger entry and no rebirth"


STRANGE_STAMPS = st.one_of(st.none(), st.sampled_from([0, 100, 100, 101, 10**12]), st.integers(0, 300))


@given(st.data(), OPTIONS, st.integers(1, 6))
def test_what_arrives_as_it_was_sent_comes_out_so_whatever_its_stamps_and_its_bdseq_are(data, options, sessions):
    """Births at any number, of any session, stamped anyhow; deaths only of sessions whose number does not come again."""
    node: EdgeNode[int] = EdgeNode(options, "k")
    sent: list[EdgeMessage[int]] = []
    seq, ended = 0, -1
    for _ in range(sessions):
        bd_seq = data.draw(st.sampled_from([number for number in range(6) if number != ended]))
        seq = data.draw(st.integers(0, 255))
        sent.append(EdgeMessage(Kind.NBIRTH, len(sent), seq, data.draw(STRANGE_STAMPS), None, bd_seq))
        for _ in range(data.draw(st.integers(0, 8))):
            seq = (seq + 1) % 256
            sent.append(EdgeMessage(Kind.NDATA, len(sent), seq, data.draw(STRANGE_STAMPS)))
        ended = bd_seq if data.draw(st.booleans()) else -1
        if ended >= 0:
            sent.append(EdgeMessage(Kind.NDEATH, len(sent), None, None, None, ended))
    now = 0.0
    for message in sent:
        now += options.reorder_timeout + 0.1 if message.kind is Kind.NBIRTH else 0.01
        (ordered,) = of_order(node.receive(message, now))
        assert (type(ordered), ordered.message.body) == (Ordered, message.body)


def naive_verdict_on_a_birth(
    past: list[tuple[EdgeMessage[str], float]], birth: EdgeMessage[str], now: float, timeout: float
):
    """What may become of a birth, from nothing but what was received before: the rules as a reader of them would apply them.

    A set of outcomes where the answer depends on which messages were released.
    """
    recent = [message for message, at in past if now - at <= timeout]
    deaths = [m for m in recent if m.kind is Kind.NDEATH and m.bd_seq == birth.bd_seq]
    copies = [m for m, _ in past if m[2:] == birth[2:] and m.kind is Kind.NBIRTH and birth.timestamp is not None]
    allowed = {"taken"}
    if deaths:
        allowed.add("late")
    if copies:
        allowed.add("duplicate")
    return allowed


@given(st.randoms(use_true_random=False), ORDERINGS, st.integers(1, 6))
def test_a_birth_heals_unless_its_death_was_seen_or_it_is_a_copy(random: Random, options, sessions):
    node: EdgeNode[str] = EdgeNode(options, "k")
    past: list[tuple[EdgeMessage[str], float]] = []
    for message, at in edge_trace(random, sessions):
        advance(node, at)
        effects = node.receive(message, at)
        if message.kind is Kind.NBIRTH:
            (mine,) = [e for e in of_order(effects) if e.message is not None and e.message.body == message.body]
            became = "taken" if isinstance(mine, Ordered) else str(mine.reason)
            assert became in naive_verdict_on_a_birth(past, message, at, options.reorder_timeout)
        past.append((message, at))


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.sampled_from([1.0, 4.0]))
def test_no_stamp_and_no_past_shuts_a_node_out_for_longer_than_the_timeout(random: Random, sessions, timeout):
    """Whatever was before: one timeout after the last message, a birth and what follows it come out as they are sent."""
    node: EdgeNode[str] = EdgeNode(NodeOrdering(reorder_timeout=timeout), "k")
    now = 0.0
    for message, now in edge_trace(random, sessions):
        advance(node, now)
        node.receive(message, now)
    now += timeout + 0.1
    advance(node, now)
    stamp = random.choice((0, 10, 10**12))
    birth = EdgeMessage(Kind.NBIRTH, "healed", 0, stamp, None, random.choice((0, node.bd_seq or 0)))
    following = [EdgeMessage(Kind.NDATA, str(seq), seq, random.randrange(20)) for seq in range(1, 20)]
    for message in (birth, *following):
        assert message in [e.message for e in node.receive(message, now) if isinstance(e, Ordered)]


@given(st.integers(1, 10), st.integers(1, 1000), st.integers(1, 120), st.booleans())
def test_of_a_loss_in_a_row_only_what_numbers_can_not_tell_is_not_told(before, lost, after, stamped):
    """What follows is released in time, all of it with stamps; the ledger says how many are missing at least, modulo 256."""
    node: EdgeNode[int] = EdgeNode(NodeOrdering(reorder_timeout=1.0), "k")
    effects: list[Any] = []
    heard = [*range(before + 1), *range(before + 1 + lost, before + 1 + lost + after)]
    for number in heard:
        kind, bd_seq = (Kind.NDATA, None) if number else (Kind.NBIRTH, 0)
        message = EdgeMessage(kind, number, number % 256, number if stamped else None, None, bd_seq)
        effects += node.receive(message, 0.0)
    effects += advance(node, 10.0)
    released = [effect.message.body for effect in effects if isinstance(effect, Ordered)]
    entered = {e.message.body for e in effects if isinstance(e, LedgerEntry) and e.message is not None}
    told = sum(effect.size for effect in effects if isinstance(effect, LedgerEntry) and effect.reason is Reason.LOST)
    assert released == sorted(set(heard) - entered)
    if stamped:
        assert not entered
        assert told == lost % 256
    else:
        assert len(entered) <= 5, "three show that sync was lost, and two may be taken for copies"
    asked = any(isinstance(effect, RebirthRequested) for effect in effects)
    assert asked == (bool(told) if stamped else bool(told) or len(entered) >= 3)


@given(st.lists(st.tuples(st.integers(-4, 6), st.sampled_from([0.0, 0.7, 2.0])), max_size=60), OPTIONS)
def test_the_numbers_of_a_session_are_treated_as_the_naive_model_says(steps, options):
    node: EdgeNode[int] = EdgeNode(options, "k")
    model: NaiveResequencer[int] = NaiveResequencer(options.resequencing(), "k")
    node.receive(EdgeMessage(Kind.NBIRTH, -1, 250, None, None, 0), 0.0)
    model.push(250, -1, 0.0, 1, None, True)
    now = 0.0
    for number, (distance, time) in enumerate(steps):
        now += time
        assert node.expected is not None
        seq = (node.expected + distance) % 256
        said = node.receive(EdgeMessage(Kind.NDATA, number, seq), now)
        should = [*model.advance(now), *model.push(seq, number, now, 1, None, True), *model.advance(now)]
        assert [e.message.body for e in said if isinstance(e, Ordered)] == [
            e.message for e in should if isinstance(e, Released)
        ]
        assert [(e.reason, e.first, e.last) for e in said if isinstance(e, LedgerEntry)] == [
            (e.reason, e.first, e.last) for e in should if isinstance(e, LedgerEntry)
        ]
        if any(isinstance(effect, LedgerEntry) and effect.reason is Reason.SYNC_LOST for effect in said):
            return  # from here on a node that sends no stamps is followed, which a resequencer alone does not do


@given(st.randoms(use_true_random=False), ORDERINGS, st.integers(1, 4))
def test_a_node_that_is_saved_and_restored_goes_on_as_if_nothing_had_been(random: Random, options, sessions):
    undisturbed: EdgeNode[str] = EdgeNode(options, "k")
    restored: EdgeNode[str] = EdgeNode(options, "k")
    trace = edge_trace(random, sessions)
    for message, at in trace:
        for step in (lambda node, at=at: advance(node, at), lambda node, m=message, at=at: node.receive(m, at)):
            if random.random() < 0.5:
                restored = EdgeNode.restore(restored.save(), options, "k")
            # Another time in between, of a request for a rebirth, changes nothing.
            assert of_order(step(restored)) == of_order(step(undisturbed))
            assert restored.save() == undisturbed.save()
    assert of_order(advance(restored, 1e6)) == of_order(advance(undisturbed, 1e6))


@given(st.randoms(use_true_random=False), st.lists(ORDERINGS, min_size=2, max_size=4))
def test_a_node_that_goes_on_with_other_options_loses_nothing_and_lets_nothing_wait_for_ever(random: Random, orderings):
    node: EdgeNode[str] = EdgeNode(orderings[0], "k")
    came, came_out, at = Counter[str](), Counter[str](), 0.0

    def note(effects: list[Any]) -> None:
        told = [effect.message for effect in effects if isinstance(effect, Ordered | LedgerEntry)]
        came_out.update(message.body for message in told if message is not None and message.kind is not Kind.NDEATH)

    for message, at in edge_trace(random, 2):
        note(advance(node, at))
        came.update([message.body] if message.kind is not Kind.NDEATH else [])
        note(node.receive(message, at))
        if random.random() < 0.2:
            node = EdgeNode.restore(node.save(), random.choice(orderings), "k")
        assert came_out + Counter(message.body for message in node.held()) == came
    last = next((options for options in orderings if options.on_timeout is not OnTimeout.HOLD), NodeOrdering())
    node = EdgeNode.restore(node.save(), last, "k")
    note(advance(node, at + 100))
    assert node.held() == []
    assert came_out == came
