"""Log records say which message they are about, in fields of their own."""

from __future__ import annotations

import asyncio
import json
import logging

from seriatim import Message, PubSub
from seriatim.log import JsonLines


def test_a_failed_handler_and_a_forgotten_ack_are_logged_with_subscription_key_and_id(caplog):
    async def main() -> list[str]:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("t").ensure()
            subscription = await topic.subscription("s").ensure()

            def handle(message: Message) -> None:
                if message.ordering_key == "bad":
                    raise ValueError("no")

            subscription.on("message", handle)
            ids = [await topic.publish(b"x", ordering_key=key) for key in ("bad", "forgotten")]
            subscription.open()
            async with asyncio.timeout(5):
                while len(caplog.records) < 2:  # noqa: ASYNC110 - a log tells nobody
                    await asyncio.sleep(0.01)
            return ids

    with caplog.at_level(logging.WARNING, "seriatim"):
        bad, forgotten = asyncio.run(main())
    logged = [json.loads(JsonLines().format(record)) for record in caplog.records[:2]]
    fields = {(entry["subscription"], entry["ordering_key"], entry["message_id"]) for entry in logged}
    assert fields == {("s", "bad", bad), ("s", "forgotten", forgotten)}


def test_an_error_that_no_handler_raised_is_logged_as_one_of_the_subscription(caplog):
    async def main() -> None:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("t").ensure()
            subscription = await topic.subscription("s").ensure()
            subscription.on("message", Message.ack)
            subscription.open()
            await pubsub.broker.delete_subscription("s")
            async with asyncio.timeout(5):
                while not caplog.records:  # noqa: ASYNC110 - a log tells nobody
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, "seriatim"):
        asyncio.run(main())
    assert caplog.records[0].getMessage().startswith("subscription 's' failed: NotFound")
