"""What each client saw and did, one JSON line per event, in a file of its own.

Every line is one ``write`` to a file opened for appending, so whatever a client recorded before a SIGKILL can be read.
``at`` is the machine's monotonic clock, which all processes share.

| event        | fields                          | meaning |
|--------------|---------------------------------|---------|
| `publish`    | key, number, dedup_id           | a publish begins; `dedup_id` if it has one |
| `again`      | key, number                     | a publish is repeated with its `dedup_id` |
| `published`  | key, number, id                 | it was confirmed |
| `refused`    | key, number                     | it failed for certain: the message must never appear |
| `delivered`  | sub, key, number, attempt, lease| a handler begins; the messages of a batch have one lease |
| `ack`        | sub, key, number, lease         | an ack is sent |
| `acked`      | sub, key, number, lease         | the ack was confirmed to be durable |
| `stale`      | sub, key, number, lease         | an ack or nack was refused because the lease is lost |
| `nack`       | sub, key, number, lease         | a nack is sent |
| `returned`   | sub, key, number, lease         | the handler ended |
| `take-out`   | sub, key                        | an operator begins to skip the head of a key, or to dead-letter it |
| `taken-out`  | sub, key, id                    | that was confirmed, for this message |
| `unsure`     | sub, key, number, lease         | an ack was refused, perhaps because an earlier try was accepted |
| `impaired`   |                                 | this client is cut off from now on (written by the nemesis) |
| `continued`  |                                 | this client was stopped or cut off, and goes on (written by the nemesis) |
| `stalled`    | body                            | this client got no processor for that many seconds, until now |
| `read`       | sub, key, id, body              | a reader got this message of a topic (`reader.py`); `body` is the message |
| `sent`       | key, number, body               | an edge node is about to send this message (`edge_node.py`) |
| `reborn`     | key, number                     | an edge node was asked for this birth |
| `state`      | key, number                     | an edge node heard that the host is online (1) or offline (0) |
| `settled`    | key, number                     | an edge node has sent all it has to send undisturbed, last this message |

``body`` is JSON, for what only one mode wants to know.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    at: float
    who: str
    what: str
    key: str = ""
    number: int = -1
    sub: str = ""
    attempt: int = 0
    lease: int = 0
    id: str = ""
    body: str = ""
    dedup_id: str = ""


class Recorder:
    """Writes the history of one client."""

    def __init__(self, folder: Path, who: str, file: str = "") -> None:
        self._who = who
        self._file = os.open(folder / f"{file or who}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, what: str, **fields: str | int) -> None:
        line = {"at": time.monotonic(), "who": self._who, "what": what, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def read_all(folder: Path) -> list[Event]:
    """Every event of every client, in the order of time."""
    events = [event for path in folder.glob("*.jsonl") for event in read_history(path)]
    return sorted(events, key=lambda event: event.at)


def read_history(path: Path) -> Iterator[Event]:
    """The events of one file; none while it is not there."""
    for line in (path.read_bytes() if path.exists() else b"").splitlines(keepends=True):
        if line.endswith(b"\n"):  # a client that was killed may have left half a line
            yield Event(**json.loads(line))
