"""The receiving end of a pipe, frame by frame."""

from __future__ import annotations

from seriatim.core.guarantees import Level
from seriatim.core.pipes.protocol import Confirm, Data, DeliveredRun, Hello, PipeKind, PipeOptions, Welcome
from seriatim.core.pipes.receiver import MAX_RANGES, PipeReceiver, ReceiverState
from seriatim.core.pipes.round_trip import stamp_of
from seriatim.core.resequencing.options import LedgerEntry, OnGap, Reason

S, R = 7, 3


def receiver(position: int | None = None, **choices) -> PipeReceiver:
    return PipeReceiver(PipeOptions(**choices), R, position=position)


def data(first: int, *messages: bytes, floor: int = 0, epoch: int = S, peer: int = R) -> Data:
    return Data(epoch, peer, floor, first, messages)


def handed_over(effects) -> list[bytes]:
    return [message for effect in effects if isinstance(effect, DeliveredRun) for message in effect.messages]


def take(machine: PipeReceiver, frame: Data, now: float = 0.0) -> list[bytes]:
    """Receive a frame, and let the output take what it gives."""
    effects = machine.receive(frame, now)
    for effect in effects:
        if isinstance(effect, DeliveredRun):
            machine.settle(effect.first, effect.end)
    return handed_over(effects)


# --- sessions -------------------------------------------------------------------------------------------------------


def test_hello_is_answered_with_the_life_and_the_room_of_the_receiver():
    assert receiver(capacity=9).receive(Hello(S), 0.0) == [Welcome(S, R, 9)]


def test_data_for_another_life_of_the_receiver_is_answered_and_not_looked_at():
    machine = receiver()
    assert machine.receive(data(0, b"a", peer=R - 1), 0.0) == [Welcome(S, R, 4096)]
    assert machine.position is None
    assert take(machine, data(0, b"a")) == [b"a"]


def test_frames_of_an_old_epoch_of_the_sender_change_nothing():
    machine = receiver()
    take(machine, data(0, b"a", epoch=S))
    assert machine.receive(Hello(S - 1), 0.0) == []
    assert machine.receive(data(1, b"old", epoch=S - 1), 0.0) == []
    assert machine.position == 1


def test_a_hello_is_enough_to_fence_the_former_life_of_a_sender():
    machine = receiver()
    machine.receive(Hello(S + 1), 0.0)
    assert machine.receive(data(0, b"old"), 0.0) == []
    assert machine.sender == S + 1


def test_a_receiver_without_memory_begins_at_the_floor():
    machine = receiver()
    assert machine.state is ReceiverState.NEW
    assert machine.receive(data(12, b"c", floor=10), 0.0) == []
    assert machine.missing == ((10, 11),)
    assert take(machine, data(10, b"a", b"b", floor=10)) == [b"a", b"b", b"c"]


def test_a_receiver_that_remembers_drops_what_it_had_handed_over():
    machine = receiver(position=12)
    assert take(machine, data(10, b"a", b"b", b"c", floor=10)) == [b"c"]


def test_a_sender_that_kept_its_messages_goes_on_in_a_new_session():
    machine = receiver()
    take(machine, data(0, b"a"))
    machine.receive(data(2, b"c"), 0.0)
    assert take(machine, data(1, b"b", epoch=S + 1)) == [b"b", b"c"]


def test_a_sender_without_memory_begins_again_above_and_what_was_held_is_handed_over():
    machine = receiver(level=Level.STRICT, gap_timeout=100.0)
    take(machine, data(0, b"a"))
    machine.receive(data(2, b"c"), 0.0)
    effects = machine.receive(data(1000, b"x", floor=1000, epoch=S + 1), 1.0)
    assert handed_over(effects) == [b"c", b"x"]
    (lost,) = [effect for effect in effects if isinstance(effect, LedgerEntry)]
    assert (lost.reason, lost.first, lost.last) == (Reason.LOST, 1, 1)


# --- order ----------------------------------------------------------------------------------------------------------


