"""The options of topics and subscriptions. Stores keep them as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from seriatim.core.filters import compile_filter
from seriatim.core.lanes.types import Delivery, Keep, ReleaseAfter, RetryPolicy, check_tenants
from seriatim.core.publishing.dedup import MIN_DEDUP_WINDOW_S
from seriatim.core.text_checks import check_name, check_text
from seriatim.core.validation import MAX_INTEGER, one_of, require_duration, require_kind, require_whole, shown
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.store.base import DEFAULT_RETENTION_S as DEFAULT_RETENTION_S  # noqa: PLC0414 - front ends take it from here
from seriatim.store.base import Catalog, Problem

SHORTEST_ACK_DEADLINE_S = 0.01
"""With a shorter one a message would come again before anybody could have acked it."""


def require_ack_deadline(seconds: object) -> None:
    """Raise InvalidArgument unless leases can last this long."""
    require_duration("ack_deadline", seconds)
    if seconds < SHORTEST_ACK_DEADLINE_S:  # type: ignore[operator]  # it is a number
        raise InvalidArgument(f"ack_deadline must be {SHORTEST_ACK_DEADLINE_S} seconds or more, not {seconds!r}")


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """``retention``: how long messages are kept that were published before anybody subscribed or read; that somebody
    subscribes later does not shorten it. ``retain_settled``: how long messages published since then are kept when
    everybody has settled them. ``resource``: opaque data that a front end keeps with the topic. ``dedup_window``
    (seconds) and ``dedup_max_ids``: how long, and how many at most, ids of messages are known (``core.publishing.dedup``);
    None is 10 minutes and a million."""

    retention: float | None = DEFAULT_RETENTION_S
    retain_settled: float | None = 0.0
    resource: str | None = None
    dedup_window: float | None = None
    dedup_max_ids: int | None = None

    def __post_init__(self) -> None:
        for name in ("retention", "retain_settled", "dedup_window"):
            if getattr(self, name) is not None:
                require_duration(name, getattr(self, name))
        if self.dedup_window is not None and self.dedup_window < MIN_DEDUP_WINDOW_S:
            raise InvalidArgument(
                f"dedup_window must be {MIN_DEDUP_WINDOW_S:g} seconds or more, because clients repeat a publish for that "
                f"long: not {self.dedup_window!r}"
            )
        if self.dedup_max_ids is not None:
            require_whole("dedup_max_ids", self.dedup_max_ids, 1, MAX_INTEGER)
        if self.resource is not None:
            check_text("resource", self.resource)

    def to_json(self) -> dict[str, Any]:
        """The options as plain values, for a store."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TopicOptions:
        """The options of ``to_json``; unknown ones are left out."""
        return cls(**_known(cls, values))


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """How messages are delivered: in order or not, how long a lease lasts, and what happens to failed deliveries. The defaults
    are Google Pub/Sub's (no order, immediate retries); ``client`` and ``cli`` have their own.

    ``filter`` selects the messages to deliver (see ``core.filters``); it can't be changed once the subscription exists.
    ``tenant_limit`` limits the messages in flight of all keys with the same part before ``tenant_separator``.
    ``keep="latest"`` delivers only the newest waiting message of a key. A ``paused`` subscription delivers nothing.
    A ``detached`` one has lost its backlog, and gets nothing more. ``resource`` is opaque data that a front end keeps with
    the subscription.
    """

    message_ordering: bool = False
    ack_deadline: float = 10.0
    retry: RetryPolicy = field(default_factory=RetryPolicy.immediate)
    window: int = 1
    release: ReleaseAfter = ReleaseAfter.DURABLE
    dead_letter_topic: str | None = None
    paused: bool = False
    filter: str | None = None
    detached: bool = False
    resource: str | None = None
    keep: Keep = Keep.ALL
    tenant_limit: int | None = None
    tenant_separator: str = "/"

    def __post_init__(self) -> None:
        for name in ("message_ordering", "paused", "detached"):
            require_kind(name, bool, getattr(self, name))
        require_ack_deadline(self.ack_deadline)
        require_kind("retry", RetryPolicy, self.retry)
        require_whole("window", self.window, 1, MAX_INTEGER)
        object.__setattr__(self, "release", one_of("release", ReleaseAfter, self.release))
        check_tenants(self.tenant_limit, self.tenant_separator, self.window)
        object.__setattr__(self, "keep", one_of("keep", Keep, self.keep))
        if self.dead_letter_topic is not None:
            check_name("dead_letter_topic", self.dead_letter_topic)
        if self.filter is not None:
            check_text("filter", self.filter)
            compile_filter(self.filter)
        if self.resource is not None:
            check_text("resource", self.resource)

    @property
    def delivery(self) -> Delivery:
        """The options that concern the lanes."""
        return Delivery(self.retry, self.window, self.release, self.keep, self.tenant_limit, self.tenant_separator)

    def require_batches(self, name: str) -> None:
        """Raise FailedPrecondition unless a consumer can take batches of a key (rule 9 of the lanes)."""
        obstacles = {
            "has no order, so there are no batches of a key": not self.message_ordering,
            f"has a window of {self.window}, and batches need one of 1": self.window > 1,
            "limits its tenants, and each message counts": self.tenant_limit is not None,
        }
        for why in (why for why, is_so in obstacles.items() if is_so):
            raise FailedPrecondition(f"subscription {name!r} {why}: use across_keys=True, or no batch")

    def to_json(self) -> dict[str, Any]:
        """The options as plain values, for a store."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SubscriptionOptions:
        """The options of ``to_json``; unknown ones are left out."""
        known = _known(cls, values)
        if isinstance(known.get("retry"), Mapping):
            known["retry"] = RetryPolicy(**_known(RetryPolicy, known["retry"]))
        return cls(**known)


_FORMER_NAMES = {"ordering": "message_ordering"}
"""Options that stores written by earlier versions hold under other names."""

AnyOptions = TypeVar("AnyOptions", TopicOptions, SubscriptionOptions)

Flaws: TypeAlias = Mapping[str, str]
"""What is wrong with options that a store holds: for each one that can't be used, why."""


