"""What goes over the link: values, verbs and frames survive the way, and nothing else gets through."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.lanes.types import Lease
from seriatim.engine.consumer import Delivered
from seriatim.engine.link import frames
from seriatim.engine.link.codec import Blobs, Packed, codec_of
from seriatim.engine.link.frames import Decoder, Frame, MalformedFrame, encode
from seriatim.errors import InvalidArgument, ResourceExhausted
from seriatim.store.base import Record
from tests.engine.conftest import ids
from tests.engine.link.linked import linked

# -- values -------------------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    left: bytes
    right: bytes = b""


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    colour: Colour = Colour.RED
    pairs: tuple[Pair, ...] = ()
    sizes: Mapping[str, float] | None = None


def there_and_back(hint: Any, value: Any) -> Any:
    codec, blobs = codec_of(hint), []  # type: ignore[var-annotated]
    text = json.loads(json.dumps(codec.pack(value, blobs)))
    return codec.unpack(text, Blobs(memoryview(b"".join(blobs))))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, -(2**70)),
        (float, 2),
        (float, float("inf")),
        (bool, True),
        (type(None), None),
        (str, "\ud800 lone"),
        (datetime, datetime(2026, 11, 18, 1, 2, 3, 456789, UTC)),
        (bytes | None, None),
        (Sequence[bytes], [b"a", b"", b"ccc"]),
        (list[Pair], [Pair(b"1", b"2"), Pair(b"3")]),
        (Thing, Thing("x", Colour.RED, (Pair(b"\x00\xff"),), {"a": 0.5})),
        (dict[str, bytes], {"a": b"1", "b": b"2"}),
    ],
)
def test_a_value_survives_the_way(hint, value):
    assert there_and_back(hint, value) == value


def test_fields_that_are_missing_have_their_defaults_and_unknown_ones_are_ignored():
    nothing = Blobs(memoryview(b""))
    assert codec_of(Thing).unpack({"name": "x", "of a newer version": 1}, nothing) == Thing("x")
    assert codec_of(Pair).unpack([0], nothing) == Pair(b"")


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        (int, True),
        (int, 1.5),
        (bool, 1),
        (float, "1"),
        (str, None),
        (bytes, 1),
        (bytes, -1),
        (datetime, "now"),
        (datetime, 1e300),
        (list[int], {}),
        (dict[str, int], []),
        (Pair, []),
        (Pair, [0, 0, 0]),
        (Thing, {"colour": "red"}),
        (Thing, {"name": "x", "colour": "green"}),
        (Thing, []),
    ],
)
def test_what_is_not_what_its_hint_says_is_refused(hint, found):
    with pytest.raises(InvalidArgument):
        codec_of(hint).unpack(found, Blobs(memoryview(b"")))


@pytest.mark.parametrize("hint", [int | str, object, set[int], Any, complex])
def test_a_type_that_cannot_go_over_the_link_is_noticed_when_the_program_starts(hint):
    with pytest.raises(TypeError, match="can't go over the link"):
        codec_of(hint)


# -- frames -------------------------------------------------------------------------------------------------------------

numbers, texts = st.integers(-(2**64), 2**64), st.text(st.characters())
durations = st.floats(allow_nan=False) | numbers
leases = st.builds(Lease, numbers, st.none() | texts, numbers, numbers, durations)
records = st.builds(
    Record,
    numbers,
    st.none() | texts,
    st.binary(),
    st.none() | st.dictionaries(texts, texts),
    durations,
    durations,
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)
packed = st.builds(lambda value: Packed(value, []), values)
verbs = st.sampled_from(["publish", "list_topics", "create_topic", "seek_to_time"]) | texts
questions = st.one_of(
    st.builds(frames.Call, numbers, verbs, packed),
    st.builds(frames.Attach, numbers, st.just("s") | texts, numbers, durations, st.none() | durations),
    st.builds(frames.Acks, st.lists(st.builds(frames.Ack, numbers, numbers, numbers, numbers, st.booleans()))),
    st.builds(frames.Nack, numbers, numbers, numbers, st.none() | durations, st.none() | texts),
    st.builds(frames.GiveUp, numbers, numbers, numbers, st.none() | texts, st.booleans()),
    st.builds(frames.Extend, numbers, numbers, numbers, durations),
    st.builds(frames.Stop, numbers),
    st.builds(frames.Detach, numbers),
    st.just(frames.Bye()),
)
answers = st.one_of(
    st.builds(frames.Hello, numbers, numbers),
    st.builds(frames.Answer, numbers, packed),
    st.builds(frames.Failure, numbers, texts, texts),
    st.builds(frames.Clock, durations),
    st.builds(frames.Deliver, numbers, durations, st.lists(st.builds(Delivered, leases, records)), durations),
    st.builds(frames.Fence, numbers, numbers),
    st.builds(frames.ConsumerError, numbers, texts, texts),
    st.builds(frames.Durable, st.lists(numbers)),
)


def comparable(message: Frame) -> list[Any]:
    return [type(message), *(value.json if isinstance(value, Packed) else value for value in message)]


def test_every_message_is_among_those_that_are_tried():
    assert frames._FRAMES.keys() == {
        *(
            "Hello",
            "Call",
            "Answer",
            "Failure",
            "Attach",
            "Deliver",
            "Fence",
            "ConsumerError",
            "Acks",
            "Durable",
            "Nack",
            "GiveUp",
        ),
        *("Extend", "Stop", "Detach", "Bye", "Clock"),
    }


@given(st.lists(questions | answers, max_size=5), st.integers(1, 200))
def test_messages_survive_the_way_however_the_bytes_are_cut(messages, step):
    data, decoder, found = b"".join(map(encode, messages)), Decoder(), []
    for start in range(0, len(data), step):
        found += [comparable(message) for message in decoder.feed(data[start : start + step])]
    assert found == [comparable(message) for message in messages]


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_bytes_that_are_no_frames_are_malformed_or_wait_for_more(chunks):
    decoder = Decoder()
    with suppress(MalformedFrame):
        assert [message for chunk in chunks for message in decoder.feed(chunk)] == []


def framed(text: bytes, blobs: bytes = b"") -> bytes:
    return struct.pack("!II", len(text), len(blobs)) + text + blobs


@given(
    values.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.sampled_from(sorted(frames._FRAMES)), values).map(lambda said: json.dumps([*said]).encode())
    | st.tuples(st.sampled_from(sorted(frames._FRAMES)), st.lists(values)).map(
        lambda said: json.dumps([said[0], *said[1]]).encode()
    )
    | st.binary()
)
def test_a_frame_that_is_no_message_is_malformed_and_raises_nothing_else(text):
    try:
        found = list(Decoder().feed(framed(text)))
    except MalformedFrame:
        pass
    else:
        assert len(found) == 1


@given(questions | answers, st.data())
def test_a_frame_with_a_changed_byte_is_a_message_or_malformed(message, data):
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedFrame):
        list(Decoder().feed(bytes(frame)))


@pytest.mark.parametrize("text", [b"[" * 100_000, b'["Stop",' + b"9" * 10_000 + b"]", b'["Stop",1e999]', b"\xff"])
def test_json_that_would_exhaust_or_trick_the_reader_is_malformed(text):
    with pytest.raises(MalformedFrame):
        list(Decoder().feed(framed(text)))


def test_a_frame_that_is_too_large_is_refused_before_it_is_here():
    with pytest.raises(MalformedFrame, match="a frame of"):
        list(Decoder().feed(struct.pack("!II", 100, frames.MAX_FRAME)))
    with pytest.raises(ResourceExhausted, match="do not fit into one frame"):
        encode(frames.Answer(1, Packed(None, [bytes(frames.MAX_FRAME)])))


# -- a live owner -------------------------------------------------------------------------------------------------------


@given(st.lists(questions, max_size=10))
def test_whatever_is_said_to_an_owner_others_are_answered(tmp_path_factory, said):
    unforeseen: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unforeseen.append(context))
        async with linked(tmp_path_factory.mktemp("link")) as link:
            await link.engine.create_topic("t")
            await link.engine.create_subscription("t", "s")
            other = await link.client()
            reader, writer = await asyncio.open_unix_connection(str(link.path))
            writer.write(encode(frames.Hello(frames.VERSION, 1)) + b"".join(map(encode, said)))
            await reader.read(1)
            assert await other.publish("t", []) == ids(0)
            assert [one.name for one in await other.list_subscriptions()] == ["s"]
            writer.close()
            await other.close()

    asyncio.run(scenario())
    assert unforeseen == []


def test_an_error_that_can_not_be_shown_is_told_by_its_type():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert frames.text_of(Mute()) == ("Mute", "(it can't be shown)")
