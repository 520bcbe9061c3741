"""The sending end of a pipe, command by command."""

from __future__ import annotations

import pytest

from seriatim.core.guarantees import Level
from seriatim.core.pipes.protocol import (
    Confirm,
    Data,
    Finished,
    Hello,
    OnFull,
    PipeKind,
    PipeOptions,
    Welcome,
    first_index,
)
from seriatim.core.pipes.round_trip import stamp_of
from seriatim.core.pipes.sender import STEADY_HELLOS, PipeSender, SenderState
from seriatim.core.resequencing.options import LedgerEntry, OnGap, Reason
from seriatim.errors import CapacityExceeded, InvalidArgument

S, R = 7, 3  # the epochs of the sender and of its receiver


def sender(*messages: bytes, first: int = 0, max_bytes: int = 1000, room: int = 100, **choices) -> PipeSender:
    """A sender that was welcomed, with messages that are not sent yet."""
    machine = PipeSender(PipeOptions(**choices), S, first=first, max_bytes=max_bytes)
    machine.receive(Welcome(S, R, room), 0.0)
    for message in messages:
        machine.push(message, 0.0)
    return machine


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def sent(effects) -> list[int]:
    return [
        index
        for frame in effects
        if isinstance(frame, Data)
        for index in range(frame.first, frame.first + len(frame.messages))
    ]


def confirm(
    expected: int, seen: int | None = None, *missing, epoch: int = S, peer: int = R, stamp: float = 0, echo: float = 0
) -> Confirm:
    """``stamp`` and ``echo`` are given in seconds."""
    stamps = (stamp_of(stamp), stamp_of(echo))
    return Confirm(epoch, peer, expected, expected if seen is None else seen, missing, *stamps)


def unstamped(effects) -> list:
    """Effects, whenever their frames were made."""
    return [effect._replace(stamp=0) if isinstance(effect, Data | Hello) else effect for effect in effects]


# --- sessions -------------------------------------------------------------------------------------------------------


def test_until_somebody_answers_only_hello_is_said_steadily_at_first_and_then_with_backoff():
    machine = PipeSender(PipeOptions(timeout=1.0, max_timeout=4.0), S)
    machine.push(b"a", 0.0)
    said = []
    for _ in range(STEADY_HELLOS + 4):
        assert machine.deadline is not None
        now = max(machine.deadline, 0.0)
        assert unstamped(machine.advance(now)) == [Hello(S)]
        said.append(now)
    assert said[:STEADY_HELLOS] == [float(number) for number in range(STEADY_HELLOS)]
    assert [later - said[STEADY_HELLOS] for later in said[STEADY_HELLOS:]] == [0.0, 2.0, 6.0, 10.0]
    assert machine.state is SenderState.GREETING


def test_a_welcomed_sender_sends_under_both_epochs():
    machine = PipeSender(PipeOptions(), S, first=5)
    machine.push(b"a", 0.0)
    machine.receive(Welcome(S, R, 100), 0.0)
    assert machine.advance(0.0) == [Data(S, R, 5, 5, (b"a",))]
    assert machine.peer == R


def test_a_welcome_for_another_life_of_the_sender_is_not_heard():
    machine = PipeSender(PipeOptions(), S)
    for epoch in (S - 1, S + 1):
        machine.receive(Welcome(epoch, R, 100), 0.0)
    assert machine.peer is None


def test_a_receiver_that_restarted_gets_everything_that_is_not_confirmed():
    machine = sender(*numbered(5))
    machine.advance(0.0)
    machine.receive(confirm(2), 0.0)
    machine.receive(Welcome(S, R + 1, 100), 0.0)
    assert machine.advance(0.0) == [Data(S, R + 1, 2, 2, (b"2", b"3", b"4"))]


@pytest.mark.parametrize("receiver", [R, R - 1])
def test_a_welcome_of_the_same_or_a_former_life_changes_nothing(receiver):
    machine = sender(*numbered(3))
    machine.advance(0.0)
    machine.receive(Welcome(S, receiver, 100), 0.0)
    assert machine.advance(0.0) == []
    assert machine.peer == R


