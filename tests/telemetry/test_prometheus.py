"""Metrics of embedded programs, and the alerts on them."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from seriatim import Message, PubSub
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.telemetry.prometheus import TOP_SUBSCRIPTIONS, PrometheusCollector, prometheus_text
from tests.debian import NotAvailable, find_program
from tests.needs import lacking

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "docs/reference/alert-rules.yml"
CASES = Path(__file__).parent / "alert_tests.yml"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and the values of their labels, in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def busy(pubsub: PubSub, *, subscriptions: int = 1, keys: int = 20) -> None:
    """Keys with one message, two messages and so on, the last ones paused."""
    topic = await pubsub.topic("orders").ensure()
    for number in range(subscriptions):
        await topic.subscription(f"s{number}").ensure()
    for key in range(keys):
        for _ in range(key + 1):
            topic.publish(b"x", ordering_key=f"key-{key:02}")
    await topic.flush()
    for number in range(subscriptions):
        for key in range(keys - 8, keys):
            await pubsub.subscription(f"s{number}").pause_key(f"key-{key:02}")


def test_an_async_application_serves_the_text(tmp_path):
    async def main() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/store.db") as pubsub:
            await busy(pubsub)
            subscription = pubsub.subscription("s0")
            (message,) = await subscription.pull(timeout=5)
            message.ack()
            found = samples(await prometheus_text(pubsub, top_keys=3))
            assert found["seriatim_published_messages_total", "orders"] == 210
            assert found["seriatim_blocked_keys", "s0"] == 8
            deep = [key for name, *key in found if name == "seriatim_key_messages"]
            assert deep == [["key-19", "s0"], ["key-18", "s0"], ["key-17", "s0"]]
            assert found["seriatim_key_messages", "key-19", "s0"] == 20
            blocked = [key for name, *key in found if name == "seriatim_blocked_key_seconds"]
            assert blocked == [["key-12", "s0"], ["key-13", "s0"], ["key-14", "s0"]]  # whose heads are oldest
            assert not [key for name, *key in samples(await prometheus_text(pubsub, top_keys=0)) if "_key_" in name]
            with pytest.raises(InvalidArgument, match="top_keys must be a whole number"):
                await prometheus_text(pubsub, top_keys=-1)

    asyncio.run(main())


def test_keys_become_labels_of_a_bounded_number_of_subscriptions():
    async def main() -> None:
        async with PubSub() as pubsub:
            await busy(pubsub, subscriptions=TOP_SUBSCRIPTIONS + 5)
            found = samples(await prometheus_text(pubsub, top_keys=2))
            for name in ("seriatim_key_messages", "seriatim_blocked_key_seconds"):
                assert sum(key[0] == name for key in found) == 2 * TOP_SUBSCRIPTIONS

    asyncio.run(main())


def test_a_registry_is_read_in_another_thread_while_messages_flow_and_refused_in_the_event_loop():
    async def main() -> None:
        registry = CollectorRegistry()
        async with PubSub() as pubsub:
            await busy(pubsub)
            collector = PrometheusCollector(pubsub)
            registry.register(collector)
            pubsub.subscription("s0").on("message", Message.ack)
            pubsub.subscription("s0").open()
            found = samples((await asyncio.to_thread(generate_latest, registry)).decode())
            assert found["seriatim_published_messages_total", "orders"] == 210
            with pytest.raises(FailedPrecondition, match="use 'await prometheus_text"):
                list(collector.collect())
        after = await asyncio.to_thread(generate_latest, registry)
        assert after == b"", "a PubSub that was closed has no metrics, and other collectors are read"

    asyncio.run(main())


def test_a_registry_outlives_the_event_loop():
    async def main() -> PrometheusCollector:
        async with PubSub() as pubsub:
            return PrometheusCollector(pubsub)

    assert list(asyncio.run(main()).collect()) == []


def promtool() -> str:
    if (found := shutil.which("promtool")) is not None:
        return found
    try:
        return find_program("promtool", ("prometheus",), "usr/bin/promtool").path
    except NotAvailable as error:
        lacking(str(error))


def test_every_alert_fires_when_it_should_and_only_then(tmp_path):
    cases = yaml.safe_load(CASES.read_text())
    (tmp_path / "cases.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], **cases}))
    done = subprocess.run(
        [promtool(), "test", "rules", tmp_path / "cases.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    fired = {case["alertname"] for case in cases["tests"][1]["alert_rule_test"] if case["exp_alerts"]}
    quiet = {case["alertname"] for case in cases["tests"][0]["alert_rule_test"] if not case["exp_alerts"]}
    assert fired == quiet == alerts


def test_the_alerts_ask_for_metrics_that_there_are():
    async def main() -> str:
        async with PubSub() as pubsub:
            await busy(pubsub)
            return await prometheus_text(pubsub)

    names = {name for name, *_ in samples(asyncio.run(main()))}
    assert set(re.findall(r"seriatim_\w+", RULES.read_text())) <= names


def test_a_blocking_program_registers_the_same_collector():
    registry = CollectorRegistry()
    with PubSub.blocking() as pubsub:
        topic = pubsub.topic("t").ensure()
        topic.subscription("s").ensure()
        topic.publish(b"x", ordering_key="k").result()
        registry.register(PrometheusCollector(pubsub))
        assert 'seriatim_key_messages{key="k",subscription="s"} 1.0' in generate_latest(registry).decode()
