"""The pictures of the console in the docs: ``python -m docs.screenshots``."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from seriatim import RetryPolicy
from seriatim.console import samples
from seriatim.core.lanes.types import Lease
from seriatim.engine import reported_status
from seriatim.engine.broker import Outgoing
from seriatim.engine.consumer import Consumer, Delivered
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.reported_status import (
    BatchStatus,
    HeldKey,
    HostStatus,
    KeyGaps,
    MissingNumbers,
    NodeStatus,
    PipelineStatus,
    leave_status,
)
from seriatim.errors import SeriatimError
from tests.console.browser import chromium, logged_in
from tests.console.consoles import OPERATOR, running

FOLDER = Path(__file__).parent / "images"
ERRORS = {
    "order-1007": "the card was declined: no answer from bank 17",
    "order-1013": "address unknown: postal code 99999",
    "order-1023": "the card was declined: no answer from bank 4",
}


async def shop(engine: Engine) -> None:
    """A shop at work: orders that are paid, shipped and billed, and some that fail."""
    await engine.create_topic("orders")
    await engine.create_topic("payments")
    retry = RetryPolicy(min_backoff=300, max_backoff=900, max_attempts=3)
    for topic, name in (("orders", "shipping"), ("orders", "billing"), ("payments", "ledger")):
        await engine.create_subscription(topic, name, SubscriptionOptions(message_ordering=True, retry=retry))
    for step in ("placed", "paid", "packed", "shipped"):
        data = [Outgoing(f"order-{n}", f'{{"order": {n}, "step": "{step}"}}'.encode()) for n in range(1000, 1030)]
        await engine.publish("orders", data)
    await engine.publish("payments", [Outgoing(f"account-{n % 9}", b'{"amount": 12}') for n in range(40)])
    for subscription in ("shipping", "billing", "ledger"):
        _consume(engine, subscription, ERRORS if subscription == "shipping" else {})
    await engine.pause_key("billing", "order-1002", "customer asked us to wait")
    for key in ("order-1005", "order-1006"):
        await engine.publish("orders", [Outgoing(key, b'{"step": "returned"}', None, 3600)])
    await asyncio.sleep(0.5)
    for key in ("order-1007", "order-1013"):
        await engine.dead_letter("shipping", key, ERRORS[key])
    now, draw = datetime.now(UTC), random.Random(7)
    batches = [
        BatchStatus(n, now, 1000, draw.choice([0] * 9 + [3]), draw.choice([0] * 15 + [60]), draw.choice([0, 0, 2]), 0)
        for n in range(150)
    ]
    ledger = {name: sum(getattr(batch, name) for batch in batches) for name in ("lost", "late", "duplicate")}
    gaps = [
        KeyGaps(
            f"device-{n}",
            7 - n,
            n,
            2,
            0,
            [BatchStatus(at, now, 0, 1, n % 2, 0, 0) for at in draw.sample(range(150), 7 - n)],
        )
        for n in range(4)
    ]
    held = [HeldKey("device-17", 12, 401, 403, now - timedelta(minutes=4)), HeldKey("device-3", 1, 77, 77, now)]
    await leave_status(engine, PipelineStatus("readings", now, batches, ledger, gaps, 13, held))
    nodes = [
        NodeStatus(
            "plant-1/press-4",
            "online",
            now - timedelta(hours=7),
            3,
            False,
            {"motor": "online"},
            True,
            [MissingNumbers(17, 18)],
        ),
        NodeStatus("plant-1/press-5", "stale", now - timedelta(minutes=2), 0, True, {"motor": "stale"}, True),
        NodeStatus(
            "plant-2/crane-1", "online", now - timedelta(days=2), 0, False, {"hoist": "online", "rail": "online"}
        ),
    ]
    await leave_status(engine, HostStatus("seriatim", "telemetry", now, True, nodes, len(nodes)))
    engine.demo = asyncio.create_task(_life(engine))  # type: ignore[attr-defined]


def _consume(engine: Engine, subscription: str, errors: dict[str, str]) -> None:
    loop = asyncio.get_running_loop()

    def handle(delivered: list[Delivered]) -> None:
        for lease, _ in delivered:
            error = errors.get(lease.key or "")
            if error is None:
                loop.call_later(random.random() * 0.3, done, lease)
            else:
                attachment.nack(lease, error=error)

    def done(lease: Lease) -> None:
        with suppress(SeriatimError):  # it is over
            attachment.ack(lease)

    attachment = engine.attach(subscription, Consumer(handle, max_messages=20))  # type: ignore[arg-type]


async def _life(engine: Engine) -> None:
    while True:
        key = f"order-{random.randrange(1030, 1200)}"
        await engine.publish("orders", [Outgoing(key, b'{"step": "placed"}')] * random.randrange(1, 5))
        await asyncio.sleep(0.05)


PICTURES = {
    "console-overview": ("/", "light"),
    "console-subscription": ("/subscription?name=shipping", "light"),
    "console-key": ("/key?subscription=shipping&key=order-1007", "light"),
    "console-key-dark": ("/key?subscription=shipping&key=order-1023", "dark"),
    "console-dead-letters": ("/dead-letters?subscription=shipping", "light"),
    "console-pipelines": ("/pipelines", "light"),
    "console-sparkplug": ("/sparkplug", "light"),
}


def main() -> None:
    samples.INTERVAL_S, reported_status.FRESH_S = 1.0, 600.0
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), shop) as console, chromium() as browser:
        time.sleep(15)  # until there is some history to draw
        for name, (path, scheme) in PICTURES.items():
            size = {"width": 1200, "height": 760}
            page, _ = logged_in(browser, console.address, OPERATOR, viewport=size, color_scheme=scheme)
            page.goto(f"{console.address}{path}")
            page.wait_for_timeout(2500)  # until it is live
            page.screenshot(path=FOLDER / f"{name}.png")
            print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
