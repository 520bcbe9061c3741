"""Where the admin API of a store is: its owner says so in the store, and whoever can read the store finds it.

Rules
    - The address is noted together with the owner's epoch. One that an earlier owner noted counts for nothing, so that whoever
      asks follows a failover, and is not sent to a process that has ended.
    - It is only a hint: whoever follows it must not send a secret there before TLS has proved who answers (``console.remote``).
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from seriatim.engine.broker import Document
from seriatim.engine.engine import Engine
from seriatim.store import open_store

KIND, NAME = "admin-api", "address"


async def advertise(engine: Engine, address: str) -> None:
    """Note where the admin API of this owner is."""
    await engine.put_document(Document(KIND, NAME, json.dumps({"address": address, "epoch": engine.epoch})))


def advertised_address(url: str) -> str | None:
    """Where the present owner of the store at ``url`` has its admin API, if it has one."""
    with closing(open_store(url, read_only=True)) as store:
        for document in store.documents(KIND):
            noted: Any = json.loads(document.text)
            if noted["epoch"] == store.epoch:
                return str(noted["address"])
    return None
