from __future__ import annotations

import pytest

from seriatim.errors import InvalidArgument
from seriatim.sparkplug.topics import NodeId, check_node, command_topic, parse_topic, state_topic


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


def test_topics_are_written():
    assert command_topic(NodeId("g", "n")) == "spBv1.0/g/NCMD/n"
    assert state_topic("host") == "spBv1.0/STATE/host"
    with pytest.raises(InvalidArgument):
        state_topic("a/b")
    with pytest.raises(InvalidArgument):
        check_node(("g", "n"))
