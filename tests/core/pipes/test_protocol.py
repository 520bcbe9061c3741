"""Options of pipes, and what is left of a guarantee behind one."""

from __future__ import annotations

import pytest

from seriatim.core.guarantees import Guarantee, Level, Stage, compose
from seriatim.core.pipes.protocol import OnFull, PipeKind, PipeOptions, across_crashes, first_index, pipe_stage
from seriatim.core.pipes.round_trip import RoundTrip, stamp_of
from seriatim.core.resequencing.options import OnGap
from seriatim.errors import InvalidArgument

NOTHING = Stage("radio", Guarantee.NONE, reliability=0.5)
LOSSLESS = Stage("cluster", Guarantee.NO_LOSS)
PERFECT = Stage("local", Guarantee.ABSOLUTE)
LEVELS = [*Level][1:]


# --- options --------------------------------------------------------------------------------------------------------


def test_a_pipe_is_indexed_and_absolute_unless_told_otherwise():
    options = PipeOptions()
    assert (options.kind, options.level, options.resends, options.is_strict) == ("indexed", "absolute", True, True)


def test_choices_may_be_given_as_text():
    options = PipeOptions("sequential", "strict", on_full="drop-oldest", on_gap="skip")  # type: ignore[arg-type]
    assert (options.kind, options.level) == (PipeKind.SEQUENTIAL, Level.STRICT)
    assert (options.on_full, options.on_gap) == (OnFull.DROP_OLDEST, OnGap.SKIP)


def test_a_sequential_pipe_has_one_message_under_way_whatever_window_was_asked_for():
    options = PipeOptions(PipeKind.SEQUENTIAL, window=100)
    assert (options.window, options.confirmation_interval) == (1, 1)


def test_confirmations_come_four_times_in_a_window_unless_told_otherwise():
    assert PipeOptions(window=100).confirmation_interval == 25
    assert PipeOptions(window=100, confirm_every=7).confirmation_interval == 7


@pytest.mark.parametrize(
    ("level", "policy", "patience"),
    [
        (Level.MONOTONIC, OnGap.SKIP, 1.0),
        (Level.STRICT, OnGap.SKIP, 1.0),
        (Level.CONTINUOUS, OnGap.REQUEST, None),
        (Level.ABSOLUTE, OnGap.REQUEST, None),
    ],
)
def test_what_is_missing_is_asked_for_where_nothing_may_be_lost_and_given_up_otherwise(level, policy, patience):
    options = PipeOptions(level=level)
    assert (options.gap_policy, options.patience) == (policy, patience)