def read_topic_options(values: Mapping[str, Any]) -> tuple[TopicOptions, Flaws]:
    """The stored options of a topic. An unusable one counts as None, so that nothing is removed."""
    good, flaws = _read(TopicOptions, values)
    return TopicOptions(**good, **dict.fromkeys(flaws)), flaws


def read_subscription_options(values: Mapping[str, Any]) -> tuple[SubscriptionOptions, Flaws]:
    """The stored options of a subscription. The default replaces an unusable one."""
    good, flaws = _read(SubscriptionOptions, values)
    return SubscriptionOptions.from_json(good), flaws


def _read(kind: type[TopicOptions] | type[SubscriptionOptions], values: object) -> tuple[dict[str, Any], Flaws]:
    """The usable options, and what is wrong with the others."""
    if not isinstance(values, Mapping):
        return {}, dict.fromkeys(sorted(_names(kind)), f"options must be an object, not {shown(values)}")
    known = _known(kind, values)
    with suppress(InvalidArgument, TypeError, ValueError):
        kind.from_json(known)
        return known, {}
    good, flaws = {}, {}
    for name, value in known.items():
        try:
            kind.from_json({name: value})
        except (InvalidArgument, TypeError, ValueError) as error:
            flaws[name] = str(error)
        else:
            good[name] = value
    return good, flaws


def said_of(flaws: Flaws) -> str | None:
    """What is wrong with the options, as text; None if nothing is."""
    if not flaws:
        return None
    return f"options that can't be used ({'; '.join(dict.fromkeys(flaws.values()))}): set {', '.join(flaws)} anew"


def require_repaired(what: str, flaws: Flaws, names: Sequence[str] | None) -> None:
    """Raise FailedPrecondition unless a change sets every unusable option; ``names`` None sets all."""
    left = {name: why for name, why in flaws.items() if names is not None and name not in names}
    if left:
        raise FailedPrecondition(f"{what} has {said_of(left)}, in the same change")


def flaws_in(catalog: Catalog) -> Iterator[Problem]:
    """The topics and subscriptions of a store that have unusable options."""
    return flaws_of(
        [(topic.name, read_topic_options(topic.options)[1]) for topic in catalog.topics],
        [(known.name, read_subscription_options(known.options)[1]) for known in catalog.subscriptions],
    )


def flaws_of(topics: Iterable[tuple[str, Flaws]], subscriptions: Iterable[tuple[str, Flaws]]) -> Iterator[Problem]:
    """The same, for topics and subscriptions whose options have been read already."""
    for name, flaws in topics:
        if (problem := said_of(flaws)) is not None:
            yield Problem(f"topic '{name}'", f"has {problem}; until then nothing of it is removed")
    for name, flaws in subscriptions:
        if (problem := said_of(flaws)) is not None:
            yield Problem(f"subscription '{name}'", f"has {problem}; until then it is stopped")


def patched(current: AnyOptions, given: AnyOptions, names: Sequence[str] | None) -> AnyOptions:
    """The current options, with the named ones replaced by those given; None replaces all of them.

    A name may go one level down, such as ``retry.max_attempts``.
    """
    if names is None:
        return given
    whole = _changes(current, given, [name for name in names if "." not in name])
    inside: dict[str, list[str]] = {}
    for name in names:
        outer, dot, inner = name.partition(".")
        if dot and outer not in whole:
            inside.setdefault(outer, []).append(inner)
    for outer, inner_names in inside.items():
        before, after = (_changes(options, options, [outer])[outer] for options in (current, given))
        whole[outer] = replace(before, **_changes(before, after, inner_names))  # at once: they are checked together
    return replace(current, **whole)


def _changes(current: object, given: object, names: Sequence[str]) -> dict[str, Any]:
    known = _names(type(current)) if is_dataclass(current) else set()
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"there is no option {name!r} to change; there are {', '.join(sorted(known)) or 'none'}"
            )
    return {name: getattr(given, name) for name in names}


def _names(kind: type) -> set[str]:
    return {known.name for known in fields(kind)}


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that this version knows: options of a newer one are kept in the store and ignored here."""
    names = _names(kind)
    renamed = {_FORMER_NAMES[name]: value for name, value in values.items() if name in _FORMER_NAMES}
    return {name: value for name, value in {**renamed, **values}.items() if name in names}
