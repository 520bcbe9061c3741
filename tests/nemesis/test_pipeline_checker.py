"""The checker of pipelines, with one planted anomaly of each kind: it finds that one, and nothing where all is well."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.nemesis.pipeline_checker import (
    DUPLICATE,
    LATE,
    LOST,
    ORDERED,
    Entry,
    Row,
    Written,
    check_pipeline,
    resequence,
)

KEY, TIMEOUT = "k", 20.5


@dataclass
class Outcome:
    """What was published, as numbers, one a second from 1 on, and what was written of it."""

    published: list[int]
    ordered: list[int] = field(default_factory=list)
    """By the times of the rows."""
    ledger: list[Entry] = field(default_factory=list)
    late: list[int] | None = None
    table: list[int] | None = None

    def row(self, at: int) -> Row:
        return Row(KEY, self.published[at - 1] if 0 < at <= len(self.published) else at, float(at))

    def kinds(self) -> list[str]:
        ordered = [self.row(at) for at in self.ordered]
        table = ordered if self.table is None else [self.row(at) for at in self.table]
        entered = [int(entry.at) for entry in self.ledger if entry.reason == LATE and entry.at is not None]
        late = entered if self.late is None else self.late
        written = Written(
            ordered, [(row, place) for place, row in enumerate(table)], self.ledger, [(KEY, float(at)) for at in late]
        )
        published = [self.row(at + 1) for at in range(len(self.published))]
        return [anomaly.kind for anomaly in check_pipeline(published, written, TIMEOUT)]


def duplicate(at: int) -> Entry:
    return Entry(KEY, DUPLICATE, float(at))


def late(at: int) -> Entry:
    return Entry(KEY, LATE, float(at))


def lost(first: int, last: int) -> Entry:
    return Entry(KEY, LOST, None, first, last)


def test_where_all_is_well_there_is_no_anomaly() -> None:
    assert Outcome([1, 3, 2, 2, 4], [1, 3, 2, 5], [duplicate(4)]).kinds() == []


def test_a_row_that_is_nowhere_is_lost() -> None:
    assert Outcome([1, 2, 2], [1, 2]).kinds() == ["lost"]


def test_a_row_that_nobody_published_is_a_ghost() -> None:
    assert Outcome([1], [1, 2]).kinds() == ["ghost"]
    assert Outcome([1], [1], [duplicate(5)]).kinds() == ["ghost"]


def test_a_row_that_is_written_twice_is_repeated() -> None:
    assert Outcome([1, 2], [1, 2, 2]).kinds() == ["repeated"]


def test_a_row_in_order_and_in_the_ledger_is_counted_twice() -> None:
    assert "counted twice" in Outcome([1, 2], [1, 2], [duplicate(2)]).kinds()
    assert Outcome([1, 1], [1], [duplicate(2), duplicate(2)]).kinds() == ["counted twice"]


def test_a_row_behind_one_with_a_later_number_is_reordered() -> None:
    assert Outcome([1, 2, 3], [1, 3, 2]).kinds() == ["reordered"]


def test_a_hole_that_the_ledger_does_not_have_is_unreported() -> None:
    assert Outcome([1, *[4] * 30], [1, 2], [*map(duplicate, range(3, 32)), lost(2, 3)]).kinds() == []
    assert Outcome([1, *[4] * 30], [1, 2], [*map(duplicate, range(3, 32)), lost(2, 2)]).kinds() == ["unreported"]


def test_a_loss_that_is_none_or_that_is_reported_twice_is_a_phantom() -> None:
    assert Outcome([1, 2], [1, 2], [lost(2, 2)]).kinds() == ["phantom"]
    assert Outcome([1, 2], [1, 2], [lost(3, 3)]).kinds() == ["phantom"]
    copies = list(map(duplicate, range(3, 32)))
    assert Outcome([1, *[3] * 30], [1, 2], [*copies, lost(2, 2), lost(2, 2)]).kinds() == ["phantom"]


def test_a_table_with_other_rows_than_the_topic_is_told() -> None:
    assert Outcome([1, 2], [1, 2], table=[1]).kinds() == ["sinks differ"]
    assert Outcome([1, 2], [1, 2], table=[2, 1]).kinds() == ["sinks differ"]


def test_late_rows_that_are_not_those_of_the_ledger_are_told() -> None:
    numbers = [1, *[3] * 30, 2]
    ledger = [*map(duplicate, range(3, 32)), lost(2, 2), late(32)]
    assert Outcome(numbers, [1, 2], ledger).kinds() == []
    assert Outcome(numbers, [1, 2], ledger, late=[]).kinds() == ["sinks differ"]
    assert Outcome(numbers, [1, 2], ledger, late=[32, 32]).kinds() == ["sinks differ"]


def test_a_verdict_that_a_plain_resequencer_would_not_give_is_wrong() -> None:
    assert Outcome([1, 3, 2, 2], [1, 3, 2], [late(4)]).kinds() == ["wrong verdict"]


def test_verdicts_are_judged_only_where_rows_were_published_in_the_order_of_their_times() -> None:
    published = [Row(KEY, 1, 1.0), Row(KEY, 2, 3.0), Row(KEY, 2, 2.0)]
    ordered = [published[0], published[2]]
    written = Written(ordered, [(row, place) for place, row in enumerate(ordered)], [Entry(KEY, DUPLICATE, 3.0)], [])
    assert check_pipeline(published, written, TIMEOUT) == []


def verdicts(*arrivals: tuple[int, float]) -> list[str]:
    return resequence([Row(KEY, number, at) for number, at in arrivals], 10)


def test_the_plain_resequencer_waits_for_a_number_since_it_was_jumped_over() -> None:
    assert verdicts((1, 0), (3, 1), (5, 5), (2, 10.9)) == [ORDERED, ORDERED, "", ORDERED]
    assert verdicts((1, 0), (3, 1), (5, 5), (2, 11)) == [ORDERED, ORDERED, "", LATE]
    assert verdicts((1, 0), (3, 1), (5, 5), (2, 11), (2, 12), (4, 15)) == [
        ORDERED, ORDERED, ORDERED, LATE, DUPLICATE, LATE,
    ]  # fmt: skip


def test_the_plain_resequencer_takes_the_first_of_two_copies() -> None:
    assert verdicts((2, 0), (2, 1), (1, 2), (2, 3)) == [ORDERED, DUPLICATE, ORDERED, DUPLICATE]
