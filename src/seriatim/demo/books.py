"""The accounts of a run: what went in, what came out, and whether the sums agree.

Rules
    - Every message that was published was delivered, or is in the ledger.
    - Every number that was sent was delivered, or is in the ledger as lost; those are exactly the numbers that the network
      lost, or that arrived too late.
    - The subscribers saw strict order by the numbers of the devices, absolute order by position, and never more than one
      message of a device at a time.
    - The audits, which read what is stored, agree with what the clients counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from seriatim.core.guarantees import Guarantee, meet
from seriatim.core.ranges import RangeSet
from seriatim.core.resequencing.options import Reason
from seriatim.core.traces import Verdict
from seriatim.demo.fleet import Crossing
from seriatim.demo.subscribers import Subscribers

COUNTS = ("rows", "duplicates", "reordered", "lost")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the ledger: one message, or a range of numbers that never came."""

    device: str
    reason: str
    first: int
    last: int
    size: int
    detail: str


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit, for all devices together."""

    rows: int
    duplicates: int
    reordered: int
    lost: int
    furthest: int
    """The largest number of places by which a reading was late."""
    guarantee: Guarantee

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Audited:
        return cls(
            rows=sum(verdict.received for verdict in verdicts),
            duplicates=sum(verdict.duplicates for verdict in verdicts),
            reordered=sum(verdict.reordered for verdict in verdicts),
            lost=sum(verdict.lost for verdict in verdicts),
            furthest=max(verdict.max_displacement for verdict in verdicts),
            guarantee=held(verdicts),
        )


def held(verdicts: Iterable[Verdict]) -> Guarantee:
    """The guarantee that held for every device."""
    return reduce(meet, (verdict.guarantee for verdict in verdicts), Guarantee.ABSOLUTE)


class Books:
    """Everything that is known at the end of a run."""

    def __init__(
        self, crossing: Crossing, ledger: Sequence[Entry], subscribers: Subscribers, before: Audited, after: Audited
    ) -> None:
        self.sent = crossing.fleet.sent
        self.published = crossing.arrivals
        self.delivered = subscribers.handled
        self.ledger = sorted(ledger, key=lambda entry: (entry.device, entry.first, entry.reason))
        self.before, self.after = before, after
        self.redeliveries = subscribers.redeliveries
        self.most_in_flight_per_device = subscribers.most_in_flight_per_device
        self._crossing = crossing
        self._subscribers = subscribers

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of messages, or of lost numbers, in the ledger for each reason."""
        counts: Counter[str] = Counter()
        for entry in self.ledger:
            counts[entry.reason] += entry.size
        return dict(sorted(counts.items()))

    @property
    def lost(self) -> int:
        return self.reasons.get(Reason.LOST, 0)

    @property
    def kept_back(self) -> int:
        """Messages that were published and are in the ledger."""
        return sum(self.reasons.values()) - self.lost

    def discrepancies(self) -> Iterator[str]:
        """Sums that don't agree, as sentences."""
        yield from self._of_totals()
        yield from self._of_numbers()
        yield from self._of_order()
        yield from self._of_audits()

    def _of_totals(self) -> Iterator[str]:
        if self.published != self.delivered + self.kept_back:
            yield f"{self.published} messages were published, {self.delivered} delivered and {self.kept_back} kept back"
        if self.sent != self.delivered + self.lost:
            yield f"{self.sent} numbers were sent, {self.delivered} delivered and {self.lost} named lost"

    def _of_numbers(self) -> Iterator[str]:
        named_lost, late = self._numbers(Reason.LOST), self._numbers(Reason.LATE)
        last = self._crossing.fleet.messages
        for device, lost in named_lost.items():
            never_came = RangeSet([*self._crossing.arrived[device].gaps(1, last), *late[device]])
            not_delivered = RangeSet(self._subscribers.numbers[device].gaps(1, last))
            if not lost == never_came == not_delivered:
                yield (
                    f"{device}: {_text(never_came)} never came in time, {_text(not_delivered)} were not delivered, "
                    f"and {_text(lost)} are named lost"
                )

    def _numbers(self, reason: Reason) -> dict[str, RangeSet]:
        """The numbers of each device that are in the ledger for this reason."""
        numbers = {device: RangeSet() for device in self._crossing.arrived}
        for entry in self.ledger:
            if entry.reason == reason:
                numbers[entry.device].add(entry.first, entry.last)
        return numbers

    def _of_order(self) -> Iterator[str]:
        by_sequence, by_position = held(self._subscribers.by_sequence()), held(self._subscribers.by_position())
        if Guarantee.STRICT & ~by_sequence:
            yield f"by number, the subscribers saw no strict order: {by_sequence.in_words()}"
        if Guarantee.ABSOLUTE & ~by_position:
            yield f"by position, the subscribers saw no absolute order: {by_position.in_words()}"
        if self.most_in_flight_per_device > 1:
            yield f"{self.most_in_flight_per_device} messages of one device were in flight at once"

    def _of_audits(self) -> Iterator[str]:
        counted = {"rows": self.published, "duplicates": self._crossing.duplicated, "lost": self._crossing.dropped}
        yield from _differences("before", self.before, counted)
        yield from _differences("after", self.after, {"rows": self.delivered, "lost": self.lost})
        if Guarantee.STRICT & ~self.after.guarantee:
            yield f"the audit found no strict order after: {self.after.guarantee.in_words()}"


def _differences(when: str, audited: Audited, counted: Mapping[str, int]) -> Iterator[str]:
    for name, number in counted.items():
        if getattr(audited, name) != number:
            yield f"{when}: the audit found {name} {getattr(audited, name)}, and there were {number}"


def _text(numbers: RangeSet) -> str:
    return ", ".join(f"{lo}" if lo == hi else f"{lo}–{hi}" for lo, hi in numbers) or "none"
