"""Tests with pytest: the fixtures that come with Seriatim. Run it with ``pytest examples/09_pytest.py``, or directly.

``seriatim_in_memory`` gives a test a store in memory and virtual time: hours of backoff pass in a moment.
``pubsub_emulator`` is a running Pub/Sub server with ``PUBSUB_EMULATOR_HOST`` set, for code that uses Google's client.

Prints:

    all tests passed
"""

import asyncio
import contextlib
import io

import pytest
from google.cloud import pubsub_v1

from seriatim import PubSub


def test_a_handler_that_fails_is_retried_later(seriatim_in_memory) -> None:
    attempts: list[int] = []

    async def charge(message) -> None:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt < 10:
            raise ConnectionError("the bank does not answer")

    async def scenario(pubsub: PubSub) -> None:
        payments = await pubsub.topic("payments").ensure()
        subscription = await payments.subscription("bank").ensure()
        subscription.on("message", charge)
        subscription.on("error", lambda _: None)
        subscription.open(ack="on-return")
        await payments.publish(b"pay", ordering_key="ann")
        await asyncio.sleep(3600)  # takes no time

    seriatim_in_memory(scenario)
    assert attempts == list(range(1, 11))


@pytest.mark.usefixtures("pubsub_emulator")
def test_googles_client_works_unchanged() -> None:
    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    topic, subscription = publisher.topic_path("shop", "orders"), subscriber.subscription_path("shop", "billing")
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic)
    publisher.publish(topic, b"book").result(10)
    with subscriber:
        pulled = subscriber.pull(subscription=subscription, max_messages=1, timeout=10)
    publisher.stop()
    assert [received.message.data for received in pulled.received_messages] == [b"book"]


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main([__file__, "-q", "-p", "no:cacheprovider"])
    print("all tests passed" if code == 0 else output.getvalue())
