"""Guarantees: the lattice of levels, chains of stages, and verdicts on observed traces."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import FrozenInstanceError
from itertools import product
from math import nan
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.guarantees import (
    Composition,
    DeliveryMode,
    Guarantee,
    Level,
    Stage,
    compose,
    enclose,
    level,
    meet,
    together,
)
from seriatim.core.sequence import SequenceSpace
from seriatim.core.traces import TraceChecker, Witness, classify
from seriatim.errors import GuaranteeNotMet, InvalidArgument, InvalidSequence

NONE, MONOTONIC, STRICT = Guarantee.NONE, Guarantee.MONOTONIC, Guarantee.STRICT
CONTINUOUS, ABSOLUTE = Guarantee.CONTINUOUS, Guarantee.ABSOLUTE
NO_INVERSION, NO_DUPLICATE, NO_LOSS = Guarantee.NO_INVERSION, Guarantee.NO_DUPLICATE, Guarantee.NO_LOSS

all_guarantees = st.integers(0, 7).map(Guarantee)


# --- the lattice --------------------------------------------------------------------------------------------------


def test_the_bits_have_the_values_that_are_stored() -> None:
    values = [NONE, NO_INVERSION, NO_DUPLICATE, NO_LOSS, MONOTONIC, STRICT, CONTINUOUS, ABSOLUTE]
    assert [int(value) for value in values] == [0, 1, 2, 4, 1, 3, 5, 7]


def test_every_combination_of_bits_has_a_level_and_levels_need_no_inversion() -> None:
    assert [level(Guarantee(bits)) for bits in range(8)] == [
        Level.NONE,
        Level.MONOTONIC,
        Level.NONE,
        Level.STRICT,
        Level.NONE,
        Level.CONTINUOUS,
        Level.NONE,
        Level.ABSOLUTE,
    ]


def test_a_level_is_spelled_as_in_the_docs_and_knows_its_bits() -> None:
    assert [(str(named), named.guarantee) for named in Level] == [
        ("none", NONE),
        ("monotonic", MONOTONIC),
        ("strict", STRICT),
        ("continuous", CONTINUOUS),
        ("absolute", ABSOLUTE),
    ]


def test_in_words_names_the_level_and_the_bits_that_have_no_level() -> None:
    assert [Guarantee(bits).in_words() for bits in range(8)] == [
        "none",
        "monotonic",
        "none (no duplicate)",
        "strict",
        "none (no loss)",
        "continuous",
        "none (no duplicate, no loss)",
        "absolute",
    ]


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ("monotonic", "monotonic", "monotonic"),
        ("monotonic", "strict", "monotonic"),
        ("monotonic", "continuous", "monotonic"),
        ("monotonic", "absolute", "monotonic"),
        ("strict", "strict", "strict"),
        ("strict", "continuous", "monotonic"),
        ("strict", "absolute", "strict"),
        ("continuous", "continuous", "continuous"),
        ("continuous", "absolute", "continuous"),
        ("absolute", "absolute", "absolute"),
        *[("none", other, "none") for other in Level],
    ],
)
def test_pipelining_two_levels_in_either_order(first: str, second: str, result: str) -> None:
    one, other = Level(first).guarantee, Level(second).guarantee
    assert level(meet(one, other)) == level(meet(other, one)) == result


def test_the_pipelining_table_in_the_docs_is_the_meet_of_every_pair() -> None:
    text = (Path(__file__).parents[2] / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    columns = next(row for row in rows if row[0] == "then →")
    shown = {row[0]: row for row in rows if len(row) == 6 and {*row} <= {*Level}}
    expected = {
        first: [first, *(level(meet(first.guarantee, Level(second).guarantee)) for second in columns[1:])]
        for first in Level
    }
    assert columns[1:] == list(Level)
    assert shown == expected


def test_pipelining_keeps_bits_that_have_no_level_of_their_own() -> None:
    assert meet(ABSOLUTE, NO_LOSS) == NO_LOSS


# --- delivery modes -----------------------------------------------------------------------------------------------


def test_a_delivery_mode_says_nothing_about_order() -> None:
    assert {str(mode): mode.guarantee for mode in DeliveryMode} == {
        "best_effort": NONE,
        "at_most_once": NO_DUPLICATE,
        "at_least_once": NO_LOSS,
        "exactly_once": NO_DUPLICATE | NO_LOSS,
    }


@pytest.mark.parametrize(
    ("mode", "ordered"),
    [
        ("best_effort", "monotonic"),
        ("at_most_once", "strict"),
        ("at_least_once", "continuous"),
        ("exactly_once", "absolute"),
    ],
)
def test_a_delivery_mode_together_with_ordering(mode: str, ordered: str) -> None:
    assert level(together(MONOTONIC, DeliveryMode(mode))) == ordered
    assert level(together(NONE, DeliveryMode(mode))) == "none"


# --- stages -------------------------------------------------------------------------------------------------------


def test_a_stage_by_default_restores_nothing_and_loses_nothing() -> None:
    stage = Stage("relay", ABSOLUTE)
    assert (stage.restores, stage.reliability, stage.why) == (NONE, 1.0, "")
    with pytest.raises(FrozenInstanceError):
        stage.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("restores", [NO_LOSS, CONTINUOUS, ABSOLUTE])
def test_a_stage_cannot_restore_no_loss(restores: Guarantee) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Stage("sorter", ABSOLUTE, restores=restores)
    assert str(refusal.value) == (
        "stage 'sorter' cannot restore no loss: what is lost before a stage never reaches it;"
        " put a pipe with resends around the route instead (enclose)"
    )


@pytest.mark.parametrize("reliability", [-0.1, 1.1, nan])
def test_a_reliability_outside_zero_to_one_is_refused(reliability: float) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Stage("radio", NONE, reliability=reliability)
    assert str(refusal.value) == f"reliability of stage 'radio' must be from 0 to 1, not {reliability!r}"


@pytest.mark.parametrize("reliability", [0.0, 1.0])
def test_a_reliability_of_exactly_zero_or_one_is_fine(reliability: float) -> None:
    assert Stage("radio", STRICT, reliability=reliability).reliability == reliability


def test_no_loss_with_a_reliability_below_one_is_a_contradiction() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Stage("radio", together(MONOTONIC, DeliveryMode.AT_LEAST_ONCE), reliability=0.99)
    assert str(refusal.value) == "stage 'radio' cannot promise no loss with a reliability of 0.99, below 1"


def test_a_stage_keeps_what_it_passes_and_adds_what_it_restores() -> None:
    stage = Stage("sorter", passes=NO_LOSS | NO_DUPLICATE, restores=NO_INVERSION)
    assert [stage.after(Guarantee(bits)) for bits in range(8)] == [1, 1, 3, 3, 5, 5, 7, 7]


# --- chains -------------------------------------------------------------------------------------------------------

MQTT = Stage("mqtt", CONTINUOUS, why="QoS 1 repeats")
CLUSTER = Stage("cluster", NO_DUPLICATE | NO_LOSS, why="brokers race")
RADIO = Stage("radio", STRICT, reliability=0.5)
SORTER = Stage("sorter", ABSOLUTE, restores=NO_INVERSION, why="sorts by seq")
DEDUPER = Stage("deduper", ABSOLUTE, restores=NO_DUPLICATE)


def test_an_empty_chain_is_local_delivery_and_absolute() -> None:
    local = compose([])
    assert (local.guarantee, local.level, local.reliability) == (ABSOLUTE, "absolute", 1.0)
    assert local.describe() == ["source: absolute", "end to end: absolute, reliability 1"]
    local.require(Level.ABSOLUTE)


def test_an_empty_chain_changes_nothing_about_its_source() -> None:
    assert compose([], source=NO_LOSS).guarantee == NO_LOSS


@given(st.lists(all_guarantees, max_size=5))
def test_a_chain_without_restoring_stages_gives_the_meet_of_all(guarantees: list[Guarantee]) -> None:
    chain = compose(Stage("stage", passes) for passes in guarantees)
    expected = ABSOLUTE
    for passes in guarantees:
        expected &= passes
    assert chain.guarantee == expected
    assert chain.level == level(expected)


def test_order_is_restored_downstream_and_no_loss_survives_disorder() -> None:
    chain = compose([CLUSTER, SORTER])
    assert [step.guarantee for step in chain.steps] == [NO_DUPLICATE | NO_LOSS, ABSOLUTE]


def test_reliability_multiplies() -> None:
    chain = compose([RADIO, MQTT, Stage("fog", NONE, reliability=0.8)])
    assert [step.reliability for step in chain.steps] == [0.5, 0.5, 0.4]
    assert chain.reliability == 0.4


def test_each_step_says_what_it_lost_and_restored_and_why() -> None:
    chain = compose(
        [MQTT, CLUSTER, RADIO, Stage("swap", NO_LOSS, restores=NO_DUPLICATE | NO_INVERSION)], source=ABSOLUTE
    )
    assert [(step.lost, step.restored) for step in chain.steps] == [
        (NO_DUPLICATE, NONE),
        (NO_INVERSION, NONE),
        (NO_LOSS, NONE),
        (NONE, STRICT),
    ]
    assert [step.reason for step in chain.steps] == [
        "gives up no duplicate: QoS 1 repeats",
        "gives up no inversion: brokers race",
        "gives up no loss",
        "restores no inversion, no duplicate",
    ]


def test_a_step_may_lose_and_restore_at_once_or_change_nothing() -> None:
    chain = compose(
        [CLUSTER, Stage("sorter", NO_LOSS, restores=NO_INVERSION), Stage("relay", ABSOLUTE, why="in memory")]
    )
    assert [step.reason for step in chain.steps[1:]] == [
        "gives up no duplicate and restores no inversion",
        "keeps what arrives: in memory",
    ]


def test_a_bit_that_is_passed_on_only_by_restoring_it_is_neither_lost_nor_restored() -> None:
    (step,) = compose([Stage("sorter", NO_LOSS | NO_DUPLICATE, restores=NO_INVERSION)]).steps
    assert (step.lost, step.restored, step.reason) == (NONE, NONE, "keeps what arrives")


def test_where_something_may_be_lost_and_nobody_said_how_often_a_chain_names_no_reliability() -> None:
    assert compose([Stage("route", NO_INVERSION | NO_DUPLICATE)]).describe() == [
        "source: absolute",
        "1. route: strict - gives up no loss",
        "end to end: strict",
    ]


def test_a_chain_describes_itself_for_people() -> None:
    assert compose([RADIO, CLUSTER, SORTER], source=CONTINUOUS).describe() == [
        "source: continuous",
        "1. radio: monotonic, reliability 0.5 - gives up no loss",
        "2. cluster: none, reliability 0.5 - gives up no inversion: brokers race",
        "3. sorter: monotonic, reliability 0.5 - restores no inversion: sorts by seq",
        "end to end: monotonic, reliability 0.5",
    ]


# --- requiring ----------------------------------------------------------------------------------------------------


def complaint(chain: Composition, needed: Level | Guarantee) -> str:
    with pytest.raises(GuaranteeNotMet) as refusal:
        chain.require(needed)
    return str(refusal.value)


def test_a_chain_that_gives_what_is_needed_or_more_is_accepted() -> None:
    chain = compose([MQTT])
    for needed in (NONE, MONOTONIC, CONTINUOUS, NO_LOSS, Level.MONOTONIC, Level.CONTINUOUS, Level.NONE):
        chain.require(needed)


def test_a_missing_order_names_the_stage_that_lost_it_and_what_restores_it() -> None:
    assert complaint(compose([MQTT, CLUSTER, MQTT]), Level.CONTINUOUS) == (
        "continuous is required, but the chain gives none (no loss):"
        " no inversion is given up at 'cluster' (brokers race); a resequencing stage at the end of the chain restores it"
    )


def test_missing_uniqueness_names_the_stage_that_lost_it_and_what_restores_it() -> None:
    assert complaint(compose([MQTT, Stage("relay", ABSOLUTE)]), Guarantee.ABSOLUTE) == (
        "absolute is required, but the chain gives continuous:"
        " no duplicate is given up at 'mqtt' (QoS 1 repeats); a deduplicating stage at the end of the chain restores it"
    )


def test_missing_completeness_asks_for_a_pipe_around_the_route() -> None:
    assert complaint(compose([SORTER, RADIO]), NO_LOSS) == (
        "none (no loss) is required, but the chain gives strict:"
        " no loss is given up at 'radio'; only a pipe with resends around the route from 'radio' on restores it"
    )


def test_every_missing_bit_is_named() -> None:
    assert complaint(compose([MQTT, RADIO, CLUSTER]), Level.ABSOLUTE) == (
        "absolute is required, but the chain gives none:"
        " no inversion is given up at 'cluster' (brokers race); a resequencing stage at the end of the chain restores it;"
        " no duplicate is given up at 'mqtt' (QoS 1 repeats); a deduplicating stage at the end of the chain restores it;"
        " no loss is given up at 'radio'; only a pipe with resends around the route from 'radio' on restores it"
    )


def test_a_loss_that_was_made_good_since_is_not_blamed() -> None:
    race_again = Stage("retry queue", NO_DUPLICATE | NO_LOSS)
    message = complaint(compose([CLUSTER, SORTER, race_again, CLUSTER]), Level.MONOTONIC)
    assert "no inversion is given up at 'retry queue';" in message


def test_a_bit_that_the_source_lacks_is_blamed_on_the_source() -> None:
    assert complaint(compose([MQTT], source=NONE), Level.CONTINUOUS) == (
        "continuous is required, but the chain gives none:"
        " no inversion is missing from the source; a resequencing stage at the end of the chain restores it;"
        " no loss is missing from the source; nothing behind the source restores it"
    )
    assert "no duplicate is missing from the source;" in complaint(compose([], source=MONOTONIC), Level.STRICT)


# --- enclosing ----------------------------------------------------------------------------------------------------


def test_a_pipe_with_resends_around_a_lossy_route_restores_no_loss() -> None:
    pipe = enclose([RADIO, CLUSTER], "pipe", restores=ABSOLUTE, why="indexed, resends")
    assert pipe == Stage("pipe", passes=ABSOLUTE, reliability=1.0, why="indexed, resends")
    assert compose([pipe]).guarantee == ABSOLUTE


def test_a_pipe_around_one_stage_keeps_what_the_route_keeps() -> None:
    assert enclose(RADIO, "pipe", restores=NO_LOSS) == Stage("pipe", passes=ABSOLUTE, reliability=1.0)
    assert enclose(MQTT, "pipe", restores=NONE) == Stage("pipe", passes=CONTINUOUS)


def test_a_pipe_that_does_not_resend_keeps_the_reliability_of_its_route() -> None:
    pipe = enclose([RADIO, RADIO], "pipe", restores=NO_INVERSION)
    assert (pipe.passes, pipe.reliability) == (STRICT, 0.25)


def test_a_pipe_repairs_nothing_that_was_broken_before_it() -> None:
    pipe = enclose([RADIO, SORTER, DEDUPER], "pipe", restores=ABSOLUTE)
    assert pipe.restores == NONE
    assert compose([pipe], source=NONE).guarantee == NONE
    assert compose([RADIO, pipe]).guarantee == STRICT


def test_a_pipe_cannot_resend_through_a_route_that_lets_nothing_through() -> None:
    dead = Stage("cut cable", NONE, reliability=0.0)
    with pytest.raises(InvalidArgument) as refusal:
        enclose(dead, "pipe", restores=NO_LOSS)
    assert str(refusal.value) == (
        "pipe 'pipe' cannot restore no loss: nothing gets through its route, however often it is sent"
    )
    assert enclose(dead, "pipe", restores=STRICT).reliability == 0.0


# --- traces: a naive oracle, straight from the definitions --------------------------------------------------------


def oracle(received: Sequence[int], sent: Sequence[int]) -> Guarantee:
    """Quantify over all pairs, as the definitions of the types of ordering do."""
    pairs = [(i, j) for i in range(len(received)) for j in range(i + 1, len(received))]
    sent_before = {(m1, m2) for i, m1 in enumerate(sent) for m2 in sent[i + 1 :]}
    # m1, which was sent before m2, cannot be received after m2
    monotonic = not any((received[j], received[i]) in sent_before for i, j in pairs)
    # … or after m1
    unique = not any(received[i] == received[j] for i, j in pairs)
    # continuous ordering doesn't allow message loss
    complete = all(any(m == r for r in received) for m in sent)
    return Guarantee(monotonic * 1 | unique * 2 | complete * 4)


def numbers_between(received: Sequence[int]) -> list[int]:
    return list(range(min(received), max(received) + 1)) if received else []


ALL_SHORT_TRACES = [trace for length in range(6) for trace in product((1, 2, 3), repeat=length)]


def test_every_short_trace_agrees_with_the_oracle_when_what_was_sent_is_known() -> None:
    for trace in ALL_SHORT_TRACES:
        assert classify(trace, sent=[1, 2, 3]).guarantee == oracle(trace, [1, 2, 3]), trace


def test_every_short_trace_agrees_with_the_oracle_between_its_lowest_and_highest_number() -> None:
    for trace in ALL_SHORT_TRACES:
        assert classify(trace).guarantee == oracle(trace, numbers_between(trace)), trace


def test_every_short_trace_agrees_with_the_oracle_from_a_known_start() -> None:
    for trace in ALL_SHORT_TRACES:
        sent = list(range(1, max(trace) + 1)) if trace else []
        assert classify(trace, start=1).guarantee == oracle(trace, sent), trace


def test_every_short_trace_on_a_circle_agrees_with_the_same_trace_unwrapped() -> None:
    circle = SequenceSpace(8)
    for trace in ALL_SHORT_TRACES:
        wrapped = classify([(number + 5) % 8 for number in trace], space=circle)
        assert wrapped.guarantee == classify(trace).guarantee, trace


@given(st.lists(st.integers(-5, 8), max_size=12))
def test_random_traces_agree_with_the_oracle_and_the_counts_add_up(trace: list[int]) -> None:
    verdict = classify(trace)
    sent = numbers_between(trace)
    assert verdict.guarantee == oracle(trace, sent)
    assert verdict.received == len(trace)
    assert verdict.distinct == len(set(trace))
    assert verdict.duplicates == len(trace) - len(set(trace))
    assert verdict.lost == len(set(sent) - set(trace))
    late = [
        max(trace[:at]) - number
        for at, number in enumerate(trace)
        if number not in trace[:at] and number < max(trace[:at], default=number)
    ]
    assert (verdict.reordered, verdict.max_displacement) == (len(late), max(late, default=0))


@given(st.permutations(["a", "b", "c", "d"]), st.lists(st.sampled_from("abcdx"), max_size=8))
def test_a_phantom_denies_every_guarantee(sent: list[str], trace: list[str]) -> None:
    verdict = classify(trace, sent=sent)
    assert verdict.phantoms == trace.count("x")
    places = [sent.index(name) for name in trace if name != "x"]
    assert verdict.guarantee == (NONE if "x" in trace else oracle(places, range(4)))


@given(st.lists(st.integers(0, 6), max_size=10))
def test_each_missing_bit_has_a_witness_and_the_first_speaks_against_the_next_level(trace: list[int]) -> None:
    verdict = classify(trace)
    denied = {"inversion": NO_INVERSION, "duplicate": NO_DUPLICATE, "loss": NO_LOSS}
    missing = [kind for kind, bit in denied.items() if not verdict.guarantee & bit]
    assert [witness.kind for witness in verdict.witnesses] == missing
    assert verdict.witness == (verdict.witnesses[0] if missing else None)
    assert (verdict.witness is None) == (verdict.level == Level.ABSOLUTE)


# --- traces: examples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ([], "absolute"),
        ([7], "absolute"),
        ([1, 2, 3], "absolute"),
        ([1, 1, 2], "continuous"),
        ([1, 3], "strict"),
        ([1, 3, 3], "monotonic"),
        ([2, 1], "none"),
        ([1, 2, 1], "none"),  # the choice: continuous is monotonic
    ],
)
def test_the_level_of_a_trace(trace: list[int], expected: str) -> None:
    assert classify(trace).level == expected


def test_one_two_one_loses_nothing_all_the_same() -> None:
    assert classify([1, 2, 1]).guarantee == NO_LOSS


def test_an_inversion_is_witnessed_with_the_message_that_overtook() -> None:
    assert classify([1, 4, 2, 3]).witnesses == (
        Witness("inversion", 2, 2, 4, "2 at index 2 was received after 4, which was sent later"),
    )


def test_a_duplicate_is_witnessed_where_it_repeats() -> None:
    assert classify([1, 2, 2, 3, 3]).witnesses == (Witness("duplicate", 2, 2, 2, "2 at index 2 was received before"),)


def test_a_repeat_behind_the_highest_is_both_a_duplicate_and_an_inversion_but_not_reordered() -> None:
    verdict = classify([1, 2, 3, 1])
    assert [witness.kind for witness in verdict.witnesses] == ["inversion", "duplicate"]
    assert (verdict.duplicates, verdict.reordered, verdict.max_displacement) == (1, 0, 0)


def test_a_loss_in_the_middle_is_witnessed_with_what_follows_the_first_hole() -> None:
    verdict = classify([1, 2, 5, 9])
    assert verdict.witnesses == (Witness("loss", None, 3, 5, "3 is missing before 5"),)
    assert verdict.lost == 5


def test_a_loss_before_the_first_is_seen_from_a_known_start() -> None:
    verdict = classify([3, 4], start=1)
    assert verdict.witness == Witness("loss", None, 1, 3, "1 is missing before 3")
    assert (verdict.level, verdict.lost) == ("strict", 2)
    assert classify([3, 4]).level == "absolute"


def test_a_loss_at_the_end_is_seen_only_when_what_was_sent_is_known() -> None:
    verdict = classify([1, 2], sent=[1, 2, 3])
    assert verdict.witness == Witness("loss", None, 3, None, "3 was sent but never received")
    assert (verdict.level, verdict.lost) == ("strict", 1)
    assert classify([1, 2], start=1).level == "absolute"


def test_receiving_nothing_of_what_was_sent_is_a_loss_of_everything() -> None:
    verdict = classify([], sent=["a", "b"])
    assert (verdict.level, verdict.lost, verdict.received) == ("strict", 2, 0)
    assert classify([], sent=[]).level == "absolute"
    assert classify([], start=5).level == "absolute"


def test_sent_may_be_any_ids_and_their_list_is_their_order() -> None:
    verdict = classify(["z", "a"], sent=["a", "m", "z"])
    assert [witness.text for witness in verdict.witnesses] == [
        "'a' at index 1 was received after 'z', which was sent later",
        "'m' is missing before 'z'",
    ]


def test_a_phantom_is_witnessed_first_and_counted_apart() -> None:
    verdict = classify(["b", "ghost", "ghost", "a"], sent=["a", "b"])
    assert verdict.witness == Witness("phantom", 1, "ghost", None, "'ghost' at index 1 was never sent")
    assert [witness.kind for witness in verdict.witnesses] == ["phantom", "inversion"]
    assert (verdict.received, verdict.distinct, verdict.duplicates, verdict.phantoms) == (4, 2, 0, 2)
    assert verdict.level == "none"


def test_a_number_before_the_start_is_a_phantom() -> None:
    verdict = classify([4, 5], start=5)
    assert verdict.witness == Witness("phantom", 0, 4, None, "4 at index 0 was never sent")
    assert classify([5, 6], start=5).phantoms == 0


def test_displacement_is_how_far_behind_the_highest_a_first_arrival_was() -> None:
    verdict = classify([5, 1, 2, 7, 6, 3, 4])
    assert (verdict.reordered, verdict.max_displacement) == (5, 4)
    assert verdict.lost == 0


def test_a_trace_on_a_circle_is_unwrapped_near_the_next_expected_number() -> None:
    byte = SequenceSpace(256)
    assert classify([254, 255, 0, 1], space=byte).level == "absolute"
    assert classify(list(range(256)) * 3, space=byte).level == "absolute"
    assert classify([254, 0, 255], space=byte).witnesses == (
        Witness("inversion", 2, 255, 0, "255 at index 2 was received after 0, which was sent later"),
    )
    assert classify([254, 1], space=byte).witness == Witness("loss", None, 255, 1, "255 is missing before 1")


def test_on_a_circle_exactly_half_a_turn_past_the_expected_number_is_behind() -> None:
    assert classify([0, 4], space=SequenceSpace(8)).level == "strict"
    assert classify([0, 5], space=SequenceSpace(8)).level == "none"


def test_a_start_on_a_circle_is_the_first_expected_number() -> None:
    assert classify([1, 2], space=SequenceSpace(8), start=6).lost == 3
    assert classify([5], space=SequenceSpace(8), start=6).phantoms == 1
    assert classify([2], space=SequenceSpace(8), start=6).phantoms == 1  # exactly opposite, so behind


def test_numbers_may_be_further_apart_than_one() -> None:
    tens = SequenceSpace(increment=10)
    assert classify([5, 15, 25], space=tens).level == "absolute"
    verdict = classify([5, 35], space=tens)
    assert (verdict.lost, verdict.witness) == (2, Witness("loss", None, 15, 35, "15 is missing before 35"))
    assert classify([35, 5], space=tens).max_displacement == 3


@pytest.mark.parametrize("number", [8, -1, True, "3", 2.0])
def test_a_number_outside_its_space_raises_and_changes_nothing(number: Hashable) -> None:
    checker = TraceChecker(space=SequenceSpace(8))
    with pytest.raises(InvalidSequence):
        checker.observe(number)
    checker.observe(1)
    before = checker.verdict()
    with pytest.raises(InvalidSequence):
        checker.observe(number)
    assert checker.verdict() == before


def test_a_number_off_the_grid_raises() -> None:
    with pytest.raises(InvalidSequence):
        classify([10, 15], space=SequenceSpace(increment=10))


def test_an_invalid_start_raises() -> None:
    with pytest.raises(InvalidSequence):
        TraceChecker(space=SequenceSpace(8), start=8)


@pytest.mark.parametrize("beside", [{"start": 1}, {"space": SequenceSpace(8)}, {"start": 1, "space": SequenceSpace(8)}])
def test_sent_leaves_no_room_for_space_and_start(beside: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        TraceChecker(sent=[1, 2], **beside)  # type: ignore[arg-type]
    assert str(refusal.value) == "sent says already what is expected: leave out space and start"


def test_sent_must_name_each_message_once() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        classify([1], sent=[1, 2, 1])
    assert str(refusal.value) == "sent must name each message once: give repeated messages ids of their own"


def test_a_verdict_can_be_asked_for_at_any_time() -> None:
    checker = TraceChecker()
    levels = []
    for number in (1, 2, 4, 4, 3):
        checker.observe(number)
        levels.append(str(checker.verdict().level))
    assert levels == ["absolute", "absolute", "strict", "monotonic", "none"]


def test_a_hole_that_is_filled_late_is_no_loss() -> None:
    assert classify([1, 3, 2]).guarantee == NO_DUPLICATE | NO_LOSS


def test_an_ordered_trace_costs_constant_memory() -> None:
    checker = TraceChecker()
    for number in range(10_000):
        checker.observe(number)
    assert len(checker._seen) == 1


# --- pipelining, shown on random processes ------------------------------------------------------------------------


def process(gives: Guarantee, messages: list[int], chance: Random) -> list[int]:
    """A random processor that does anything to a list that ``gives`` does not forbid."""
    if not gives & NO_LOSS:
        messages = [message for message in messages if chance.random() < 0.7]
    if not gives & NO_DUPLICATE:
        messages = [message for message in messages for _ in range(chance.choice((1, 1, 2)))]
    if not gives & NO_INVERSION:
        chance.shuffle(messages)
    return messages


@given(all_guarantees, all_guarantees, st.integers(0, 2**32))
def test_two_processes_in_a_row_never_give_less_than_the_meet(first: Guarantee, second: Guarantee, seed: int) -> None:
    chance, sent = Random(seed), list(range(12))
    received = process(second, process(first, list(sent), chance), chance)
    observed = classify(received, sent=sent).guarantee
    promised = compose([Stage("first", first), Stage("second", second)]).guarantee
    assert promised == meet(first, second)
    assert observed & promised == promised


@pytest.mark.parametrize("first", [Guarantee(bits) for bits in range(8)])
@pytest.mark.parametrize("second", [Guarantee(bits) for bits in range(8)])
def test_two_processes_in_a_row_do_lose_every_bit_outside_the_meet(first: Guarantee, second: Guarantee) -> None:
    chance, sent, common = Random(1), list(range(12)), ABSOLUTE
    for _ in range(20):
        received = process(second, process(first, list(sent), chance), chance)
        common &= classify(received, sent=sent).guarantee
    assert common == meet(first, second)


@given(all_guarantees, st.integers(0, 2**32))
def test_sorting_and_deduplicating_downstream_restore_what_a_stage_may_restore(gives: Guarantee, seed: int) -> None:
    sent = list(range(12))
    received = process(gives, list(sent), Random(seed))
    restored = classify(sorted(set(received)), sent=sent).guarantee
    promised = compose([Stage("route", gives), Stage("tidy", ABSOLUTE, restores=STRICT)]).guarantee
    assert restored & promised == promised


# --- what becomes known little by little ----------------------------------------------------------------------------


def test_a_checker_that_learns_what_was_sent_sees_a_loss_at_the_end() -> None:
    checker = TraceChecker(start=1)
    for number in (1, 2, 3):
        checker.expect(number)
    checker.observe(1)
    witness = checker.verdict().witness
    assert witness is not None
    assert (witness.kind, witness.sequence, witness.text) == ("loss", 2, "2 was sent but never received")
    assert checker.verdict(so_far=True).level is Level.ABSOLUTE
    checker.observe(3)
    missing = checker.verdict(so_far=True).witness
    assert missing is not None
    assert missing.text == "2 is missing before 3"


def test_expecting_an_earlier_number_takes_nothing_back() -> None:
    checker = TraceChecker(start=1)
    for number in (3, 1):
        checker.expect(number)
    assert checker.verdict().lost == 3


def test_what_was_sent_lies_behind_the_start_and_is_not_known_twice() -> None:
    with pytest.raises(InvalidArgument, match="0 lies before the first number that was to be sent"):
        TraceChecker(start=1).expect(0)
    with pytest.raises(InvalidArgument, match=r"^sent says already what is expected$"):
        TraceChecker(sent=[1, 2]).expect(1)


def test_what_was_sent_is_counted_on_when_numbers_begin_again() -> None:
    checker = TraceChecker(space=SequenceSpace(8), start=0)
    for number in (3, 6, 1):
        checker.expect(number)
    for number in range(8):
        checker.observe(number)
    assert checker.verdict().lost == 2, "0 and 1 of the second round"


def test_a_checker_knows_its_first_violation_at_once_and_a_loss_is_none() -> None:
    checker = TraceChecker(start=1)
    seen = []
    for number in (2, 2, 1):
        checker.observe(number)
        seen.append(checker.violation)
    assert [witness.kind if witness else None for witness in seen] == [None, "duplicate", "duplicate"]


def test_a_pipe_may_give_up_what_its_route_keeps() -> None:
    resends = enclose(RADIO, "resend", restores=NO_LOSS | NO_DUPLICATE, gives_up=NO_INVERSION)
    assert (resends.passes, resends.reliability) == (NO_LOSS | NO_DUPLICATE, 1.0)
