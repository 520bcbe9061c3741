"""What a disk may hold after its power failed: the model of persistence (see the package).

``Disk`` follows a trace. For each file it has what is durable and what is pending, for entries of folders likewise.
``image`` applies a choice of what is pending and writes the outcome to a real folder.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.power_loss.trace import ROOT, Event, New, Rename, Resize, Said, Sync, Write

SECTOR = 512
Change = Write | Resize | Rename
Choice = Callable[[Sequence[Change], Random], Sequence[Change]]
"""Of what is pending, in order: what survives, in order. A write may have become several."""


class Disk:
    def __init__(self) -> None:
        self._modes = {ROOT: stat.S_IFDIR}
        self._durable: dict[int, bytearray] = {}
        self._pending: dict[int, list[tuple[int, Write | Resize]]] = defaultdict(list)
        self._renames: list[tuple[int, Rename, bool]] = []  # of each, whether it is durable
        self._time = 0

    def apply(self, event: Event) -> None:
        self._time += 1
        match event:
            case New(node, mode):
                self._modes[node] = mode
                self._durable[node] = bytearray()
            case Write() | Resize():
                self._pending[event.node].append((self._time, event))
            case Rename():
                self._renames.append((self._time, event, False))
            case Sync(node) if stat.S_ISDIR(self._modes[node]):
                self._renames = [
                    (time, rename, durable or any(entry.folder == node for entry in rename.entries))
                    for time, rename, durable in self._renames
                ]
            case Sync(node):
                for _, change in self._pending.pop(node, ()):
                    _carry_out(self._durable[node], change)
            case Said():
                pass

    @property
    def pending(self) -> list[Change]:
        """Everything that a loss of power may undo, in the order in which it happened."""
        changes: list[tuple[int, Change]] = [change for changes in self._pending.values() for change in changes]
        changes += [(time, rename) for time, rename, durable in self._renames if not durable]
        return [change for _, change in sorted(changes, key=lambda pair: pair[0])]

    def image(self, surviving: Sequence[Change], folder: Path) -> None:
        """Write to an empty folder what the disk holds if just these of the pending changes survive."""
        files: dict[int, bytearray] = {}
        for change in surviving:
            if not isinstance(change, Rename):
                content = files.setdefault(change.node, bytearray(self._durable[change.node]))
                _carry_out(content, change)
        kept = {id(change) for change in surviving}
        entries: dict[int, dict[str, int]] = defaultdict(dict)
        for _, rename, durable in self._renames:
            if durable or id(rename) in kept:
                for parent, name, node in rename.entries:
                    entries[parent].pop(name, None)
                    if node is not None:
                        entries[parent][name] = node
        self._write(ROOT, folder, entries, files)

    def _write(self, node: int, folder: Path, entries: dict[int, dict[str, int]], files: dict[int, bytearray]) -> None:
        for name, child in entries.get(node, {}).items():
            path, mode = folder / name, self._modes[child]
            if stat.S_ISDIR(mode):
                path.mkdir()
                self._write(child, path, entries, files)
            elif stat.S_ISREG(mode):  # nobody answers at a socket that is left
                path.write_bytes(files.get(child, self._durable[child]))
                path.chmod(stat.S_IMODE(mode))


def _carry_out(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Resize):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, change.offset - len(content))))
    content[change.offset : end] = change.data


# -- what survives -----------------------------------------------------------------------------------------------------


def nothing(_: Sequence[Change], __: Random) -> Sequence[Change]:
    return ()


def everything(pending: Sequence[Change], _: Random) -> Sequence[Change]:
    return pending


def all_but_one(pending: Sequence[Change], random: Random) -> Sequence[Change]:
    left_out = random.randrange(len(pending)) if pending else 0
    return [change for number, change in enumerate(pending) if number != left_out]


def only_one(pending: Sequence[Change], random: Random) -> Sequence[Change]:
    return [random.choice(pending)] if pending else ()


def only_names(pending: Sequence[Change], _: Random) -> Sequence[Change]:
    return [change for change in pending if isinstance(change, Rename)]


def only_data(pending: Sequence[Change], _: Random) -> Sequence[Change]:
    return [change for change in pending if not isinstance(change, Rename)]


def half(pending: Sequence[Change], random: Random) -> Sequence[Change]:
    return [change for change in pending if random.random() < 0.5]


def torn(pending: Sequence[Change], random: Random) -> Sequence[Change]:
    """Any sectors of any writes."""
    share = random.choice([0.1, 0.5, 0.9])
    pieces = [piece for change in pending for piece in _sectors(change)]
    return [piece for piece in pieces if random.random() < share]


def _sectors(change: Change) -> list[Change]:
    if not isinstance(change, Write):
        return [change]
    end = change.offset + len(change.data)
    first = (change.offset // SECTOR + 1) * SECTOR
    bounds = [change.offset, *range(first, end, SECTOR), end]
    return [
        Write(change.node, low, change.data[low - change.offset : high - change.offset])
        for low, high in pairwise(bounds)
    ]


CHOICES: Sequence[Choice] = (nothing, everything, all_but_one, only_one, only_names, only_data, half, torn, torn)
