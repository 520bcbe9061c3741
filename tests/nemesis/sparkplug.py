"""The mode of a Sparkplug host: edge nodes, a real MQTT broker, ``seriatim sparkplug host`` and a reader of its topics.

Everybody is disturbed, including the broker. Afterwards everything is started once more, the host last: it has to ask every
node for a rebirth, and what the nodes send from then on must all arrive. Each node has to be online in the end, with its last
birth. ``node_checker`` says what is promised.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tests.mosquitto import Mosquitto
from tests.nemesis.checker import Anomaly
from tests.nemesis.clock import Clock, ClockJump
from tests.nemesis.disk import FullDisk, SlowDisk
from tests.nemesis.edge_node import GROUP, HOST, NodeLife
from tests.nemesis.fault import POLITE_END_S
from tests.nemesis.history import Event, read_history
from tests.nemesis.mode import Arena, Mode, python
from tests.nemesis.network import NETWORK, Link
from tests.nemesis.node_checker import Entry, Sent, Stored, check_nodes
from tests.nemesis.own import check_store, network_of, store_folder
from tests.nemesis.program import Program, Surroundings
from tests.nemesis.reader import Reading, check_same, make_topics, messages_read, subscription_of

NODES = ("n0", "n1", "n2")
TELEMETRY, LEDGER = "telemetry", "telemetry-ledger"
LIVE, AUDIT = "live", "audit"
DISTURBED_TIMEOUT, CALM_TIMEOUT = "500ms", "5s"
"""How long the host waits for a number: shorter than a message is held back, and longer than a busy machine takes."""
LAST_LIFE = 1_000_000
HEALING_S = 90.0
DRAIN_S = 120.0


class _Environment(Surroundings):
    """What the broker's process needs."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    @property
    def environment(self) -> dict[str, str]:
        return self._environment


class SparkplugHost(Mode):
    """Edge nodes, their broker and their host."""

    name = "sparkplug"

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self._folder = arena.folder
        self.faults += [*NETWORK, ClockJump(), FullDisk(), SlowDisk()]
        network = network_of(arena)
        self._links = {name: [network.join(name)] if network else [] for name in ("broker", "host", *NODES)}
        folder, *self._disk = store_folder(arena)
        self._store = f"sqlite:///{folder / 'store.db'}"
        make_topics(self._store, [TELEMETRY, LEDGER], [LIVE, AUDIT])
        self._mosquitto = Mosquitto(self._folder, address=next(map(_address, self._links["broker"]), "127.0.0.1"))
        self._broker = Program(
            "broker",
            self._folder,
            lambda _: self._mosquitto.command(),
            surroundings=[*self._links["broker"], _Environment(self._mosquitto.environment)],
            is_client=False,
        )
        self._clock = Clock(self._folder / "clock")
        self._reader = Program("reader", self._folder, lambda _: self._reading.command(), surroundings=self._disk)
        host = self._host("host", DISTURBED_TIMEOUT, self._clock)
        self.programs = [self._broker, host, self._reader, *(self._node(name) for name in NODES)]

    @property
    def _reading(self) -> Reading:
        topics = [subscription_of(LIVE, topic) for topic in (TELEMETRY, LEDGER)]
        return Reading(self._store, "reader", str(self._folder), topics)

    def _host(self, name: str, reorder_timeout: str, *surroundings: Surroundings) -> Program:
        options = ["--mqtt", self._mosquitto.url, "--store", self._store, "--reorder-timeout", reorder_timeout]
        command = python("seriatim", "sparkplug", "host", "--host-id", HOST, *options)
        around = [*self._links["host"], *self._disk, *surroundings]
        return Program(name, self._folder, lambda _: command, surroundings=around, is_client=False)

    def _node(self, name: str, *, is_last: bool = False) -> Program:
        where = self._mosquitto.address, self._mosquitto.port
        node = NodeLife(*where, name, str(self._folder), self.arena.seed, 0, is_last)
        first, around = LAST_LIFE if is_last else 1, self._links[name]
        return Program(
            name, self._folder, lambda life: replace(node, life=first + life - 1).command(), surroundings=around
        )

    def has_begun(self) -> bool:
        return any(read_history(self._folder / "reader.jsonl"))

    # -- healing --------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        host = self._host("last-host", CALM_TIMEOUT)
        nodes = [self._node(name, is_last=True) for name in NODES]
        self.programs += [host, *nodes]
        for program in (self._broker, self._reader, *nodes):
            program.start()
        self._wait_for(lambda: all(map(self._was_born, NODES)), "not all nodes are connected")
        host.start()
        self._wait_for(self._is_settled, "not all nodes came back")
        self._wait_for(lambda: self._states_heard() == [1] * len(NODES), "the STATE of the host does not say online")
        self._check_nodes_are_online()
        host.end(POLITE_END_S)
        self._wait_for(lambda: self._states_heard() == [0] * len(NODES), "the STATE of the host does not say offline")
        for program in (*nodes, self._reader, self._broker):
            program.end(POLITE_END_S)
        self._read_the_rest()
        self.arena.troubles += check_store(self._store)

    def _wait_for(self, condition: Callable[[], bool], complaint: str) -> bool:
        end = time.monotonic() + HEALING_S
        while not condition():
            if time.monotonic() > end:
                self.arena.troubles.append(f"{complaint} after {HEALING_S:.0f} s without any fault")
                return False
            time.sleep(0.3)
        return True

    def _states_heard(self) -> list[int]:
        """What each node has heard last of the host."""
        histories = [read_history(self._folder / f"{name}.jsonl") for name in NODES]
        heard = [[event.number for event in events if event.what == "state"] for events in histories]
        return [states[-1] for states in heard if states]

    def _was_born(self, name: str) -> bool:
        """Whether the last life of a node has said so."""
        return any(
            event.what == "sent" and _as_sent(event).birth == f"{LAST_LIFE}/1"
            for event in read_history(self._folder / f"{name}.jsonl")
        )

    def _is_settled(self) -> bool:
        """Whether the last message of every node is in the topic."""
        last = {
            event.key: event.number
            for name in NODES
            for event in read_history(self._folder / f"{name}.jsonl")
            if event.what == "settled"
        }
        if len(last) < len(NODES):
            return False
        read = {_stamp_of(event) for event in read_history(self._folder / "reader.jsonl") if event.key in last}
        return set(last.values()) <= read

    def _check_nodes_are_online(self) -> None:
        asked = python("seriatim", "sparkplug", "nodes", "--store", self._store, "--json")
        answer = subprocess.run(asked, capture_output=True, check=False)
        known = {line["node"]: line for line in json.loads(answer.stdout)}
        for name in NODES:
            session = int((self._folder / f"{name}.sessions").read_text())
            stands = known.get(f"{GROUP}/{name}", {})
            if (stands.get("status"), stands.get("bd_seq")) != ("online", session):
                self.arena.troubles.append(f"{name} is in session {session}, and the store says {stands}")

    def _read_the_rest(self) -> None:
        topics = [subscription_of(reader, topic) for reader in (LIVE, AUDIT) for topic in (TELEMETRY, LEDGER)]
        reading = replace(self._reading, who="last-reader", subscriptions=topics, is_last=True)
        last = Program("last-reader", self._folder, lambda _: reading.command())
        self.programs.append(last)
        last.start()
        if not last.wait(DRAIN_S):
            self.arena.troubles.append(f"the topics were not read within {DRAIN_S:.0f} s")

    # -- judging --------------------------------------------------------------------------------------------------------

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        stored, entries = (messages_read(events, AUDIT, topic) for topic in (TELEMETRY, LEDGER))
        broken = {(event.key, event.number) for event in events if event.what == "broken"}
        sent = [_as_sent(event, broken) for event in events if event.what == "sent"]
        return [
            *check_same(messages_read(events, LIVE, TELEMETRY), stored, TELEMETRY),
            *check_same(messages_read(events, LIVE, LEDGER), entries, LEDGER),
            *check_nodes(sent, [_as_stored(event) for event in stored], [_as_entry(event) for event in entries]),
        ]