def test_a_confirmation_of_an_old_epoch_of_either_end_changes_nothing():
    machine = sender(*numbered(3))
    machine.advance(0.0)
    for stale in (confirm(3, epoch=S - 1), confirm(3, epoch=S + 1), confirm(3, peer=R - 1), confirm(3, peer=R + 1)):
        assert machine.receive(stale, 0.0) == []
    assert machine.kept == 3


def test_a_pipe_that_sends_nothing_again_gives_up_what_was_under_way_when_the_receiver_restarts():
    machine = sender(*numbered(4), level=Level.STRICT, window=3)
    machine.advance(0.0)
    lost, finished = machine.receive(Welcome(S, R + 1, 100), 1.0)
    assert isinstance(lost, LedgerEntry)
    assert (lost.reason, lost.first, lost.last, lost.detail) == (
        Reason.LOST,
        0,
        2,
        "under way when the receiver restarted",
    )
    assert finished == Finished(0, 3)
    assert unstamped(machine.advance(1.0)) == [Data(S, R + 1, 3, 3, (b"3",))]


def test_a_sender_without_memory_begins_above_its_former_lives():
    assert PipeSender(PipeOptions(), S).next_index == first_index(S)


# --- windows --------------------------------------------------------------------------------------------------------


def test_at_most_a_window_is_under_way_and_a_confirmation_lets_more_go():
    machine = sender(*numbered(10), window=4)
    assert sent(machine.advance(0.0)) == [0, 1, 2, 3]
    assert (machine.state, machine.under_way, machine.kept) == (SenderState.FULL, 4, 10)
    assert machine.advance(0.0) == []
    assert machine.receive(confirm(3), 0.0) == [Finished(0, 3)]
    assert machine.state is SenderState.FLOWING
    assert sent(machine.advance(0.0)) == [4, 5, 6]


def test_the_room_of_the_receiver_narrows_the_window():
    machine = sender(*numbered(10), window=8, room=2)
    assert sent(machine.advance(0.0)) == [0, 1]


def test_a_sequential_pipe_sends_the_next_message_when_the_one_before_is_confirmed():
    machine = sender(*numbered(3), kind=PipeKind.SEQUENTIAL)
    for number in range(3):
        assert machine.advance(0.0) == [Data(S, R, number, number, (b"%d" % number,))]
        assert machine.advance(0.1) == []
        machine.receive(confirm(number + 1), 0.1)
    assert machine.state is SenderState.IDLE


def test_messages_go_in_as_few_frames_as_they_fit_into():
    machine = sender(*[b"x" * 10] * 10, max_bytes=50, frame_messages=100)
    assert [len(frame.messages) for frame in machine.advance(0.0)] == [3, 3, 3, 1]  # type: ignore[union-attr]
    machine = sender(*numbered(10), frame_messages=4)
    assert [len(frame.messages) for frame in machine.advance(0.0)] == [4, 4, 2]  # type: ignore[union-attr]


def test_a_message_that_fits_into_no_frame_is_refused():
    machine = sender(max_bytes=50)
    machine.push(b"x" * 46, 0.0)
    with pytest.raises(InvalidArgument, match=r"a message of 47 bytes does not fit into a frame of this route \(46\)"):
        machine.push(b"x" * 47, 0.0)
    assert machine.kept == 1


def test_no_confirmation_confirms_more_than_was_sent():
    machine = sender(*numbered(5), window=3)
    machine.advance(0.0)
    assert machine.receive(confirm(1_000), 0.0) == [Finished(0, 3)]
    assert machine.kept == 2


def test_an_old_confirmation_takes_nothing_back():
    machine = sender(*numbered(5))
    machine.advance(0.0)
    machine.receive(confirm(4), 0.0)
    assert machine.receive(confirm(2), 0.0) == []
    assert machine.kept == 1


# --- when nothing is confirmed --------------------------------------------------------------------------------------


def test_what_the_receiver_has_not_seen_is_sent_again_with_backoff():
    machine = sender(*numbered(4), timeout=1.0, max_timeout=4.0)
    machine.advance(0.0)
    machine.receive(confirm(1, 2), 0.5)
    assert machine.deadline == 1.5
    assert machine.advance(1.4) == []
    times = []
    for _ in range(4):
        assert machine.deadline is not None
        times.append(machine.deadline)
        assert sent(machine.advance(times[-1])) == [2, 3]
    assert times == [1.5, 2.5, 4.5, 8.5]


