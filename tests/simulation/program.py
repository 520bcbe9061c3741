"""Programs as data: a plan of the world and a list of steps, both drawn from a seed.

A step that is left out changes nothing about the others: whatever they need was drawn before. That is what makes a program
easy to shrink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from seriatim import RetryPolicy

PROCESSES = "abc"
KEYS = 3

STRICT, LIMITED, FREE, FILTERED, GRAVES = "strict", "limited", "free", "filtered", "graves"
SUBSCRIPTIONS = {STRICT: "events", LIMITED: "events", FREE: "loose", FILTERED: "loose", GRAVES: "dead"}
"""Every subscription with its topic. What happens to those of ``loose`` is judged less strictly: they are moved about."""

FILTER = 'attributes.parity = "even"'


@dataclass(frozen=True, slots=True)
class Cancel:
    """A step is cancelled after so many turns of the loop, or so many seconds."""

    after: float
    unit: Literal["turns", "s"]

    def __str__(self) -> str:
        return f"cancelled after {self.after:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Step:
    """After a pause, one process (or the world, ``-``) does something."""

    number: int
    pause: float
    who: str
    verb: str
    args: tuple[Any, ...] = ()
    cancel: Cancel | None = None

    def __str__(self) -> str:
        shown = ", ".join(map(_short, self.args))
        line = f"{self.number:3}  +{self.pause:<6g} {self.who}  {self.verb}({shown})"
        return line if self.cancel is None else f"{line}  -- {self.cancel}"


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Plan:
    """What is decided about a world before anything happens in it."""

    processes: int
    write_s: Sequence[float]
    link_s: Sequence[float]
    thread_s: Sequence[float]
    high: float
    cached_bytes: int
    """How much of a topic stays in memory."""
    trouble: float
    """How often handlers fail."""
    options: dict[str, dict[str, Any]]
    """Of each subscription."""
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How long topics keep their messages."""


@dataclass(frozen=True, slots=True)
class Program:
    seed: int
    plan: Plan
    steps: tuple[Step, ...]

    def only(self, numbers: Sequence[int]) -> Program:
        """The same with some of the steps."""
        wanted = set(numbers)
        return replace(self, steps=tuple(step for step in self.steps if step.number in wanted))

    def calm(self, numbers: Sequence[int]) -> Program:
        """The same with some of the steps not cancelled."""
        calm = set(numbers)
        return replace(
            self, steps=tuple(replace(step, cancel=None) if step.number in calm else step for step in self.steps)
        )

    def script(self) -> str:
        """For people to read."""
        plan = self.plan
        first = (
            f"# seed {self.seed}: {plan.processes} processes; commits {_range(plan.write_s)}, "
            f"link {_range(plan.link_s)}, threads {_range(plan.thread_s)}; handlers fail {plan.trouble:.0%}"
        )
        options = [f"#   {name}: {given}" for name, given in {**plan.options, **plan.topics}.items()]
        return "\n".join([first, *options, *map(str, self.steps)])


def _range(seconds: Sequence[float]) -> str:
    return f"{min(seconds):g}-{max(seconds):g} s"


QUICK = (0.0,)
SMALL = (0.0, 0.0, 0.0005, 0.002, 0.01)
UNEVEN = (0.0, 0.001, 0.02, 0.3)


def draw_plan(random: Random) -> Plan:
    backoff = RetryPolicy(min_backoff=random.choice([0, 0.01, 0.2]), max_backoff=random.choice([0.2, 2.0]))
    exhausted = random.choice(["dead-letter", "dead-letter", "dead-letter-rest", "pause"])
    limited = replace(backoff, max_attempts=random.randint(1, 4), on_exhausted=exhausted)  # type: ignore[arg-type]
    loose = replace(backoff, mode=random.choice(["block", "overtake"]), max_attempts=random.choice([None, 2]))  # type: ignore[arg-type]
    common = {"enable_message_ordering": True, "ack_deadline": random.choice([0.5, 1.5, 10.0])}
    return Plan(
        processes=random.choice([1, 2, 2, 3]),
        write_s=random.choice([QUICK, SMALL, SMALL, UNEVEN]),
        link_s=random.choice([QUICK, SMALL, SMALL, UNEVEN]),
        thread_s=random.choice([QUICK, SMALL]),
        high=random.choice([1e9, 1e9, 2000.0, 300.0]),
        cached_bytes=random.choice([10**8, 10**8, 2000, 1000, 0, 0]),
        trouble=random.choice([0.0, 0.2, 0.5]),
        options={
            STRICT: {**common, "retry": backoff, "release": random.choice(["durable", "durable", "receipt"])},
            LIMITED: {
                **common,
                "retry": limited,
                "release": random.choice(["durable", "durable", "receipt"]),
                "dead_letter_topic": random.choice(["dead", "dead", None]),
            },
            FREE: {**common, "retry": loose, "window": random.choice([1, 3]), "dead_letter_topic": "dead"},
            FILTERED: {**common, "retry": backoff, "filter": FILTER, "ack_deadline": 1.0},
            GRAVES: {"enable_message_ordering": random.choice([True, False]), "ack_deadline": 5.0},
        },
    )


KEEPING: tuple[dict[str, Any], ...] = (
    {},
    {"retention": 0.0},
    {"retention": None, "retain_settled": None},
    {"retention": 1.0, "retain_settled": 3.0},
)
"""Settings of topics. Whatever they are, what a subscription has not settled is kept for it."""


def add_options(plan: Plan, random: Random) -> Plan:
    """Let some subscriptions have a limit for each tenant, which is a process here, or keep only the latest of a key; and
    topics keep more or less of what is settled."""
    options = {name: dict(given) for name, given in plan.options.items()}
    for name in (STRICT, LIMITED, FREE):
        if options[name].get("window", 1) == 1 and random.random() < 0.3:
            options[name]["tenant_limit"] = random.choice([1, 2])
    if random.random() < 0.25:
        options[FREE]["keep"] = "latest"
    return replace(plan, options=options, topics={name: random.choice(KEEPING) for name in ("events", "loose", "dead")})
