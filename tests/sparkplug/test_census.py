from __future__ import annotations

from typing import NamedTuple

from seriatim.sparkplug.census import census_of


class Record(NamedTuple):
    offset: int
    key: str | None
    attributes: dict[str, str] | None


class Log:
    def __init__(self, *rows: tuple[str | None, dict[str, str] | None]) -> None:
        self._records = [Record(at, key, attributes) for at, (key, attributes) in enumerate(rows)]

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        return self._records[first : first + min(limit, 3)]


def test_nodes_and_devices_are_as_their_messages_tell():
    log = Log(
        ("g/b", {"kind": "NBIRTH", "bdSeq": "4", "seq": "0"}),
        ("g/b", {"kind": "DBIRTH", "device": "d", "seq": "1"}),
        ("g/b", {"kind": "DBIRTH", "device": "e", "seq": "2"}),
        ("g/b", {"kind": "DDEATH", "device": "d", "seq": "3"}),
        (None, None),
        ("g/a", {"kind": "NDATA", "seq": "9", "flag": "before-birth"}),
        ("g/c", {"kind": "NBIRTH", "bdSeq": "0", "seq": "0"}),
        ("g/c", {"kind": "DBIRTH", "device": "d", "seq": "1"}),
        ("g/c", {"kind": "NDEATH", "bdSeq": "0"}),
    )
    a, b, c = census_of(log, 1)
    assert (a.node, a.status, a.messages, a.flagged, a.seq) == ("g/a", "unknown", 1, 1, 9)
    assert (b.node, b.status, b.bd_seq, b.births, b.devices) == ("g/b", "online", 4, 1, {"d": False, "e": True})
    assert (c.status, c.devices, c.seq) == ("offline", {"d": False}, 1)
