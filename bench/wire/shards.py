"""Topics over several owners: as many servers, each with a store and a client process of its own, at work at the same time."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from bench.ordered_drain.workload import uniform
from bench.wire import raw, servers
from bench.wire.meter import Reading


def rate(owners: int, messages: int) -> Reading:
    """Publish and consume at once. The messages, all owners' together, are divided by the time of the slowest."""
    spawn = multiprocessing.get_context("spawn")
    together, each = spawn.Barrier(owners), messages // owners
    pipes = [spawn.Pipe(duplex=False) for _ in range(owners)]
    workers = [spawn.Process(target=_work, args=(each, together, sender)) for _, sender in pipes]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("an owner or its client failed: see above")
    return Reading(owners * min(receiver.recv() for receiver, _ in pipes))


def _work(messages: int, together: Barrier, result: Connection) -> None:
    with servers.ours() as server:
        together.wait(servers.PATIENCE)
        result.send(asyncio.run(raw.publish_and_drain(server, uniform(messages))).rate)
