"""The witness of the crash tests: hears what every child says, over all their lives, and objects to disorder.

It knows nothing of the engine. After a kill three things are in doubt, and nothing else: acks that were said and not confirmed,
deliveries under way, which may or may not have been counted, and dead letters that were due.
"""

from __future__ import annotations

from collections import defaultdict

from seriatim.store import open_store

KEYLESS = "-"
Name = tuple[str, int]


class Witness:
    """Follows what the children say, and objects."""

    def __init__(self, most_attempts: int) -> None:
        self._most_attempts = most_attempts
        self.published: set[Name] = set()
        self.delivered: set[Name] = set()
        self.settled: set[Name] = set()
        self.perhaps_settled: set[Name] = set()
        self.buried: set[Name] = set()
        self.graves_settled: set[Name] = set()
        self.perhaps_graves_settled: set[Name] = set()
        self.kills = 0
        self._forbidden: set[Name] = set()
        self._highest: dict[str, int] = defaultdict(lambda: -1)
        self._in_flight: dict[str, int] = {}
        self._attempts: dict[Name, int] = {}
        self._failed_for_good: set[Name] = set()  # the last attempt was nacked, or cut off by a kill
        self._acked: set[Name] = set()
        self._graves_acked: set[Name] = set()
        self._counts_exactly: set[Name] = set()  # delivered in this life

    def hear_kill(self) -> None:
        self.kills += 1
        doubtful = [key for key, _ in self._acked if key != KEYLESS]
        assert len(doubtful) == len(set(doubtful)), "more than one ack of a key was under way"
        self.perhaps_settled |= self._acked
        self.perhaps_graves_settled |= self._graves_acked
        self._failed_for_good |= {name for name in self._counts_exactly if self._attempts[name] == self._most_attempts}
        for forgotten in (self._in_flight, self._acked, self._graves_acked, self._counts_exactly):
            forgotten.clear()

    def hear(self, what: str, key: str, number: int, attempt: int) -> None:
        getattr(self, f"_hear_{what.lower()}")((key, number), attempt)

    def forbid(self, names: set[Name]) -> None:
        """Somebody was told that these were not published."""
        self._forbidden |= names

    def gone(self) -> set[Name]:
        """What may be gone from its lane: settled, perhaps settled, or dead-lettered."""
        return self.settled | self.perhaps_settled | self.buried | self._failed_for_good

    # -- what children say ----------------------------------------------------------------------------------------------

    def _hear_p(self, name: Name, _: int) -> None:
        self.published.add(name)

    def _hear_d(self, name: Name, attempt: int) -> None:
        assert name not in self._forbidden, f"{name} is delivered although its publish failed"
        assert name not in self.settled, f"{name} was settled and is delivered again"
        assert name not in self.buried, f"{name} was dead-lettered and is delivered again"
        self._judge_attempt(name, attempt)
        if name[0] != KEYLESS:
            self._judge_order(*name)
        self.delivered.add(name)

    def _judge_attempt(self, name: Name, attempt: int) -> None:
        known = self._attempts.get(name, 0)
        assert attempt <= self._most_attempts, f"{name} is delivered for the {attempt}th time"
        if name in self._counts_exactly:
            assert attempt == known + 1, f"{name} is attempt {attempt} after {known} of the same life"
        else:
            assert 1 <= attempt <= known + 1, f"{name} is attempt {attempt}, but only {known} were made"
        self._attempts[name] = attempt
        self._counts_exactly.add(name)

    def _judge_order(self, key: str, number: int) -> None:
        highest = self._highest[key]
        assert key not in self._in_flight, f"{key} {number} is delivered while {self._in_flight[key]} is in flight"
        assert number >= highest, f"{key} {number} is delivered after {highest}"
        if number > highest >= 0:
            before = (key, highest)
            gone = before in self.settled or before in self.perhaps_settled or before in self._failed_for_good
            assert gone, f"{key} {number} overtakes {highest}"
        self._highest[key] = number
        self._in_flight[key] = number

    def _hear_n(self, name: Name, attempt: int) -> None:
        self._land(name)
        if attempt == self._most_attempts:
            self._failed_for_good.add(name)

    def _hear_t(self, name: Name, _: int) -> None:
        self._acked.add(name)

    def _hear_a(self, name: Name, _: int) -> None:
        self._acked.remove(name)
        self.settled.add(name)
        self._land(name)

    def _land(self, name: Name) -> None:
        if name[0] != KEYLESS:
            assert self._in_flight.pop(name[0]) == name[1]

    def _hear_g(self, name: Name, attempts: int) -> None:
        assert name in self._failed_for_good, f"{name} is dead-lettered although it did not use up its attempts"
        assert attempts == self._most_attempts, f"the dead letter of {name} says that it was tried {attempts} times"
        assert name not in self.graves_settled, f"the dead letter of {name} was settled and is delivered again"
        assert name not in self.settled, f"{name} was settled and is dead-lettered"
        self.buried.add(name)

    def _hear_s(self, name: Name, _: int) -> None:
        self._graves_acked.add(name)

    def _hear_b(self, name: Name, _: int) -> None:
        self._graves_acked.remove(name)
        self.graves_settled.add(name)

    # -- what is left at the end ----------------------------------------------------------------------------------------

    def judge_store(self, waiting: set[Name]) -> None:
        """``waiting`` is what an independent reader finds neither settled nor buried in the store."""
        assert waiting & self.settled == set(), "what was settled waits in the store"
        assert waiting & self.buried == set(), "what was dead-lettered waits in the store"
        assert self.published - waiting - self.gone() == set(), "a confirmed publish is not in the store"

    def judge_end(self) -> None:
        """When everything is drained."""
        assert self.published - self.delivered == set(), "a confirmed publish was lost"
        assert self.published - self.settled - self.perhaps_settled - self.buried == set()
        assert self.buried - self.graves_settled - self.perhaps_graves_settled == set()


def what_waits(url: str) -> set[Name]:
    """What an independent reader finds neither settled nor buried, after it found nothing wrong with the store."""
    reader = open_store(url, read_only=True)
    try:
        assert list(reader.check()) == []
        catalog = reader.catalog()
        topics = {topic.name: topic.id for topic in catalog.topics}
        subscriptions = {subscription.name: subscription.id for subscription in catalog.subscriptions}
        if "s" not in subscriptions:
            return set()
        cursor = reader.cursor(subscriptions["s"])
        buried = {letter.offset for letter in reader.dead_letters(subscriptions["s"])}
        return {
            (record.key or KEYLESS, int(record.data))
            for record in reader.read(topics["t"], 0, 1_000_000)
            if not cursor.has(record.offset) and record.offset not in buried
        }
    finally:
        reader.close()
