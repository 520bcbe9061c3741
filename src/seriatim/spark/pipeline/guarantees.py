"""Which guarantees a declared pipeline provides: those of its stages, composed for each sink.

A route goes from the source through the resequencer to one sink. It starts with the promises of the source; then reading,
resequencing and writing each keep, give up or restore guarantees (``core/guarantees.py``), with the reason.

A number that is given up is in the ledger with its reason, but it **still counts as a loss**: the consumers of the ordered rows
never see it. The other outputs (ledger, late rows, …) have no order; the explanation only says how often a row may appear.

Nothing is started or connected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from seriatim.core.guarantees import Composition, DeliveryMode, Guarantee, Level, Stage, compose
from seriatim.core.resequencing.options import OnGap, OnOverflow
from seriatim.errors import GuaranteeNotMet
from seriatim.spark.kernel.intake import OnInvalid
from seriatim.spark.pipeline.declaration import PROMISES, Declaration, Sink, Source
from seriatim.spark.pipeline.exactly_once import EXACTLY_ONCE, KAFKA, KAFKA_REPEATS, TOPIC
from seriatim.spark.tagged import Tag

LOGS = {TOPIC: "what was acknowledged is in the log", KAFKA: "what was acknowledged is in the log"}
FILES = ("parquet", "json", "csv", "orc", "avro", "text", "xml", "delta", "iceberg")
NOT_REPEATABLE = ("socket",)
_FILE_LIMITS = ("maxFilesPerTrigger", "maxBytesPerTrigger")
TOPIC_NAME = re.compile(r"[\w.-]+")
"""A single topic of Kafka: not a list, a pattern, or a variable that may be one."""
LIMITS = {
    **dict.fromkeys(FILES, _FILE_LIMITS),
    "iceberg": ("streaming-max-rows-per-micro-batch", "streaming-max-files-per-micro-batch"),
    KAFKA: ("maxOffsetsPerTrigger",),
    "rate": ("rowsPerSecond",),
}
"""The options that limit a batch, by format. A topic has a limit of its own, from ``LIMITS_OF_TOPICS`` on."""
LIMITS_OF_TOPICS = (4, 2)


@dataclass(frozen=True, slots=True)
class Route:
    """The way to one sink. ``composition`` is about order for the ordered rows, otherwise about the delivery alone."""

    sink: Sink
    composition: Composition

    @property
    def is_ordered(self) -> bool:
        """Whether it carries the ordered rows, rather than the ledger."""
        return self.sink.what == Tag.ORDERED

    @property
    def delivery(self) -> DeliveryMode:
        """How often a batch may appear in the sink."""
        return DeliveryMode.EXACTLY_ONCE if self.sink.is_written_once else DeliveryMode.AT_LEAST_ONCE

    @property
    def title(self) -> str:
        """The kind of rows and their destination, in words."""
        return f"{self.sink.what} rows to {self.sink.target}"

    def describe(self) -> list[str]:
        """The lines that ``seriatim pipeline explain`` prints about it."""
        often = self.delivery.replace("_", " ")
        if self.is_ordered:
            return [f"{self.title}, {often}", *(f"  {line}" for line in self.composition.describe())]
        return [f"{self.title}, {often}: {self.composition.steps[-1].stage.why}"]

    def as_fields(self) -> dict[str, Any]:
        """The route and its stages as plain values, for JSON."""
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
class PipelineExplanation:
    """The guarantees of every route of a pipeline, and the level that was required."""

    name: str
    required: Level | None
    routes: tuple[Route, ...]
    warnings: tuple[str, ...] = ()

    def describe(self) -> list[str]:
        """The lines that ``seriatim pipeline explain`` prints."""
        lines = [f"pipeline '{self.name}'"]
        for route in self.routes:
            lines += ["", *route.describe()]
        return [*lines, *([""] if self.warnings else []), *(f"warning: {one}" for one in self.warnings)]

    def require(self) -> None:
        """Raise GuaranteeNotMet, with the stage to blame, when the declaration promises more than a route can keep."""
        for route in self.routes:
            try:
                if route.is_ordered and self.required is not None:
                    route.composition.require(self.required)
            except GuaranteeNotMet as error:
                raise GuaranteeNotMet(
                    f"pipeline '{self.name}' can't provide what it requires for {route.title}: {error}"
                ) from None

    def as_fields(self) -> dict[str, Any]:
        """The explanation as plain values, for JSON."""
        return {
            "pipeline": self.name,
            "required": None if self.required is None else str(self.required),
            "sinks": [route.as_fields() for route in self.routes],
            "warnings": list(self.warnings),
        }


def explain(declaration: Declaration) -> PipelineExplanation:
    read, order, promised = reading(declaration.source), ordering(declaration.order), promise(declaration.source)
    required = declaration.settings.require
    return PipelineExplanation(
        declaration.settings.name,
        None if required is None else Level(required),
        tuple(_route(sink, read, order, promised) for sink in declaration.sinks),
        tuple(_warnings(declaration)),
    )


def _warnings(declaration: Declaration) -> Iterator[str]:
    """Settings that work, but may surprise the user."""
    source, order = declaration.source, declaration.order
    limits = LIMITS.get(source.format, ())
    if source.format == TOPIC and _spark_version() < LIMITS_OF_TOPICS:
        yield (
            f"nothing limits a batch: before Spark {'.'.join(map(str, LIMITS_OF_TOPICS))} a backlog of a topic is read in one, "
            "and workers need memory for all of it; use a newer Spark"
        )
    elif source.format != TOPIC and not {name.lower() for name in limits} & {name.lower() for name in source.options}:
        remedy = (
            f"set {limits[0]} in the options of the source" if limits else "use an option of the format, if it has one"
        )
        yield f"nothing limits a batch: a backlog is read in one, and workers need memory for all of it; {remedy}"
    timeout = order.get("gap_timeout")
    if timeout is None:
        yield "rows wait for missing ones without end (no gap_timeout): a later query with a watermark drops those that waited"
    else:
        yield f"rows may wait {timeout} for missing ones: a later query with a watermark drops them unless its delay is longer"
    if order.get("idle_after") is None:
        yield (
            "every key is remembered (no idle_after): where new keys keep coming, the state only grows; idle_after forgets "
            "those that have been silent for a while"
        )


def _spark_version() -> tuple[int, ...]:
    """That of the PySpark that is installed, which is not imported here: it takes seconds. None is no reason to warn."""
    try:
        return tuple(int(part) for part in version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return LIMITS_OF_TOPICS


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
    options = {name.lower(): str(value).lower() for name, value in source.options.items()}
    gone, passes = None, Guarantee.ABSOLUTE
    if source.format in NOT_REPEATABLE:
        gone = f"a {source.format} can't be read again after a crash"
    elif options.get("failondataloss") == "false":
        gone = "failOnDataLoss = false goes on without what was removed unread"
    elif source.format == TOPIC and options.get("registerreader") == "false":
        gone = "registerReader = false: clean-up does not wait for what is unread"
    if gone is not None:
        passes &= ~Guarantee.NO_LOSS
    why = gone or "what a batch reads is in the checkpoint, and the same is read again after a crash"
    if source.format == KAFKA:
        why += "; order holds within a partition of Kafka"
        if not TOPIC_NAME.fullmatch(options.get("subscribe", "")):
            passes &= ~Guarantee.NO_INVERSION
            why += ", and a key may be in several topics (name a single one with subscribe)"
        if gone is None:
            why += "; offsets that are gone stop the pipeline (failOnDataLoss)"
    return Stage(f"read {source.format}", passes, why=why)


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
    durations = (order.get("gap_timeout"), order.get("idle_after"), order.get("max_ahead"))
    judges_times = order.get("time") != "processing" and durations != (None,) * 3
    if judges_times and order.get("on_invalid") != OnInvalid.RAISE:
        yield "what is too far ahead in time is invalid (max_ahead)"
    if order.get("epoch") is not None:
        yield "a new session gives up what is missing of the one before (epoch)"


def writing(sink: Sink) -> Stage:
    name, means = f"write {sink.target}", EXACTLY_ONCE.get(sink.format)
    has_no_key = sink.columns is not None and "key" not in sink.columns
    if sink.format == TOPIC and sink.what == Tag.ORDERED and has_no_key:
        why = "the messages have no key (columns), and messages without a key have no order"
        return Stage(name, Guarantee.ABSOLUTE & ~Guarantee.NO_INVERSION, why=why)
    if means is not None:
        return Stage(name, Guarantee.ABSOLUTE, why=means.why)
    repeats = f"format {sink.format} can't tell a batch that comes again after a crash, and repeats its rows"
    return Stage(name, Guarantee.NO_LOSS, why=KAFKA_REPEATS if sink.format == KAFKA else repeats)
