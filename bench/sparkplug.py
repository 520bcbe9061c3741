"""What ordering costs a Sparkplug host: many edge nodes through a real broker, as a ratio to the same client only counting.

    python -m bench.sparkplug [--nodes 1000] [--messages 100] [--rounds 5] [--quick] [--record]

A process of its own plays the nodes: each is born and sends its data, 5 % of it displaced by up to five places. It never has
more than a window of messages under way, so that the broker drops none; its own count of drops is read all the same. Three
receivers take the same traffic: one that only counts, one that orders, and the whole host with its store. The first reads as
users of aiomqtt do, and once more as the host does: all packets that have arrived at once.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median
from typing import TypeAlias, cast

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from bench.record import Recorder
from bench.report import add_record_option
from seriatim.core.resequencing.options import LedgerEntry
from seriatim.core.sparkplug.messages import NodeOrdering, Ordered
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.engine.connect import open_broker
from seriatim.sparkplug.host import Host, HostOptions
from seriatim.sparkplug.inbox import Inbox, read_arrived
from seriatim.sparkplug.intake import Body, Counts, Malformed, read_message
from seriatim.sparkplug.mqtt_address import MqttAddress
from seriatim.sparkplug.payload import Payload
from tests.mosquitto import SYS_INTERVAL, Mosquitto

WINDOW = 4_000
DISPLACED = 0.05
ORDERING = NodeOrdering(reorder_timeout=60)
TOPIC = "telemetry"
RECEIVERS = ("counted", "counted as the host reads", "ordered", "stored")
GOALS = {"ordered": "≥ 0.85", "stored": "≥ 0.5"}
"""Of the rate of the receiver that only counts."""

Outcome: TypeAlias = tuple[Counter[str], dict[str, list[int]]]
"""What was not released, by reason, and the numbers that came out of each node."""


@dataclass
class Result:
    """What came out of one receiver."""

    seconds: float
    cpu_seconds: float
    """What the receiver's own process used, which others on the machine disturb less."""
    received: int
    dropped: int
    out: dict[str, list[int]]
    """The numbers that came out of each node, unwrapped, in order."""
    ledger: Counter[str]

    @property
    def rate(self) -> float:
        return self.received / self.seconds


@dataclass(frozen=True)
class Figure:
    """One receiver, beside the one that only counts."""

    receiver: str
    messages_per_second: int
    of_counting: float
    goal: str
    of_counting_by_cpu_time: float
    dropped: int


def traffic_of(node: int, messages: int, seed: int) -> list[tuple[str, bytes]]:
    """What a node sends: its birth, and its data with some of it displaced."""
    randomness = random.Random(seed * 1_000_003 + node)
    sent = []
    for number in range(messages):
        payload = Payload(timestamp=1_000 + number, seq=number % 256)
        if number == 0:
            payload.metrics.add(name="bdSeq", datatype=4, long_value=0)
        payload.metrics.add(name="number", datatype=3, int_value=number)
        kind = "NDATA" if number else "NBIRTH"
        place = number + (randomness.uniform(1, 6) if number and randomness.random() < DISPLACED else 0)
        sent.append((place, (f"spBv1.0/plant/{kind}/node{node}", payload.SerializeToString())))
    return [message for _, message in sorted(sent, key=lambda entry: entry[0])]


def send_all(port: int, nodes: int, messages: int, seed: int, received: Synchronized[int]) -> None:
    """Play all nodes, taking turns, never more than a window ahead of the receiver."""
    rows = [traffic_of(node, messages, seed) for node in range(nodes)]
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = 0
    for turn in range(messages):
        for row in rows:
            while sent - received.value >= WINDOW:
                time.sleep(0.001)
            info = client.publish(*row[turn])
            sent += 1
    info.wait_for_publish()
    client.disconnect()
    client.loop_stop()


async def play(
    port: int, nodes: int, messages: int, receive: Callable[..., Awaitable[Outcome]]
) -> tuple[float, float, Outcome]:
    """Let the sender send and a receiver receive; returns the seconds from the first message to the last, and of the CPU."""
    spawn = multiprocessing.get_context("spawn")
    received = spawn.Value("q", 0)
    sender = spawn.Process(target=send_all, args=(port, nodes, messages, 7, received))
    total = nodes * messages
    times: list[tuple[float, float]] = []

    def count(number: int) -> None:
        """Called for the first message and for the last, which is counted when the receiver is done with all of them."""
        if not times or number == total:
            times.append((time.perf_counter(), time.process_time()))
        received.value = number

    outcome = await receive(port, total, count, sender.start)
    (begun, begun_cpu), *_, (ended, ended_cpu) = times
    await asyncio.to_thread(sender.join)
    return ended - begun, ended_cpu - begun_cpu, outcome


async def arriving(port: int, begin: Callable[[], None]) -> AsyncIterator[aiomqtt.Message]:
    """The messages, as users of aiomqtt read them."""
    async with aiomqtt.Client("127.0.0.1", port) as client:
        await client.subscribe("spBv1.0/#", qos=1)
        begin()
        async for message in client.messages:
            yield message


async def arriving_at_once(port: int, begin: Callable[[], None]) -> AsyncIterator[aiomqtt.Message]:
    """The messages, as the host reads them."""
    inbox = Inbox(Counts())
    kind = cast("type[asyncio.Queue[aiomqtt.Message]]", lambda **_: inbox)
    async with aiomqtt.Client("127.0.0.1", port, queue_type=kind) as client:
        sock = client._client.socket()  # noqa: SLF001 - as in the host
        assert sock is not None
        asyncio.get_running_loop().add_reader(sock.fileno(), read_arrived, client, inbox)
        await client.subscribe("spBv1.0/#", qos=1)
        begin()
        async for message in client.messages:
            yield message
            for _ in range(inbox.qsize()):
                yield inbox.get_nowait()


