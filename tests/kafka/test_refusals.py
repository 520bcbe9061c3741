"""What can't be done on Kafka is refused with the reason, and listed in docs/how-to/use-kafka.md."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from seriatim.core.lanes.types import Keep
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.options import SubscriptionOptions, TopicOptions
from seriatim.errors import NotSupported
from seriatim.kafka.broker import REFUSED, KafkaBroker
from tests.test_docs import ROOT

INTERNAL = {
    *("append_batch", "begin_closing", "joins_batches", "position_of", "publish_checked", "publish_once"),
    *("detach_subscription", "require_topic", "retire_topic"),
}
"""Verbs of engines and servers, which users don't reach."""


def test_what_kafka_cannot_do_is_refused_with_a_reason_that_the_page_lists():
    verbs = [name for name in vars(Broker) if not name.startswith("_") and name not in INTERNAL]
    refused = {name for name in verbs if getattr(KafkaBroker, name) is getattr(Broker, name)}
    page = " ".join((ROOT / "docs/how-to/use-kafka.md").read_text().split())
    for name in refused:
        error = KafkaBroker.unsupported(object.__new__(KafkaBroker), name)
        assert isinstance(error, NotSupported)
        assert str(error) in REFUSED.values()
    for words in REFUSED.values():
        subject, _ = re.split(" (?:is|are) not available on Kafka: ", words)
        assert subject.capitalize() in page, f"the page does not list: {subject}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (TopicOptions(dedup_window=600), "Kafka does not know messages by an id of yours"),
        (TopicOptions(dedup_max_ids=5), "Kafka does not know messages by an id of yours"),
        (SubscriptionOptions(keep=Keep.LATEST), "compact its topic"),
        (SubscriptionOptions(tenant_limit=2), "its partitions are handed out separately"),
    ],
)
def test_what_a_topic_or_a_subscription_cannot_be_on_kafka_is_refused_before_it_is_asked(options: Any, reason: str):
    kafka = object.__new__(KafkaBroker)  # without a connection
    made = (
        kafka.create_topic("t", options)
        if isinstance(options, TopicOptions)
        else kafka.create_subscription("s", "t", options)
    )
    with pytest.raises(NotSupported, match=reason):
        asyncio.run(made)


def test_a_message_with_an_id_is_refused():
    messages = [Outgoing("k", b"1"), Outgoing("k", b"2", dedup_id="a")]
    with pytest.raises(NotSupported, match="leave dedup_id out"):
        object.__new__(KafkaBroker).publish("t", messages)
