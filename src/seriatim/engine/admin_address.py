"""The address of a store's admin API, which its owner saves in the store.

Rules
    - The address is stored together with the owner's epoch. The address of an earlier owner is ignored, so that clients follow
      a failover, and are not sent to a process that has ended.
    - It is only a hint: a client must not send a secret there before TLS has authenticated the server (``console.remote``).
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
    """Save the address of this owner's admin API."""
    await engine.put_document(Document(KIND, NAME, json.dumps({"address": address, "epoch": engine.epoch})))


def advertised_address(url: str) -> str | None:
    """The address of the admin API of the current owner of the store at ``url``, if it has one."""
    with closing(open_store(url, read_only=True)) as store:
        for document in store.documents(KIND):
            noted: Any = json.loads(document.text)
            if noted["epoch"] == store.epoch:
                return str(noted["address"])
    return None
