from __future__ import annotations

import pytest

from seriatim.errors import InvalidArgument
from seriatim.sparkplug.topics import NodeId, _parse_again, check_node, command_topic, parse_topic, state_topic


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("spBv1.0/g/NBIRTH/n", (("g", "n"), "NBIRTH", None)),
        ("spBv1.0/g/NDEATH/n", (("g", "n"), "NDEATH", None)),
        ("spBv1.0/g/NDATA/n", (("g", "n"), "NDATA", None)),
        ("spBv1.0/g/DBIRTH/n/d", (("g", "n"), "DBIRTH", "d")),
        ("spBv1.0/g/DDEATH/n/d", (("g", "n"), "DDEATH", "d")),
        ("spBv1.0/g:1/DDATA/n 2/gerät.3", (("g:1", "n 2"), "DDATA", "gerät.3")),
        ("spBv1.0/STATE/NDATA/STATE", (("STATE", "STATE"), "NDATA", None)),
        ("spBv1.0/\u2215\uff0f\u2044/NDATA/\\", (("\u2215\uff0f\u2044", "\\"), "NDATA", None)),
        (
            "spBv1.0/\u0645\u06cc\u200c\u062e/NDATA/\u0915\u094d\u200d",
            (("\u0645\u06cc\u200c\u062e", "\u0915\u094d\u200d"), "NDATA", None),
        ),
        ("spBv1.0/a\u00a0b/NDATA/\ue000", (("a\u00a0b", "\ue000"), "NDATA", None)),
        ("spBv1.0/g/NCMD/n", None),
        ("spBv1.0/g/DCMD/n/d", None),
    ],
)
def test_a_topic_says_who_speaks_and_what_about(topic, found):
    assert parse_topic(topic) == found


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "spBv1.0",
        "spBv1.0/g/NDATA",
        "spAv1.0/g/NDATA/n",
        "spBv1.0/g/NDATA/n/d",
        "spBv1.0/g/DDATA/n",
        "spBv1.0/g/DDATA/n/d/e",
        "spBv1.0/g/HELLO/n",
        "spBv1.0/g/ndata/n",
        "spBv1.0//NDATA/n",
        "spBv1.0/g/NDATA/",
        "spBv1.0/g/DDATA/n/",
        "spBv1.0/g/NDATA/n\x00",
        "spBv1.0/g/NDATA/n\x9b",
        "spBv1.0/g/NDATA/n\u2028",
        "spBv1.0/g/NDATA/n\u2029",
        "spBv1.0/g/NDATA/n\ud800",
        "spBv1.0/g/NDATA/n+",
        "spBv1.0/g/NDATA/" + "n" * 501,
    ],
)
def test_a_topic_that_is_none_of_sparkplugs_is_refused(topic):
    with pytest.raises(InvalidArgument):
        parse_topic(topic)


def test_names_that_differ_only_in_where_a_colon_stands_are_different_nodes():
    assert parse_topic("spBv1.0/a:b/NDATA/c") != parse_topic("spBv1.0/a/NDATA/b:c")
    assert str(NodeId("a:b", "c")) != str(NodeId("a", "b:c"))


def test_characters_that_only_look_like_a_slash_are_none_and_make_other_nodes():
    looks = [NodeId(f"a{slash}b", "c") for slash in "\u2215\uff0f\u2044\\\u29f8"]
    assert all(parse_topic(f"spBv1.0/{node.group}/NDATA/c") == (node, "NDATA", None) for node in looks)
    names = [str(node) for node in (*looks, NodeId("a", "b"), NodeId("a", "c"))]
    assert len(set(names)) == len(names)
    assert all(name.count("/") == 1 for name in names)


def test_long_topics_of_a_hostile_sender_are_not_kept():
    before = _parse_again.cache_info().currsize
    for number in range(10):
        assert parse_topic(f"spBv1.0/g/NCMD/{number}{'n' * 60_000}") is None
        assert parse_topic(f"spBv1.0/{number}{'g' * 400}/NDATA/n") is not None
    assert _parse_again.cache_info().currsize == before


def test_topics_are_written():
    assert command_topic(NodeId("g", "n")) == "spBv1.0/g/NCMD/n"
    assert state_topic("host") == "spBv1.0/STATE/host"
    with pytest.raises(InvalidArgument):
        state_topic("a/b")
    with pytest.raises(InvalidArgument):
        check_node(("g", "n"))