def test_a_pipe_may_wait_for_what_is_missing():
    options = PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD)
    assert (options.gap_policy, options.patience) == (OnGap.HOLD, None)


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"level": "none"}, "a pipe of level 'none' restores nothing: use the bare route"),
        ({"level": "best"}, "level must be one of 'none', 'monotonic', 'strict', 'continuous', 'absolute', not 'best'"),
        ({"kind": "tcp"}, "kind must be one of 'sequential', 'indexed', 'resend', not 'tcp'"),
        ({"window": 0}, "window must be a whole number of 1 or more, not 0"),
        ({"queue": 0}, "queue must be a whole number of 1 or more, not 0"),
        ({"capacity": 0}, "capacity must be a whole number of 1 or more, not 0"),
        ({"frame_messages": 0}, "frame_messages must be a whole number of 1 or more, not 0"),
        ({"confirm_every": 0}, "confirm_every must be a whole number of 1 or more, not 0"),
        ({"timeout": 0}, "timeout must be above 0 and up to max_timeout (5.0), not 0"),
        ({"timeout": 9.0}, "timeout must be above 0 and up to max_timeout (5.0), not 9.0"),
        ({"request_after": -1}, "request_after must be a finite number of 0 or more, not -1"),
        ({"on_gap": "wait"}, "on_gap must be one of 'skip', 'hold', 'dead-letter', 'request', not 'wait'"),
        (
            {"on_gap": "dead-letter", "level": "strict"},
            "a pipe has no dead letters: choose on_gap='request', 'skip' or 'hold'",
        ),
        (
            {"on_gap": "request", "level": "strict"},
            "strict pipes never resend: ask for level 'continuous' or 'absolute'",
        ),
        ({"on_gap": "skip"}, "absolute indexed pipes never give up a number: leave out on_gap and gap_timeout"),
        (
            {"gap_timeout": 1.0, "level": "continuous"},
            "continuous indexed pipes never give up a number: leave out on_gap and gap_timeout",
        ),
        (
            {"gap_timeout": 1.0, "kind": "resend"},
            "resend pipes never give up a number: leave out on_gap and gap_timeout",
        ),
        ({"on_full": "drop-oldest"}, "absolute indexed pipes drop nothing: choose on_full='wait' or 'raise'"),
        (
            {"on_full": "drop-newest", "kind": "resend"},
            "resend pipes drop nothing: choose on_full='wait' or 'raise'",
        ),
        (
            {"on_gap": "hold", "gap_timeout": 1.0, "level": "strict"},
            "on_gap='hold' waits for ever: leave out gap_timeout, or choose 'skip'",
        ),
        ({"gap_timeout": -1.0, "level": "strict"}, "gap_timeout must be a finite number of 0 or more, not -1.0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(choices, complaint):
    with pytest.raises(InvalidArgument) as refusal:
        PipeOptions(**choices)
    assert refusal.value.message == complaint


def measured(trip: RoundTrip, seconds: float) -> float:
    """The timeout after many round trips of the same length."""
    for number in range(1, 200):
        trip.measure(stamp_of(number), number + seconds)
    return trip.timeout


def test_a_sender_waits_for_the_round_trip_and_for_the_time_by_which_a_confirmation_may_be_held_back():
    options = PipeOptions(timeout=5.0, max_timeout=5.0, min_timeout=0.5, confirm_after=0.3)
    assert options.confirmation_round_trip().timeout == 5.0
    assert measured(options.confirmation_round_trip(), 1.0) == pytest.approx(1.3)
    assert measured(options.confirmation_round_trip(), 0.0) == 0.5
    at_once = PipeOptions(timeout=5.0, min_timeout=0.5, confirm_after=0.3, confirm_every=1)
    assert measured(at_once.confirmation_round_trip(), 1.0) == pytest.approx(1.0)


def test_a_sender_that_gives_up_waits_for_its_timeout_at_least():
    options = PipeOptions(level=Level.STRICT, timeout=0.4, min_timeout=0.01)
    assert measured(options.confirmation_round_trip(), 0.001) == 0.4


def test_a_receiver_waits_for_what_it_asked_for_within_the_limits_of_the_pipe():
    options = PipeOptions(request_after=0.2, min_timeout=0.1, max_timeout=3.0)
    assert options.request_round_trip().timeout == 0.2
    assert measured(options.request_round_trip(), 0.0) == 0.1
    assert measured(options.request_round_trip(), 9.0) == 3.0
    assert PipeOptions(request_after=0.0, min_timeout=0.1).request_round_trip().timeout == 0.1


def test_a_sender_without_memory_begins_above_everything_of_its_former_lives():
    assert first_index(8) > first_index(7) + 1_000_000_000


# --- stages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PipeKind.SEQUENTIAL, PipeKind.INDEXED])
@pytest.mark.parametrize("level", LEVELS)
def test_a_pipe_over_the_worst_of_routes_gives_its_level(kind, level):
    assert compose([pipe_stage(PipeOptions(kind, level), NOTHING)]).level is level


def test_a_resend_pipe_restores_completeness_and_gives_up_the_order():
    options = PipeOptions(PipeKind.RESEND)
    for route in (NOTHING, PERFECT):
        assert pipe_stage(options, route).passes == Guarantee.NO_LOSS | Guarantee.NO_DUPLICATE


def test_a_pipe_over_a_perfect_route_keeps_what_it_does_not_break():
    passes = {level: pipe_stage(PipeOptions(level=level), PERFECT).passes for level in LEVELS}
    assert passes == {
        Level.MONOTONIC: Guarantee.STRICT,  # it may skip what is late
        Level.STRICT: Guarantee.STRICT,
        Level.CONTINUOUS: Guarantee.CONTINUOUS,  # its resends may repeat
        Level.ABSOLUTE: Guarantee.ABSOLUTE,
    }


def test_a_strict_pipe_that_waits_is_absolute_over_a_route_that_loses_nothing():
    waits = PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD)
    assert pipe_stage(waits, LOSSLESS).passes == Guarantee.ABSOLUTE
    assert pipe_stage(PipeOptions(level=Level.STRICT), LOSSLESS).passes == Guarantee.STRICT


