from __future__ import annotations

from typing import NamedTuple

import pytest

from seriatim.core.sparkplug.messages import Bookmark
from seriatim.sparkplug.stored_nodes import NodeSummary, census_of
from seriatim.sparkplug.topics import NodeId
from seriatim.sparkplug.writer_names import BOOKMARKS, SESSIONS, NodeSession, node_of_writer, writer_name


class Record(NamedTuple):
    offset: int
    key: str | None
    attributes: dict[str, str] | None


class Log:
    def __init__(self, *rows: tuple[str | None, dict[str, str] | None], writers: dict[str, int] | None = None) -> None:
        self._writers = writers or {}
        self._records = [Record(at, key, attributes) for at, (key, attributes) in enumerate(rows)]

    def read(self, topic_id: int, first: int, limit: int) -> list[Record]:
        return self._records[first : first + min(limit, 3)] if topic_id == 1 else []

    def writers(self, prefix: str) -> list[tuple[str, int]]:
        return [(name, at) for name, at in self._writers.items() if name.startswith(prefix)]


def census(log: Log) -> list[NodeSummary]:
    return census_of(log, {"telemetry": 1, "telemetry-ledger": 2}, "telemetry", "telemetry-ledger")


def writers_of(node: str, bookmark: Bookmark, session: NodeSession | None = None, host: str = "h") -> dict[str, int]:
    group, _, name = node.partition("/")
    found = {writer_name(BOOKMARKS, host, "telemetry", NodeId(group, name)): bookmark.pack()}
    if session:
        found[writer_name(SESSIONS, host, "telemetry", NodeId(group, name))] = session.pack()
    return found


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
    a, b, c = census(log)
    assert (a.node, a.status, a.messages, a.flagged, a.seq) == ("g/a", "unknown", 1, 1, 9)
    assert (b.node, b.status, b.bd_seq, b.births, b.devices) == ("g/b", "online", 4, 1, {"d": False, "e": True})
    assert (c.status, c.devices, c.seq) == ("offline", {"d": False}, 1)


def test_without_any_message_nodes_are_as_their_writers_tell():
    a, b, c, d = census(
        Log(
            writers={
                **writers_of("g/a", Bookmark(9, 2, 5, 0, True, 77), NodeSession(3, 2, 5, 2, online=True)),
                **writers_of("g/b", Bookmark(9, 3, 6, 0, False, 77), NodeSession(6, 3, 6, 3, online=False)),
                **writers_of("g/c", Bookmark(2, 1, 0, 8, False)),
                **writers_of("g/d", Bookmark(2, 1, 4, 8, True)),
            }
        )
    )
    assert (a.node, a.status, a.bd_seq, a.births, a.seq, a.messages) == ("g/a", "online", 5, 2, 255, 0)
    assert (b.node, b.status, b.bd_seq, b.births, b.seq) == ("g/b", "offline", 6, 3, None)
    assert (c.node, c.status, c.bd_seq, c.births) == ("g/c", "unknown", None, 0), "it has spoken, and was never born"
    assert (d.node, d.status, d.bd_seq, d.seq) == ("g/d", "online", 4, 7), "stored by a host that kept bookmarks alone"


def test_messages_left_over_from_an_earlier_session_do_not_say_how_a_node_is_now():
    log = Log(
        ("g/n", {"kind": "DBIRTH", "device": "old", "seq": "1", "epoch": "1"}),
        ("g/n", {"kind": "NDEATH", "bdSeq": "0", "epoch": "1"}),
        ("g/n", {"kind": "DDATA", "device": "stale", "seq": "7", "epoch": "2", "flag": "stale"}),
        ("g/n", {"kind": "DDATA", "device": "new", "seq": "8", "epoch": "2"}),
        writers=writers_of("g/n", Bookmark(9, 2, 1, 9, True), NodeSession(3, 2, 1, 2, online=True)),
    )
    (node,) = census(log)
    assert (node.status, node.births, node.devices) == ("online", 2, {"old": False, "new": True})


def test_a_session_is_found_also_where_its_writer_has_the_longer_name():
    name = f"{'g' * 400}/{'n' * 400}"
    host = "h" * (1024 - len(f"sparkplug  telemetry {name}"))
    writers = writers_of(name, Bookmark(9, 3, 6, 0, False), NodeSession(6, 3, 6, 3, online=False), host=host)
    (node,) = census(Log(writers=writers))
    assert (node.node, node.status, node.births) == (name, "offline", 3)


def test_a_node_that_two_hosts_have_stored_is_as_the_one_says_that_has_heard_more_of_it():
    former = writers_of("g/n", Bookmark(99, 1, 1, 9, True, 70), NodeSession(1, 1, 1, 1, online=True), host="former")
    latter = writers_of("g/n", Bookmark(5, 1, 2, 9, False, 80), NodeSession(2, 1, 2, 1, online=False), host="latter")
    for writers in ({**former, **latter}, {**latter, **former}):
        (node,) = census(Log(writers=writers))
        assert (node.status, node.bd_seq) == ("offline", 2)


def test_messages_that_no_host_has_written_are_counted_as_far_as_they_can_be_read():
    (node,) = census(Log(("g/n", {"kind": "NBIRTH", "seq": "x"}), ("g/n", {"kind": "DBIRTH"})))
    assert (node.status, node.messages, node.seq, node.bd_seq, node.devices) == ("online", 2, None, None, {})


@pytest.mark.parametrize(
    ("host", "topic", "node"),
    [("h", "telemetry", "g/n"), ("my host", "all telemetry", "my group/x y"), ("h", "telemetry", "telemetry g/n")],
)
def test_the_name_of_a_writer_names_its_node_whatever_spaces_are_in_it(host, topic, node):
    named = NodeId(*node.split("/"))
    name = writer_name(BOOKMARKS, host, topic, named)
    topics = ["all telemetry", "telemetry", "other"]
    found = {each: node_of_writer(name, each, topics) for each in topics}
    assert found == {**dict.fromkeys(topics), topic: named}


def test_writers_of_somebody_else_and_names_too_long_to_be_read_stand_for_no_node():
    for name in (
        "sparkplug",
        "sparkplug h telemetry",
        "sparkplug h telemetry g",
        "sparkplug h telemetry a/b/c",
        "sparkplug a/b telemetry g/n",
    ):
        assert node_of_writer(name, "telemetry", ["telemetry"]) is None
    name = writer_name(BOOKMARKS, "seriatim", "telemetry", NodeId("g" * 500, "n" * 500))
    assert len(name.encode()) <= 1024
    assert name != writer_name(BOOKMARKS, "seriatim", "telemetry", NodeId("g" * 500, "n" * 499 + "m"))
    assert node_of_writer(name, "telemetry", ["telemetry"]) is None