def test_when_the_receiver_has_seen_everything_it_is_asked_where_it_stands():
    machine = sender(*numbered(2), timeout=1.0)
    machine.advance(0.0)
    machine.receive(confirm(0, 2), 0.0)
    assert unstamped(machine.advance(1.0)) == [Data(S, R, 0, 2, ())]


def test_the_timeout_follows_the_round_trip_and_doubles_only_while_nothing_is_confirmed():
    machine = sender(*numbered(4), timeout=1.0, max_timeout=64.0, kind=PipeKind.SEQUENTIAL)
    machine.advance(10.0)
    machine.receive(confirm(1, echo=10.0), 10.2)
    assert machine.advance(10.2) == [Data(S, R, 1, 1, (b"1",), stamp_of(10.2))]
    assert machine.deadline == pytest.approx(10.2 + 0.2 + 4 * 0.1), "the mean and four deviations"
    for _ in range(3):
        assert machine.deadline is not None
        now = machine.deadline
        assert sent(machine.advance(now)) == [1]
    assert machine.deadline == pytest.approx(now + 4 * 0.6)
    machine.receive(confirm(2, echo=now), now + 0.2)  # the last copy was answered, as quickly as ever
    machine.advance(now + 0.2)
    assert machine.deadline is not None
    assert machine.deadline < now + 0.2 + 0.6


def test_a_confirmation_of_an_earlier_copy_tells_the_real_round_trip():
    machine = sender(*numbered(2), timeout=1.0, max_timeout=64.0, kind=PipeKind.SEQUENTIAL)
    for now in (10.0, 11.0, 12.0, 14.0):
        assert sent(machine.advance(now)) == [0]
    machine.receive(confirm(1, echo=10.0), 15.0)
    machine.advance(15.0)
    assert machine.deadline == pytest.approx(15.0 + 5.0 + 4 * 2.5)


def test_an_echo_from_nowhere_is_bounded():
    machine = sender(*numbered(2), timeout=1.0, max_timeout=8.0, kind=PipeKind.SEQUENTIAL)
    machine.advance(10.0)
    machine.receive(confirm(1, echo=1e9), 10.1)
    machine.advance(10.1)
    assert machine.deadline is not None
    assert 10.1 < machine.deadline <= 18.1


def test_what_is_asked_for_is_sent_again_at_once_and_nothing_else():
    machine = sender(*numbered(10), window=8)
    machine.advance(0.0)
    effects = machine.receive(confirm(2, 8, (2, 3), (6, 6)), 1.0)
    assert effects[0] == Finished(0, 2)
    assert sent(effects) == [2, 3, 6]


def test_only_what_is_under_way_can_be_asked_for():
    machine = sender(*numbered(10), window=4)
    machine.advance(0.0)
    machine.receive(confirm(2), 0.0)
    assert sent(machine.receive(confirm(2, 4, (0, 99)), 0.0)) == [2, 3]


def test_a_request_that_names_a_number_twice_gets_it_once():
    machine = sender(*numbered(6))
    machine.advance(0.0)
    assert sent(machine.receive(confirm(0, 6, (1, 3), (1, 3), (2, 4), (0, 0)), 0.0)) == [1, 2, 3, 4]


def test_nothing_is_waited_for_when_everything_is_confirmed():
    machine = sender(*numbered(2))
    machine.advance(0.0)
    machine.receive(confirm(2), 0.0)
    assert machine.deadline is None


def test_a_strict_pipe_gives_up_what_is_not_confirmed_in_time():
    machine = sender(*numbered(3), level=Level.STRICT, window=2, timeout=1.0)
    machine.advance(0.0)
    lost, finished, data = machine.advance(1.0)
    assert isinstance(lost, LedgerEntry)
    assert (lost.reason, lost.first, lost.last, lost.size) == (Reason.LOST, 0, 1, 2)
    assert finished == Finished(0, 2)
    assert data == Data(S, R, 2, 2, (b"2",), stamp_of(1.0)), "the floor tells the receiver"