def test_messages_are_handed_over_in_index_order_and_each_once():
    machine = receiver()
    assert take(machine, data(0, b"0", b"1")) == [b"0", b"1"]
    assert take(machine, data(4, b"4")) == []
    assert take(machine, data(2, b"2")) == [b"2"]
    assert take(machine, data(1, b"1", b"2", b"3")) == [b"3", b"4"]
    assert take(machine, data(3, b"3", b"4")) == []


def test_a_repeat_of_the_last_message_stays_in_place_where_repeats_are_allowed():
    machine = receiver(level=Level.CONTINUOUS)
    assert take(machine, data(0, b"0", b"1")) == [b"0", b"1"]
    assert take(machine, data(1, b"1")) == [b"1"]
    assert take(machine, data(0, b"0")) == [], "1, 2, 1 would be an inversion"
    assert take(machine, data(2, b"2")) == [b"2"]


def test_a_repeat_is_not_handed_over_while_the_output_is_behind():
    machine = receiver(level=Level.CONTINUOUS)
    machine.receive(data(0, b"0"), 0.0)
    assert machine.receive(data(0, b"0"), 0.0) == []
    machine.settle(0, 1)
    assert handed_over(machine.receive(data(0, b"0"), 0.0)) == [b"0"]


def test_a_resend_pipe_hands_over_at_once_what_arrives_each_once():
    machine = receiver(kind=PipeKind.RESEND)
    assert take(machine, data(2, b"2")) == [b"2"]
    assert take(machine, data(0, b"0")) == [b"0"]
    assert take(machine, data(0, b"0", b"1", b"2", b"3")) == [b"1", b"3"]
    assert machine.position == 4


# --- confirmations --------------------------------------------------------------------------------------------------


def test_only_what_the_output_has_taken_is_confirmed():
    machine = receiver(confirm_every=1)
    machine.receive(data(0, b"0", b"1", b"2"), 0.0)
    assert machine.advance(0.0) == []
    machine.settle(0, 2)
    assert machine.advance(0.0) == [Confirm(S, R, 2, 3)]
    assert machine.deadline is None


def test_a_confirmation_waits_for_more_for_a_moment():
    machine = receiver(confirm_every=3, confirm_after=0.5)
    take(machine, data(0, b"0"), now=1.0)
    assert (machine.advance(1.0), machine.deadline) == ([], 1.5)
    take(machine, data(1, b"1"), now=1.4)
    assert machine.advance(1.5) == [Confirm(S, R, 2, 2)]
    take(machine, data(2, b"2", b"3", b"4"), now=2.0)
    assert machine.advance(2.0) == [Confirm(S, R, 5, 5)]


def test_a_duplicate_is_confirmed_again_at_once_without_being_handed_over():
    machine = receiver(confirm_every=1)
    take(machine, data(0, b"0"))
    machine.advance(0.0)
    assert take(machine, data(0, b"0"), now=1.0) == []
    assert machine.advance(1.0) == [Confirm(S, R, 1, 1)]


def test_a_sender_that_asks_hears_where_the_receiver_stands():
    machine = receiver()
    machine.receive(data(0, b"0"), 0.0)
    machine.receive(data(1), 0.0)
    assert machine.advance(0.0) == [Confirm(S, R, 0, 1)]


def test_missing_lower_indexes_are_asked_for_with_backoff_until_one_comes():
    machine = receiver(request_after=1.0, max_timeout=4.0)
    take(machine, data(0, b"0"))
    machine.advance(10.0)
    machine.receive(data(3, b"3"), 10.0)
    machine.receive(data(5, b"5"), 10.5)
    times = []
    for _ in range(4):
        assert machine.deadline is not None
        times.append(machine.deadline)
        (asked,) = machine.advance(times[-1])
        assert asked == Confirm(S, R, 1, 6, ((1, 2), (4, 4)), stamp=stamp_of(times[-1]))
    assert times == [11.0, 12.0, 14.0, 18.0]
    take(machine, data(1, b"1"), now=19.5)
    assert machine.deadline is not None
    assert machine.deadline <= 20.5, "soon again, for something has come"
    take(machine, data(2, b"2"), now=19.6)
    take(machine, data(4, b"4"), now=19.6)
    assert machine.state is ReceiverState.FLOWING


