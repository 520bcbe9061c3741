"""The records of a group's state topic: failures, pauses, and operators' commands.

The topic is compacted and has as many partitions as the subscribed topic. Records about a partition are in the
one of the same number.

Rules
    - ``options``: the subscription's topic and options, in partition 0, which every member follows, and how many
      partitions the topic had when the subscription was created.
    - ``claim``: which member has the partition. Every assignment claims it with an epoch, which begins with the group's
      generation: the current member has a higher one than any earlier member, even if that one claims it late. The rest
      of it begins at random, because a generation may be the same as before: no two claims have one epoch. A member
      reads the topic up to its own claim. Records before a claim count; records after it with a lower epoch were
      written by a member that had lost the partition, and are ignored. The log decides which is which, so all readers
      agree. Keys contain the epoch, and a member that claims a partition writes the inherited state again: compaction
      never drops valid records in favour of late ones.
    - ``message``: how often a message failed, when it may be delivered again, and its last error. Deleted on
      settlement.
    - ``pause``: a key that an operator paused, or that failed too often. Deleted when the key is resumed.
    - ``replay``: up to which place the rows of a Spark query's partition are finished.
    - ``lost``: messages that Kafka removed before they were finished.
    - ``gone``: a dead letter that was redriven or purged, in partition 0.
    - ``command``: an operator's command to the member that has the partition. Deleted when it was carried out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

PREFIX = "seriatim."
SUFFIX = ".state"
OPTIONS = "options"


def state_topic(subscription: str) -> str:
    return f"{PREFIX}{subscription}{SUFFIX}"


def subscription_of(topic: str) -> str | None:
    """The subscription of a state topic; None for other topics."""
    is_state = topic.startswith(PREFIX) and topic.endswith(SUFFIX) and len(topic) > len(PREFIX) + len(SUFFIX)
    return topic[len(PREFIX) : -len(SUFFIX)] if is_state else None


class StateRecord(NamedTuple):
    """One record: what it is about, and its value; None deletes it."""

    key: str
    value: dict[str, Any] | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        value = None if self.value is None else json.dumps(self.value, separators=(",", ":")).encode()
        return self.key.encode("utf-8", "surrogateescape"), value

    @classmethod
    def decoded(cls, key: bytes | None, value: bytes | None) -> StateRecord | None:
        """Decode a record; None if it is not one of ours."""
        try:
            said = None if value is None else json.loads(value)
        except (ValueError, RecursionError):
            return None
        if key is None or not (said is None or isinstance(said, dict)):
            return None
        return cls(key.decode("utf-8", "surrogateescape"), said)


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of a message that failed, or that an operator delayed."""

    key: str | None
    failures: int
    not_before: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """An operator's command to the member that has a key."""

    verb: str
    key: str | None
    text: str | None = None
    rest: bool = False
    head: int | None = None
    """The message that it is about: it waits until the member has seen that one. A key that stands at another one by then is
    neither skipped nor dead-lettered: somebody else was quicker."""


def claim_record(epoch: int, *, is_claimed: bool = True) -> StateRecord:
    return StateRecord(f"claim/{epoch}", {} if is_claimed else None)


def failure_record(offset: int, epoch: int, failure: Failure | None) -> StateRecord:
    return StateRecord(f"message/{epoch}/{offset}", None if failure is None else {"epoch": epoch, **asdict(failure)})


def pause_record(key: str | None, epoch: int, reason: str | None, *, is_paused: bool) -> StateRecord:
    name = f"pause/{epoch}" if key is None else f"pause/{epoch}/{key}"
    return StateRecord(name, {"reason": reason} if is_paused else None)


def replay_record(writer: str, epoch: int, place: tuple[int, int] | None) -> StateRecord:
    return StateRecord(f"replay/{epoch}/{writer}", None if place is None else {"place": place})


def lost_record(end: int, messages: int) -> StateRecord:
    return StateRecord(f"lost/{end}", {"messages": messages})


def gone_record(letter: str) -> StateRecord:
    """The record of a dead letter that was redriven or purged: Kafka can't delete a single record."""
    return StateRecord(f"gone/{letter}", {})


def command_record(identity: str, command: Command | None) -> StateRecord:
    return StateRecord(f"command/{identity}", None if command is None else asdict(command))


@dataclass(slots=True)
class PartitionMemory:
    """The state of one partition, from the state topic."""

    epoch: int = 0
    """The highest that the partition was claimed with."""
    void: set[str] = field(default_factory=set)
    """Keys of records that count no longer, or never did: whoever has the partition deletes them."""
    failures: dict[int, tuple[int, Failure]] = field(default_factory=dict)  # by offset: epoch and failure
    paused: dict[str | None, tuple[int, str | None]] = field(default_factory=dict)  # by key: epoch and reason
    commands: dict[str, Command] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # dead letters
    replays: dict[str, tuple[int, tuple[int, int]]] = field(default_factory=dict)  # by writer: its epoch, and the place
    lost: dict[int, int] = field(default_factory=dict)  # counts, by the offset after them

    def take(self, record: StateRecord) -> None:
        """Add the next record of the topic."""
        try:
            if record.value is None:
                self._forget(record.key)
            else:
                self._remember(record.key, record.value)
        except (KeyError, TypeError, ValueError, OverflowError):
            return  # not one of our records

    def _forget(self, name: str) -> None:
        kind, _, rest = name.partition("/")
        self.void.discard(name)
        if kind == "pause":
            epoch, key = _paused(rest)
            if self.paused.get(key, (None,))[0] == epoch:
                del self.paused[key]
        elif kind == "command":
            self.commands.pop(rest, None)
        elif kind == "message":
            epoch, offset = map(int, rest.split("/"))
            if self.failures.get(offset, (None,))[0] == epoch:
                del self.failures[offset]

    def _remember(self, name: str, value: dict[str, Any]) -> None:
        kind, _, rest = name.partition("/")
        match kind:
            case "claim" if int(rest) > self.epoch:
                self.void |= {claim_record(self.epoch).key} if self.epoch else set()
                self.epoch = int(rest)
            case "claim" | "message" | "pause" | "replay" if int(rest.split("/")[0]) < self.epoch:
                self.void.add(name)  # written late
            case "message":
                epoch, offset = map(int, rest.split("/"))
                said = Failure(value["key"], int(value["failures"]), float(value["not_before"]), value["error"])
                self.failures[offset] = epoch, said
            case "replay":
                first, _, writer = rest.partition("/")
                batch, position = map(int, value["place"])
                self.replays[writer] = max((int(first), (batch, position)), self.replays.get(writer, (0, (0, 0))))
            case "pause":
                epoch, key = _paused(rest)
                self.paused[key] = epoch, value["reason"]
            case "lost":
                self.lost[int(rest)] = int(value["messages"])
            case "gone":
                self.gone.add(rest)
            case "command":
                self.commands[rest] = Command(**value)


def _paused(rest: str) -> tuple[int, str | None]:
    """The epoch and the key of a pause."""
    epoch, slash, key = rest.partition("/")
    return int(epoch), key if slash else None
