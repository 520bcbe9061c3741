"""Real processes: commands beside a program that owns the store, and how commands end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seriatim import PubSub
from tests.cli.conftest import signal_while_reading

STORE = "sqlite:///seriatim.db"


def lines_until(process: subprocess.Popen[bytes], count: int) -> list[Any]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """The exit status of a process, and what it said on standard error."""
    assert process.stderr is not None
    status = process.wait(30)
    return status, process.stderr.read()


async def finished(process: subprocess.Popen[bytes]) -> list[Any]:
    """What a command printed, while the event loop of this process goes on."""
    output, errors = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0, errors.decode()
    return [json.loads(line) for line in output.splitlines()]


def test_a_command_says_that_the_owner_of_the_store_does_not_answer(start, seriatim, told, orders):
    told("messages", "publish", "orders", "x")
    owner = start("messages", "pull", "billing", "--follow", "--json")
    lines_until(owner, 1)
    owner.send_signal(signal.SIGSTOP)
    result = seriatim("keys", "list", "billing")
    assert result.exit_code == 1
    assert f"process {owner.pid} on " in result.stderr
    assert "which does not answer: it is suspended, or a handler blocks its event loop" in result.stderr


def test_commands_work_beside_a_live_engine_whose_subscriber_wakes_up(start):
    async def scenario() -> None:
        async with PubSub(STORE) as pubsub:
            topic = await pubsub.topic("orders").create()
            subscription = await topic.subscription("billing").create(enable_message_ordering=True)
            stream = subscription.messages()
            arrival = asyncio.ensure_future(anext(stream))
            await finished(start("messages", "publish", "orders", "first", "--key", "a", "--json"))
            async with asyncio.timeout(30):
                message = await arrival
            await finished(start("messages", "publish", "orders", "second", "--key", "a", "--json"))
            ((row,),) = await finished(start("keys", "list", "billing", "--json"))
            assert (row["key"], row["state"], row["depth"], row["in_flight"]) == ("a", "leased", 2, 1)
            ((stats,),) = await finished(start("store", "stats", "--json"))
            assert (stats["leased"], stats["blocked"], stats["consumers"]) == (1, 1, 1)
            await message.ack_durable()
            assert (await anext(stream)).data == b"second"
            stream.close()
            (check,) = await finished(start("store", "check", "--json"))
            assert check["sound"] is True
            await finished(start("store", "backup", "copy.db", "--json"))

    asyncio.run(scenario())
    assert Path("copy.db").is_file()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_that_owns_the_store_cleanly(start, told, orders, number, status):
    told("messages", "publish", "orders", "x", "--key", "a")
    process = start("messages", "pull", "billing", "--follow", "--json")
    assert [row["data"] for row in lines_until(process, 1)] == ["x"]
    process.send_signal(number)
    assert ended(process) == (status, b"")
    assert not list(Path().glob("*.sock"))
    # The store is free at once, and the message was given back as not tried.
    assert told("messages", "pull", "billing", "--wait", "0.2")["attempt"] == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_beside_an_owner_and_its_leases_are_given_back(start, number, status):
    async def scenario() -> None:
        async with PubSub(STORE) as pubsub:
            topic = await pubsub.topic("orders").create()
            subscription = await topic.subscription("billing").create(enable_message_ordering=True, ack_deadline=600)
            await topic.publish(b"x", ordering_key="a")
            process = start("messages", "pull", "billing", "--follow", "--json")
            await asyncio.to_thread(lines_until, process, 1)
            stream = subscription.messages()
            process.send_signal(number)
            async with asyncio.timeout(30):
                message = await anext(stream)
            assert message.delivery_attempt == 1
            stream.close()
            assert await asyncio.to_thread(ended, process) == (status, b"")

    asyncio.run(scenario())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_that_waits_for_its_input(start, told, orders, number, status):
    process = start("messages", "publish", "orders", "--lines", "--json", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    lines_until(process, 1)
    process.send_signal(number)
    assert ended(process) == (status, b"")
    assert told("topics", "list")[0]["next_offset"] == 1


def test_watching_goes_on_until_it_is_interrupted(start, orders):
    process = start("store", "stats", "--watch", "0.01", "--json")
    first, second = lines_until(process, 2)
    assert (first["subscription"], first["delivered_rate"]) == ("billing", None)
    assert (second["subscription"], second["delivered_rate"]) == ("billing", 0.0)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, b"")


def test_watching_shows_rates_beside_a_live_engine(start):
    async def scenario() -> None:
        async with PubSub(STORE) as pubsub:
            topic = await pubsub.topic("orders").create()
            await topic.subscription("billing").create(enable_message_ordering=True)
            process = start("store", "stats", "--watch", "0.2")
            assert process.stdout is not None
            heading = await asyncio.to_thread(process.stdout.readline)
            assert heading.split()[-2:] == [b"delivered", b"acked"]
            await topic.publish(b"x", ordering_key="a")
            async with asyncio.timeout(30):
                while (await asyncio.to_thread(process.stdout.readline)).split()[:3] != [b"billing", b"1", b"1"]:
                    pass
            assert (await asyncio.to_thread(process.stdout.readline)).startswith(b"published ")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(ended, process) == (143, b"")

    asyncio.run(scenario())


def test_a_reader_that_goes_away_is_no_error_and_what_it_did_not_read_is_given_back(start, told, orders):
    told("messages", "publish", "orders", "x", "--key", "a")
    reader, writer = os.pipe()
    os.close(reader)
    process = start("messages", "pull", "billing", "--ack", stdout=writer)
    os.close(writer)
    assert ended(process) == (0, b"")
    assert told("store", "stats", "billing")[0]["total"] == 1


def test_an_error_of_a_real_process_is_one_line(start, orders):
    process = start("messages", "pull", "nope")
    assert ended(process) == (1, b"error: subscription 'nope' does not exist: create it first\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_without_a_store(start, number, status):
    process = start("--log-level", "debug", "trace", "audit", "-", "--key", "k", "--seq", "s", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(
        b"k,s\n" + b"a,1\n" * 50_000
    )  # more than a pipe holds: when it is written, the command is reading
    process.stdin.flush()
    assert signal_while_reading(process, number) == status
    assert ended(process) == (status, b"")


def test_a_server_at_a_port_in_use_leaves_no_store_behind(seriatim):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = seriatim("serve", "--port", str(port), "--store", "sqlite:///new.db")
        assert seriatim("serve", "--listen", f"127.0.0.1:{port}", "--store", "sqlite:///new.db").stderr == result.stderr
    assert (result.exit_code, list(Path().glob("new*"))) == (1, [])
    assert f"error: can't listen at 127.0.0.1:{port}: free the port, or choose another" in result.stderr


@pytest.mark.parametrize("more", [["--host", "127.0.0.1"], ["--port", "8085"]])
def test_a_server_is_told_one_address(seriatim, more):
    result = seriatim("serve", "--listen", "127.0.0.1:0", *more)
    assert result.exit_code == 2
    assert "Give either --listen or --host and --port." in result.stderr


def test_a_server_listens_where_it_was_told_in_one_option(start):
    process = start("serve", "--listen", "127.0.0.1:0", "--store", "memory://", "--json")
    (served,) = lines_until(process, 1)
    assert served["host"] == "127.0.0.1"
    with socket.create_connection(("127.0.0.1", served["port"])):
        process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, b"")
