"""Frames as bytes: they come back as they were, and whatever is not a frame is dropped."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.pipes.protocol import Confirm, Data, Hello, Welcome
from seriatim.core.pipes.receiver import MAX_RANGES
from seriatim.pipes.frames import HEAD_BYTES, MAX_BITS, SEAL_BYTES, VERSION, Aside, decode, encode, seal, unseal

NUMBERS = st.integers(0, (1 << 100) - 1)
SMALL = st.integers(0, 1 << 40)
STAMPS = st.integers(0, 1 << 63)
MESSAGES = st.lists(st.binary(max_size=300), max_size=20).map(tuple)


@st.composite
def data_frames(draw) -> Data:
    floor = draw(NUMBERS)
    return Data(draw(NUMBERS), draw(NUMBERS), floor, floor + draw(SMALL), draw(MESSAGES), draw(STAMPS), draw(STAMPS))


@st.composite
def confirmations(draw) -> Confirm:
    expected = draw(NUMBERS)
    ranges = draw(st.lists(st.tuples(SMALL, SMALL), max_size=MAX_RANGES))
    missing = tuple((expected + lo, expected + lo + size) for lo, size in ranges)
    return Confirm(draw(NUMBERS), draw(NUMBERS), expected, expected + draw(SMALL), missing, draw(STAMPS), draw(STAMPS))


FRAMES = st.one_of(
    st.tuples(NUMBERS, STAMPS).map(lambda fields: Hello(*fields)),
    st.tuples(NUMBERS, NUMBERS, st.integers(1, 1 << 20), STAMPS).map(lambda fields: Welcome(*fields)),
    data_frames(),
    confirmations(),
    st.binary(max_size=50).map(Aside),
)


@given(FRAMES)
def test_every_frame_comes_back_as_it_was(frame):
    decoded = decode(encode(frame))
    assert decoded == frame
    assert type(decoded) is type(frame)


@given(data_frames())
def test_a_frame_is_its_messages_and_little_else(frame):
    longest = max(map(len, frame.messages), default=0)
    width = 1 if longest < 256 else 2
    assert len(encode(frame)) <= HEAD_BYTES + sum(map(len, frame.messages)) + width * len(frame.messages)


def test_a_small_message_costs_one_byte_more_than_itself():
    empty, full = (len(encode(Data(1, 1, 1, 1, messages))) for messages in ((), (b"ten bytes!",) * 100))
    assert full - empty == 100 * 11


@given(FRAMES, st.binary(max_size=16))
def test_a_sealed_frame_is_opened_by_those_who_know_the_secret(frame, secret):
    data = encode(frame)
    assert unseal(seal(data, secret), secret) == data
    assert unseal(seal(data, secret), secret + b"?") is None


@given(FRAMES, st.data())
def test_one_wrong_bit_breaks_the_seal(frame, choose):
    sealed = bytearray(seal(encode(frame)))
    bit = choose.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    assert unseal(bytes(sealed)) is None


def test_another_version_is_not_read():
    data = bytearray(encode(Hello(1)))
    data[0] = (VERSION + 1) << 4 | data[0] & 15
    assert decode(bytes(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x11",  # a Hello without a number
        b"\x11\x81",  # a number that does not end
        b"\x11\x01\x01",  # one number too many
        b"\x11" + b"\xff" * (MAX_BITS // 7 + 1) + b"\x01",  # a number that is too large
        b"\x12\x01\x01\x00",  # a welcome without room
        b"\x13\x01\x01\x01\x00\x05\x03",  # lengths of 3 bytes each
        b"\x13\x01\x01\x01\x00\xff\xff\xff\x7f\x04",  # a billion messages, and not one of them there
        b"\x13\x01\x01\x01\x00\x02\x01\x01\x09ab",  # longer messages than there are bytes
        b"\x13\x01\x01\x01\x00\x01\x01\x01abc",  # more bytes than messages
        b"\x14\x01\x01\x01\x01\x01",  # half a range
        b"\x14\x01\x01\x01\x01" + b"\x01\x01" * (MAX_RANGES + 1),
        b"\x1f\x01",  # no such kind
    ],
)
def test_what_is_not_a_frame_is_dropped(data):
    assert decode(data) is None


def test_fifty_thousand_pieces_of_garbage_do_no_harm():
    """Random bytes, and frames with bytes changed, cut off, put in: each is a frame or None, at no great cost."""
    random = Random(2)
    frames = [
        encode(Hello(3)),
        encode(Welcome(3, 4, 100)),
        encode(Data(3, 4, 10, 12, (b"abc", b"", b"x" * 300))),
        encode(Confirm(3, 4, 10, 20, ((11, 12), (15, 15)))),
        encode(Aside(b"aside")),
    ]
    understood = 0
    for _ in range(50_000):
        frame = decode(garbage(random, frames))
        understood += frame is not None
        if isinstance(frame, Data):
            assert sum(map(len, frame.messages)) < 1_000
    assert 0 < understood < 50_000


def garbage(random: Random, frames: list[bytes]) -> bytes:
    if random.random() < 0.3:
        return random.randbytes(random.randrange(60))
    data = bytearray(random.choice(frames))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        if random.random() < 0.5 and at < len(data):
            data[at] = random.randrange(256)
        elif random.random() < 0.5:
            del data[at:]
        else:
            data[at:at] = random.randbytes(random.randrange(3))
    return bytes(data)


def test_the_seal_is_as_long_as_it_says():
    assert len(seal(b"frame")) == SEAL_BYTES + len(b"frame")
