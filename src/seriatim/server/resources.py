"""Topics, subscriptions and snapshots as messages of the API and as options of the engine.

Rules
    - A field that the engine supports is an engine option and is read back from there, so that it is correct whichever program
      changed it. All other fields are stored as a document with the options, and returned unchanged.
    - An unsupported field that would affect delivery is refused, not ignored.
    - The window and which messages are kept are labels, ``seriatim-window`` and ``seriatim-keep``, because the API has no
      fields for them. The window is 1 with exactly-once delivery: an ack that waits for earlier messages can't be confirmed.
    - Acked messages are retained by the topic, for the longest retention of the topic and all its subscriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from math import ceil
from typing import Any

from seriatim.core.lanes.types import Keep, RetryPolicy
from seriatim.core.validation import one_of
from seriatim.engine.broker import RETIRED, Broker, SnapshotInfo, SubscriptionInfo, TopicInfo
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import InvalidArgument, NotFound, NotSupported
from seriatim.server.admission import NamedLocks
from seriatim.server.options import MAX_ACK_DEADLINE_S, ServerOptions
from seriatim.server.push_delivery import check_endpoint
from seriatim.wire.names import KEEP_LABEL, WINDOW_LABEL, Names
from seriatim.wire.resource_messages import check_bounds, from_document, to_document
from seriatim.wire.services import Snapshot, Subscription, Topic
from seriatim.wire.times import seconds_of, set_seconds

MAX_WINDOW = 1000

MAX_LABELS = 64
OUR_LABELS = (WINDOW_LABEL, KEEP_LABEL)
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")

DAY_S = 24 * 3600.0
DEFAULT_RETENTION_S, MAX_RETENTION_S = 7 * DAY_S, 31 * DAY_S
DEFAULT_MIN_BACKOFF_S, MAX_BACKOFF_S = 10.0, 600.0
MIN_DELIVERY_ATTEMPTS, MAX_DELIVERY_ATTEMPTS = 5, 100

TOPIC_UPDATES = frozenset(
    {"labels", "message_retention_duration", "message_storage_policy", "kms_key_name", "schema_settings"}
)
SUBSCRIPTION_UPDATES = frozenset(
    {
        *("ack_deadline_seconds", "labels", "dead_letter_policy", "retry_policy", "expiration_policy"),
        *("message_retention_duration", "retain_acked_messages", "enable_exactly_once_delivery", "push_config"),
    }
)
SNAPSHOT_UPDATES = frozenset({"labels", "expire_time"})

_TOPIC_DOCUMENT = TOPIC_UPDATES | {"tags"}
_SUBSCRIPTION_DOCUMENT = frozenset(
    {
        *("labels", "expiration_policy", "message_retention_duration", "retain_acked_messages", "tags"),
        *("enable_exactly_once_delivery", "push_config"),
    }
)
_ENGINE_UPDATES = SUBSCRIPTION_UPDATES - _SUBSCRIPTION_DOCUMENT
_OPTIONS_OF = {
    "ack_deadline_seconds": ("ack_deadline",),
    "labels": ("window", "keep"),
    "enable_exactly_once_delivery": ("window",),
    "retry_policy": ("retry.min_backoff", "retry.max_backoff"),
    "dead_letter_policy": ("retry.max_attempts", "dead_letter_topic"),
}
"""The engine options that correspond to a field of a subscription."""
_TOPIC_REFUSED = ("ingestion_data_source_settings", "message_transforms")
_SUBSCRIPTION_REFUSED = ("bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms")


class Resources:
    """Converts the resources of one store."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.topics = Names("topics", options.project)
        self.subscriptions = Names("subscriptions", options.project)
        self.snapshots = Names("snapshots", options.project)
        self.topic_locks = NamedLocks()
        self.subscription_locks = NamedLocks()

    # -- topics ---------------------------------------------------------------------------------------------------------

    def topic_options(self, topic: Any) -> TopicOptions:
        _refuse(topic, _TOPIC_REFUSED)
        check_bounds(topic)
        check_labels(topic.labels)
        resource, retained = to_document(topic, _TOPIC_DOCUMENT), _retained(topic, MAX_RETENTION_S)
        if retained is None:
            return TopicOptions(resource=resource)
        return TopicOptions(retained, retained, resource)

    def topic(self, info: TopicInfo) -> Any:
        topic = from_document(Topic, info.options.resource)
        topic.name, topic.state = self.topics.of(info.name), Topic.ACTIVE
        return topic

    def _topic_of(self, name: str) -> str:
        """The topic's name in a subscription or snapshot."""
        return RETIRED if name.startswith(RETIRED) else self.topics.of(name)

    # -- subscriptions --------------------------------------------------------------------------------------------------

    def subscription_options(self, subscription: Any) -> SubscriptionOptions:
        _refuse(subscription, _SUBSCRIPTION_REFUSED)
        check_bounds(subscription)
        check_labels(subscription.labels)
        _check_push(subscription.push_config)
        _retained(subscription, MAX_RETENTION_S)
        seconds, dead_letters = subscription.ack_deadline_seconds, subscription.dead_letter_policy.dead_letter_topic
        if seconds:
            self.check_ack_deadline(seconds)
        return SubscriptionOptions(
            message_ordering=subscription.enable_message_ordering,
            ack_deadline=float(seconds or max(10, self._options.min_ack_deadline)),
            retry=_retry_policy(subscription),
            window=self._window(subscription),
            keep=one_of(f"label {KEEP_LABEL}", Keep, subscription.labels.get(KEEP_LABEL, Keep.ALL)),
            dead_letter_topic=None if dead_letters in ("", RETIRED) else self.topics.in_store(dead_letters),
            filter=subscription.filter or None,
            resource=to_document(subscription, _SUBSCRIPTION_DOCUMENT),
        )

    def changed_options(self, subscription: Any, paths: Iterable[str]) -> tuple[SubscriptionOptions, list[str]]:
        """The options of a subscription after an update of these fields, and the names of the options that it changes. Other
        options stay as they are: an embedded program may have set more than the API can express."""
        touched = {path.partition(".")[0] for path in paths}
        for field in _ENGINE_UPDATES - touched:
            subscription.ClearField(field)
        names = [name for field in sorted(touched) for name in _OPTIONS_OF.get(field, ())]
        return self.subscription_options(subscription), ["resource", *names]

    def subscription(self, info: SubscriptionInfo) -> Any:
        options = info.options
        subscription = from_document(Subscription, options.resource)
        subscription.name, subscription.topic = self.subscriptions.of(info.name), self._topic_of(info.topic)
        subscription.ack_deadline_seconds = ceil(options.ack_deadline)
        subscription.enable_message_ordering = options.message_ordering
        subscription.filter = options.filter or ""
        subscription.detached = options.detached
        subscription.state = Subscription.ACTIVE
        if not subscription.HasField("message_retention_duration"):
            set_seconds(subscription.message_retention_duration, DEFAULT_RETENTION_S)
        # The label shows the actual window, whoever set it. With exactly-once delivery it shows what would apply without it.
        is_shown = WINDOW_LABEL in subscription.labels or options.window != self._options.window
        if is_shown and not subscription.enable_exactly_once_delivery:
            subscription.labels[WINDOW_LABEL] = str(options.window)
        if KEEP_LABEL in subscription.labels or options.keep is not Keep.ALL:
            subscription.labels[KEEP_LABEL] = str(options.keep)
        retry, policy = options.retry, subscription.dead_letter_policy
        if (retry.min_backoff, retry.max_backoff) != (0, 0):
            set_seconds(subscription.retry_policy.minimum_backoff, retry.min_backoff)
            set_seconds(subscription.retry_policy.maximum_backoff, retry.max_backoff)
        if options.dead_letter_topic is not None and retry.max_attempts is not None:
            policy.dead_letter_topic = self.topics.of(options.dead_letter_topic)
            policy.max_delivery_attempts = retry.max_attempts
        return subscription

    def check_ack_deadline(self, seconds: int) -> None:
        least = self._options.min_ack_deadline
        if not least <= seconds <= MAX_ACK_DEADLINE_S:
            raise InvalidArgument(f"an ack deadline must be {least} to {MAX_ACK_DEADLINE_S} seconds, not {seconds}")

    def _window(self, subscription: Any) -> int:
        if subscription.enable_exactly_once_delivery:
            return 1
        text = subscription.labels.get(WINDOW_LABEL, str(self._options.window))
        if not text.isdecimal() or not 1 <= int(text) <= MAX_WINDOW:
            raise InvalidArgument(f"label {WINDOW_LABEL} must be a number from 1 to {MAX_WINDOW}, not {text!r}")
        return int(text)

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self, info: SnapshotInfo) -> Any:
        snapshot = from_document(Snapshot, info.resource)
        snapshot.name, snapshot.topic = self.snapshots.of(info.name), self._topic_of(info.topic)
        set_seconds(snapshot.expire_time, info.expires)
        return snapshot


