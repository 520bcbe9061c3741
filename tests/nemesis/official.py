"""The mode whose clients are Google's own, against ``seriatim serve``."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

from tests.nemesis.checker import Promises
from tests.nemesis.client import STRICT
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
