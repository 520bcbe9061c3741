"""Filters: what the documented language says, where a bad filter is bad, and trees that are printed and compiled."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seriatim.core.filters import MAX_FILTER_BYTES, compile_filter
from seriatim.errors import InvalidArgument
from tests.core.filter_trees import AllOf, AnyOf, Equals, Has, HasPrefix, Not, naive

COM, ORG = {"domain": "com"}, {"domain": "org"}


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("attributes:domain", [COM, {"domain": ""}], [{}, None, {"Domain": "com"}]),
        ('attributes.domain = "com"', [COM], [ORG, {}, None, {"domain": "COM"}]),
        ('attributes.domain="com"', [COM], [ORG]),
        ('attributes.domain != "com"', [ORG, {}, None], [COM]),
        ('hasPrefix(attributes.domain, "co")', [COM, {"domain": "co"}], [ORG, {}, None, {"domain": "c"}]),
        ('hasPrefix ( attributes . domain ,"")', [COM, {"domain": ""}], [{}, None]),
        ("NOT attributes:domain", [{}, None], [COM]),
        ("-attributes:domain", [{}, None], [COM]),
        ("- attributes:domain", [{}, None], [COM]),
        ('attributes:domain AND attributes.domain != "com"', [ORG], [COM, {}, None]),
        ("attributes:a AND attributes:b AND attributes:c", [dict.fromkeys("abc", "")], [dict.fromkeys("ab", "")]),
        ("attributes:a OR attributes:b OR attributes:c", [{"c": ""}, {"a": ""}], [{}, {"d": ""}]),
        ("attributes:a AND (attributes:b OR attributes:c)", [{"a": "", "c": ""}], [{"a": ""}, {"b": ""}]),
        ("NOT (attributes:a OR attributes:b)", [{}, {"c": ""}], [{"a": ""}, {"b": ""}]),
        ("NOT attributes:a AND attributes:b", [{"b": ""}], [{}, {"a": "", "b": ""}]),
        ("((attributes:a))", [{"a": ""}], [{}]),
        ("NOT (NOT attributes:a)", [{"a": ""}], [{}]),
        ("attributes:a-b_C9", [{"a-b_C9": ""}], [{"a": ""}]),
        ("attributes:AND", [{"AND": ""}], [{}]),
        ('attributes:"iana.org/language_tag"', [{"iana.org/language_tag": "en"}], [{}]),
        ('attributes."a b" = "x y"', [{"a b": "x y"}], [{"a b": "x  y"}]),
        (r'attributes.q = "say \"\\\" \t\r\n"', [{"q": 'say "\\" \t\r\n'}], [{"q": "say"}]),
        (r'attributes:"\u307F\u3093\u306A"', [{"みんな": ""}], [{}]),
        (r'attributes:"\xe3\x81\xbf"', [{"み": ""}], [{}]),
        (r'attributes:"\343\201\277"', [{"み": ""}], [{}]),
        (r'attributes:"\U0001F600" ', [{"😀": ""}], [{}]),
        ("attributes:\n\tdomain", [COM], [{}]),
    ],
)
def test_a_filter_wants_what_the_language_says(text, wanted, unwanted):
    matches = compile_filter(text)
    assert [matches(attributes) for attributes in wanted] == [True] * len(wanted)
    assert [matches(attributes) for attributes in unwanted] == [False] * len(unwanted)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"at the end: expected 'attributes', hasPrefix, NOT or '\('"),
        ("attributes", r"at the end: expected ':' or '\.' after 'attributes'"),
        ("attributes:", "at the end: expected the name of an attribute"),
        ("attributes:.", r"at character 12: expected the name of an attribute, found '\.'"),
        ("attribute:x", "at character 1: expected 'attributes', .*, found 'attribute'"),
        ("attributes.x", "at the end: expected = or != after the name of an attribute"),
        ('attributes.x < "a"', "at character 14: expected = or != after the name of an attribute, found '<'"),
        ('attributes.x ! = "a"', "at character 14: expected = or !="),
        ("attributes.x = a", "at character 16: expected a value in double quotes, found 'a'"),
        ("attributes.x = 'a'", "at character 16: expected a value in double quotes"),
        ('attributes.x = "a', "at character 16: the closing quote is missing"),
        ('attributes.x = "a\\', "at character 18: unknown escape"),
        (r'attributes.x = "\q"', "at character 17: unknown escape"),
        (r'attributes.x = "\xff"', "at character 16: the escaped bytes are not valid UTF-8"),
        (r'attributes.x = "\ud800"', "not valid UTF-8"),
        (r'attributes.x = "\UFFFFFFFF"', "not valid UTF-8"),
        ('attributes.x = "\ud800"', "not valid UTF-8"),
        ("attributes:a and attributes:b", "at character 14: expected AND, OR or the end, found 'and'"),
        ("attributes:a attributes:b", "at character 14: expected AND, OR or the end, found 'attributes'"),
        ("attributes:a AND", "at the end: expected 'attributes'"),
        ("attributes:a AND attributes:b OR attributes:c", "at character 31: AND and OR can't be mixed without paren"),
        ("attributes:a OR attributes:b AND attributes:c", "at character 30: AND and OR can't be mixed"),
        ("NOT NOT attributes:a", "at character 5: expected 'attributes'.*found 'NOT'"),
        ("(attributes:a", r"at the end: expected '\)'"),
        ("attributes:a)", r"at character 13: expected AND, OR or the end, found '\)'"),
        ('hasPrefix(x, "a")', "at character 11: expected 'attributes', found 'x'"),
        ('hasPrefix(attributes:x, "a")', r"at character 21: expected '\.', found ':'"),
        ("hasPrefix(attributes.x)", r"at character 23: expected ',', found '\)'"),
        ('hasSuffix(attributes.x, "a")', "at character 1: expected 'attributes', hasPrefix"),
    ],
)
def test_a_bad_filter_is_refused_with_the_place_and_what_was_expected(text, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        compile_filter(text)


def test_a_filter_has_at_most_256_bytes():
    longest = "attributes:" + "x" * (MAX_FILTER_BYTES - len("attributes:"))
    assert compile_filter(longest)({"x" * 245: ""})
    with pytest.raises(InvalidArgument, match="the filter has 257 bytes: use at most 256"):
        compile_filter(longest + " ")
    with pytest.raises(InvalidArgument, match="the filter has 257 bytes"):
        compile_filter('attributes:"' + "é" * 122 + '"')


def test_the_deepest_filter_that_fits_is_no_trouble():
    depth = (MAX_FILTER_BYTES - len("attributes:x")) // 2
    matches = compile_filter("(" * depth + "attributes:x" + ")" * depth)
    assert matches({"x": ""})
    assert not matches({"y": ""})


TEXT = st.text(st.sampled_from('aB-_ ."\\\n\t\0é😀'), max_size=3)
LEAVES = TEXT.map(Has) | st.builds(Equals, TEXT, TEXT) | st.builds(HasPrefix, TEXT, TEXT)
TREES = st.recursive(
    LEAVES,
    lambda below: (
        below.map(Not)
        | st.lists(below, min_size=2, max_size=3).map(tuple).map(AllOf)
        | st.lists(below, min_size=2, max_size=3).map(tuple).map(AnyOf)
    ),
    max_leaves=6,
)
ATTRIBUTES = st.none() | st.dictionaries(TEXT, TEXT, max_size=4)


@given(TREES, ATTRIBUTES)
def test_needless_parentheses_around_a_filter_change_nothing(tree, attributes):
    text = f"(({tree}))"
    assume(len(text.encode()) <= MAX_FILTER_BYTES)
    assert compile_filter(text)(attributes) is naive(tree, attributes or {})


@given(TREES, ATTRIBUTES)
def test_a_compiled_filter_agrees_with_a_naive_reading_of_its_tree(tree, attributes):
    assume(len(str(tree).encode()) <= MAX_FILTER_BYTES)
    assert compile_filter(str(tree))(attributes) is naive(tree, attributes or {})


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_refused_as_invalid(text):
    with suppress(InvalidArgument):
        compile_filter(text)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("attributes:color", Has("color")),
        ("NOT attributes:color", Not(Has("color"))),
        (
            'attributes:color AND (attributes.a = "1" OR NOT attributes:b)',
            AllOf((Has("color"), AnyOf((Equals("a", "1"), Not(Has("b")))))),
        ),
        ('attributes:"two words"', Has("two words")),
    ],
)
def test_a_tree_is_printed_without_needless_signs_and_read_as_it_stands(text, tree):
    assert str(tree) == text
    names = ("color", "a", "b", "two words")
    worlds = [dict.fromkeys(some, "1") for size in range(5) for some in combinations(names, size)]
    assert [compile_filter(text)(world) for world in worlds] == [naive(tree, world) for world in worlds]


def test_a_filter_that_ends_too_early_says_what_was_expected_and_finds_nothing():
    with pytest.raises(InvalidArgument) as refusal:
        compile_filter("attributes:color AND")
    assert "found" not in refusal.value.message


def test_the_last_letter_of_unicode_can_be_escaped_and_nothing_beyond():
    matches = compile_filter(r'attributes.a = "\U0010FFFF"')
    assert matches({"a": "\U0010ffff"})
    assert not matches({"a": "\U0010fffe"})
    with pytest.raises(InvalidArgument):
        compile_filter(r'attributes.a = "\U00110000"')