def test_a_request_has_a_bounded_number_of_ranges():
    machine = receiver(request_after=0.0)
    for index in range(1, 1_000, 2):
        machine.receive(data(index, b"x"), 0.0)
    (asked,) = [effect for effect in machine.advance(1.0) if isinstance(effect, Confirm)]
    assert len(asked.missing) == MAX_RANGES
    small = PipeReceiver(PipeOptions(request_after=0.0), R, max_ranges=2)
    for index in range(1, 1_000, 2):
        small.receive(data(index, b"x"), 0.0)
    (asked,) = [effect for effect in small.advance(1.0) if isinstance(effect, Confirm)]
    assert asked.missing == ((0, 0), (2, 2))


def test_a_pipe_that_sends_nothing_again_is_asked_for_nothing():
    machine = receiver(level=Level.STRICT, gap_timeout=5.0)
    machine.receive(data(1, b"1"), 0.0)
    assert machine.advance(4.0) == []
    assert machine.deadline == 5.0


# --- giving up ------------------------------------------------------------------------------------------------------


def test_a_strict_pipe_gives_up_a_gap_after_its_timeout_and_says_so():
    machine = receiver(level=Level.STRICT, gap_timeout=5.0)
    machine.receive(data(1, b"1"), 0.0)
    lost, delivered, confirm = machine.advance(5.0)
    assert isinstance(lost, LedgerEntry)
    assert (lost.reason, lost.first, lost.last) == (Reason.LOST, 0, 0)
    assert delivered == DeliveredRun(1, (b"1",))
    assert isinstance(confirm, Confirm)
    assert confirm.expected == 1
    machine.settle(1, 2)
    assert machine.position == 2


def test_a_number_that_was_given_up_and_comes_late_is_reported_and_not_handed_over():
    machine = receiver(level=Level.STRICT, gap_timeout=5.0)
    machine.receive(data(1, b"1"), 0.0)
    machine.advance(5.0)
    (late,) = machine.receive(data(0, b"0"), 6.0)
    assert isinstance(late, LedgerEntry)
    assert (late.reason, late.message) == (Reason.LATE, b"0")


def test_nothing_below_the_floor_is_waited_for():
    machine = receiver(level=Level.STRICT, on_gap=OnGap.SKIP, gap_timeout=100.0)
    take(machine, data(0, b"0"))
    machine.receive(data(3, b"3"), 0.0)
    machine.receive(data(7, b"7"), 0.0)
    effects = machine.receive(data(6, b"6", floor=5), 1.0)
    assert handed_over(effects) == [b"3"]
    assert [(entry.first, entry.last) for entry in effects if isinstance(entry, LedgerEntry)] == [(1, 2), (4, 4)]
    assert handed_over(machine.receive(data(5, b"5", floor=5), 1.0)) == [b"5", b"6", b"7"]
    machine.settle(0, 8)
    assert machine.position == 8


def test_a_sender_that_does_not_keep_to_the_room_fills_nobodys_memory():
    machine = receiver(capacity=10)
    assert machine.receive(data(1, *[b"x"] * 9), 0.0) == []
    assert machine.receive(data(8, b"x", b"x", b"x"), 0.0) == []
    assert machine.missing == ((0, 0),)
    strict = receiver(level=Level.STRICT, capacity=10)
    (dropped,) = strict.receive(data(8, b"x", b"x", b"x"), 0.0)
    assert isinstance(dropped, LedgerEntry)
    assert (dropped.reason, dropped.first, dropped.last) == (Reason.OVERFLOW, 8, 10)