def snapshot_document(labels: Any) -> str | None:
    check_labels(labels)
    return to_document(Snapshot(labels=labels), ("labels",))


async def retain(broker: Broker, topic: str, seconds: float, formerly: float = 0.0) -> None:
    """Adjust how long a topic retains acked messages, after one of its subscriptions changed its own retention from
    ``formerly`` to ``seconds``. A longer time set by an embedded program is not shortened.

    The other subscriptions matter only if this one had the longest retention, and has it no more.
    """
    if seconds == formerly:
        return
    try:
        options = (await broker.describe_topic(topic)).options
        kept = options.retain_settled
        if kept is None:
            return
        wanted = seconds
        if seconds < formerly:
            own = _retained(from_document(Topic, options.resource)) or 0.0
            wanted = max(own, await retained_by_subscriptions(broker, topic))
        if kept < wanted or (kept == max(formerly, wanted) and kept != wanted):
            await broker.update_topic(topic, TopicOptions(retain_settled=wanted), ["retain_settled"])
    except NotFound:  # the last subscription of a retired topic has taken it along
        return


async def retained_by_subscriptions(broker: Broker, topic: str) -> float:
    """The longest retention of acked messages among the subscriptions of a topic, in seconds."""
    known = await broker.list_subscriptions(topic=topic)
    return max([0.0, *(retained_by(info.options.resource) for info in known)])


