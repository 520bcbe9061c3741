"""A Sparkplug edge node on a bad network, which records every message before it sends it.

    python -m tests.nemesis.edge_node '{"broker": …, "port": …, "name": …, "folder": …, "seed": …, "life": …, "is_last": false}'

It is born at each connection and when it is asked to be, and has a will. It sends blocks of messages, of which the network
(played by this program) displaces some, repeats some, drops some, and now and then holds one back for too long. A block is
over before anything else happens: nothing is left over from one birth to the next. Metrics are named by aliases, which change
with every birth.

Stamps are unique and rise with the numbers, so a stamp says which message it is. The last life of a node begins before the
host does: it goes on until it is asked for a rebirth. From then on everything that it sends must arrive, unless its connection
breaks all the same, which it records. It sends a few blocks, slowly enough that the host has room for all that may wait behind
a dropped message, says that it has settled, and stays connected until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiomqtt

from seriatim.sparkplug.payload import BD_SEQ, REBIRTH, Payload, decode
from seriatim.sparkplug.topics import NodeId, command_topic, is_state_topic, state_topic
from tests.nemesis.history import Recorder

GROUP, HOST = "g", "seriatim"
DEVICE = "d"
HELD_BACK_S = 1.0
"""Longer than the host waits for a number while it is disturbed."""
SETTLING_BLOCKS = 12
BLOCK, CALM_BLOCK = 12, 8
"""How many messages a block has at most."""
PAUSES_S, CALM_PAUSES_S = (0.01, 0.05, 0.1, 0.3), (0.2, 0.3)
RECONNECT_S = 0.2
KEEPALIVE_S = 10
ALIASES = (1, 2)
INT64, INT32 = 4, 3


@dataclass(frozen=True, slots=True)
class NodeLife:
    """What this process is for."""

    broker: str
    port: int
    name: str
    folder: str
    seed: int
    life: int
    is_last: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.nemesis.edge_node", json.dumps(asdict(self))]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A message with a number, which is sent, repeated or dropped."""

    kind: str
    seq: int
    stamp: int
    payload: bytes


