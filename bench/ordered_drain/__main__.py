"""The command line, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from statistics import median

from bench.ordered_drain import __doc__ as about
from bench.ordered_drain import disk, embedded, growth, latency, postgres_lanes, redis_streams
from bench.ordered_drain.embedded import DURABLE, RECEIPT, WINDOW, Level, api_level, batch_level, engine_level
from bench.ordered_drain.postgres_lanes import PGMQ, PROCRASTINATE, SKIP_LOCKED, Recipe
from bench.ordered_drain.workload import Workload, in_turn, uniform, zipf
from bench.record import Recorder
from bench.report import Found, Report, options


@dataclass(frozen=True)
class Size:
    """How much is done."""

    messages: int
    slow: int
    """For what is known to take long: Zipf keys with a durable release, and PostgreSQL."""
    keys: tuple[int, ...]
    many: int
    rounds: int


FULL = Size(messages=60_000, slow=20_000, keys=(1_000, 100_000, 1_000_000), many=1_000_000, rounds=5)
QUICK = Size(messages=5_000, slow=2_000, keys=(100, 1_000), many=10_000, rounds=1)


class Bench(Report):
    """The parts, one after another."""

    def __init__(self, size: Size) -> None:
        super().__init__(size.rounds)
        self.size = size

    # -- the parts ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """The drain on SQLite, beside Redis. Who is compared stands side by side."""
        even, skewed, hot = uniform(self.size.messages), zipf(self.size.messages), zipf(self.size.slow)
        few = uniform(self.size.messages, FEW)
        per_hot = 1 / hot.hottest_share
        works: dict[str, Callable[[], float]] = {
            "API, uniform": _ours(api_level, even),
            "API in batches of one key, uniform": _ours(batch_level, even),
            "API in batches across keys, uniform": _ours(partial(batch_level, across_keys=True), even),
            "engine, uniform": _ours(engine_level, even),
            "Redis, uniform": lambda: redis_streams.rate(even),
            "Redis, uniform, publisher in its own process": lambda: redis_streams.rate(even, own_process=True),
            f"API in batches of one key, {FEW} keys": _ours(batch_level, few),
            f"Redis, {FEW} keys": lambda: redis_streams.rate(few),
            "engine, Zipf, window 16": lambda: embedded.rate(engine_level, skewed, WINDOW),
            "API, Zipf, window 16": lambda: embedded.rate(api_level, skewed, WINDOW),
            "API, Zipf, receipt": lambda: embedded.rate(api_level, skewed, RECEIPT),
            "engine, Zipf, receipt": lambda: embedded.rate(engine_level, skewed, RECEIPT),
            "Redis, Zipf": lambda: redis_streams.rate(hot),
            "engine, Zipf, durable": _ours(engine_level, hot),
            LIMIT: lambda: disk.commits_per_second(round(per_hot)) * per_hot,
            "API, Zipf, durable": _ours(api_level, hot),
            "Redis, Zipf, publisher in its own process": lambda: redis_streams.rate(hot, own_process=True),
            "fsyncs and nothing else": disk.fsyncs_per_second,
        }
        missing = redis_streams.is_missing()
        if missing:
            self.add("Redis", f"left out: {missing}")
            works = {name: work for name, work in works.items() if "Redis" not in name}
        found = self.rounds(works)
        for name in works:
            self.add(name, f"{found.of(name):,.0f}/s", self._beside(name, found), _GOALS.get(name, ""))

    @staticmethod
    def _beside(name: str, found: Found) -> str:
        level, *how = name.split(", ")
        if not level.startswith(("engine", "API")):
            return ""
        said = []
        peer = f"Redis, {how[0]}"
        if peer in found:
            said.append(f"{found.ratio(name, peer):.2f}x Redis")
        if "durable" in how:
            said.append(f"{found.ratio(name, LIMIT):.2f}x limit")
        if "window 16" in how:
            said.append(f"{found.ratio(name, f'{level}, uniform'):.2f}x uniform")
        return ", ".join(said)

    def postgres(self) -> None:
        """The drain on SQLite and on PostgreSQL, beside the recipes."""
        missing = postgres_lanes.is_missing()
        if missing:
            self.add("PostgreSQL", f"left out: {missing}")
            return
        with postgres_lanes.running_server() as url:
            few = self.size.slow // 4
            for workload, fewer in ((uniform(self.size.messages), uniform(few)), (zipf(few), zipf(few))):
                # Whoever takes one message at a time gets fewer of them: a short queue costs it less, if anything.
                recipes = {
                    f"{recipe.name}, {workload.name}": _recipe(url, fewer if recipe.at_once == 1 else workload, recipe)
                    for recipe in RECIPES
                }
                ours = {
                    f"engine on SQLite, {workload.name}": _ours(engine_level, workload),
                    f"engine on PostgreSQL, {workload.name}": lambda w=workload: _on_postgres(url, w),
                }
                found = self.rounds(recipes | ours)
                for name in recipes:
                    self.add(f"PostgreSQL, {name}", f"{found.of(name):,.0f}/s")
                for name in ours:
                    beside = ", ".join(f"{found.ratio(name, one):.2f}x {one.split(',')[0]}" for one in recipes)
                    self.add(name, f"{found.of(name):,.0f}/s", beside, "≥ 8x each" if "PostgreSQL" in name else "")

    def keys(self) -> None:
        """More keys, the same messages."""
        works = {f"{keys:,} keys": _ours(engine_level, in_turn(self.size.many, keys)) for keys in self.size.keys}
        found = self.rounds(works)
        first = next(iter(works))
        for name in works:
            ratio = f"1/{found.ratio(first, name):.2f}"
            self.add(f"{self.size.many:,} messages over {name}", f"{found.of(name):,.0f}/s", ratio, "≥ 1/1.2")
        keys = max(self.size.keys) * 3 // 10
        memory = f"memory of a key with one message, of {keys:,}"
        bytes_each = self.rounds({memory: lambda: growth.bytes_per_key(keys)}).of(memory)
        self.add(memory, f"{bytes_each:.0f} bytes", "", "≤ 600")

    def blocked(self) -> None:
        """One key that is blocked."""
        few, many = (
            f"1,000 keys beside {blocked:,} messages behind one blocked key" for blocked in (0, self.size.many)
        )
        rate = growth.rate_beside_blocked
        found = self.rounds(
            {few: lambda: rate(self.size.messages, 0), many: lambda: rate(self.size.messages, self.size.many)}
        )
        self.add(few, f"{found.of(few):,.0f}/s")
        self.add(many, f"{found.of(many):,.0f}/s", f"1/{found.ratio(few, many):.2f}", "≥ 1/1.2")
        memory = "memory of a message behind a blocked key"
        bytes_each = self.rounds({memory: lambda: growth.bytes_behind_blocked(self.size.many)}).of(memory)
        self.add(memory, f"{bytes_each:.0f} bytes", "", "≤ 64")

    def reopen(self) -> None:
        """A store with a long queue."""
        name = f"open a store with {self.size.many:,} queued, first delivery"
        seconds = self.rounds({name: lambda: growth.seconds_to_reopen(self.size.many)}).of(name)
        self.add(name, f"{seconds:.2f} s", f"{self.size.many / seconds:,.0f} messages/s", "≤ 1.5 s")

    def latency(self) -> None:
        """At half load."""
        self.say("Zipf, durable, for half of its load")
        half = embedded.rate(engine_level, zipf(self.size.slow), DURABLE) / 2
        workload = zipf(max(self.size.slow, int(half * 5)))
        runs = []
        for number in range(self.size.rounds):
            self.say(f"latency at {half:,.0f}/s, round {number + 1} of {self.size.rounds}")
            runs.append(latency.at_rate(workload, half)._asdict())
        middle = {name: median(run[name] for run in runs) for name in runs[0]}
        self.readings |= {f"latency, {name}, seconds": [run[name] for run in runs] for name in middle}
        figures = " · ".join(f"{name.replace('p999', 'p99.9')} {value * 1000:.1f} ms" for name, value in middle.items())
        work = f"publish → deliver at half load ({half:,.0f}/s), Zipf"
        self.add(work, figures, "", "p99 ≤ 4 ms, p99.9 ≤ 15 ms")


FEW = 50
"""So few keys that a batch of one key is full: with a thousand there are two or three messages of a key at a time."""
LIMIT = "limit of Zipf, durable: one bare commit for each message of the hottest key"
_GOALS = {
    "API, uniform": "≥ 1x Redis",
    "API in batches of one key, uniform": "≥ 2x Redis",
    "API in batches across keys, uniform": "≥ 2x Redis",
    f"API in batches of one key, {FEW} keys": "≥ 2x Redis",
    "API, Zipf, durable": "≥ 0.7x limit",
    "engine, uniform": "≥ 2x Redis",
    "engine, Zipf, durable": "≥ 1.2x Redis, ≥ 0.8x limit",
    "engine, Zipf, receipt": "≥ 8x Redis",
    "engine, Zipf, window 16": "≥ 0.7x uniform",
}
RECIPES = (SKIP_LOCKED, PGMQ, PROCRASTINATE)
PARTS = ("drain", "postgres", "keys", "blocked", "reopen", "latency")


def _ours(level: Level, workload: Workload) -> Callable[[], float]:
    return lambda: embedded.rate(level, workload, DURABLE)


def _recipe(url: str, workload: Workload, recipe: Recipe) -> Callable[[], float]:
    return lambda: postgres_lanes.rate(url, workload, recipe)


def _on_postgres(url: str, workload: Workload) -> float:
    """In a schema of its own for every round."""
    return embedded.rate(engine_level, workload, DURABLE, f"{url}&schema={workload.name}_{next(_SCHEMAS)}")


_SCHEMAS = count(1)


def main() -> None:
    arguments = options("bench.ordered_drain", about, PARTS).parse_args()
    recorder = Recorder("ordered_drain")
    bench = Bench(QUICK if arguments.quick else FULL)
    for part in arguments.only or PARTS:
        getattr(bench, part)()
    bench.show(as_json=arguments.json)
    if arguments.record:
        recorder.write([asdict(row) for row in bench.rows], bench.readings)


if __name__ == "__main__":
    main()