def test_numbers_given_up_while_the_output_is_behind_are_confirmed_after_what_waits():
    machine = receiver(level=Level.STRICT, gap_timeout=1.0)
    machine.receive(data(0, b"0"), 0.0)
    machine.receive(data(2, b"2"), 0.0)
    machine.advance(1.0)
    assert machine.position == 0
    machine.settle(0, 1)
    assert machine.position == 2, "1 was given up, and nothing before it waits"
    machine.settle(2, 3)
    assert machine.position == 3


def test_a_receiver_that_goes_away_says_what_was_taken():
    machine = receiver(confirm_every=100, confirm_after=100.0)
    assert machine.farewell(0.0) == []
    assert receiver(position=7).farewell(0.0) == [], "nobody is there to hear it"
    take(machine, data(0, b"0", b"1"))
    assert machine.farewell(0.0) == [Confirm(S, R, 2, 2)]
    assert machine.farewell(0.0) == []


# --- what frames and entries say --------------------------------------------------------------------------------------


def test_a_welcome_and_a_confirmation_echo_the_stamp_that_they_answer():
    machine = receiver()
    assert machine.receive(Hello(S, 77), 0.0) == [Welcome(S, R, 4096, 77)]
    machine.receive(Data(S, R, 0, 0, (b"a",), 88), 0.0)
    machine.receive(Data(S, R, 0, 1, (), 99), 0.0)
    assert machine.advance(0.0) == [Confirm(S, R, 0, 1, (), 0, 99)]


def test_a_last_confirmation_asks_for_nothing():
    machine = receiver()
    machine.receive(Hello(S), 0.0)
    assert machine.farewell(0.0) == []
    take(machine, data(0, b"a"))
    machine.receive(data(2, b"c"), 0.0)
    assert machine.farewell(9.0) == [Confirm(S, R, 1, 3, (), 0, 0)]


def test_room_and_confirmations_count_from_where_the_receiver_stands():
    machine = receiver(position=5000, confirm_every=2, confirm_after=0.5)
    assert take(machine, data(5000, b"a", floor=5000)) == [b"a"]
    assert machine.deadline == 0.5, "one message is confirmed after a moment"
    assert take(machine, data(5001, b"b", floor=5000)) == [b"b"]
    assert machine.advance(0.0) == [Confirm(S, R, 5002, 5002, (), 0, 0)]


def test_a_request_waits_for_the_round_trip_that_an_answer_told():
    machine = receiver(request_after=0.02)
    machine.receive(Data(S, R, 0, 0, (b"a",), 0, stamp_of(1.0)), 2.0)
    machine.receive(data(2, b"c"), 2.0)
    assert machine.deadline == 2.02
    machine.advance(2.02)
    machine.settle(0, 1)
    machine.advance(2.5)
    assert machine.deadline == 2.02 + 1.0 + 4 * 0.5


def test_traffic_that_brings_nothing_of_what_is_missing_makes_no_request_sooner():
    machine = receiver(request_after=0.02, min_timeout=0.02)
    machine.receive(data(0, b"a"), 0.0)
    machine.receive(data(2, b"c"), 0.0)
    for now in (0.02, 0.04):
        machine.advance(now)
    assert machine.deadline == 0.08
    machine.receive(data(3, b"d"), 0.05)
    assert machine.deadline == 0.08
    machine.receive(data(5, b"f"), 0.051)
    machine.receive(data(1, b"b"), 0.052)
    assert machine.deadline == 0.072, "4 is missing now, and may be on its way"


def test_what_is_given_up_and_what_finds_no_room_is_reported_with_time_and_numbers():
    machine = receiver(level=Level.STRICT, capacity=4)
    machine.receive(data(0, b"a"), 0.0)
    machine.receive(data(2, b"c"), 0.0)
    effects = machine.receive(data(7, b"h", b"i", floor=2), 3.0)
    assert effects == [
        LedgerEntry(None, 0, Reason.LOST, 1, 1, 1, 3.0, "the sender gave it up"),
        DeliveredRun(2, (b"c",)),
        LedgerEntry(None, S, Reason.OVERFLOW, 7, 8, 2, 3.0, "the output takes too long"),
    ]