def _address(link: Link) -> str:
    return link.address


# -- what the histories say ---------------------------------------------------------------------------------------------


def _as_sent(event: Event, broken: Collection[tuple[str, int]] = ()) -> Sent:
    """``broken``: the sessions of nodes whose connections broke. What was under way then may be lost."""
    said = json.loads(event.body)
    seq = None if said["seq"] < 0 else said["seq"]
    is_calm = said["is_calm"] and (event.key, said["bd_seq"]) not in broken
    return Sent(event.key, event.number, said["kind"], seq, said["birth"], said["bd_seq"], is_calm)


def _attributes(event: Event) -> dict[str, str]:
    found: dict[str, str] = json.loads(event.body)["attributes"]
    return found


def _stamp_of(event: Event) -> int:
    return int(_attributes(event).get("timestamp", -1))


def _number(attributes: dict[str, str], name: str) -> int | None:
    return int(attributes[name]) if name in attributes else None


def _as_stored(event: Event) -> Stored:
    attributes = _attributes(event)
    metrics: list[dict[str, Any]] = json.loads(json.loads(event.body)["data"])["metrics"]
    return Stored(
        node=event.key,
        stamp=_stamp_of(event),
        kind=attributes["kind"],
        seq=_number(attributes, "seq"),
        epoch=int(attributes["epoch"]),
        flag=attributes.get("flag", ""),
        bd_seq=_number(attributes, "bdSeq"),
        value=next((metric["value"] for metric in metrics if metric.get("name") == "stamp"), None),
    )


def _as_entry(event: Event) -> Entry:
    attributes = _attributes(event)
    first, last = (_number(attributes, name) or 0 for name in ("first", "last"))
    epoch = _number(attributes, "epoch") or 0
    return Entry(event.key, attributes["reason"], _number(attributes, "timestamp"), first, last, epoch)
