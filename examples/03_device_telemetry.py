"""Device telemetry: many readings, batched; a reading that nobody can handle is put aside and its device goes on.

The publisher sends batches and never has more than 100 readings on their way. One subscription keeps the readings of all
devices, a second one only alarms, by a filter. A broken reading is tried twice, then it is a dead letter in the topic
``broken-readings``.

Prints:

    device-001: 20.0 20.5 21.0 21.5 22.0
    device-002: 18.0 18.5 19.5 20.0
    device-003: 25.0 25.5 26.0 26.5 27.0
    alarms: device-003 27.0
    put aside: device-002 b'19.0?' after 2 attempts (ValueError: could not convert string to float: b'19.0?')
"""

import asyncio
from collections import defaultdict

from seriatim import Batching, FlowControl, Message, PublishOptions, PubSub, RetryPolicy

DEVICES = {"device-001": 20.0, "device-002": 18.0, "device-003": 25.0}
READINGS = 5


async def main() -> None:
    readings: dict[str, list[float]] = defaultdict(list)
    async with PubSub("sqlite:///device-telemetry.db") as pubsub:
        topic = await pubsub.topic("device-telemetry").ensure()
        broken = await pubsub.topic("broken-readings").ensure(retention=None)
        put_aside = await broken.subscription("inspection").ensure()
        telemetry = await topic.subscription("telemetry").ensure(
            retry=RetryPolicy(max_attempts=2), dead_letter_topic="broken-readings"
        )
        alarms = await topic.subscription("alarms").ensure(filter='attributes.level = "alarm"')

        def keep(message: Message) -> None:
            readings[str(message.ordering_key)].append(float(message.data))
            message.ack()

        telemetry.on("message", keep)
        telemetry.on("error", lambda _: None)  # it is put aside, and looked at below
        telemetry.open()
        topic.set_publish_options(
            PublishOptions(
                batching=Batching(max_messages=50, max_milliseconds=5),
                flow_control=FlowControl(max_outstanding_messages=100),
            )
        )
        for number in range(READINGS):
            for device, start in DEVICES.items():
                value = start + number / 2
                data = f"{value}?" if value == 19.0 else f"{value}"
                level = "alarm" if value >= 27 else "normal"
                topic.publish(data.encode(), ordering_key=device, attributes={"level": level})
        await topic.flush()

        letter = await first(put_aside)
        alarm = await first(alarms)
        await telemetry.wait_until_empty()
    for device, values in sorted(readings.items()):
        print(f"{device}: {' '.join(map(str, values))}")
    print(f"alarms: {alarm.ordering_key} {alarm.data.decode()}")
    said = letter.attributes
    attempts, error = said["seriatim-dead-letter-attempts"], said["seriatim-dead-letter-error"]
    print(f"put aside: {letter.ordering_key} {letter.data!r} after {attempts} attempts ({error})")


async def first(subscription) -> Message:
    """The first message of a subscription, acked."""
    async for message in subscription:
        message.ack()
        return message
    raise AssertionError("the subscription was closed")


if __name__ == "__main__":
    asyncio.run(main())
