"""A Sparkplug host application over MQTT: orders the messages of edge nodes and stores them in a topic.

Rules
    - It announces itself on ``spBv1.0/STATE/HOST``: retained, with QoS 1, and with the same timestamp in its birth and in its
      will, which the broker publishes when the host is gone. It subscribes before it publishes. If it is reported offline
      while it is connected, it announces again that it is online. Before it disconnects, after a stop or an error, it
      announces that it is offline.
    - ``core.sparkplug.pool`` orders every message, and the journal stores it. What was not released is counted, logged and
      stored in the ledger, a separate topic. So are messages that wait in memory when the host is stopped.
    - A node that is new in this run is looked up in the store first: its messages wait until its bookmark is known.
    - A rebirth is requested by NCMD: QoS 0, not retained. A lost request is repeated by the node's own backoff. Without a
      broker nothing is requested. Operators can leave a request in the store.
    - Messages that can't be read in time are dropped (``inbox``), counted and logged. So are messages left unread by a stop.
    - Without a broker every node is stale, and the host reconnects with backoff. When it is connected again, stale nodes are
      asked for a rebirth. A broker that refuses the first connection ends the host, because the configuration must be wrong.
      Later refusals are retried, because passwords may be changing.
    - A failing store ends the host, because no message may be skipped. So does any unexpected error: what was decided and not
      yet stored is discarded (``Journal.abandon``), as if the host had been killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, cast

from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.sparkplug.messages import (
    Bookmark,
    DeathIgnored,
    EdgeMessage,
    NodeEffect,
    NodeOrdering,
    Ordered,
    RebirthRequested,
    Status,
)
from seriatim.core.sparkplug.pool import EdgeNodes
from seriatim.core.validation import require_duration
from seriatim.engine.broker import Broker, Outgoing
from seriatim.engine.options import DEFAULT_RETENTION_S, TopicOptions
from seriatim.engine.reported_status import (
    MAX_DEVICES,
    MAX_GAPS,
    MAX_NODES,
    HostStatus,
    MissingNumbers,
    NodeStatus,
    leave_status,
    left_statuses,
    take_rebirth_requests,
)
from seriatim.errors import AlreadyExists, CapacityExceeded, InvalidArgument, SeriatimError
from seriatim.extras import require_extra
from seriatim.log import logger
from seriatim.sparkplug.inbox import MAX_READ_AT_ONCE, Inbox, read_arrived
from seriatim.sparkplug.intake import Body, Counts, Malformed, read_message
from seriatim.sparkplug.mqtt_address import MqttAddress, MqttTrust, SubscriptionRefused, refusal_of
from seriatim.sparkplug.payload import Aliases, rebirth_command
from seriatim.sparkplug.records import MAX_DATA_BYTES, Entry, make_entry, make_record
from seriatim.sparkplug.topic_writer import Journal, Topics, Written
from seriatim.sparkplug.topics import (
    NAMESPACE,
    NodeId,
    check_id,
    command_topic,
    default_ledger,
    is_state_topic,
    parse_node,
    state_topic,
)

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="the Sparkplug host")

import aiomqtt  # noqa: E402

STATUS_INTERVAL_S, LOOKS_PER_STATUS = 5.0, 5
"""How often a status is left for operators, and how often their requests are looked for meanwhile."""
CLOSE_TIMEOUT_S = 25.0
"""Longer than it takes to announce offline and to disconnect if the broker does not answer."""
_CLEAN_V311: Mapping[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": True}
_CLEAN_V5: Mapping[str, Any] = {
    "protocol": aiomqtt.ProtocolVersion.V5,
    "clean_start": True,
}  # a session expires at once
"""A session ends with its connection: what was missed is known by its sequence number, not by the broker."""
_REFUSED = 0x80
"""Return codes of a subscription from here on are refusals."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The options of a host application. ``raw`` also stores the raw payload. Times are in seconds.

    ``ledger`` is the topic for what was not released, by default the topic's name with the suffix ``-ledger``. With
    ``keep_ledger=False`` there is none, and what was not released is only counted.

    ``retention`` is how long the topics that the host creates keep messages and ledger entries, whether or not they have been
    read; None keeps them for ever. Existing topics keep their own options.

    ``groups`` limits the host to edge nodes of these groups; by default it subscribes to all of them. ``mqtt5`` uses MQTT 5
    instead of 3.1.1.
    """

    host_id: str = "seriatim"
    ordering: NodeOrdering = field(default_factory=NodeOrdering)
    raw: bool = False
    ledger: str | None = None
    keep_ledger: bool = True
    retention: float | None = DEFAULT_RETENTION_S
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
        """Raise InvalidArgument if no host can run with these options."""
        self.topics(topic)
        self.trust.for_address(address)

    def topics(self, topic: str) -> Topics:
        """The topics of a host that stores ordered messages in ``topic``."""
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
        """``notify`` is called with a sentence for each connection to the MQTT broker."""
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
        """Nodes to be asked for a rebirth; None without a broker."""
        self._timer: asyncio.TimerHandle | None = None
        self._state_topic = state_topic(self._options.host_id)
        self._delay = self._options.reconnect_delay
        self._silent: dict[str, NodeStatus] = {}
        """Nodes that an earlier run knew and this one has not heard of, in the order of that run's status."""
        self.counts = Counts()
        self.nodes: EdgeNodes[Body] = EdgeNodes(self._options.ordering)
        self.online = asyncio.Event()
        """Set while the host is connected, subscribed, and announced."""
        self._journal = Journal(
            broker, self._topics, self._options.host_id, self.counts, lambda node: self.nodes[node].bookmark()
        )

    async def run(self) -> None:
        """Run until cancelled, until something fails, or until the broker refuses the first connection."""
        kept = TopicOptions(retention=self._options.retention, retain_settled=self._options.retention)
        for topic in filter(None, (self._topics.ordered, self._topics.ledger)):
            with suppress(AlreadyExists):
                await self._broker.create_topic(topic, kept)
        writing = asyncio.create_task(self._journal.run())
        writing.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # also if another error ends the host
        reading = asyncio.create_task(self._stay_connected())
        telling = self._watched(self._leave_statuses())
        try:
            await asyncio.wait([writing, reading, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            await _cancel(reading, telling, *(self._recalls if writing.done() else ()))
            await asyncio.gather(*self._recalls, return_exceptions=True)
            if self._timer is not None:
                self._timer.cancel()
            if not self._failed.done():
                self._run_or_fail(self._record_waiting_messages)
            self._journal.end()
            await asyncio.wait([writing])
            for work in (self._failed, writing):  # raise what ended the host, or what could not be stored at the end
                if work.done():
                    work.result()

    async def _leave_statuses(self) -> None:
        """Tell operators how it goes, every few seconds. A node that has been silent since a restart of the host stands as
        the host knew it before."""
        self._silent = await self._nodes_known_before()
        since = {name: (node.status, node.since, node.since_exactly) for name, node in self._silent.items()}
        while True:
            now, nodes = datetime.now(UTC), list(islice(self.nodes, MAX_NODES))
            silent = {name: node for name, node in self._silent.items() if parse_node(name) not in self.nodes}
            self._silent = silent
            # How each node stands, and since when: what is not known any more is forgotten.
            standing = {name: node.status for name, node in silent.items()}
            standing |= {str(node.key): str(node.status) for node in nodes}
            since = {
                name: since[name]
                if name in since and since[name][0] == status
                # One that was stale may have been online all the time.
                else (status, now, name in since and since[name][0] != Status.STALE)
                for name, status in standing.items()
            }
            told = [
                NodeStatus(
                    node=str(node.key),
                    status=standing[str(node.key)],
                    since=since[str(node.key)][1],
                    held=node.held_count,
                    rebirth_requested=node.rebirth_outstanding,
                    devices={name: str(status) for name, status in islice(node.devices.items(), MAX_DEVICES)},
                    since_exactly=since[str(node.key)][2],
                    gaps=[MissingNumbers(gap.first, gap.last) for gap in node.gaps[:MAX_GAPS]],
                )
                for node in nodes
            ]
            host, topic, count = self._options.host_id, self._topics.ordered, len(self.nodes) + len(silent)
            told += islice(silent.values(), MAX_NODES - len(told))
            await leave_status(self._broker, HostStatus(host, topic, now, self.online.is_set(), told, count))
            for _ in range(LOOKS_PER_STATUS):
                await asyncio.sleep(STATUS_INTERVAL_S / LOOKS_PER_STATUS)
                await self._handle_operator_requests()

    async def _nodes_known_before(self) -> dict[str, NodeStatus]:
        """The nodes in the status that an earlier run of this host left: those that were online then are stale, and those
        of which nothing was heard for as long as messages are kept are forgotten."""
        before: list[HostStatus] = []
        with suppress(SeriatimError):  # what can't keep a status has none
            before = await left_statuses(self._broker, HostStatus)
        kept, found = self._options.retention, dict[str, NodeStatus]()
        for status in before:
            if (status.name, status.topic) != (self._options.host_id, self._topics.ordered):
                continue
            for node in status.nodes:
                known = replace(node, held=0, rebirth_requested=False, gaps=[])
                if node.status == Status.ONLINE:
                    devices = {name: "stale" if each == "online" else each for name, each in node.devices.items()}
                    known = replace(known, status="stale", since=status.time, since_exactly=False, devices=devices)
                if kept is None or (datetime.now(UTC) - known.since).total_seconds() < kept:
                    found[node.node] = known
        return found

    async def _handle_operator_requests(self) -> None:
        """Ask nodes for a rebirth as operators want it. Their word does not wait for the node's own backoff."""
        if self._requests is None:
            return
        for name in await take_rebirth_requests(self._broker, self._options.host_id):
            node = parse_node(name)
            if (node in self.nodes or name in self._silent) and self._requests is not None:
                self.counts.rebirths += 1
                logger.info("requesting a rebirth from %s, on an operator's request", node)
                self._requests.put_nowait(node)

    def _run_or_fail(self, act: Callable[[], None]) -> None:
        """Run ``act``, which changes nodes and adds to the journal. An error would leave the journal incomplete: end."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  # run() raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the host with an error, and write nothing after it."""
        self._journal.abandon()
        if not self._failed.done():
            self._failed.set_exception(error)

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose error ends the host."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                self._fail(error)

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

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
                self._run_or_fail(lambda: self._apply(self.nodes.disconnect()))
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, self._options.reconnect_limit)

    async def _one_connection(self) -> None:
        began = _milliseconds()
        inbox = Inbox(self.counts)
        client = self._client(began, inbox)
        try:
            async with client:
                client._disconnected.add_done_callback(lambda _: self.online.clear())  # noqa: SLF001 - before anybody acts on it
                if (sock := client._client.socket()) is not None:  # noqa: SLF001
                    self._loop.add_reader(sock.fileno(), read_arrived, client, inbox)  # instead of aiomqtt's own
                await self._subscribe(client)
                try:
                    await self._work(client, inbox, partial(self._announce, client, _state(True, began)))
                finally:
                    with suppress(aiomqtt.MqttError):  # the connection is lost: the broker publishes the will
                        await self._announce(client, _state(False, _milliseconds()))
        finally:
            _retrieve_error_of(client)
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
            **(_CLEAN_V5 if self._options.mqtt5 else _CLEAN_V311),
            keepalive=self._options.keepalive,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", lambda **_: inbox),
        )

    async def _announce(self, client: aiomqtt.Client, state: bytes) -> None:
        """Publish the host's state. A lost connection ends this: aiomqtt itself would wait for its timeout, and nobody would
        reconnect meanwhile."""
        publishing = asyncio.ensure_future(client.publish(self._state_topic, state, qos=1, retain=True))
        try:
            await asyncio.wait({publishing, client._disconnected}, return_when=asyncio.FIRST_COMPLETED)  # noqa: SLF001
            if not publishing.done():
                raise aiomqtt.MqttError("Disconnected while the host announced its state")
            publishing.result()
        finally:
            publishing.cancel()

    async def _subscribe(self, client: aiomqtt.Client) -> None:
        groups = [f"{NAMESPACE}/{group}/#" for group in self._options.groups]
        for topics in (*groups, self._state_topic) if groups else (f"{NAMESPACE}/#",):
            answers = await client.subscribe(topics, qos=1)
            if any((answer if isinstance(answer, int) else answer.value) >= _REFUSED for answer in answers):
                raise SubscriptionRefused(f"refused a subscription to {topics!r}")

    async def _work(self, client: aiomqtt.Client, inbox: Inbox, say_online: Callable[[], Awaitable[None]]) -> None:
        """Announce the host, and read until the connection is lost or the host is stopped."""
        await say_online()
        self._delay = self._options.reconnect_delay
        self.counts.connections += 1
        self._notify(f"connected{' again' if self.counts.connections > 1 else ''} to the MQTT broker {self._address}")
        self._requests = asyncio.Queue()
        commands = self._watched(self._send_commands(client, self._requests))
        self.online.set()
        self._run_or_fail(lambda: self._apply(self.nodes.reconnect(self._loop.time())))
        try:
            async for message in client.messages:
                await self._take(message, say_online)
                # aiomqtt makes a task for each message that is asked for: take what else has arrived directly.
                for _ in range(min(inbox.qsize(), MAX_READ_AT_ONCE)):
                    await self._take(inbox.get_nowait(), say_online)
        finally:
            await _cancel(commands, again_after=0.5)  # it has nothing to clean up

    async def _take(self, message: aiomqtt.Message, say_online: Callable[[], Awaitable[None]]) -> None:
        topic, data = message.topic.value, message.payload
        self.counts.received += 1
        if topic == self._state_topic:
            await self._on_own_state(data, say_online)
        elif is_state_topic(topic):
            self.counts.commands += 1
        else:
            try:
                self._receive(topic, data)
            except Exception as error:  # noqa: BLE001  # as in _run_or_fail
                self._fail(error)
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
                logger.warning("requesting a rebirth from %s failed and will be retried: %s", node, error)

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
        """Look up the bookmark of a node, and then process the messages that have arrived in the meantime."""
        bookmark = await self._journal.recall(node)
        self._run_or_fail(partial(self._go_on, node, bookmark))

    def _go_on(self, node: NodeId, bookmark: Bookmark | None) -> None:
        messages = self._recalling.pop(node)
        if bookmark is not None:
            with suppress(CapacityExceeded):  # which each of the messages will raise, too
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
                self.counts.ledger[effect.reason] += effect.size
                text = "%s: %s %d to %d: %s"
                logger.info(text, effect.key, effect.reason, effect.first, effect.last, effect.detail)
                self._enter(effect.key, Entry.of(effect), effect)
            elif isinstance(effect, RebirthRequested):
                self._request_rebirth(effect)
            elif isinstance(effect, DeathIgnored):
                self.counts.deaths_ignored += 1
                logger.info("%s: an NDEATH was ignored: %s", effect.key, effect.detail)
                self._enter(effect.key, Entry.of_death(effect), effect)
            else:
                logger.debug("%s %s is %s", effect.key, effect.device or "", effect.status)
        for node in unnamed:  # only now: a request lets time pass, which may release messages that follow these effects
            self._apply(self.nodes.ask(node, "a metric has an alias that no birth explained", self._loop.time()))
        self._schedule()

    def _store(self, ordered: Ordered[Body]) -> int:
        """Returns how many metrics have unknown aliases."""
        node = _node_of(ordered)
        record, unknown = make_record(ordered, self._aliases[node], raw=self._options.raw)
        if (size := len(record.data)) > MAX_DATA_BYTES:
            self.counts.unstorable += 1
            logger.error("%s: a message of %d bytes is too long to be stored", node, size)
            detail = f"{size} bytes as JSON are too long for a topic: here is the payload as it came"
            self._enter(node, Entry(str(node), "too-long", detail, ordered.message, {"epoch": ordered.epoch}))
            record = record._replace(data=b'{"metrics":[],"error":"too long to be stored"}')
        self._journal.add(node, record, ordered)
        self.counts.unknown_aliases += unknown
        return unknown

    # -- the ledger -----------------------------------------------------------------------------------------------------

    def _record_waiting_messages(self) -> None:
        """Enter the messages that exist only in memory, because the host stops."""
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
        if self._requests is None:  # stale nodes are asked when there is a broker again
            return
        assert isinstance(request.key, NodeId)
        self.counts.rebirths += 1
        logger.info("requesting a rebirth from %s (attempt %d): %s", request.key, request.attempt, request.reason)
        self._requests.put_nowait(request.key)

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
        self._run_or_fail(lambda: self._apply(self.nodes.advance(self._loop.time())))


async def _cancel(*works: asyncio.Task[None], again_after: float = CLOSE_TIMEOUT_S) -> None:
    """Cancel tasks until they have ended: Python 3.11 loses a cancellation that comes just when a publish is confirmed."""
    left = set(works)
    while left:
        for work in left:
            work.cancel()
        _, left = await asyncio.wait(left, timeout=again_after)
    await asyncio.gather(*works, return_exceptions=True)


def _retrieve_error_of(client: aiomqtt.Client) -> None:
    """Retrieve the error that ended a connection. If the host is stopped before aiomqtt raises it, asyncio would complain that
    it was never retrieved."""
    ended = client._disconnected  # noqa: SLF001
    if ended.done() and not ended.cancelled():
        ended.exception()


def _node_of(ordered: Ordered[Body]) -> NodeId:
    assert isinstance(ordered.key, NodeId)
    return ordered.key


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


def _state(online: bool, timestamp: int) -> bytes:
    return json.dumps({"online": online, "timestamp": timestamp}).encode()