def test_a_pipe_that_holds_asks_and_never_sends_again():
    machine = sender(*numbered(2), level=Level.STRICT, on_gap=OnGap.HOLD, timeout=1.0)
    machine.advance(0.0)
    assert unstamped(machine.advance(1.0)) == [Data(S, R, 0, 2, ())]
    assert machine.receive(confirm(0, 2, (0, 0)), 1.0) == []


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [OnFull.WAIT, OnFull.RAISE])
def test_a_full_queue_takes_nothing_more(policy):
    machine = sender(*numbered(3), queue=3, on_full=policy)
    assert machine.room == 0
    with pytest.raises(CapacityExceeded, match="3 are not confirmed"):
        machine.push(b"x", 0.0)
    machine.advance(0.0)
    machine.receive(confirm(1), 0.0)
    assert machine.room == 1


def test_the_oldest_message_makes_room_when_told_to():
    machine = sender(*numbered(3), level=Level.STRICT, queue=3, on_full=OnFull.DROP_OLDEST)
    lost, finished = machine.push(b"3", 0.0)
    assert isinstance(lost, LedgerEntry)
    assert (lost.reason, lost.first, lost.last) == (Reason.OVERFLOW, 0, 0)
    assert finished == Finished(0, 1)
    assert machine.advance(0.0) == [Data(S, R, 1, 1, (b"1", b"2", b"3"))]


def test_the_newest_message_is_dropped_when_told_to_and_takes_no_index():
    machine = sender(*numbered(3), level=Level.STRICT, queue=3, on_full=OnFull.DROP_NEWEST)
    (lost,) = machine.push(b"3", 0.0)
    assert isinstance(lost, LedgerEntry)
    assert (lost.reason, lost.message) == (Reason.OVERFLOW, b"3")
    assert machine.next_index == 3


def test_what_is_done_is_forgotten():
    machine = sender(queue=10, window=10)
    for number in range(10_000):
        machine.push(b"x", 0.0)
        machine.advance(0.0)
        machine.receive(confirm(number + 1), 0.0)
        assert len(machine._messages) <= 2


# --- at the edges ---------------------------------------------------------------------------------------------------


def test_messages_that_fill_a_frame_exactly_share_it():
    machine = sender(b"x" * 46, b"y" * 46, max_bytes=100)
    assert [len(frame.messages) for frame in machine.advance(0.0)] == [2]  # type: ignore[union-attr]
    machine = sender(b"x" * 46, b"y" * 47, b"z" * 45, max_bytes=100)
    assert [len(frame.messages) for frame in machine.advance(0.0)] == [1, 2]  # type: ignore[union-attr]


def test_a_message_as_large_as_may_be_that_finds_no_room_is_told_of_the_room():
    machine = sender(b"x", max_bytes=50, queue=1)
    with pytest.raises(CapacityExceeded):
        machine.push(b"x" * 46, 0.0)


def test_a_receiver_that_restarts_while_nothing_is_under_way_costs_nothing():
    machine = sender(level=Level.STRICT)
    assert machine.receive(Welcome(S, R + 1, 100), 0.0) == []
    assert machine.state is SenderState.IDLE


def test_what_a_restarted_receiver_confirms_says_nothing_of_the_round_trip():
    machine = sender(*numbered(2), timeout=1.0, window=1, max_timeout=8.0)
    machine.advance(0.0)
    machine.receive(Welcome(S, R + 1, 100), 0.0)
    machine.advance(0.0)
    machine.advance(1.0)  # no answer: the timeout doubles
    machine.receive(confirm(1, peer=R + 1), 1.5)
    machine.advance(1.5)
    assert machine.deadline == 3.5


def test_giving_up_begins_the_waiting_anew():
    machine = sender(*numbered(4), level=Level.STRICT, window=2, timeout=1.0)
    machine.advance(0.0)
    machine.advance(1.0)
    deadlines = [machine.deadline]
    machine.advance(2.0)
    assert [*deadlines, machine.deadline] == [2.0, None]
    assert machine.state is SenderState.IDLE


