"""The status that programs in other processes save in the store for operators (pipelines on Spark, audits, Sparkplug hosts),
and operators' requests to them.

Rules
    - A status is limited in size, and replaces the previous one. It has a time: an old one is from a program that has ended.
    - A program continues if its status can't be saved.
    - A request is saved for a running host, which carries it out once and removes it. A request older than ``REQUEST_S`` is
      removed without being carried out, because it is no longer expected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from seriatim.engine.broker import Broker, Document
from seriatim.engine.link.codec import Blobs, codec_of
from seriatim.errors import FailedPrecondition, NotFound, SeriatimError
from seriatim.log import logger

MAX_BATCHES, MAX_GAP_KEYS, MAX_HELD_KEYS, MAX_NODES, MAX_DEVICES, MAX_GAPS = 200, 50, 50, 1_000, 50, 20
"""What a status has at most: batches of a pipeline, or of one of its keys; keys with gaps; keys with held rows; nodes of a
host; devices and gaps of a node."""

MAX_REPORT_BYTES = 2 * 1024 * 1024
FRESH_S, REQUEST_S = 30.0, 60.0
_REBIRTH, _REPORT = "RebirthRequest", "AuditReport"


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """What one batch of a pipeline gave out, and what it entered into the ledger: of all keys, or of one."""

    batch: int
    time: datetime
    ordered: int
    lost: int
    late: int
    duplicate: int
    other: int


@dataclass(frozen=True, slots=True)
class KeyGaps:
    """What the ledger of a pipeline says about one key since this run began, and in which of its last batches."""

    key: str
    lost: int
    late: int
    duplicate: int
    other: int
    batches: list[BatchStatus]


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key with rows that wait for the missing numbers ``first`` to ``last`` (None: for something else, such as a birth)."""

    key: str
    rows: int
    first: int | None
    last: int | None
    since: datetime


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline: its last batches, the oldest first, and the entries of its ledger since this run began, by reason and by the
    keys that have most of them. ``held`` rows wait, among them those of the keys ``waiting``."""

    name: str
    time: datetime
    batches: list[BatchStatus]
    ledger: Mapping[str, int]
    keys: list[KeyGaps] = field(default_factory=list)
    held: int = 0
    waiting: list[HeldKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditedSide:
    """What an audit found in a table or a topic. ``guarantee`` is the strongest that every key has."""

    title: str
    keys: int
    rows: int
    lost: int
    duplicates: int
    reordered: int | None
    guarantee: str


@dataclass(frozen=True, slots=True)
class AuditStatus:
    """An audit, or one before and after. Its report, if it ``has_report``, is kept apart."""

    name: str
    time: datetime
    sides: list[AuditedSide]
    has_report: bool


@dataclass(frozen=True, slots=True)
class MissingNumbers:
    """Sequence numbers of an edge node that did not come yet."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """An edge node: ``held`` messages wait for those that are missing, the ``gaps``.

    ``since_exactly``: the host saw its status change then. Otherwise it has had that status since then at least, because the
    host, which may have been restarted, saw the node then for the first time.
    """

    node: str
    status: str
    since: datetime
    held: int
    rebirth_requested: bool
    devices: Mapping[str, str]
    since_exactly: bool = False
    gaps: list[MissingNumbers] = field(default_factory=list)

    @property
    def group(self) -> str:
        return self.node.partition("/")[0]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A Sparkplug host, whether it is connected, and its edge nodes, of which ``node_count`` says how many there are."""

    name: str
    topic: str
    time: datetime
    online: bool
    nodes: list[NodeStatus]
    node_count: int


Status = PipelineStatus | AuditStatus | HostStatus
S = TypeVar("S", PipelineStatus, AuditStatus, HostStatus)


def is_fresh(time: datetime) -> bool:
    """Whether a program that saves its status every few seconds, and last did so then, is still running."""
    return abs((datetime.now(UTC) - time).total_seconds()) < FRESH_S


async def leave_status(broker: Broker, status: Status) -> None:
    """Save a status for operators; it replaces the previous one."""
    text = json.dumps(codec_of(type(status)).pack(status, []))
    try:
        await broker.put_document(Document(type(status).__name__, status.name, text))
    except SeriatimError as error:
        logger.debug("the status of %s could not be left in the store: %s", status.name, error)


async def left_statuses(broker: Broker, kind: type[S]) -> list[S]:
    """The statuses of one kind. Large ones are read in another thread, beside delivery."""
    unpack, found = codec_of(kind).unpack, await broker.list_documents(kind.__name__)

    def read() -> list[S]:
        return [unpack(json.loads(one.text), Blobs(memoryview(b""))) for one in found]

    return await asyncio.to_thread(read) if found else []


async def leave_audit(broker: Broker, name: str, sides: list[AuditedSide], report: str | None = None) -> None:
    """Save the verdict of an audit, and its report unless that is too large. Raises if it can't be saved."""
    if report is not None and len(report.encode()) > MAX_REPORT_BYTES:
        logger.warning("the report of audit %r is too large to be left in the store", name)
        report = None
    if report is not None:  # a kind of its own: the reports are not read with the verdicts
        await broker.put_document(Document(f"{_REPORT} {name}", name, report))
    status = AuditStatus(name, datetime.now(UTC), sides, report is not None)
    await broker.put_document(Document("AuditStatus", name, json.dumps(codec_of(AuditStatus).pack(status, []))))


async def left_report(broker: Broker, name: str) -> str:
    """The report of an audit, a page of HTML."""
    found = await broker.list_documents(f"{_REPORT} {name}")
    if not found:
        raise NotFound(f"there is no report of an audit {name!r}")
    return found[0].text


async def request_rebirth(broker: Broker, host: str, node: str) -> None:
    """Ask a Sparkplug host to ask one of its edge nodes for a rebirth."""
    status = next((one for one in await left_statuses(broker, HostStatus) if one.name == host), None)
    if status is None or node not in {one.node for one in status.nodes}:
        raise NotFound(f"there is no Sparkplug host {host!r} with an edge node {node!r}")
    if not (is_fresh(status.time) and status.online):
        raise FailedPrecondition(f"host {host!r} is not connected to its MQTT broker: start it, then ask again")
    text = json.dumps({"node": node, "time": datetime.now(UTC).timestamp()})
    await broker.put_document(Document(f"{_REBIRTH} {host}", node, text))


async def take_rebirth_requests(broker: Broker, host: str) -> list[str]:
    """The edge nodes that operators want to be asked for a rebirth, each of them once."""
    try:
        found = await broker.list_documents(f"{_REBIRTH} {host}")
        for document in found:
            await broker.delete_document(document.kind, document.name)
    except SeriatimError as error:
        logger.debug("the requests for rebirths could not be read: %s", error)
        return []
    now = datetime.now(UTC).timestamp()
    asked = [json.loads(document.text) for document in found]
    return [one["node"] for one in asked if abs(now - one["time"]) < REQUEST_S]
