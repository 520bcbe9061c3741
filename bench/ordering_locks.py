"""What a lock for each node gains the ordering service: threads that send for many nodes, beside the same work under one lock.

    python -m bench.ordering_locks [--threads 8] [--nodes 1000] [--messages 40] [--rounds 5] [--record]

The nodes are dealt out to the threads. Each is born and sends its data, with every tenth message displaced by one place. The
same messages go through ``OrderingService``, and through one that decides and calls back under a single lock. There are two
callbacks: one that only counts, and one that waits a little, as for a disk or a socket. Python's interpreter lock allows one
thread at a time to compute, so the first can't gain much; callbacks that wait can overlap. Figures are the middle of several
rounds, and the two services take turns within a round.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TypeAlias

from bench.record import Recorder
from bench.report import add_record_option
from seriatim.core.sparkplug.messages import EdgeMessage, Kind, NodeOrdering, Ordered
from seriatim.sparkplug import MessageOrderingService, NodeId, OrderingService

ORDERING = NodeOrdering(reorder_timeout=600)
DISPLACED_EVERY = 10
WAIT_S = 0.0001

OnMessage: TypeAlias = Callable[[Ordered[None]], object]
Readings: TypeAlias = dict[str, list[float]]
"""Messages per second, in every round."""


class OneLock:
    """The same service behind a single lock, which is held while it decides and calls back."""

    def __init__(self, service: OrderingService[None]) -> None:
        self._service = service
        self._lock = threading.Lock()

    def process_message_order(self, node: NodeId, message: EdgeMessage[None]) -> Sequence[Ordered[None]]:
        with self._lock:
            return self._service.process(node, message)

    def clear_message_order_cache(self, node: NodeId, device: str | None = None) -> Sequence[EdgeMessage[None]]:
        with self._lock:
            return self._service.clear(node, device)


def messages_of_a_node(count: int) -> list[EdgeMessage[None]]:
    messages = [EdgeMessage(Kind.NBIRTH, None, seq=0, bd_seq=0)]
    messages += [EdgeMessage(Kind.NDATA, None, seq=number % 256) for number in range(1, count)]
    for index in range(DISPLACED_EVERY, count, DISPLACED_EVERY):
        messages[index - 1], messages[index] = messages[index], messages[index - 1]
    return messages


def messages_per_second(
    service: MessageOrderingService[None], threads: int, nodes: list[NodeId], messages: list[EdgeMessage[None]]
) -> float:
    released = [0] * threads
    begin = threading.Barrier(threads + 1)

    def send(part: int) -> None:
        begin.wait()
        for message in messages:
            for node in nodes[part::threads]:
                released[part] += len(service.process_message_order(node, message))

    workers = [threading.Thread(target=send, args=(part,)) for part in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - started
    expected = len(nodes) * len(messages)
    assert sum(released) == expected, f"{sum(released)} of {expected} messages were released"
    return expected / elapsed


def count_only(_: Ordered[None]) -> None:
    """The service counts what it returns."""


def wait_a_little(_: Ordered[None]) -> None:
    time.sleep(WAIT_S)


@dataclass(frozen=True)
class Figure:
    """What one callback found: both services in messages per second, and how many times faster a lock for each node is."""

    callbacks: str
    one_lock: int
    a_lock_for_each_node: int
    ratio: float


def compare(name: str, on_message: OnMessage, arguments: argparse.Namespace, messages: int) -> tuple[Figure, Readings]:
    nodes = [NodeId("g", str(number)) for number in range(arguments.nodes)]
    sent = messages_of_a_node(messages)
    rates: dict[str, list[float]] = {"one lock": [], "a lock for each node": []}
    for _ in range(arguments.rounds):
        with OrderingService[None](on_message, ORDERING) as service:
            rates["one lock"].append(messages_per_second(OneLock(service), arguments.threads, nodes, sent))
        with OrderingService[None](on_message, ORDERING) as service:
            rates["a lock for each node"].append(messages_per_second(service, arguments.threads, nodes, sent))
    pairs = zip(rates["a lock for each node"], rates["one lock"], strict=True)
    middle = {lock: round(median(measured)) for lock, measured in rates.items()}
    ratio = median(each / one for each, one in pairs)
    print(f"{name}: {len(nodes):,} nodes × {messages} messages, {arguments.threads} threads")
    for lock, rate in middle.items():
        print(f"  {lock:<22}{rate:>10,} messages/s")
    print(f"  {'ratio':<22}{ratio:>10.2f}")
    readings = {f"{name}, {lock}": measured for lock, measured in rates.items()}
    return Figure(name, middle["one lock"], middle["a lock for each node"], ratio), readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    add_record_option(parser)
    arguments = parser.parse_args()
    recorder = Recorder("ordering_locks")
    print(f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    found = [
        compare("callbacks that count", count_only, arguments, arguments.messages),
        compare(
            f"callbacks that wait {WAIT_S * 1e6:.0f} µs", wait_a_little, arguments, max(4, arguments.messages // 10)
        ),
    ]
    if arguments.record:
        readings = {name: rates for _, each in found for name, rates in each.items()}
        recorder.write([asdict(figure) for figure, _ in found], readings)


if __name__ == "__main__":
    main()
