"""Messages are serialized by hand for speed: protobuf reads the same from it as it would have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.store.base import Record
from seriatim.wire.message_conversion import encode_message, encode_received, length_prefix
from seriatim.wire.names import Names
from seriatim.wire.services import PubsubMessage, PullResponse, StreamingPullResponse

NAMES = Names("subscriptions", "demo")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(
    data=st.binary(max_size=300),
    key=st.none() | TEXT,
    attributes=st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    offset=st.integers(0, 2**63),
    microseconds=st.integers(0, 4_000_000_000 * 1_000_000),
    attempt=st.integers(0, 1000),
)
def test_a_message_is_read_as_it_is_kept(data, key, attributes, offset, microseconds, attempt):
    kept = Record(offset, key, data, attributes, microseconds / 1_000_000)
    field = encode_received(f"1-{offset}-2", encode_message(str(offset), kept, NAMES), attempt)
    for response in (PullResponse, StreamingPullResponse):
        (received,) = response.FromString(field).received_messages
        message = received.message
        assert (received.ack_id, received.delivery_attempt) == (f"1-{offset}-2", attempt)
        assert (message.message_id, message.data, message.ordering_key) == (str(offset), data, key or "")
        assert dict(message.attributes) == (attributes or {})
        stamp = message.publish_time
        assert stamp.seconds + stamp.nanos / 1e9 == pytest.approx(kept.published, abs=2e-6)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_are_written_as_protobuf_writes_them(size):
    message = PubsubMessage(data=b"x" * size).SerializeToString()
    assert message == (b"\x0a" + length_prefix(size) + b"x" * size if size else b"")
    kept = Record(1, None, b"x" * size, None, 0.0)
    assert len(PubsubMessage.FromString(encode_message("1", kept, NAMES)).data) == size