Arriving: TypeAlias = Callable[[int, Callable[[], None]], AsyncIterator[aiomqtt.Message]]


async def only_count(
    messages: Arriving, port: int, total: int, count: Callable[[int], None], begin: Callable[[], None]
) -> Outcome:
    number = 0
    async for _ in messages(port, begin):
        number += 1
        count(number)
        if number == total:
            return Counter(), {}
    raise AssertionError


async def only_order(port: int, total: int, count: Callable[[int], None], begin: Callable[[], None]) -> Outcome:
    """The host without its store."""
    edge_nodes: EdgeNodes[Body] = EdgeNodes(ORDERING)
    number = 0
    ledger: Counter[str] = Counter()
    out: dict[Hashable, list[int]] = defaultdict(list)
    loop = asyncio.get_running_loop()
    async for message in arriving_at_once(port, begin):
        number += 1
        if number < total:
            count(number)
        found = read_message(message.topic.value, message.payload)
        if found is not None and not isinstance(found, Malformed):
            for effect in edge_nodes.receive(*found, loop.time()):
                if isinstance(effect, Ordered):
                    out[effect.key].append((effect.message.timestamp or 0) - 1_000)
                elif isinstance(effect, LedgerEntry):
                    ledger[effect.reason] += effect.size
        if number == total:
            count(total)
            return ledger, {str(key): numbers for key, numbers in out.items()}
    raise AssertionError


async def order_and_store(
    store: Path, port: int, total: int, count: Callable[[int], None], begin: Callable[[], None]
) -> Outcome:
    from seriatim.store import open_store

    url = f"sqlite:///{store}"
    broker = await open_broker(url)
    host = Host(broker, TOPIC, MqttAddress("127.0.0.1", port), HostOptions(ordering=ORDERING))
    running = asyncio.create_task(host.run())
    await host.online.wait()
    begin()
    while host.counts.stored < total:
        await asyncio.sleep(0.005)
        if host.counts.received > 1:  # its own STATE is one
            count(min(host.counts.received - 1, total - 1))
    count(total)
    running.cancel()
    await asyncio.wait([running])
    await broker.close()
    reader = open_store(url, read_only=True)
    (topic,) = (row for row in reader.catalog().topics if row.name == TOPIC)
    out: dict[str, list[int]] = {}
    for record in reader.read(topic.id, 0, total + 1):
        out.setdefault(record.key or "", []).append(int((record.attributes or {})["timestamp"]) - 1_000)
    reader.close()
    return host.counts.ledger, out


async def drops_of(port: int) -> int:
    """How many messages the broker says it has dropped, when it had time to say so."""
    await asyncio.sleep(2 * SYS_INTERVAL)
    async with asyncio.timeout(60), aiomqtt.Client("127.0.0.1", port) as client:
        await client.subscribe("$SYS/broker/publish/messages/dropped")
        async for message in client.messages:
            return int(bytes(message.payload))
    raise AssertionError


def measure(which: str, nodes: int, messages: int, folder: Path) -> Result:
    """One receiver against a broker of its own."""
    broker = Mosquitto(folder)
    broker.start()
    try:
        return asyncio.run(_measure(which, broker.port, nodes, messages, folder))
    finally:
        broker.stop()


async def _measure(which: str, port: int, nodes: int, messages: int, folder: Path) -> Result:
    receivers: dict[str, Callable[..., Awaitable[Outcome]]] = {
        "counted": partial(only_count, arriving),
        "counted as the host reads": partial(only_count, arriving_at_once),
        "ordered": only_order,
        "stored": partial(order_and_store, folder / "bench.db"),
    }
    seconds, cpu_seconds, (ledger, out) = await play(port, nodes, messages, receivers[which])
    return Result(seconds, cpu_seconds, nodes * messages, await drops_of(port), out, ledger)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="each of them has all receivers, one after another")
    parser.add_argument("--quick", action="store_true", help="one round of few nodes, to see that it runs")
    add_record_option(parser)
    given = parser.parse_args()
    if given.quick:
        given.nodes, given.messages, given.rounds = 50, 20, 1
    recorder = Recorder("sparkplug")
    rounds = [play_round(given.nodes, given.messages) for _ in range(given.rounds)]
    figures = [
        figure_of(which, [results[which] for results in rounds], [results["counted"] for results in rounds])
        for which in RECEIVERS
    ]
    for figure in figures:
        print(
            f"{figure.receiver:26} {figure.messages_per_second:9,} messages/s: {figure.of_counting:5.2f} of counting only"
            f"{f' (goal {figure.goal})' if figure.goal else ''}, by CPU time {figure.of_counting_by_cpu_time:5.2f}; "
            f"dropped by the broker: {figure.dropped}"
        )
    if given.record:
        readings = {which: [results[which].rate for results in rounds] for which in RECEIVERS}
        recorder.write([asdict(figure) for figure in figures], readings)


def play_round(nodes: int, messages: int) -> dict[str, Result]:
    results = {}
    for which in RECEIVERS:
        with tempfile.TemporaryDirectory() as folder:
            results[which] = measure(which, nodes, messages, Path(folder))
    return results


def figure_of(which: str, results: list[Result], bases: list[Result]) -> Figure:
    """A receiver in the middle one of its rounds: each is compared with the counting of its own round."""
    pairs = list(zip(results, bases, strict=True))
    return Figure(
        which,
        round(median(result.rate for result in results)),
        median(result.rate / base.rate for result, base in pairs),
        GOALS.get(which, ""),
        median(base.cpu_seconds / result.cpu_seconds for result, base in pairs),
        sum(result.dropped for result in results),
    )


if __name__ == "__main__":
    main()