def test_what_is_given_up_is_told_from_what_is_lost():
    machine = sender(*numbered(1), level=Level.STRICT, timeout=1.0)
    machine.advance(0.0)
    lost = machine.advance(1.0)[0]
    assert isinstance(lost, LedgerEntry)
    assert (lost.detail, lost.time, lost.epoch) == ("not confirmed in time", 1.0, S)


# --- what frames and entries say --------------------------------------------------------------------------------------


def test_a_greeting_carries_its_time_and_its_answer_tells_the_first_round_trip():
    machine = PipeSender(PipeOptions(confirm_every=1), S, first=0)
    assert machine.advance(1.0) == [Hello(S, stamp_of(1.0))]
    machine.receive(Welcome(S, R, 100, stamp_of(1.0)), 1.5)
    machine.push(b"a", 2.0)
    machine.advance(2.0)
    assert machine.deadline == pytest.approx(2.0 + 0.5 + 4 * 0.25)


def test_what_is_sent_again_on_request_says_which_request_it_answers():
    machine = sender(*numbered(3))
    machine.advance(0.0)
    assert machine.receive(confirm(0, 3, (1, 1), stamp=4.0), 5.0) == [
        Data(S, R, 0, 1, (b"1",), stamp_of(5.0), stamp_of(4.0))
    ]


def test_what_is_given_up_is_reported_with_its_time_and_its_numbers():
    machine = sender(*numbered(2), first=10, level=Level.STRICT)
    machine.advance(0.0)
    entry = LedgerEntry(None, S, Reason.LOST, 10, 11, 2, 5.0, "under way when the receiver restarted")
    assert machine.receive(Welcome(S, R + 1, 100), 5.0) == [entry, Finished(10, 12)]


def test_the_oldest_message_is_reported_and_the_others_are_waited_for():
    machine = sender(b"a", b"b", first=10, level=Level.STRICT, queue=2, on_full=OnFull.DROP_OLDEST, timeout=0.5)
    machine.advance(0.0)
    entry = LedgerEntry(None, S, Reason.OVERFLOW, 10, 10, 1, 5.0, "no room to keep it")
    assert machine.push(b"c", 5.0) == [entry, Finished(10, 11)]
    assert sent(machine.advance(5.0)) == [12]
    assert machine.deadline == 5.5


def test_the_newest_message_is_reported_with_what_it_says():
    machine = sender(b"a", first=10, level=Level.STRICT, queue=1, on_full=OnFull.DROP_NEWEST)
    entry = LedgerEntry(None, S, Reason.OVERFLOW, 11, 11, 1, 5.0, "no room to keep it", b"b")
    assert machine.push(b"b", 5.0) == [entry]
    assert (machine.kept, machine.next_index) == (1, 11)


def test_a_full_queue_says_what_to_do():
    with pytest.raises(CapacityExceeded) as refusal:
        sender(b"a", b"b", queue=1)
    assert refusal.value.message == (
        "no room for another message: 1 are not confirmed; wait until the receiver has taken some, "
        "or raise the queue of the pipe"
    )


def test_frames_hold_as_many_messages_as_allowed_and_as_fit_wherever_the_count_began():
    few = sender(*numbered(5), first=10, frame_messages=2)
    assert [frame.messages for frame in few.advance(0.0)] == [(b"0", b"1"), (b"2", b"3"), (b"4",)]  # type: ignore[union-attr]
    small = sender(*[b"x" * 6] * 3, first=10, max_bytes=20)
    assert [len(frame.messages) for frame in small.advance(0.0)] == [2, 1]  # type: ignore[union-attr]


def test_what_is_kept_is_right_after_some_was_confirmed_wherever_the_count_began():
    machine = sender(*numbered(8), first=10)
    machine.advance(0.0)
    for expected in range(11, 18):
        machine.receive(confirm(expected), 0.0)
        again = machine.receive(confirm(expected, 18, (expected, expected)), 0.0)
        assert [frame.messages for frame in again] == [(b"%d" % (expected - 10),)]  # type: ignore[union-attr]


def test_sixty_thousand_bytes_fit_into_a_frame_unless_told_otherwise():
    assert PipeSender(PipeOptions(), S).max_message == 60_000 - 4
