"""An ordered Sparkplug message as a message of a topic, and what can be read back from it."""

from __future__ import annotations

import base64
import json
from typing import Any

from seriatim.core.edge_messages import Ordered
from seriatim.engine.broker import Outgoing
from seriatim.sparkplug.intake import Body
from seriatim.sparkplug.payload import Aliases, metrics_as_json

MAX_DATA_BYTES = 10 * 1024 * 1024 - 64 * 1024
"""What a topic can hold as the data of one message, with room for key and attributes."""


def make_record(ordered: Ordered[Body], aliases: Aliases, *, raw: bool) -> tuple[Outgoing, int]:
    """The message for the topic, and how many of its metrics nobody can name.

    The key is ``GROUP/NODE``. Attributes say what it is: kind, device, seq, epoch, timestamp, bdSeq and flag, as
    far as there are any.
    """
    message = ordered.message
    payload = message.body.payload
    aliases.learn(message.kind, message.device, payload)
    metrics, unknown = metrics_as_json(payload, aliases, message.device)
    data: dict[str, Any] = {"metrics": metrics}
    if raw:
        data["raw"] = base64.b64encode(message.body.raw).decode()
    attributes = {"kind": str(message.kind), "epoch": str(ordered.epoch)}
    details = {
        "device": message.device,
        "seq": ordered.sequence,
        "timestamp": message.timestamp,
        "bdSeq": message.bd_seq,
        "flag": ordered.flag,
    }
    attributes.update({name: str(value) for name, value in details.items() if value is not None})
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Outgoing(str(ordered.key), text.encode("utf-8", "backslashreplace"), attributes), unknown
