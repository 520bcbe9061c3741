"""What can't be done on Kafka is refused with the reason, and listed in docs/how-to/use-kafka.md."""

from __future__ import annotations

import re

from seriatim.engine.broker import Broker
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
