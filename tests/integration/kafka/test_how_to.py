"""The program of docs/how-to/use-kafka.md, and operators' commands on Kafka."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from seriatim import PubSub, RetryPolicy
from tests.kafka_broker import KafkaBroker
from tests.test_docs import ROOT, blocks_of


def command(url: str, *arguments: str) -> str:
    words = [sys.executable, "-m", "seriatim", *arguments, "--store", url]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_of_the_page_handles_messages_and_ends_when_it_is_told_to(kafka_url: str, tmp_path: Path) -> None:
    (program,) = (block for block in blocks_of(ROOT / "docs/how-to/use-kafka.md") if block.file == "worker.py")
    (tmp_path / "worker.py").write_text(program.body.replace("kafka://localhost:9092?partitions=12", kafka_url))
    command_line = [sys.executable, "-u", str(tmp_path / "worker.py")]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "order-1 created\n"
        command(kafka_url, "messages", "publish", "orders", "--key", "order-1", "shipped")
        assert process.stdout.readline() == "order-1 shipped\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_messages_are_published_and_pulled_on_the_command_line(kafka_url: str) -> None:
    command(kafka_url, "topics", "create", "orders")
    command(kafka_url, "subscriptions", "create", "orders", "billing")
    for data in ("created", "shipped"):
        command(kafka_url, "messages", "publish", "orders", "--key", "order-1", data)
    pulled = command(kafka_url, "messages", "pull", "billing", "--ack", "--limit", "2", "--wait", "30s", "--json")
    assert [json.loads(line)["data"] for line in pulled.splitlines()] == ["created", "shipped"]
    assert json.loads(command(kafka_url, "keys", "list", "billing", "--json")) == []


def test_the_doctor_says_what_was_changed_and_what_is_missing(kafka: KafkaBroker, kafka_url: str) -> None:
    command(kafka_url, "topics", "create", "orders")
    command(kafka_url, "subscriptions", "create", "orders", "billing")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def diagnose(*, is_well: bool = True) -> list[tuple[str, str]]:
        words = [sys.executable, "-m", "seriatim", "store", "doctor", "--json", "--store", kafka_url]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_well, done.stderr
        findings = json.loads(done.stdout)
        return [(one["status"], one["found"]) for one in findings if one["check"] in ("store", "subscriptions")]

    assert diagnose() == [("ok", "reachable, 1 topic"), ("ok", "their topics and partitions are as they were")]
    admin.create_partitions([NewPartitions("orders", 6)])["orders"].result()
    status, found = diagnose()[1]
    assert (status, "had 4 partitions when it was subscribed to, and has 6" in found) == ("warn", True)
    letters = admin.delete_topics(["seriatim.billing.dead-letters"])
    letters["seriatim.billing.dead-letters"].result()
    assert [status for status, _ in diagnose(is_well=False)] == ["ok", "warn", "fail"]


def test_operators_see_a_key_that_fails_and_redrive_its_dead_letter(kafka_url: str) -> None:
    async def fail() -> None:
        async with PubSub(kafka_url) as pubsub:
            topic = await pubsub.topic("orders").ensure()
            subscription = await topic.subscription("billing").ensure(
                retry=RetryPolicy(max_attempts=2, min_backoff=0.05)
            )
            handled = asyncio.Event()

            async def handle(message) -> None:
                if message.data == b"bad":
                    raise ValueError("out of paper")
                await message.ack_durable()
                handled.set()

            subscription.on("message", handle)
            subscription.on("error", lambda _: None)
            topic.publish(b"bad", ordering_key="alice")
            await topic.publish(b"good", ordering_key="alice")
            subscription.open()
            async with asyncio.timeout(60):
                await handled.wait()
                await subscription.wait_until_empty()

    asyncio.run(fail())
    (letter,) = json.loads(command(kafka_url, "dead-letters", "list", "billing", "--json"))
    assert (letter["key"], letter["attempts"]) == ("alice", 2)
    assert "out of paper" in letter["error"]
    command(kafka_url, "dead-letters", "redrive", "billing", letter["id"], "--append")
    assert json.loads(command(kafka_url, "dead-letters", "list", "billing", "--json")) == []
    (key,) = json.loads(command(kafka_url, "keys", "list", "billing", "--json"))
    assert (key["key"], key["depth"], key["state"]) == ("alice", 1, "ready")
    command(kafka_url, "keys", "pause", "billing", "alice", "--reason", "look first")

    async def handle_the_rest() -> list[bytes]:
        seen = []
        async with PubSub(kafka_url) as pubsub:
            subscription = pubsub.subscription("billing")

            def handle(message) -> None:
                seen.append(message.data)
                message.ack()

            subscription.on("message", handle)
            subscription.open()
            await asyncio.sleep(3)
            assert seen == [], "the key is paused"
            (key,) = await subscription.keys()
            assert key.why == "paused: look first; resume the key to continue"
            await subscription.resume_key("alice")
            async with asyncio.timeout(60):
                await subscription.wait_until_empty()
        return seen

    assert asyncio.run(handle_the_rest()) == [b"bad"]
