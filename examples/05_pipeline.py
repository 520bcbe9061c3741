"""A pipeline without code: readings that a network has shuffled, repeated and lost, put back in order on Spark.

It is declared in ``05_pipeline.toml``, and ``seriatim pipeline run`` would run it as well. A consumer gets what it wrote,
one message of a device after another. What could not be placed is in the ledger, a parquet table, with its reason. Needs the
extra ``spark``.

Prints:

    the pipeline gives strict order
    fan: 1 2 3
    pump: 1 2 3 5 6 7
    ledger: fan 2 duplicate
    ledger: pump 4 lost
"""

import asyncio
import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

from seriatim import Message, PubSub
from seriatim.spark import local_session
from seriatim.spark.pipeline import load

STORE = "sqlite:///pipeline.db"
# Second, device, number: as they came from the network.
RECEIVED = [
    *[(0, "pump", 1), (1, "fan", 2), (2, "pump", 3), (3, "fan", 1), (4, "pump", 2), (5, "fan", 2)],
    *[(6, "fan", 3), (7, "pump", 6), (8, "pump", 5), (60, "pump", 7)],
]


async def publish() -> None:
    async with PubSub(STORE) as pubsub:
        raw = await pubsub.topic("raw").ensure()
        ordered = await pubsub.topic("ordered").ensure()
        await ordered.subscription("control").ensure()
        for second, device, number in RECEIVED:
            raw.publish(json.dumps({"n": number, "at": second}).encode(), ordering_key=device)
        await raw.flush()


async def consume() -> dict[str, list[int]]:
    readings: dict[str, list[int]] = defaultdict(list)

    def keep(message: Message) -> None:
        readings[str(message.ordering_key)].append(json.loads(message.data)["n"])
        message.ack()

    async with PubSub(STORE) as pubsub:
        control = pubsub.subscription("control")
        control.on("message", keep)
        control.open()
        await control.wait_until_empty()
    return readings


def main() -> None:
    # From the beginning, each time: a pipeline would go on where it was before.
    shutil.rmtree("pipeline-example", ignore_errors=True)
    Path("pipeline-example").mkdir()
    os.chdir("pipeline-example")
    asyncio.run(publish())
    # Its relative paths belong to the folder where it lies.
    shutil.copy(Path(__file__).with_name("05_pipeline.toml"), "pipeline.toml")
    pipeline = load("pipeline.toml")
    (order, _) = pipeline.explain().routes
    print(f"the pipeline gives {order.composition.level} order")

    spark = local_session()
    pipeline.start(spark).awaitTermination()

    for device, numbers in sorted(asyncio.run(consume()).items()):
        print(f"{device}: {' '.join(map(str, numbers))}")
    for entry in spark.read.parquet(str(Path("ledger").absolute())).orderBy("device").collect():
        print(f"ledger: {entry['device']} {entry['_first']} {entry['_reason']}")


if __name__ == "__main__":
    main()
