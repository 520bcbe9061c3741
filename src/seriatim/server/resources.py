"""Topics, subscriptions and snapshots: what the engine knows of them, and what is kept beside.

Rules
    - Everything that the engine understands is an engine option and is read back from there, so that it is true whoever
      changed it. Everything else that a client said is kept as a document with the options, and given back as it was.
    - What would change how messages are delivered, and is not there, is refused and not ignored.
    - The window is a label, ``seriatim-window``, because the API has no field for it. It is 1 where exactly-once delivery is
      on: an ack that waits for the messages before it can't be confirmed.
    - What a subscription retains after its acks, the topic retains: for the longest of all of its subscriptions and itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

from seriatim.core.delivery import RetryPolicy
from seriatim.engine.broker import RETIRED, Broker, SnapshotInfo, SubscriptionInfo, TopicInfo
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import InvalidArgument, NotFound, NotSupported
from seriatim.server.options import LONGEST_ACK_DEADLINE, ServerOptions
from seriatim.server.turns import Turns
from seriatim.wire.bounds import check_bounds
from seriatim.wire.documents import from_document, to_document
from seriatim.wire.names import WINDOW_LABEL, Names
from seriatim.wire.push import check_endpoint
from seriatim.wire.services import Snapshot, Subscription, Topic
from seriatim.wire.times import seconds_of, set_seconds

WIDEST_WINDOW = 1000

MOST_LABELS = 64
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")

DAY = 24 * 3600.0
DEFAULT_RETENTION = 7 * DAY
LEAST_BACKOFF, MOST_BACKOFF = 10.0, 600.0
LEAST_ATTEMPTS, MOST_ATTEMPTS = 5, 100

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
    "labels": ("window",),
    "enable_exactly_once_delivery": ("window",),
    "retry_policy": ("retry.min_backoff", "retry.max_backoff"),
    "dead_letter_policy": ("retry.max_attempts", "dead_letter_topic"),
}
"""The options of the engine that a field of a subscription stands for."""
_TOPIC_REFUSED = ("ingestion_data_source_settings", "message_transforms")
_SUBSCRIPTION_REFUSED = ("bigquery_config", "cloud_storage_config", "bigtable_config", "message_transforms")


class Resources:
    """Resources of one store, as messages of the API and as options of the engine."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.topics = Names("topics", options.project)
        self.subscriptions = Names("subscriptions", options.project)
        self.snapshots = Names("snapshots", options.project)
        self.topic_turns = Turns()
        self.subscription_turns = Turns()

    # -- topics ---------------------------------------------------------------------------------------------------------

    def topic_options(self, topic: Any) -> TopicOptions:
        _refuse(topic, _TOPIC_REFUSED)
        check_bounds(topic)
        check_labels(topic.labels)
        resource, retained = (
            to_document(topic, _TOPIC_DOCUMENT),
            _retained(topic, "message_retention_duration", 31 * DAY),
        )
        if retained is None:
            return TopicOptions(resource=resource)
        return TopicOptions(retained, retained, resource)

    def topic(self, info: TopicInfo) -> Any:
        topic = from_document(Topic, info.options.resource)
        topic.name, topic.state = self.topics.of(info.name), Topic.ACTIVE
        return topic

    def _topic_of(self, name: str) -> str:
        """How a subscription or snapshot names its topic."""
        return RETIRED if name.startswith(RETIRED) else self.topics.of(name)

    # -- subscriptions --------------------------------------------------------------------------------------------------

    def subscription_options(self, subscription: Any) -> SubscriptionOptions:
        _refuse(subscription, _SUBSCRIPTION_REFUSED)
        check_bounds(subscription)
        check_labels(subscription.labels)
        _check_push(subscription.push_config)
        _retained(subscription, "message_retention_duration", 31 * DAY)
        return SubscriptionOptions(
            ordering=subscription.enable_message_ordering,
            ack_deadline=self._ack_deadline(subscription.ack_deadline_seconds),
            retry=_retry_policy(subscription),
            window=self._window(subscription),
            dead_letter_topic=self._dead_letter_topic(subscription.dead_letter_policy),
            filter=subscription.filter or None,
            resource=to_document(subscription, _SUBSCRIPTION_DOCUMENT),
        )

    def changed_options(self, subscription: Any, paths: Iterable[str]) -> tuple[SubscriptionOptions, list[str]]:
        """The options of a subscription of which an update touched these fields, and the names of the options that it changes.
        What it did not touch stays as it is: an embedded program may have said more about it than the API has words for."""
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
        subscription.enable_message_ordering = options.ordering
        subscription.filter = options.filter or ""
        subscription.detached = options.detached
        subscription.state = Subscription.ACTIVE
        if not subscription.HasField("message_retention_duration"):
            set_seconds(subscription.message_retention_duration, DEFAULT_RETENTION)
        self._describe_window(subscription, options)
        self._describe_failures(subscription, options)
        return subscription

    def _describe_window(self, subscription: Any, options: SubscriptionOptions) -> None:
        """The label says what is so, whoever set it. Where delivery is exactly-once it says what would be otherwise."""
        is_told = WINDOW_LABEL in subscription.labels or options.window != self._options.window
        if is_told and not subscription.enable_exactly_once_delivery:
            subscription.labels[WINDOW_LABEL] = str(options.window)

    def _describe_failures(self, subscription: Any, options: SubscriptionOptions) -> None:
        retry, policy = options.retry, subscription.dead_letter_policy
        if (retry.min_backoff, retry.max_backoff) != (0, RetryPolicy().max_backoff):
            set_seconds(subscription.retry_policy.minimum_backoff, retry.min_backoff)
            set_seconds(subscription.retry_policy.maximum_backoff, retry.max_backoff)
        if options.dead_letter_topic is not None and retry.max_attempts is not None:
            policy.dead_letter_topic = self.topics.of(options.dead_letter_topic)
            policy.max_delivery_attempts = retry.max_attempts

    def check_ack_deadline(self, seconds: int) -> None:
        least = self._options.min_ack_deadline
        if not least <= seconds <= LONGEST_ACK_DEADLINE:
            raise InvalidArgument(f"an ack deadline has {least} to {LONGEST_ACK_DEADLINE} seconds, not {seconds}")

    def _ack_deadline(self, seconds: int) -> float:
        if seconds:
            self.check_ack_deadline(seconds)
        return float(seconds or max(10, self._options.min_ack_deadline))

    def _window(self, subscription: Any) -> int:
        if subscription.enable_exactly_once_delivery:
            return 1
        text = subscription.labels.get(WINDOW_LABEL, str(self._options.window))
        if not text.isdecimal() or not 1 <= int(text) <= WIDEST_WINDOW:
            raise InvalidArgument(f"label {WINDOW_LABEL} is a number from 1 to {WIDEST_WINDOW}, not {text!r}")
        return int(text)

    def _dead_letter_topic(self, policy: Any) -> str | None:
        if not policy.dead_letter_topic or policy.dead_letter_topic == RETIRED:
            return None
        return self.topics.in_store(policy.dead_letter_topic)

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
    """Let a topic keep messages after their acks for as long as it and its subscriptions want, when one of the subscriptions
    wants ``seconds`` now and wanted ``formerly`` before. What an embedded program said is not shortened.

    Only a subscription that wanted the longest time, and wants it no more, makes it necessary to look at the others.
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
            own = _retained(from_document(Topic, options.resource), "message_retention_duration", None) or 0.0
            wanted = max(own, await retained_by_subscriptions(broker, topic))
        if kept < wanted or (kept == max(formerly, wanted) and kept != wanted):
            await broker.update_topic(topic, TopicOptions(retain_settled=wanted), ["retain_settled"])
    except NotFound:  # the last subscription of a retired topic has taken it along
        return


async def retained_by_subscriptions(broker: Broker, topic: str) -> float:
    """How many seconds after its ack a message is wanted at most, by a subscription of a topic."""
    known = await broker.list_subscriptions(topic=topic)
    return max([0.0, *(retained_by(info.options.resource) for info in known)])


@lru_cache(1024)
def retained_by(resource: str | None) -> float:
    """How many seconds after its ack a message is wanted by a subscription."""
    subscription = from_document(Subscription, resource)
    if not subscription.retain_acked_messages:
        return 0.0
    own = _retained(subscription, "message_retention_duration", None)
    return DEFAULT_RETENTION if own is None else own


def check_labels(labels: Any) -> None:
    if len(labels) > MOST_LABELS:
        raise InvalidArgument(f"there can be at most {MOST_LABELS} labels, not {len(labels)}")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidArgument(
                f"label {name!r}: {value!r} is not valid: use up to 63 of a-z, 0-9, _ and -, first a letter in the name"
            )


def _check_push(config: Any) -> None:
    if config.push_endpoint:
        check_endpoint(config.push_endpoint)
    if config.HasField("oidc_token") or config.no_wrapper.write_metadata:
        raise NotSupported(
            "pushes carry no tokens, and no metadata in headers: leave oidc_token and write_metadata out"
        )


def _retry_policy(subscription: Any) -> RetryPolicy:
    retry = RetryPolicy()
    if subscription.HasField("retry_policy"):
        policy = subscription.retry_policy
        least = seconds_of(policy.minimum_backoff) if policy.HasField("minimum_backoff") else LEAST_BACKOFF
        most = seconds_of(policy.maximum_backoff) if policy.HasField("maximum_backoff") else MOST_BACKOFF
        if not 0 <= least <= most <= MOST_BACKOFF:
            raise InvalidArgument(f"a retry policy has backoffs of 0 to {MOST_BACKOFF:.0f} seconds, the minimum first")
        retry = replace(retry, min_backoff=least, max_backoff=most)
    if subscription.HasField("dead_letter_policy"):
        attempts = subscription.dead_letter_policy.max_delivery_attempts or LEAST_ATTEMPTS
        if not LEAST_ATTEMPTS <= attempts <= MOST_ATTEMPTS:
            raise InvalidArgument(f"max_delivery_attempts is {LEAST_ATTEMPTS} to {MOST_ATTEMPTS}, not {attempts}")
        retry = replace(retry, max_attempts=attempts)
    return retry


def _retained(message: Any, field: str, most: float | None) -> float | None:
    """The seconds of a retention; None when it is not set. Raises InvalidArgument when it is too short or too long."""
    if not message.HasField(field):
        return None
    seconds = seconds_of(getattr(message, field))
    if most is not None and not 600 <= seconds <= most:
        raise InvalidArgument(f"{field} is 10 minutes to {most / DAY:.0f} days, not {seconds:.0f} seconds")
    return seconds


def _refuse(message: Any, fields: tuple[str, ...]) -> None:
    for descriptor, _ in message.ListFields():
        if descriptor.name in fields:
            raise NotSupported(f"{descriptor.name} is not supported: leave it out")
