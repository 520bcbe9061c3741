"""Guarantees: what a delivery promises about order, duplicates and loss, and what a chain of deliveries provides.

Rules
    - A guarantee is three bits: **no inversion**, **no duplicate**, **no loss**. The named levels need no inversion::

          level       no inversion   no duplicate   no loss
          none
          monotonic        x
          strict           x              x
          continuous       x                            x
          absolute         x              x             x

    - Guarantees hold per route and per key. Local delivery (an empty chain of stages) is absolute.
    - **Pipelining weakens**: two deliveries one after the other provide the meet, the bits that both have.
    - A later stage may restore order (by sorting on a number that the source assigned) and uniqueness (by remembering
      what it has seen). It cannot restore a message that never arrives: no loss is restored only by a pipe *around* a
      route, whose sender keeps messages and sends them again (``enclose``). Such a pipe repairs its own route and
      nothing before it.
    - Reliability is the probability that a message arrives. Pipelining multiplies it; no loss means exactly 1.

Theory of operation
    Why bits, when there are five named levels? Because "nothing is lost, but in any order" has no name and is still
    useful: a resequencer after it provides continuous delivery. Collapsing to levels between stages would lose that.

    A stage turns what arrives into ``(arriving & passes) | restores``; a chain applies stages from left to right, and
    the result says at which stage each missing bit was finally lost.

Where the source text is ambiguous
    - *Continuous* is defined as "m2, sent after m1, cannot be received before m1". Taken literally 1, 2, 1 is allowed: m1
      was received before m2, and once more after it. But the type is called "continuously *monotonic*", and "no message loss"
      is named as its only difference from monotonic, which forbids 1, 2, 1. **We forbid it.** So a resend that arrives after
      its successor is an inversion as well as a duplicate, and at-least-once delivery is continuous only when its repeats
      stay in place (1, 1, 2).
    - *Strict* is defined as "m1, sent before m2, cannot be received after m2 or after m1", which says nothing about a
      repeated last message. The named difference, no duplicates, does; we forbid every duplicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from itertools import takewhile
from math import prod

from seriatim.errors import GuaranteeNotMet, InvalidArgument

# --- guarantees and levels ------------------------------------------------------------------------------------------


class Guarantee(IntFlag):
    """The bits of a delivery's promise."""

    NONE = 0
    NO_INVERSION = 1
    NO_DUPLICATE = 2
    NO_LOSS = 4

    MONOTONIC = NO_INVERSION
    STRICT = NO_INVERSION | NO_DUPLICATE
    CONTINUOUS = NO_INVERSION | NO_LOSS
    ABSOLUTE = NO_INVERSION | NO_DUPLICATE | NO_LOSS

    def in_words(self) -> str:
        """The named level, and for ``none`` the remaining bits."""
        name = level(self).value
        return f"{name} ({_list_bits(self)})" if self and name == Level.NONE else name


class Level(StrEnum):
    """The named levels of ordering."""

    NONE = "none"
    MONOTONIC = "monotonic"
    STRICT = "strict"
    CONTINUOUS = "continuous"
    ABSOLUTE = "absolute"

    @property
    def guarantee(self) -> Guarantee:
        """The level as bits."""
        return Guarantee[self.name]


def level(guarantee: Guarantee) -> Level:
    """The strongest named level that ``guarantee`` includes."""
    if not guarantee & Guarantee.NO_INVERSION:
        return Level.NONE
    return next(named for named in Level if named.guarantee == guarantee)


def meet(first: Guarantee, second: Guarantee) -> Guarantee:
    """The guarantee of two pipelined deliveries: the bits that both have."""
    return first & second


_BIT_NAMES = {
    Guarantee.NO_INVERSION: "no inversion",
    Guarantee.NO_DUPLICATE: "no duplicate",
    Guarantee.NO_LOSS: "no loss",
}


def _bits(guarantee: Guarantee) -> Iterator[Guarantee]:
    return (bit for bit in _BIT_NAMES if guarantee & bit)


def _list_bits(guarantee: Guarantee) -> str:
    return ", ".join(_BIT_NAMES[bit] for bit in _bits(guarantee))


# --- delivery modes -------------------------------------------------------------------------------------------------


class DeliveryMode(StrEnum):
    """How often a message may be delivered. A mode says nothing about order."""

    BEST_EFFORT = "best_effort"
    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"

    @property
    def guarantee(self) -> Guarantee:
        """The bits that the mode promises."""
        return _MODE_GUARANTEES[self]


_MODE_GUARANTEES = {
    DeliveryMode.BEST_EFFORT: Guarantee.NONE,
    DeliveryMode.AT_MOST_ONCE: Guarantee.NO_DUPLICATE,
    DeliveryMode.AT_LEAST_ONCE: Guarantee.NO_LOSS,
    DeliveryMode.EXACTLY_ONCE: Guarantee.NO_DUPLICATE | Guarantee.NO_LOSS,
}


def together(order: Guarantee, mode: DeliveryMode) -> Guarantee:
    """The guarantee of one delivery when both promises hold: ordered and at most once is strict, and so on."""
    return order | mode.guarantee


# --- chains of stages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a route: which bits it passes, which it restores, and its reliability."""

    name: str
    passes: Guarantee
    restores: Guarantee = Guarantee.NONE
    reliability: float = 1.0
    why: str = ""

    def __post_init__(self) -> None:
        if self.restores & Guarantee.NO_LOSS:
            raise InvalidArgument(
                f"stage '{self.name}' cannot restore no loss: what is lost before a stage never reaches it;"
                " put a pipe with resends around the route instead (enclose)"
            )
        if not 0.0 <= self.reliability <= 1.0:
            raise InvalidArgument(f"reliability of stage '{self.name}' must be from 0 to 1, not {self.reliability!r}")
        if self.reliability < 1.0 and self.passes & Guarantee.NO_LOSS:
            raise InvalidArgument(
                f"stage '{self.name}' cannot promise no loss with a reliability of {self.reliability}, below 1"
            )

    def after(self, arriving: Guarantee) -> Guarantee:
        """The guarantee after this stage."""
        return meet(arriving, self.passes) | self.restores


