"""Options of pipes, and what is left of a guarantee behind one."""

from __future__ import annotations

import pytest

from seriatim.core.guarantees import Guarantee, Level, Stage, compose
from seriatim.core.pipes import OnFull, PipeKind, PipeOptions, across_crashes, first_index, pipe_stage
from seriatim.core.resequencing import OnGap
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
        ({"queue": 0}, "queue must be"),
        ({"capacity": 0}, "capacity must be"),
        ({"frame_messages": 0}, "frame_messages must be"),
        ({"confirm_every": 0}, "confirm_every must be"),
        ({"timeout": 0}, "timeout must be above 0 and up to max_timeout"),
        ({"timeout": 9.0}, "timeout must be above 0 and up to max_timeout"),
        ({"request_after": -1}, "request_after must be"),
        ({"on_gap": "dead-letter", "level": "strict"}, "a pipe has no dead letters"),
        ({"on_gap": "request", "level": "strict"}, "strict pipes send nothing again"),
        ({"on_gap": "skip"}, "absolute indexed pipes give no number up"),
        ({"gap_timeout": 1.0, "level": "continuous"}, "give no number up"),
        ({"gap_timeout": 1.0, "kind": "resend"}, "resend pipes give no number up"),
        ({"on_full": "drop-oldest"}, "pipes drop nothing: choose on_full='wait' or 'raise'"),
        ({"on_full": "drop-newest", "kind": "resend"}, "drop nothing"),
        ({"on_gap": "hold", "gap_timeout": 1.0, "level": "strict"}, "on_gap='hold' waits for ever"),
        ({"gap_timeout": -1.0, "level": "strict"}, "gap_timeout must be"),
    ],
)
def test_options_that_contradict_each_other_are_refused(choices, complaint):
    with pytest.raises(InvalidArgument) as refusal:
        PipeOptions(**choices)
    assert complaint in str(refusal.value)


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


def test_a_pipe_that_gives_up_stays_strict_across_crashes_of_ends_without_memory():
    options = PipeOptions(level=Level.STRICT)
    alive = pipe_stage(options, NOTHING)
    stage = across_crashes(alive, options, durable_sender=False, durable_receiver=False)
    assert stage.passes == Guarantee.STRICT
    assert "is given up" in stage.why
