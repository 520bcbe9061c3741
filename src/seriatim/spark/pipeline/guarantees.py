"""What a declared pipeline can keep: its stages, multiplied out for each sink.

A route leads from the source through the resequencer to one sink. What the source itself promises comes first; then reading,
putting in order and writing each keep, give up or restore some of it (``core/guarantees.py``), and say why.

A number that is given up is in the ledger with its reason, and it is **still a loss**: the consumers of the ordered rows never
see it. The other outputs (ledger, late rows, …) have no order to keep; of them it is only said how often a row may come.

Nothing here is started or connected to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seriatim.core.guarantees import Composition, DeliveryMode, Guarantee, Level, Stage, compose
from seriatim.core.resequencing import OnGap, OnOverflow
from seriatim.errors import GuaranteeNotMet
from seriatim.spark.kernel.intake import OnInvalid
from seriatim.spark.pipeline.declaration import PROMISES, Declaration, Sink, Source
from seriatim.spark.pipeline.exactly_once import EXACTLY_ONCE, TOPIC
from seriatim.spark.tagged import Tag

LOGS = {TOPIC: "what was acknowledged is in the log", "kafka": "what was acknowledged is in the log"}
FILES = ("parquet", "json", "csv", "orc", "avro", "text", "xml", "delta")
NOT_REPEATABLE = ("socket",)


@dataclass(frozen=True, slots=True)
class Route:
    """The way to one sink. ``composition`` is about order for the ordered rows, otherwise about the delivery alone."""

    sink: Sink
    composition: Composition

    @property
    def is_ordered(self) -> bool:
        return self.sink.what == Tag.ORDERED

    @property
    def delivery(self) -> DeliveryMode:
        """How often a batch may appear in the sink."""
        return DeliveryMode.EXACTLY_ONCE if self.sink.is_written_once else DeliveryMode.AT_LEAST_ONCE

    @property
    def title(self) -> str:
        return f"{self.sink.what} rows to {self.sink.target}"

    def describe(self) -> list[str]:
        often = self.delivery.replace("_", " ")
        if self.is_ordered:
            return [f"{self.title}, {often}", *(f"  {line}" for line in self.composition.describe())]
        return [f"{self.title}, {often}: {self.composition.steps[-1].stage.why}"]

    def as_fields(self) -> dict[str, Any]:
        steps = [
            {"stage": step.stage.name, "guarantee": step.guarantee.in_words(), "reason": step.reason}
            for step in self.composition.steps
        ]
        ordered = {"source": self.composition.source.in_words(), "guarantee": self.composition.guarantee.in_words()}
        return {
            "what": self.sink.what,
            "to": self.sink.target,
            "delivery": str(self.delivery),
            **(ordered if self.is_ordered else {"source": None, "guarantee": None}),
            "stages": steps,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """What every route of a pipeline gives, and what was required of them."""

    name: str
    required: Level | None
    routes: tuple[Route, ...]

    def describe(self) -> list[str]:
        """The pipeline for people."""
        lines = [f"pipeline '{self.name}'"]
        for route in self.routes:
            lines += ["", *route.describe()]
        return lines

    def require(self) -> None:
        """Raise GuaranteeNotMet, with the stage to blame, when the declaration promises more than a route can keep."""
        for route in self.routes if self.required is not None else ():
            if route.is_ordered:
                self._require(route)

    def _require(self, route: Route) -> None:
        try:
            route.composition.require(self.required or Level.NONE)
        except GuaranteeNotMet as error:
            raise GuaranteeNotMet(
                f"pipeline '{self.name}' promises more than it can keep for {route.title}: {error}"
            ) from None

    def as_fields(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "required": None if self.required is None else str(self.required),
            "sinks": [route.as_fields() for route in self.routes],
        }


def explain(declaration: Declaration) -> Explanation:
    """Multiply a declaration out."""
    read, order, promised = reading(declaration.source), ordering(declaration.order), promise(declaration.source)
    required = declaration.settings.require
    return Explanation(
        declaration.settings.name,
        None if required is None else Level(required),
        tuple(_route(sink, read, order, promised) for sink in declaration.sinks),
    )


def _route(sink: Sink, read: Stage, order: Stage, promised: Guarantee) -> Route:
    if sink.what == Tag.ORDERED:
        return Route(sink, compose([read, order, writing(sink)], source=promised))
    return Route(sink, compose([writing(sink)]))


# -- stages -------------------------------------------------------------------------------------------------------------


def promise(source: Source) -> Guarantee:
    """What the source itself gives: as declared, or nothing but what its format makes sure of."""
    if isinstance(source.promises, str):
        return Level(source.promises).guarantee
    if source.promises is not None:
        return Guarantee(sum({PROMISES[bit] for bit in source.promises}))
    return Guarantee.NO_LOSS if source.format in (*LOGS, *FILES) else Guarantee.NONE


def reading(source: Source) -> Stage:
    gone = next(_lost_in_reading(source), None)
    if gone is not None:
        return Stage(f"read {source.format}", Guarantee.ABSOLUTE & ~Guarantee.NO_LOSS, why=gone)
    why = "what a batch reads is in the checkpoint, and the same is read again after a crash"
    return Stage(f"read {source.format}", Guarantee.ABSOLUTE, why=why)


def _lost_in_reading(source: Source) -> Iterator[str]:
    options = {name.lower(): str(value).lower() for name, value in source.options.items()}
    if source.format in NOT_REPEATABLE:
        yield f"a {source.format} can't be read again after a crash"
    if options.get("failondataloss") == "false":
        yield "failOnDataLoss = false goes on without what was removed unread"
    if source.format == TOPIC and options.get("registerreader") == "false":
        yield "registerReader = false: clean-up does not wait for what is unread"


def ordering(order: Mapping[str, Any]) -> Stage:
    given_up = "; ".join(_given_up(order))
    passes = Guarantee.ABSOLUTE & ~Guarantee.NO_LOSS if given_up else Guarantee.ABSOLUTE
    how = f"sorted by {order['sequence']} within {order['key']}, and copies are put aside"
    restores = Guarantee.STRICT
    if (idle := order.get("idle_after")) is not None:
        how = f"a key that was idle for {idle} is forgotten, and copies of what it released would be released again"
        restores = Guarantee.NONE
    if (wrap := order.get("wrap")) is not None:
        how += f", as long as none is {wrap // 2} or more numbers from its place (wrap)"
    accounted = f"; {given_up}: that is in the ledger, and still a loss" if given_up else ""
    return Stage("put in order", passes, restores, why=how + accounted)


def _given_up(order: Mapping[str, Any]) -> Iterator[str]:
    """What of the numbers that the source sent may be missing from the ordered rows."""
    holds = order.get("on_gap") == OnGap.HOLD
    if (timeout := order.get("gap_timeout")) is not None and not holds:
        yield f"a gap is given up after {timeout} (gap_timeout)"
    if order.get("on_overflow") == OnOverflow.DROP:
        yield "what finds its key full is dropped (on_overflow)"
    elif not holds and order.get("on_overflow") != OnOverflow.RAISE:
        yield "a gap is given up when its key is full (on_overflow)"
    if not isinstance(order.get("start"), int):
        yield "what comes from before the first number that counts is late (start is not a number)"
    if _judges_times(order):
        yield "what is too far ahead in time is invalid (max_ahead)"
    if order.get("epoch") is not None:
        yield "a new session gives up what is missing of the one before (epoch)"


def _judges_times(order: Mapping[str, Any]) -> bool:
    """Whether a row may be invalid because of its time, and the pipeline goes on."""
    durations = (order.get("gap_timeout"), order.get("idle_after"), order.get("max_ahead"))
    return order.get("time") != "processing" and durations != (None,) * 3 and order.get("on_invalid") != OnInvalid.RAISE


def writing(sink: Sink) -> Stage:
    name, means = f"write {sink.target}", EXACTLY_ONCE.get(sink.format)
    if means is not None:
        return _without_key(name) if _loses_its_key(sink) else Stage(name, Guarantee.ABSOLUTE, why=means.why)
    why = f"format {sink.format} can't tell a batch that comes again after a crash, and repeats its rows"
    return Stage(name, Guarantee.NO_LOSS, why=why)


def _loses_its_key(sink: Sink) -> bool:
    """Whether a topic gets ordered rows as messages without a key."""
    return sink.format == TOPIC and sink.what == Tag.ORDERED and sink.columns is not None and "key" not in sink.columns


def _without_key(name: str) -> Stage:
    why = "the messages have no key (columns), and messages without a key have no order"
    return Stage(name, Guarantee.ABSOLUTE & ~Guarantee.NO_INVERSION, why=why)
