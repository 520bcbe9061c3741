"""A Sparkplug host application over MQTT: it orders what edge nodes say and stores it in a topic.

Rules
    - It says that it is there on ``spBv1.0/STATE/HOST``: retained, with QoS 1, and with the same timestamp in its birth and in
      its will, which the broker publishes when it is gone. It subscribes before it publishes. Should somebody say that it is
      offline while it is not, it says again that it is online. A clean stop says offline, and then disconnects.
    - Every message is ordered by ``core.edge_nodes`` and stored by the journal. What was not released is counted, logged, and
      stored in the ledger, a topic of its own. So is what waits in memory when the host is stopped.
    - A node that was never heard of in this run is looked up in the store first: what it says waits until its place is known.
    - A rebirth is asked for by NCMD: QoS 0, not retained. One that is lost is asked for again by the node's own backoff.
    - Without a broker everything is stale, and the connection is tried again with backoff. With a broker again, nodes that are
      stale are asked for their births. A broker that refuses us the first time ends the host: somebody has mistaken something.
      Later it is tried again: somebody may be changing passwords.
    - A store that fails ends the host: what can't be stored must not be passed over.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field

from seriatim.core.edge_messages import (
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    NodeEffect,
    NodeOrdering,
    Ordered,
    RebirthRequested,
)
from seriatim.core.edge_nodes import EdgeNodes
from seriatim.core.resequencing import LedgerEntry, Reason
from seriatim.engine.broker import Broker, Outgoing
from seriatim.errors import AlreadyExists, CapacityExceeded, InvalidArgument
from seriatim.extras import require_extra
from seriatim.log import logger
from seriatim.sparkplug.connection import MqttAddress, MqttTrust, refusal_of
from seriatim.sparkplug.intake import Body, Counts, Malformed, read_message
from seriatim.sparkplug.journal import Journal, Topics
from seriatim.sparkplug.payload import Aliases, rebirth_command
from seriatim.sparkplug.records import MAX_DATA_BYTES, Entry, make_entry, make_record
from seriatim.sparkplug.topics import NAMESPACE, NodeId, check_id, command_topic, default_ledger, state_topic

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="the Sparkplug host")

import aiomqtt  # noqa: E402


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How a host application works. ``raw`` stores the payload as it came, too. Times are seconds.

    ``ledger`` is the topic for what was not released; unless it is named it is the topic's own name with ``-ledger`` behind
    it. With ``keep_ledger=False`` there is none, and what was not released is only counted.
    """

    host_id: str = "seriatim"
    ordering: NodeOrdering = field(default_factory=NodeOrdering)
    raw: bool = False
    ledger: str | None = None
    keep_ledger: bool = True
    trust: MqttTrust = field(default_factory=MqttTrust)
    reconnect_delay: float = 0.5
    reconnect_limit: float = 60.0
    keepalive: int = 30

    def __post_init__(self) -> None:
        check_id("host id", self.host_id)

    def check(self, topic: str, address: MqttAddress) -> None:
        """InvalidArgument when no host can work so."""
        self.topics(topic)
        self.trust.for_address(address)

    def topics(self, topic: str) -> Topics:
        """Where a host writes whose messages in order go to ``topic``."""
        ledger = self.ledger or default_ledger(topic)
        if self.keep_ledger and ledger == topic:
            raise InvalidArgument(f"the ledger can't be in {topic!r} itself: name another topic")
        return Topics(topic, ledger if self.keep_ledger else None)