class EdgeNode:
    """One life of one node."""

    def __init__(self, life: NodeLife) -> None:
        self._life = life
        self._random = Random(f"{life.seed} {life.name} {life.life}")
        self._record = Recorder(Path(life.folder), life.name)
        self._sessions = Path(life.folder) / f"{life.name}.sessions"
        self._stamp = self._seq = self._births = 0
        self._bd_seq = -1
        self._is_calm = False
        self._is_asked = asyncio.Event()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        while not self.stopping.is_set():
            try:
                await self._session()
            except aiomqtt.MqttError:  # the broker is gone, and perhaps what was under way
                self._record("broken", key=self._key, number=self._bd_seq)
                await asyncio.sleep(RECONNECT_S)

    async def _session(self) -> None:
        self._bd_seq = self._next_session()
        will = self._death()
        self._note(will)  # once there is a connection, the broker may publish it at any time
        async with aiomqtt.Client(
            self._life.broker,
            self._life.port,
            identifier=self._life.name,
            keepalive=KEEPALIVE_S,
            will=aiomqtt.Will(self._topic("NDEATH"), will.payload, qos=1),
        ) as client:
            for topic in (command_topic(NodeId(GROUP, self._life.name)), state_topic(HOST)):
                await client.subscribe(topic, qos=1)
            listening = asyncio.create_task(self._listen(client))
            try:
                await self._talk(client)
                await self._send(client, self._death())
            finally:
                listening.cancel()
                await asyncio.wait([listening])

    def _next_session(self) -> int:
        """bdSeq counts connections, over the lives of the node."""
        bd_seq = int(self._sessions.read_text()) + 1 if self._sessions.exists() else 0
        self._sessions.write_text(str(bd_seq))
        return bd_seq

    async def _listen(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            if is_state_topic(message.topic.value):
                self._record("state", key=self._key, number=int(json.loads(message.payload)["online"]))
            elif any(metric.name == REBIRTH for metric in decode(message.payload).metrics):
                self._is_asked.set()

    async def _talk(self, client: aiomqtt.Client) -> None:
        await self._give_birth(client)
        calm_blocks = 0
        while not self.stopping.is_set():
            if self._is_asked.is_set():
                self._record("reborn", key=self._key, number=self._stamp + 1)
                self._is_calm = self._life.is_last
                await self._give_birth(client)
            await self._send_block(client)
            calm_blocks += self._is_calm
            if calm_blocks >= SETTLING_BLOCKS:
                await self._settle(client)
            await asyncio.sleep(self._random.choice(CALM_PAUSES_S if self._is_calm else PAUSES_S))

    async def _settle(self, client: aiomqtt.Client) -> None:
        """End with a message that was not displaced, and go on only if another birth is asked for."""
        last = self._data()
        await self._send(client, last)
        self._record("settled", key=self._key, number=last.stamp)
        await _first_of(self._is_asked.wait(), self.stopping.wait())

    # -- messages -------------------------------------------------------------------------------------------------------

    async def _give_birth(self, client: aiomqtt.Client) -> None:
        self._is_asked.clear()
        self._seq, self._births = 0, self._births + 1
        await self._send(client, self._birth("NBIRTH"))
        await self._send(client, self._birth("DBIRTH"))

    async def _send_block(self, client: aiomqtt.Client) -> None:
        messages = [self._data() for _ in range(self._random.randint(1, CALM_BLOCK if self._is_calm else BLOCK))]
        sent = [message for message in messages if self._random.random() > 0.03]
        sent += [message for message in sent if self._random.random() < 0.06]
        places = {index: index + self._random.choice([0, 0, 0, 3]) for index in range(len(sent))}
        sent = [sent[index] for index in sorted(places, key=lambda index: (places[index], index))]
        held_back = None
        if not self._life.is_last and self._random.random() < 0.05 and len(sent) > 2:
            held_back = sent.pop(0)
        for message in sent:
            await self._send(client, message)
        if held_back is not None:
            await asyncio.sleep(HELD_BACK_S)
            await self._send(client, held_back)

    def _birth(self, kind: str) -> _Numbered:
        payload = self._new_payload()
        if kind == "NBIRTH":
            payload.metrics.add(name=BD_SEQ, datatype=INT64, long_value=self._bd_seq)
        for name, alias in zip(("stamp", "noise"), self._aliases(kind), strict=True):
            payload.metrics.add(name=name, alias=alias, datatype=INT64, long_value=self._stamp)
        return self._number(kind, payload)

    def _data(self) -> _Numbered:
        kind = self._random.choice(["NDATA", "NDATA", "DDATA"])
        payload = self._new_payload()
        stamp, noise = self._aliases(kind)
        payload.metrics.add(alias=stamp, long_value=self._stamp)
        payload.metrics.add(alias=noise, long_value=0)
        return self._number(kind, payload)

    def _aliases(self, kind: str) -> list[int]:
        """Those of node and device are swapped, and change places with every birth."""
        is_swapped = (self._bd_seq + self._births + kind.startswith("D")) % 2
        first, second = ALIASES if is_swapped else ALIASES[::-1]
        offset = 10 if kind.startswith("D") else 0
        return [first + offset, second + offset]

    def _new_payload(self) -> Any:
        self._stamp = max(time.time_ns() // 1_000_000, self._stamp + 1)
        return Payload(timestamp=self._stamp)

    def _number(self, kind: str, payload: Any) -> _Numbered:
        payload.seq = self._seq
        self._seq = (self._seq + 1) % 256
        return _Numbered(kind, payload.seq, self._stamp, payload.SerializeToString())

    def _death(self) -> _Numbered:
        payload = self._new_payload()
        payload.metrics.add(name=BD_SEQ, datatype=INT64, long_value=self._bd_seq)
        return _Numbered("NDEATH", -1, self._stamp, payload.SerializeToString())

    async def _send(self, client: aiomqtt.Client, message: _Numbered) -> None:
        self._note(message)
        await client.publish(self._topic(message.kind), message.payload)

    def _note(self, message: _Numbered) -> None:
        body = {
            "kind": message.kind,
            "seq": message.seq,
            "birth": f"{self._life.life}/{self._births}",
            "bd_seq": self._bd_seq,
            "is_calm": self._is_calm and message.seq >= 0,
        }
        self._record("sent", key=self._key, number=message.stamp, body=json.dumps(body))

    @property
    def _key(self) -> str:
        return f"{GROUP}/{self._life.name}"

    def _topic(self, kind: str) -> str:
        device = f"/{DEVICE}" if kind.startswith("D") else ""
        return f"spBv1.0/{GROUP}/{kind}/{self._life.name}{device}"


async def _first_of(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _ignore_ended_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """aiomqtt may try to watch a socket that the broker has just closed, or leave the end of a connection in a future that
    nobody awaits any more; the connection ends by itself."""
    if not isinstance(context.get("exception"), OSError | aiomqtt.MqttError):
        loop.default_exception_handler(context)


async def live(life: NodeLife) -> None:
    node = EdgeNode(life)
    asyncio.get_running_loop().set_exception_handler(_ignore_ended_connections)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, node.stopping.set)
    await node.run()


if __name__ == "__main__":
    asyncio.run(live(NodeLife(**json.loads(sys.argv[1]))))
