"""A Sparkplug host application over MQTT: it orders what edge nodes say and stores it in a topic.

Rules
    - It says that it is there on ``spBv1.0/STATE/HOST``: retained, with QoS 1, and with the same timestamp in its birth and in
      its will, which the broker publishes when it is gone. It subscribes before it publishes. Should somebody say that it is
      offline while it is not, it says again that it is online. Whatever ends a connection that still works, a stop or an
      error, it says offline, and then disconnects.
    - Every message is ordered by ``core.edge_nodes`` and stored by the journal. What was not released is counted, logged, and
      stored in the ledger, a topic of its own. So is what waits in memory when the host is stopped.
    - A node that was never heard of in this run is looked up in the store first: what it says waits until its place is known.
    - A rebirth is asked for by NCMD: QoS 0, not retained. One that is lost is asked for again by the node's own backoff. While
      there is no broker nobody is asked.
    - What is received and can't be read in time is dropped (``inbox``), counted and logged. So is what a stop leaves unread.
    - Without a broker everything is stale, and the connection is tried again with backoff. With a broker again, nodes that are
      stale are asked for their births. A broker that refuses us the first time ends the host: somebody has mistaken something.
      Later it is tried again: somebody may be changing passwords.
    - A store that fails ends the host: what can't be stored must not be passed over. So does any other error that nobody
      expected: whatever was decided and not yet stored is given up (``Journal.abandon``), as if the host had been killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

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
from seriatim.core.options import require_duration
from seriatim.core.resequencing import LedgerEntry, Reason
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.options import WEEK, TopicOptions
from seriatim.errors import AlreadyExists, CapacityExceeded, InvalidArgument
from seriatim.extras import require_extra
from seriatim.log import logger
from seriatim.sparkplug.connection import MqttAddress, MqttTrust, SubscriptionRefused, refusal_of
from seriatim.sparkplug.inbox import Inbox
from seriatim.sparkplug.intake import Body, Counts, Malformed, read_message
from seriatim.sparkplug.journal import Journal, Topics, Written
from seriatim.sparkplug.payload import Aliases, rebirth_command
from seriatim.sparkplug.records import MAX_DATA_BYTES, Entry, make_entry, make_record
from seriatim.sparkplug.topics import (
    NAMESPACE,
    NodeId,
    check_id,
    command_topic,
    default_ledger,
    is_state_topic,
    state_topic,
)

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="the Sparkplug host")

import aiomqtt  # noqa: E402

FAREWELL_S = 25.0
"""Longer than it takes to say offline and to disconnect, where the broker does not answer."""
_REFUSED = 0x80
"""The answers to a subscription from here on are refusals."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How a host application works. ``raw`` stores the payload as it came, too. Times are seconds.

    ``ledger`` is the topic for what was not released; unless it is named it is the topic's own name with ``-ledger`` behind
    it. With ``keep_ledger=False`` there is none, and what was not released is only counted.

    ``retention`` is how long the topics that the host creates keep messages and ledger entries, whether or not somebody has
    read them; None keeps them for ever. Topics that exist keep their own options.

    ``groups`` limits the host to edge nodes of these groups; without any it hears all of them. ``mqtt5`` speaks MQTT 5 with the
    broker instead of 3.1.1.
    """

    host_id: str = "seriatim"
    ordering: NodeOrdering = field(default_factory=NodeOrdering)
    raw: bool = False
    ledger: str | None = None
    keep_ledger: bool = True
    retention: float | None = WEEK
    trust: MqttTrust = field(default_factory=MqttTrust)
    reconnect_delay: float = 0.5
    reconnect_limit: float = 60.0
    keepalive: int = 30
    groups: tuple[str, ...] = ()
    mqtt5: bool = False

    def __post_init__(self) -> None:
        check_id("host id", self.host_id)
        if self.retention is not None:
            require_duration("retention", self.retention)
        for group in self.groups:
            check_id("group id", group)

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

    def __init__(
        self,
        broker: Broker,
        topic: str,
        address: MqttAddress,
        options: HostOptions | None = None,
        notify: Callable[[str], None] = logger.info,
    ) -> None:
        """``notify`` is told in a sentence whenever there is a connection to the MQTT broker."""
        self._options = options or HostOptions()
        self._notify = notify
        self._address = address
        self._tls = self._options.trust.for_address(address)
        self._broker = broker
        self._topics = self._options.topics(topic)
        self._loop = asyncio.get_running_loop()
        self._aliases: defaultdict[NodeId, Aliases] = defaultdict(Aliases)
        self._recalling: dict[NodeId, list[EdgeMessage[Body]]] = {}
        self._recalls: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._requests: asyncio.Queue[NodeId] | None = None
        """Nodes that are to be asked for a rebirth; None while there is no broker."""
        self._timer: asyncio.TimerHandle | None = None
        self._state_topic = state_topic(self._options.host_id)
        self._delay = self._options.reconnect_delay
        self.counts = Counts()
        self.nodes: EdgeNodes[Body] = EdgeNodes(self._options.ordering)
        self.online = asyncio.Event()
        """Set while the host is connected, subscribed, and has said that it is there."""
        self._journal = Journal(broker, self._topics, self._options.host_id, self.counts, self._bookmark_of)

    async def run(self) -> None:
        """Work until cancelled, until something fails, or until the broker refuses us at the first connection."""
        kept = TopicOptions(retention=self._options.retention, retain_settled=self._options.retention)
        for topic in filter(None, (self._topics.ordered, self._topics.ledger)):
            with suppress(AlreadyExists):
                await self._broker.create_topic(topic, kept)
        writing = asyncio.create_task(self._journal.run())
        reading = asyncio.create_task(self._stay_connected())
        try:
            await asyncio.wait([writing, reading, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            await _cancel(reading, *(self._recalls if writing.done() else ()))
            await asyncio.gather(*self._recalls, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()
            if not self._failed.done():
                self._carefully(self._enter_what_waits)
            self._journal.end()
            await asyncio.wait([writing])
            for work in (self._failed, writing):  # whatever ended us: what could not be stored at the end is no secret
                if work.done():
                    work.result()

    def _carefully(self, act: Callable[[], None]) -> None:
        """Let nodes move on, and add to the journal what they give out. After an error it would not have all of it."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  # whatever it is: run() raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the host by an error, and write nothing that is behind it."""
        self._journal.abandon()
        if not self._failed.done():
            self._failed.set_exception(error)

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose error ends the host."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

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
                self._requests = None
                self._carefully(lambda: self._apply(self.nodes.disconnect()))
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, self._options.reconnect_limit)

    async def _one_connection(self) -> None:
        began = _milliseconds()
        inbox = Inbox(self.counts)
        client = self._client(began, inbox)
        try:
            async with client:
                await self._subscribe(client)
                try:
                    await self._work(client, self._publisher_of_state(client, began))
                finally:
                    with suppress(aiomqtt.MqttError):  # there is no connection any more: the will says it
                        await client.publish(self._state_topic, _state(False, _milliseconds()), qos=1, retain=True)
        finally:
            _look_at_the_end_of(client)
            inbox.leave(self._state_topic)

    def _client(self, began: int, inbox: Inbox) -> aiomqtt.Client:
        address = self._address
        return aiomqtt.Client(
            address.host,
            address.port,
            username=address.user,
            password=address.password,
            tls_context=self._tls,
            will=aiomqtt.Will(self._state_topic, _state(False, began), qos=1, retain=True),
            **_clean_session(self._options.mqtt5),
            keepalive=self._options.keepalive,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", lambda **_: inbox),
        )

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        groups = [f"{NAMESPACE}/{group}/#" for group in self._options.groups]
        for topics in (*groups, self._state_topic) if groups else (f"{NAMESPACE}/#",):
            answers = await client.subscribe(topics, qos=1)
            if any((answer if isinstance(answer, int) else answer.value) >= _REFUSED for answer in answers):
                raise SubscriptionRefused(f"does not let us subscribe to {topics!r}")

    def _publisher_of_state(self, client: aiomqtt.Client, began: int) -> Callable[[], Awaitable[None]]:
        return lambda: client.publish(self._state_topic, _state(True, began), qos=1, retain=True)

    async def _work(self, client: aiomqtt.Client, say_online: Callable[[], Awaitable[None]]) -> None:
        """Say that we are here, and read until the connection is lost, or until told to stop."""
        await say_online()
        self._delay = self._options.reconnect_delay
        self.counts.connections += 1
        self._notify(f"connected{' again' if self.counts.connections > 1 else ''} to the MQTT broker {self._address}")
        self._requests = asyncio.Queue()
        commands = self._watched(self._send_commands(client, self._requests))
        self.online.set()
        self._carefully(lambda: self._apply(self.nodes.reconnect(self._loop.time())))
        try:
            await self._read(client, say_online)
        finally:
            await _cancel(commands, again_after=0.5)  # it has nothing to clean up

    async def _read(self, client: aiomqtt.Client, say_online: Callable[[], Awaitable[None]]) -> None:
        async for message in client.messages:
            topic, data = message.topic.value, message.payload
            self.counts.received += 1
            if topic == self._state_topic:
                await self._on_own_state(data, say_online)
            elif is_state_topic(topic):
                self.counts.commands += 1
            else:
                self._carefully(partial(self._receive, topic, data))
                if self._journal.is_full:
                    await self._journal.room()

    async def _on_own_state(self, data: object, say_online: Callable[[], Awaitable[None]]) -> None:
        self.counts.commands += 1
        try:
            said = json.loads(data) if isinstance(data, bytes) else None
        except ValueError:
            said = None
        if not isinstance(said, dict) or said.get("online") is not True:
            await say_online()

    async def _send_commands(self, client: aiomqtt.Client, requests: asyncio.Queue[NodeId]) -> None:
        while True:
            node = await requests.get()
            try:
                await client.publish(command_topic(node), rebirth_command(_milliseconds()), qos=0, retain=False)
            except aiomqtt.MqttError as error:
                logger.warning("%s could not be asked for a rebirth, which is tried again: %s", node, error)

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
            recall = self._watched(self._recall(node))
            self._recalls.add(recall)
            recall.add_done_callback(self._recalls.discard)
        else:
            self._order(node, message)

    async def _recall(self, node: NodeId) -> None:
        """Ask where a node stood, and then go on with what it said meanwhile."""
        bookmark = await self._journal.recall(node)
        self._carefully(partial(self._go_on, node, bookmark))

    def _go_on(self, node: NodeId, bookmark: Bookmark | None) -> None:
        messages = self._recalling.pop(node)
        if bookmark is not None:
            with suppress(CapacityExceeded):  # which every one of the messages meets, too
                self._apply(self.nodes.resume(node, bookmark, self._loop.time()))
        for message in messages:
            self._order(node, message)
        if node not in self.nodes:
            self._journal.forget(node)

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
        unnamed: dict[NodeId, None] = {}
        for effect in effects:
            if isinstance(effect, Ordered):
                if self._store(effect):
                    unnamed[_node_of(effect)] = None
            elif isinstance(effect, LedgerEntry):
                self._not_released(effect)
            elif isinstance(effect, RebirthRequested):
                self._request_rebirth(effect)
            elif isinstance(effect, DeathIgnored):
                self.counts.deaths_ignored += 1
                logger.info("%s: an NDEATH was ignored: %s", effect.key, effect.detail)
                self._enter(effect.key, Entry.of_death(effect), effect)
            else:
                logger.debug("%s %s is %s", effect.key, effect.device or "", effect.status)
        for node in unnamed:  # only now: to ask is to let time pass, which may release what comes behind these effects
            self._apply(self.nodes.ask(node, "a metric has an alias that no birth explained", self._loop.time()))
        self._schedule()

    def _store(self, ordered: Ordered[Body]) -> int:
        """Returns how many of the metrics nobody can name."""
        node = _node_of(ordered)
        record, unknown = make_record(ordered, self._aliases[node], raw=self._options.raw)
        if len(record.data) > MAX_DATA_BYTES:
            self._enter_unstorable(ordered, len(record.data))
            record = record._replace(data=b'{"metrics":[],"error":"too long to be stored"}')
        self._journal.add(node, record, ordered)
        self.counts.unknown_aliases += unknown
        return unknown

    # -- the ledger -----------------------------------------------------------------------------------------------------

    def _not_released(self, entry: LedgerEntry[EdgeMessage[Body]]) -> None:
        self.counts.ledger[entry.reason] += entry.size
        logger.info("%s: %s %d to %d: %s", entry.key, entry.reason, entry.first, entry.last, entry.detail)
        self._enter(entry.key, Entry.of(entry), entry)

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

    def _enter(self, node: Hashable, entry: Entry, about: Written | None = None) -> None:
        assert isinstance(node, NodeId)
        if self._topics.ledger:
            self._journal.enter(node, self._make_entry(entry, self._aliases[node]), about)

    def _make_entry(self, entry: Entry, aliases: Aliases) -> Outgoing:
        return make_entry(entry, aliases, _milliseconds(), raw=self._options.raw)

    # -- rebirths -------------------------------------------------------------------------------------------------------

    def _request_rebirth(self, request: RebirthRequested) -> None:
        if self._requests is None:  # who is stale when there is a broker again is asked then
            return
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
        self._carefully(lambda: self._apply(self.nodes.advance(self._loop.time())))


async def _cancel(*works: asyncio.Task[None], again_after: float = FAREWELL_S) -> None:
    """Cancel them until they have ended: Python 3.11 forgets a cancellation that comes just when a publish is confirmed."""
    left = set(works)
    while left:
        for work in left:
            work.cancel()
        _, left = await asyncio.wait(left, timeout=again_after)
    await asyncio.gather(*works, return_exceptions=True)


def _look_at_the_end_of(client: aiomqtt.Client) -> None:
    """aiomqtt keeps the error that ended a connection. Where we are stopped before it is raised, nobody else looks at it, and
    asyncio would complain about that."""
    ended = client._disconnected  # noqa: SLF001
    if ended.done() and not ended.cancelled():
        ended.exception()


def _node_of(ordered: Ordered[Body]) -> NodeId:
    assert isinstance(ordered.key, NodeId)
    return ordered.key


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


def _clean_session(mqtt5: bool) -> dict[str, Any]:
    """A session that ends with its connection: what was missed is known by its sequence number, not by the broker."""
    if mqtt5:  # a session expiry of 0, which is the default, and a clean start each time
        return {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": True}
    return {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": True}


def _state(online: bool, timestamp: int) -> bytes:
    return json.dumps({"online": online, "timestamp": timestamp}).encode()