@dataclass(frozen=True, slots=True)
class Step:
    """One stage in its place in a chain: what arrives, what leaves, and the reliability up to here."""

    stage: Stage
    arriving: Guarantee
    guarantee: Guarantee
    reliability: float

    @property
    def lost(self) -> Guarantee:
        """What arrives here and does not leave."""
        return self.arriving & ~self.guarantee

    @property
    def restored(self) -> Guarantee:
        """What leaves here and did not arrive."""
        return self.guarantee & ~self.arriving

    @property
    def reason(self) -> str:
        """What this stage changes, and why, in words."""
        changes = []
        if self.lost:
            changes.append(f"gives up {_list_bits(self.lost)}")
        if self.restored:
            changes.append(f"restores {_list_bits(self.restored)}")
        change = " and ".join(changes) or "keeps what arrives"
        return f"{change}: {self.stage.why}" if self.stage.why else change


@dataclass(frozen=True, slots=True)
class Composition:
    """The result of a whole chain."""

    source: Guarantee
    steps: tuple[Step, ...]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee at the end of the chain."""
        return self.steps[-1].guarantee if self.steps else self.source

    @property
    def level(self) -> Level:
        """The strongest level that the chain provides."""
        return level(self.guarantee)

    @property
    def reliability(self) -> float:
        """The share of messages that arrive at the end of the chain."""
        return self.steps[-1].reliability if self.steps else 1.0

    def require(self, needed: Level | Guarantee) -> None:
        """Raise GuaranteeNotMet, naming the stage that lost each missing bit, unless the chain provides ``needed``."""
        wanted = needed.guarantee if isinstance(needed, Level) else needed
        missing = wanted & ~self.guarantee
        if missing:
            complaints = "; ".join(self._complaint(bit) for bit in _bits(missing))
            raise GuaranteeNotMet(
                f"{wanted.in_words()} is required, but the chain gives {self.guarantee.in_words()}: {complaints}"
            )

    def describe(self) -> list[str]:
        """The chain as text, one line for the source, each stage, and the whole."""
        lines = [f"source: {self.source.in_words()}"]
        for number, step in enumerate(self.steps, start=1):
            lines.append(f"{number}. {step.stage.name}: {_figures(step.guarantee, step.reliability)} - {step.reason}")
        lines.append(f"end to end: {_figures(self.guarantee, self.reliability)}")
        return lines

    def _complaint(self, bit: Guarantee) -> str:
        # The step that finally lost the bit, or none if it was never there: an earlier loss was repaired later.
        without = list(takewhile(lambda step: not step.guarantee & bit, reversed(self.steps)))
        culprit = next((step for step in reversed(without) if step.lost & bit), None)
        if culprit is None:
            return f"{_BIT_NAMES[bit]} is missing from the source; {_remedy(bit, None)}"
        stage = culprit.stage
        because = f" ({stage.why})" if stage.why else ""
        return f"{_BIT_NAMES[bit]} is given up at '{stage.name}'{because}; {_remedy(bit, stage)}"


def compose(stages: Iterable[Stage], source: Guarantee = Guarantee.ABSOLUTE) -> Composition:
    """Evaluate a chain, stage by stage; without stages it is local delivery, which changes nothing."""
    steps: list[Step] = []
    arriving, reliability = source, 1.0
    for stage in stages:
        leaving = stage.after(arriving)
        reliability *= stage.reliability
        steps.append(Step(stage, arriving, leaving, reliability))
        arriving = leaving
    return Composition(source, tuple(steps))


def enclose(
    route: Stage | Sequence[Stage],
    name: str,
    restores: Guarantee,
    why: str = "",
    *,
    gives_up: Guarantee = Guarantee.NONE,
) -> Stage:
    """A pipe around ``route`` as one stage: sender and receiver together repair what the route between them breaks.

    The receiver hands over what the sender accepted, in the sender's order. So the pipe provides every bit that the
    route passes or the pipe itself restores, and repairs nothing that was broken before the sender, even where the
    route would have. ``gives_up`` is what the pipe itself breaks, however good its route: one that only resends breaks
    the order of messages.
    """
    stages = (route,) if isinstance(route, Stage) else tuple(route)
    reliability = prod(stage.reliability for stage in stages)
    if restores & Guarantee.NO_LOSS:
        if reliability == 0.0:
            raise InvalidArgument(
                f"pipe '{name}' cannot restore no loss: nothing gets through its route, however often it is sent"
            )
        reliability = 1.0
    passes = (compose(stages).guarantee | restores) & ~gives_up
    return Stage(name, passes=passes, reliability=reliability, why=why)


def _figures(guarantee: Guarantee, reliability: float) -> str:
    """The guarantee, and the reliability, unless messages may be lost with unknown probability."""
    is_known = reliability < 1.0 or guarantee & Guarantee.NO_LOSS
    return guarantee.in_words() + (f", reliability {reliability:g}" if is_known else "")


def _remedy(bit: Guarantee, culprit: Stage | None) -> str:
    if bit == Guarantee.NO_INVERSION:
        return "a resequencing stage at the end of the chain restores it"
    if bit == Guarantee.NO_DUPLICATE:
        return "a deduplicating stage at the end of the chain restores it"
    if culprit is None:
        return "nothing behind the source restores it"
    return f"only a pipe with resends around the route from '{culprit.name}' on restores it"
