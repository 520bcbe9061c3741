"""``seriatim demo``: a fleet of devices, a faulty network, and what order is left with and without Seriatim."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from random import Random
from typing import NamedTuple

import click

from seriatim.cli.display import ProgressDisplay, new_table, print_table, progress_display
from seriatim.cli.session import configured
from seriatim.config import LoadedConfig
from seriatim.core.delivery import Delivery, Lease, RetryPolicy
from seriatim.core.guarantees import Guarantee, Level, meet
from seriatim.core.lanes import Lanes
from seriatim.core.resequencers import Resequencers
from seriatim.core.resequencing import Effect, LedgerEntry, Released, Resequencing, Start
from seriatim.core.traces import TraceChecker
from seriatim.errors import GuaranteeNotMet
from seriatim.testing import FaultyNetwork

COUNTED = ("received", "distinct", "duplicates", "lost", "reordered")
ARRIVALS_PER_SECOND = 1_000
GAP_TIMEOUT = 2.0
LEASE_TIME = 10.0
WORKERS = 16
NACKED = 0.02


class Reading(NamedTuple):
    """What a device sends."""

    device: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Network:
    seed: int
    drop: float
    duplicate: float
    shuffle: int

    def carry(self, readings: Iterable[Reading]) -> list[Reading]:
        line = FaultyNetwork[Reading](self.seed, drop=self.drop, duplicate=self.duplicate, shuffle=self.shuffle)
        return line.transmit(readings)


class Watch:
    """Judges a stream of readings, device by device."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._checkers = {device: TraceChecker(start=1) for device in devices}

    def observe(self, reading: Reading) -> None:
        self._checkers[reading.device].observe(reading.sequence)

    def summary(self) -> dict[str, object]:
        verdicts = [checker.verdict() for checker in self._checkers.values()]
        counts = {count: sum(getattr(verdict, count) for verdict in verdicts) for count in COUNTED}
        return {**counts, "guarantee": self.guarantee().in_words()}

    def guarantee(self) -> Guarantee:
        held = (checker.verdict().guarantee for checker in self._checkers.values())
        return reduce(meet, held, Guarantee.ABSOLUTE)


class Consumers:
    """Workers that take what is ready, fail now and then, and see to it that nothing of a device runs twice at once."""

    def __init__(self, seed: int, delivered: Watch) -> None:
        self._random = Random(seed)
        self._lanes = Lanes(Delivery(RetryPolicy(min_backoff=0.05, max_backoff=1)))
        self._log: list[Reading] = []
        self._delivered = delivered
        self.redeliveries = 0
        self.most_in_flight_per_device = 0

    def queue(self, reading: Reading, now: float) -> None:
        self._lanes.push(reading.device, len(self._log), now)
        self._log.append(reading)

    def work(self, now: float) -> None:
        self._lanes.advance(now)
        leases = self._lanes.take(now, LEASE_TIME, WORKERS)
        per_device = Counter(lease.key for lease in leases)
        self.most_in_flight_per_device = max(self.most_in_flight_per_device, *per_device.values(), 0)
        for lease in leases:
            self._handle(lease, now)

    def finish(self, now: float) -> None:
        while len(self._lanes):
            self.work(now)
            now = max(now, self._lanes.next_deadline() or now)

    def _handle(self, lease: Lease, now: float) -> None:
        if self._random.random() < NACKED:
            self._lanes.give_back(lease.token, now, error="the demo's worker failed on purpose")
            self.redeliveries += 1
            return
        for settled in self._lanes.settle(lease.token):
            self._delivered.observe(self._log[settled.offset])
            self._lanes.confirm(settled.offset)