@lru_cache(1024)
def retained_by(resource: str | None) -> float:
    """How long a subscription retains acked messages, in seconds."""
    subscription = from_document(Subscription, resource)
    if not subscription.retain_acked_messages:
        return 0.0
    own = _retained(subscription)
    return DEFAULT_RETENTION_S if own is None else own


def check_labels(labels: Any) -> None:
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"there can be at most {MAX_LABELS} labels, not {len(labels)}")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidArgument(
                f"label {name!r}: {value!r} is not valid: use up to 63 of a-z, 0-9, _ and -, first a letter in the name"
            )
        if name.startswith("seriatim-") and name not in OUR_LABELS:
            nearest = get_close_matches(name, OUR_LABELS, n=1)
            advice = f"did you mean {nearest[0]!r}?" if nearest else f"there are {' and '.join(OUR_LABELS)}"
            raise InvalidArgument(f"label {name!r} is unknown to Seriatim: {advice}")


def _check_push(config: Any) -> None:
    if config.push_endpoint:
        check_endpoint(config.push_endpoint)
    if config.HasField("oidc_token") or config.no_wrapper.write_metadata:
        raise NotSupported(
            "pushes carry no tokens, and no metadata in headers: leave oidc_token and write_metadata out"
        )


def _retry_policy(subscription: Any) -> RetryPolicy:
    retry = RetryPolicy.immediate()
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        least = seconds_of(policy.minimum_backoff) if policy.HasField("minimum_backoff") else DEFAULT_MIN_BACKOFF_S
        most = seconds_of(policy.maximum_backoff) if policy.HasField("maximum_backoff") else MAX_BACKOFF_S
        if not 0 <= least <= most <= MAX_BACKOFF_S:
            raise InvalidArgument(f"a retry policy has backoffs of 0 to {MAX_BACKOFF_S:.0f} seconds, the minimum first")
        retry = replace(retry, min_backoff=least, max_backoff=most)
    if subscription.HasField("dead_letter_policy"):
        attempts = subscription.dead_letter_policy.max_delivery_attempts or MIN_DELIVERY_ATTEMPTS
        if not MIN_DELIVERY_ATTEMPTS <= attempts <= MAX_DELIVERY_ATTEMPTS:
            raise InvalidArgument(
                f"max_delivery_attempts must be {MIN_DELIVERY_ATTEMPTS} to {MAX_DELIVERY_ATTEMPTS}, not {attempts}"
            )
        retry = replace(retry, max_attempts=attempts)
    return retry


def _retained(message: Any, most: float | None = None) -> float | None:
    """The seconds of a retention; None when it is not set. Raises InvalidArgument when it is too short, or longer than
    ``most``; without ``most`` nothing is checked."""
    if not message.HasField("message_retention_duration"):
        return None
    seconds = seconds_of(message.message_retention_duration)
    if most is not None and not 600 <= seconds <= most:
        raise InvalidArgument(
            f"message_retention_duration must be 10 minutes to {most / DAY_S:.0f} days, not {seconds:.0f} seconds"
        )
    return seconds


def _refuse(message: Any, fields: tuple[str, ...]) -> None:
    for descriptor, _ in message.ListFields():
        if descriptor.name in fields:
            raise NotSupported(f"{descriptor.name} is not supported: leave it out")