class Host:
    """A host application: ``run`` it until it is cancelled."""

    def __init__(self, broker: Broker, topic: str, address: MqttAddress, options: HostOptions | None = None) -> None:
        self._options = options or HostOptions()
        self._address = address
        self._tls = self._options.trust.for_address(address)
        self._broker = broker
        self._topics = self._options.topics(topic)
        self._loop = asyncio.get_running_loop()
        self._aliases: defaultdict[NodeId, Aliases] = defaultdict(Aliases)
        self._recalling: dict[NodeId, list[EdgeMessage[Body]]] = {}
        self._recalls: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._requests: asyncio.Queue[NodeId] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._state_topic = state_topic(self._options.host_id)
        self._delay = self._options.reconnect_delay
        self.counts = Counts()
        self.nodes: EdgeNodes[Body] = EdgeNodes(self._options.ordering)
        self.online = asyncio.Event()
        """Set while the host is connected, subscribed, and has said that it is there."""
        self._journal = Journal(broker, self._topics, self._options.host_id, self.counts, self._bookmark_of)

    async def run(self) -> None:
        """Work until cancelled, until the store fails, or until the broker refuses us at the first connection."""
        for topic in filter(None, (self._topics.ordered, self._topics.ledger)):
            with suppress(AlreadyExists):
                await self._broker.create_topic(topic)
        writing = asyncio.create_task(self._journal.run())
        reading = asyncio.create_task(self._stay_connected())
        try:
            done, _ = await asyncio.wait([writing, reading, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()
        finally:
            await _cancel(reading, *(self._recalls if writing.done() else ()))
            await asyncio.gather(*self._recalls, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()
            self._enter_what_waits()
            self._journal.end()
            await asyncio.wait([writing])

    # -- the connection -------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        while True:
            try:
                await self._one_connection()
            except aiomqtt.MqttError as error:
                refusal = refusal_of(error, self._address)
                if refusal is not None and not self.counts.connections:
                    raise refusal from error
                logger.warning("no connection to the MQTT broker %s: %s", self._address, refusal or error)
            finally:
                self.online.clear()
                self._apply(self.nodes.disconnect())
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, self._options.reconnect_limit)

    async def _one_connection(self) -> None:
        began = _milliseconds()
        will = aiomqtt.Will(self._state_topic, _state(False, began), qos=1, retain=True)
        address = self._address
        async with aiomqtt.Client(
            address.host,
            address.port,
            username=address.user,
            password=address.password,
            tls_context=self._tls,
            will=will,
            clean_session=True,
            keepalive=self._options.keepalive,
        ) as client:
            await client.subscribe(f"{NAMESPACE}/#", qos=1)
            say_online = self._publisher_of_state(client, began)
            await say_online()
            self._delay = self._options.reconnect_delay
            self.counts.connections += 1
            self._apply(self.nodes.reconnect(self._loop.time()))
            self.online.set()
            await self._work(client, say_online)

    def _publisher_of_state(self, client: aiomqtt.Client, began: int) -> Callable[[], Awaitable[None]]:
        return lambda: client.publish(self._state_topic, _state(True, began), qos=1, retain=True)

    async def _work(self, client: aiomqtt.Client, say_online: Callable[[], Awaitable[None]]) -> None:
        """Read until the connection is lost, or until told to stop: then say so."""
        commands = asyncio.create_task(self._send_commands(client))
        try:
            async for message in client.messages:
                topic, data = message.topic.value, message.payload
                self.counts.received += 1
                if topic == self._state_topic:
                    await self._on_own_state(data, say_online)
                elif topic.startswith(f"{NAMESPACE}/STATE/"):
                    self.counts.commands += 1
                else:
                    self._receive(topic, data)
                    if self._journal.is_full:
                        await self._journal.room()
        except asyncio.CancelledError:
            with suppress(aiomqtt.MqttError):
                await client.publish(self._state_topic, _state(False, _milliseconds()), qos=1, retain=True)
            raise
        finally:
            commands.cancel()
            with suppress(asyncio.CancelledError, aiomqtt.MqttError):
                await commands

    async def _on_own_state(self, data: object, say_online: Callable[[], Awaitable[None]]) -> None:
        self.counts.commands += 1
        try:
            said = json.loads(data) if isinstance(data, bytes) else None
        except ValueError:
            said = None
        if not isinstance(said, dict) or said.get("online") is not True:
            await say_online()

    async def _send_commands(self, client: aiomqtt.Client) -> None:
        while True:
            node = await self._requests.get()
            await client.publish(command_topic(node), rebirth_command(_milliseconds()), qos=0, retain=False)

    # -- messages -------------------------------------------------------------------------------------------------------

    def _receive(self, topic: str, data: bytes) -> None:
        found = read_message(topic, data)
        if found is None:
            self.counts.commands += 1
            return
        if isinstance(found, Malformed):
            self._refuse(found)
            return
        node, message = found
        if node in self._recalling:
            self._recalling[node].append(message)
        elif node not in self.nodes:
            self._recalling[node] = [message]
            recall = asyncio.create_task(self._recall(node))
            self._recalls.add(recall)
            recall.add_done_callback(self._recalled)
        else:
            self._order(node, message)

    async def _recall(self, node: NodeId) -> None:
        """Ask where a node stood, and then go on with what it said meanwhile."""
        bookmark = await self._journal.recall(node)
        messages = self._recalling.pop(node)
        if bookmark is not None:
            with suppress(CapacityExceeded):  # which every one of the messages meets, too
                self._apply(self.nodes.resume(node, bookmark, self._loop.time()))
        for message in messages:
            self._order(node, message)
        if node not in self.nodes:
            self._journal.forget(node)

    def _recalled(self, recall: asyncio.Task[None]) -> None:
        self._recalls.discard(recall)
        if not recall.cancelled() and (error := recall.exception()) and not self._failed.done():
            self._failed.set_exception(error)

    def _order(self, node: NodeId, message: EdgeMessage[Body]) -> None:
        try:
            effects = self.nodes.receive(node, message, self._loop.time())
        except CapacityExceeded as error:
            self._refuse(Malformed("too-many-nodes", str(error), node=node, message=message))
        except InvalidArgument as error:
            self._refuse(Malformed("message", str(error), node=node, message=message))
        else:
            self._apply(effects)

    def _refuse(self, found: Malformed) -> None:
        self.counts.refuse(found)
        if self._topics.ledger:
            self._journal.enter_stray(self._make_entry(Entry.of_malformed(found), Aliases()))

    def _apply(self, effects: list[NodeEffect[Body]]) -> None:
        for effect in effects:
            if isinstance(effect, Ordered):
                self._store(effect)
            elif isinstance(effect, LedgerEntry):
                self._not_released(effect)
            elif isinstance(effect, RebirthRequested):
                self._request_rebirth(effect)
            elif isinstance(effect, DeathIgnored):
                self.counts.deaths_ignored += 1
                logger.info("%s: an NDEATH was ignored: %s", effect.key, effect.detail)
                self._enter(effect.key, Entry.of_death(effect))
            else:
                logger.debug("%s %s is %s", effect.key, effect.device or "", effect.status)
        self._schedule()

    def _store(self, ordered: Ordered[Body]) -> None:
        node = ordered.key
        assert isinstance(node, NodeId)
        record, unknown = make_record(ordered, self._aliases[node], raw=self._options.raw)
        if len(record.data) > MAX_DATA_BYTES:
            self._enter_unstorable(ordered, len(record.data))
            record = record._replace(data=b'{"metrics":[],"error":"too long to be stored"}')
        self._journal.add(node, record)
        if unknown:
            self.counts.unknown_aliases += unknown
            self._apply(self.nodes.ask(node, "a metric has an alias that no birth explained", self._loop.time()))

    # -- the ledger -----------------------------------------------------------------------------------------------------

    def _not_released(self, entry: LedgerEntry[EdgeMessage[Body]]) -> None:
        self.counts.ledger[entry.reason] += entry.size
        logger.info("%s: %s %d to %d: %s", entry.key, entry.reason, entry.first, entry.last, entry.detail)
        self._enter(entry.key, Entry.of(entry))

    def _enter_unstorable(self, ordered: Ordered[Body], size: int) -> None:
        self.counts.unstorable += 1
        detail = f"{size} bytes as JSON are too long for a topic: here is the payload as it came"
        logger.error("%s: a message of %d bytes is too long to be stored", ordered.key, size)
        self._enter(ordered.key, Entry(str(ordered.key), "too-long", detail, ordered.message, {"epoch": ordered.epoch}))

    def _enter_what_waits(self) -> None:
        """The host stops: what it has only in memory would be gone."""
        for node in self.nodes:
            for message in node.held():
                self.counts.ledger[Reason.DISCARDED] += 1
                detail = "the host was stopped while it waited"
                self._enter(node.key, Entry(str(node.key), Reason.DISCARDED, detail, message, {"epoch": node.epoch}))

    def _enter(self, node: Hashable, entry: Entry) -> None:
        assert isinstance(node, NodeId)
        if self._topics.ledger:
            self._journal.enter(node, self._make_entry(entry, self._aliases[node]))

    def _make_entry(self, entry: Entry, aliases: Aliases) -> Outgoing:
        return make_entry(entry, aliases, _milliseconds(), raw=self._options.raw)

    # -- rebirths -------------------------------------------------------------------------------------------------------

    def _request_rebirth(self, request: RebirthRequested) -> None:
        assert isinstance(request.key, NodeId)
        self.counts.rebirths += 1
        logger.info("%s is asked for a rebirth (attempt %d): %s", request.key, request.attempt, request.reason)
        self._requests.put_nowait(request.key)

    def _bookmark_of(self, node: NodeId) -> Bookmark:
        return self.nodes[node].bookmark()

    # -- time -----------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        deadline = self.nodes.next_deadline
        if self._timer is not None:
            if self._timer.when() == deadline:
                return
            self._timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._apply(self.nodes.advance(self._loop.time()))


async def _cancel(*works: asyncio.Task[None]) -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


def _state(online: bool, timestamp: int) -> bytes:
    return json.dumps({"online": online, "timestamp": timestamp}).encode()
