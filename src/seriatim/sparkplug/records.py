"""Converts Sparkplug messages to messages of a topic: the ordered ones, and the entries of the ledger.

The ledger is a separate topic with everything that was received and not released, and with the numbers that never arrived.

Rules
    - The key is ``GROUP/NODE``, in both topics. A message that names no node has its MQTT topic as the key.
    - The attributes are kind, device, seq, epoch, timestamp, bdSeq and flag, as far as present. Entries of the ledger also have
      reason, and the first, last and size of the numbers concerned. For lost numbers, ``modulo`` says that there may be
      more of them, by any multiple of it.
    - Metrics are JSON. In the ledger an alias is resolved only if the message certainly belongs to the session whose births are
      known (``_OF_THE_SESSION``): a wrong name would be worse than none.
    - A message that is too long as JSON is in the ledger with its raw payload. Of messages that can't be decoded, which may
      come from anybody, the ledger keeps the first bytes of topic and payload, and the length.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from seriatim.core.publishing.message_limits import MAX_MESSAGE_BYTES
from seriatim.core.resequencing.options import LedgerEntry, Reason
from seriatim.core.sparkplug.messages import SEQ, DeathIgnored, EdgeMessage, Ordered
from seriatim.engine.broker import Outgoing
from seriatim.sparkplug.intake import Body, Malformed
from seriatim.sparkplug.payload import Aliases, metrics_as_json

MAX_DATA_BYTES = MAX_MESSAGE_BYTES - 64 * 1024
"""The largest data of a message in a topic, leaving room for key and attributes."""
MAX_TOPIC_BYTES = 500
"""How much is kept of a topic that is not a Sparkplug topic."""
MAX_UNREADABLE_BYTES = 16 * 1024
"""How much is kept of a payload that can't be decoded."""
MAX_DETAIL = 500

_OF_THE_SESSION = frozenset({Reason.DUPLICATE, Reason.DEAD_LETTER})
_NO_NAMES = Aliases()

# JSONEncoder.encode makes this anew for every document; without the C extension there is none.
_c_make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
_encode = _c_make_encoder and _c_make_encoder(
    None, None, json.encoder.encode_basestring, None, ":", ",", False, False, True
)
_make = tuple.__new__  # makes named tuples of tuples in C: twice as fast as calling their class


def make_record(ordered: Ordered[Body], aliases: Aliases, *, raw: bool) -> tuple[Outgoing, int]:
    """The message for the topic, and how many of its metrics have unknown aliases."""
    message = ordered.message
    aliases.enter(ordered.epoch)
    aliases.learn(message.kind, message.device, message.body.payload)
    data, unknown = _content(message, aliases, raw=raw)
    attributes = _attributes(message)
    attributes["epoch"] = str(ordered.epoch)
    if ordered.flag is not None:
        attributes["flag"] = str(ordered.flag)
    return _make(Outgoing, (str(ordered.key), _as_json(data), attributes, 0.0, None)), unknown


class Entry(NamedTuple):
    """Something that was not released: a message, numbers that never arrived, or bytes that can't be decoded."""

    key: str
    reason: str
    detail: str
    message: EdgeMessage[Body] | None = None
    about: Mapping[str, object] = {}
    unread: tuple[str, bytes] | None = None
    """The topic and the payload of what can't be decoded."""

    @classmethod
    def of(cls, entry: LedgerEntry[EdgeMessage[Body]]) -> Entry:
        about = {"epoch": entry.epoch, "first": entry.first, "last": entry.last, "size": entry.size}
        if entry.reason is Reason.LOST:
            about["modulo"] = SEQ.modulus or 0
        return cls(str(entry.key), entry.reason, entry.detail, entry.message, about)

    @classmethod
    def of_death(cls, ignored: DeathIgnored[Body]) -> Entry:
        return cls(str(ignored.key), "ignored-death", ignored.detail, ignored.message)

    @classmethod
    def of_malformed(cls, found: Malformed) -> Entry:
        key = str(found.node) if found.node else _cut(found.topic)
        unread = None if found.message else (found.topic, found.data)
        return cls(key, f"malformed-{found.what}", found.detail, found.message, unread=unread)


def make_entry(entry: Entry, aliases: Aliases, now: int, *, raw: bool) -> Outgoing:
    """The message for the ledger's topic. ``now`` is in milliseconds, like all times in Sparkplug."""
    attributes = {"reason": str(entry.reason)} | {name: str(value) for name, value in entry.about.items()}
    data: dict[str, Any] = {"detail": entry.detail[:MAX_DETAIL], "time": now}
    message = entry.message
    if message is not None:
        attributes |= _attributes(message)
        named = aliases if entry.reason in _OF_THE_SESSION else _NO_NAMES
        text = _as_json(data | _content(message, named, raw=raw)[0])
        if len(text) > MAX_DATA_BYTES:
            text = _as_json(data | {"raw": _base64(message.body.raw)})
        return Outgoing(entry.key, text, attributes)
    if entry.unread is not None:
        topic, payload = entry.unread
        data |= {"topic": _cut(topic), "raw": _base64(payload[:MAX_UNREADABLE_BYTES]), "bytes": len(payload)}
    return Outgoing(entry.key, _as_json(data), attributes)


def _content(message: EdgeMessage[Body], aliases: Aliases, *, raw: bool) -> tuple[dict[str, Any], int]:
    metrics, unknown = metrics_as_json(message.body.payload, aliases, message.device)
    data: dict[str, Any] = {"metrics": metrics}
    if raw:
        data["raw"] = _base64(message.body.raw)
    return data, unknown


def _attributes(message: EdgeMessage[Body]) -> dict[str, str]:
    found = {"kind": str(message.kind)}
    if message.device is not None:
        found["device"] = message.device
    if message.seq is not None:
        found["seq"] = str(message.seq)
    if message.timestamp is not None:
        found["timestamp"] = str(message.timestamp)
    if message.bd_seq is not None:
        found["bdSeq"] = str(message.bd_seq)
    return found


def _as_json(data: dict[str, Any]) -> bytes:
    text = "".join(_encode(data, 0)) if _encode else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _cut(topic: str) -> str:
    return topic.encode()[:MAX_TOPIC_BYTES].decode("utf-8", "ignore")
