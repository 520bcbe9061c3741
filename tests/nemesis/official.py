"""The mode whose clients are Google's own, against ``seriatim serve``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from tests.nemesis.checker import Anomaly, Promises
from tests.nemesis.client import GRAVES, STRICT
from tests.nemesis.history import Event
from tests.nemesis.mode import Arena
from tests.nemesis.network import NETWORK, Network
from tests.nemesis.own import OwnClients, make_server, network_of, store_folder
from tests.nemesis.program import Program
from tests.server.node.client import HINT, node_command

NOTICED_AFTER_S = 15.0
"""These clients keep messages on hold while the server is away, and hear only from an ack that they have lost them."""


class Official(OwnClients):
    """Two clients in Python and one in Node: ordering keys, exactly-once delivery. Our own client drains the store."""

    name = "official"
    promises = Promises(STRICT, orders_unconfirmed=False, noticed_after_s=NOTICED_AFTER_S)

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.faults += NETWORK
        network = network_of(arena)
        folder, *disk = store_folder(arena)
        self._store = f"sqlite:///{folder / 'store.db'}"
        server, address = make_server("server", arena, network, ["--store", self._store], *disk)
        self.programs.append(server)
        for name in ("a", "b"):
            links = [network.join(name)] if network else []
            client = self.add_client(name, address, *links, module="tests.nemesis.official_client")
            server.dependents.append(client)
        if not all(map(shutil.which, ("node", "npm"))):
            self.missing["Node client"] = f"the program 'node' or 'npm' is not installed: {HINT}"
        else:
            server.dependents.append(self._add_node_client("n", address, network))

    def _add_node_client(self, name: str, address: str, network: Network | None) -> Program:
        links = [network.join(name)] if network else []
        script, life = node_command("nemesis.js"), replace(self.life, who=name)

        def command(number: int) -> list[str]:
            arguments = json.dumps(asdict(replace(life, life=number)))
            return ["env", f"PUBSUB_EMULATOR_HOST={address}", *script, arguments]

        client = Program(name, self.arena.folder, command, surroundings=links)
        self.programs.append(client)
        return client

    def drain(self) -> None:
        self.drain_store(self._store)

    def judge(self, events: Sequence[Event]) -> list[Anomaly]:
        return super().judge(separate_copies(events))


def separate_copies(events: Sequence[Event]) -> list[Event]:
    """Give each further copy of a message that its publisher sent twice a key of its own.

    Google's client publishes again when it got no answer. The copies are messages like any other, but what they say about the
    order of their key is said by the first one. Copies are told apart by their ids, which grow along the log.
    """
    firsts, copies = _find_copies(events)
    separated = []
    for event in events:
        key = copies.get((event.who, event.lease))
        separated.append(event if key is None or event.sub == GRAVES else replace(event, key=key))
        if event.what == "publish":
            separated += [replace(event, key=key) for key in firsts.get((event.key, event.number), ())]
    return separated


def _find_copies(events: Iterable[Event]) -> tuple[dict[tuple[str, int], set[str]], dict[tuple[str, int], str]]:
    """The keys of the further copies of each message, and the key of each lease of one."""
    deliveries = [event for event in events if event.what == "delivered" and event.sub != GRAVES]
    first: dict[tuple[str, int], int] = {}
    for event in deliveries:
        name = (event.key, event.number)
        first[name] = min(first.get(name, int(event.id)), int(event.id))
    keys: dict[tuple[str, int], set[str]] = {}
    leases: dict[tuple[str, int], str] = {}
    for event in deliveries:
        name = (event.key, event.number)
        if int(event.id) != first[name]:
            key = f"{event.key} copy {event.id}"
            keys.setdefault(name, set()).add(key)
            leases[event.who, event.lease] = key
    return keys, leases