def test_dropping_when_full_is_a_loss():
    drops = PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD, on_full=OnFull.DROP_NEWEST)
    assert pipe_stage(drops, LOSSLESS).passes == Guarantee.STRICT


def test_resend_inside_index_is_absolute_and_resend_around_index_is_not():
    index, again = PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD), PipeOptions(PipeKind.RESEND)
    inside = pipe_stage(index, pipe_stage(again, NOTHING))
    assert compose([inside]).level is Level.ABSOLUTE
    around = pipe_stage(again, pipe_stage(PipeOptions(level=Level.STRICT), NOTHING))
    assert compose([around]).guarantee == Guarantee.NO_LOSS | Guarantee.NO_DUPLICATE
    assert compose([around]).level is Level.NONE


@pytest.mark.parametrize(
    ("kind", "sender", "receiver", "left"),
    [
        (PipeKind.INDEXED, True, True, Guarantee.ABSOLUTE),
        (PipeKind.SEQUENTIAL, True, True, Guarantee.ABSOLUTE),
        (PipeKind.INDEXED, False, True, Guarantee.STRICT),
        (PipeKind.INDEXED, True, False, Guarantee.NO_LOSS),
        (PipeKind.SEQUENTIAL, True, False, Guarantee.CONTINUOUS),
        (PipeKind.SEQUENTIAL, False, False, Guarantee.MONOTONIC),
        (PipeKind.INDEXED, False, False, Guarantee.NONE),
    ],
)
def test_what_a_crash_leaves_of_an_absolute_pipe_depends_on_what_its_ends_remember(kind, sender, receiver, left):
    options = PipeOptions(kind)
    stage = across_crashes(pipe_stage(options, NOTHING), options, durable_sender=sender, durable_receiver=receiver)
    assert stage.passes == left


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        (
            PipeOptions(),
            "absolute indexed pipe over radio",
            "sorts by index, sends again what is not confirmed, drops repeats",
        ),
        (
            PipeOptions(PipeKind.SEQUENTIAL, Level.CONTINUOUS),
            "continuous sequential pipe over radio",
            "one message under way, sends again what is not confirmed, a repeat stays in place",
        ),
        (
            PipeOptions(level=Level.STRICT, window=2),
            "strict indexed pipe over radio",
            "sorts by index, gives up what is late, drops repeats",
        ),
        (
            PipeOptions(level=Level.STRICT, on_gap=OnGap.HOLD),
            "strict indexed pipe over radio",
            "sorts by index, waits for what is missing, drops repeats",
        ),
        (
            PipeOptions(PipeKind.RESEND),
            "resend pipe over radio",
            "sends again what is not confirmed, and hands over at once what arrives",
        ),
    ],
)
def test_a_stage_says_how_its_pipe_works(options, name, why):
    stage = pipe_stage(options, NOTHING)
    assert (stage.name, stage.why) == (name, why)


NO_OUTBOX = "what is not confirmed dies with its sender (no outbox)"
NO_TOPIC = "a receiver that restarts hands over again what is not confirmed (no topic as output)"


@pytest.mark.parametrize(
    ("sender", "receiver", "why"),
    [
        (True, True, "outbox, and output and position in one transaction"),
        (False, True, NO_OUTBOX),
        (True, False, NO_TOPIC),
        (False, False, f"{NO_OUTBOX}; {NO_TOPIC}"),
    ],
)
def test_a_stage_says_what_a_crash_costs_and_keeps_its_name_and_reliability(sender, receiver, why):
    alive = Stage("pipe", Guarantee.STRICT, reliability=0.5)
    stage = across_crashes(alive, PipeOptions(), durable_sender=sender, durable_receiver=receiver)
    assert (stage.name, stage.reliability, stage.why) == ("pipe", 0.5, why)


def test_two_messages_under_way_are_enough_for_an_inversion_after_a_crash():
    options = PipeOptions(window=2)
    stage = across_crashes(pipe_stage(options, NOTHING), options, durable_sender=True, durable_receiver=False)
    assert stage.passes == Guarantee.NO_LOSS


def test_a_pipe_that_gives_up_stays_strict_across_crashes_of_ends_without_memory():
    options = PipeOptions(level=Level.STRICT)
    alive = pipe_stage(options, NOTHING)
    stage = across_crashes(alive, options, durable_sender=False, durable_receiver=False)
    assert stage.passes == Guarantee.STRICT
    assert stage.why == f"{NO_OUTBOX}; what is not confirmed when its receiver restarts is given up"