class Demo:
    """One run: network, resequencers, consumers, and a watch on both sides."""

    def __init__(self, devices: int, messages: int, network: Network) -> None:
        self._names = [f"device-{number:04d}" for number in range(1, devices + 1)]
        self._messages = messages
        self._network = network
        self.before, self.after = Watch(self._names), Watch(self._names)
        self.ledger: Counter[str] = Counter()
        self.released = 0
        self.consumers = Consumers(network.seed, self.after)

    @property
    def sent(self) -> int:
        return len(self._names) * self._messages

    def run(self, progress: ProgressDisplay) -> None:
        order: Resequencers[Reading] = Resequencers(Resequencing(start=Start.at(1), gap_timeout=GAP_TIMEOUT))
        now = 0.0
        for number, reading in enumerate(self._network.carry(self._readings()), 1):
            now = number / ARRIVALS_PER_SECOND
            self.before.observe(reading)
            effects = [*order.advance(now), *order.push(*reading, reading, now)]
            self._pass_on(effects, now)
            progress.move_to(number)
        self._pass_on(order.flush(now), now)
        self.consumers.finish(now)

    def _readings(self) -> Iterator[Reading]:
        return (Reading(name, number) for number in range(1, self._messages + 1) for name in self._names)

    def _pass_on(self, effects: Iterable[Effect[Reading]], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Released):
                self.released += 1
                self.consumers.queue(effect.message, now)
            elif isinstance(effect, LedgerEntry):
                self.ledger[effect.reason] += effect.size
        self.consumers.work(now)

    def report(self) -> dict[str, object]:
        return {
            "sent": self.sent,
            "before": self.before.summary(),
            "after": self.after.summary(),
            "ledger": dict(sorted(self.ledger.items())),
            "redeliveries": self.consumers.redeliveries,
            "most_in_flight_per_device": self.consumers.most_in_flight_per_device,
        }


@click.command("demo")
@click.option("--devices", type=click.IntRange(min=1), default=100, show_default=True, help="How many devices send.")
@click.option("--messages", type=click.IntRange(min=1), default=300, show_default=True, help="How many each one sends.")
@click.option("--drop", type=click.FloatRange(0, 1), default=0.005, show_default=True, help="Share that is lost.")
@click.option("--duplicate", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Share sent twice.")
@click.option(
    "--shuffle", type=click.IntRange(min=0), default=500, show_default=True, help="By how many places messages move."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same faults.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@configured
def command(
    loaded: LoadedConfig,
    devices: int,
    messages: int,
    drop: float,
    duplicate: float,
    shuffle: int,
    seed: int,
    as_json: bool,
) -> None:
    """See messages of a faulty network put back in order.

    A fleet of devices sends numbered readings through a network that loses, repeats and shuffles them. The readings are put
    back in order per device, and workers consume them with one in flight per device; some deliveries fail and are retried.
    Everything happens in memory and depends on the seed alone.
    """
    demo = Demo(devices, messages, Network(seed, drop, duplicate, shuffle))
    with progress_display("putting in order", demo.sent, enabled=loaded.values.progress) as progress:
        demo.run(progress)
    if as_json:
        click.echo(json.dumps(demo.report()))
    else:
        _print_report(demo)
    if Level.STRICT.guarantee & ~demo.after.guarantee():
        raise GuaranteeNotMet(
            "the consumers did not see strict order: this is a bug in Seriatim; please report the seed"
        )


def _print_report(demo: Demo) -> None:
    table = new_table("", *COUNTED, "guarantee")
    for column in table.columns[1 : 1 + len(COUNTED)]:
        column.justify = "right"
    for title, watch in (("from the network", demo.before), ("at the consumers", demo.after)):
        summary = watch.summary()
        table.add_row(title, *(f"{summary[count]:,}" for count in COUNTED), str(summary["guarantee"]))
    click.echo(f"{demo.sent:,} readings sent")
    print_table(table)
    noted = ", ".join(f"{count:,} {reason}" for reason, count in sorted(demo.ledger.items())) or "nothing"
    click.echo(f"ledger: {noted}")
    consumers = demo.consumers
    click.echo(
        f"{consumers.redeliveries:,} failed deliveries retried at their place, "
        f"at most {consumers.most_in_flight_per_device} in flight per device"
    )
