"""The books of the demo: they balance when everything is right, and tell of each thing that is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from seriatim.core.guarantees import Guarantee
from seriatim.demo.books import Audited, Books, Entry
from seriatim.demo.fleet import Crossing, Fleet
from seriatim.demo.progress import DemoStep
from seriatim.demo.subscribers import Subscribers

FLEET = Fleet(devices=3, messages=60, seed=5, drop=0.1, duplicate=0.1, shuffle=20)
DEVICE = "device-0002"


@dataclass
class Run:
    """What a run without a mistake would have written down, to be changed."""

    crossing: Crossing
    ledger: list[Entry]
    delivered: list[tuple[str, int, int]]
    before: Audited
    after: Audited
    most_in_flight: int = 1

    @classmethod
    def right(cls) -> Run:
        crossing = Crossing(FLEET)
        copies = Counter((arrival.reading.device, arrival.reading.sequence) for arrival in crossing)
        ledger = [
            Entry(device, "duplicate", number, number, 1, "") for (device, number), count in copies.items() if count > 1
        ]
        ledger += [
            Entry(device, "lost", lo, hi, hi - lo + 1, "")
            for device, numbers in crossing.arrived.items()
            for lo, hi in numbers.gaps(1, FLEET.messages)
        ]
        delivered = []
        for device, numbers in crossing.arrived.items():
            in_order = [number for lo, hi in numbers for number in range(lo, hi + 1)]
            delivered += [(device, number, position) for position, number in enumerate(in_order)]
        before = Audited(crossing.arrivals, crossing.duplicated, 9, crossing.dropped, 9, Guarantee.NONE)
        after = Audited(len(delivered), 0, 0, crossing.dropped, 0, Guarantee.STRICT)
        return cls(crossing, ledger, delivered, before, after)

    def discrepancies(self) -> list[str]:
        subscribers = Subscribers(FLEET, DemoStep("consume"))
        for device, number, position in self.delivered:
            subscribers._observe(device, number, position)
        subscribers.most_in_flight_per_device = self.most_in_flight
        return list(Books(self.crossing, self.ledger, subscribers, self.before, self.after).discrepancies())

    def first(self, reason: str) -> int:
        """The place of the first entry of the device with this reason."""
        return next(
            place for place, entry in enumerate(self.ledger) if (entry.device, entry.reason) == (DEVICE, reason)
        )

    def last_of_device(self) -> int:
        return max(place for place, (device, _, _) in enumerate(self.delivered) if device == DEVICE)


def test_a_run_without_a_mistake_adds_up():
    run = Run.right()
    assert {entry.reason for entry in run.ledger} == {"duplicate", "lost"}
    assert run.discrepancies() == []


def test_what_came_too_late_is_named_lost_and_in_the_ledger_as_late():
    run = Run.right()
    device, number, _ = run.delivered.pop()
    run.ledger += [Entry(device, "lost", number, number, 1, ""), Entry(device, "late", number, number, 1, "")]
    run.after = replace(run.after, rows=run.after.rows - 1, lost=run.after.lost + 1)
    assert run.discrepancies() == []


def forget_a_duplicate(run: Run) -> None:
    del run.ledger[run.first("duplicate")]


def forget_a_loss(run: Run) -> None:
    del run.ledger[run.first("lost")]


def name_the_wrong_number(run: Run) -> None:
    place = run.first("lost")
    entry = run.ledger[place]
    run.ledger[place] = replace(entry, first=entry.first + 1, last=entry.last + 1)


def deliver_one_twice(run: Run) -> None:
    run.delivered.append(run.delivered[run.last_of_device()])


def deliver_one_not_at_all(run: Run) -> None:
    del run.delivered[run.last_of_device()]


def deliver_two_the_wrong_way_round(run: Run) -> None:
    run.delivered[0], run.delivered[1] = run.delivered[1], run.delivered[0]


def leave_a_position_out(run: Run) -> None:
    device, number, position = run.delivered[run.last_of_device()]
    run.delivered[run.last_of_device()] = (device, number, position + 1)


def deliver_two_at_once(run: Run) -> None:
    run.most_in_flight = 2


def store_one_row_less(run: Run) -> None:
    run.after = replace(run.after, rows=run.after.rows - 1)


def store_in_disorder(run: Run) -> None:
    run.after = replace(run.after, guarantee=Guarantee.NO_DUPLICATE)


def find_fewer_duplicates(run: Run) -> None:
    run.before = replace(run.before, duplicates=run.before.duplicates - 1)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (forget_a_duplicate, "published"),
        (forget_a_loss, "sent"),
        (name_the_wrong_number, f"{DEVICE}: "),
        (deliver_one_twice, "by position, the subscribers saw no absolute order"),
        (deliver_one_not_at_all, f"{DEVICE}: "),
        (deliver_two_the_wrong_way_round, "by number, the subscribers saw no strict order"),
        (leave_a_position_out, "by position, the subscribers saw no absolute order"),
        (deliver_two_at_once, "2 messages of one device were in flight at once"),
        (store_one_row_less, "after: the audit found rows"),
        (store_in_disorder, "the audit found no strict order"),
        (find_fewer_duplicates, "before: the audit found duplicates"),
    ],
)
def test_a_mistake_is_told(mistake: Callable[[Run], None], told: str):
    run = Run.right()
    mistake(run)
    assert any(told in sentence for sentence in run.discrepancies())
