"""Checks that all stores share.

Values that a store can't keep are refused before anything changes: text that is not UTF-8, numbers that are not finite or do
not fit, options that are not JSON. So no commit fails because of the form of a value.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from math import isfinite
from operator import itemgetter, lt
from typing import Any

from seriatim.core.ranges import Range
from seriatim.core.text_checks import check_name, check_text
from seriatim.core.validation import MAX_INTEGER, require_finite, require_whole
from seriatim.errors import DamagedStore, FailedPrecondition, InvalidArgument
from seriatim.store.base import Cursor, DeadLetterRow, DocumentRow, Options, ReaderRow, Record, SnapshotRow, TroubleRow
from seriatim.store.number_columns import decode_column, encode_column
from seriatim.store.state_checksums import checksum_of, seal, unseal

_TIMES = itemgetter(Record._fields.index("published"), Record._fields.index("not_before"))


def encode_options(options: Options) -> str:
    """Options as a text that ends with its checksum."""
    try:
        text = json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"options must be plain JSON values: {error}") from None
    return f"{text} {checksum_of(text)}"


def decode_json(text: str) -> Any:
    """What was stored as text."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise DamagedStore(f"a text in the store is damaged: restore a backup ({error})") from error


def decode_options(text: str, whose: str) -> dict[str, Any]:
    """The options of a topic, a subscription or a snapshot."""
    try:
        if not text.endswith("}"):  # earlier versions wrote no checksum
            text, _, checksum = text.rpartition(" ")
            if int(checksum) != checksum_of(text):
                raise ValueError("the checksum is wrong")
        options: dict[str, Any] = json.loads(text)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedStore(f"the options of {whose} are damaged: restore a backup ({error})") from error
    return options


def decode_list(text: str) -> list[Any]:
    if not isinstance(values := decode_json(text), list):
        raise DamagedStore(f"a list in the store is damaged: restore a backup ({text!r} is no JSON array)")
    return values


def encode_offsets(offsets: Sequence[int], *place: int) -> bytes:
    """Offsets as sealed bytes: what a subscription has settled, or (``place``: its id, and 1) not settled any more."""
    try:
        return seal(encode_column("Q", offsets), *place)
    except (OverflowError, TypeError) as error:
        raise InvalidArgument(f"offsets are whole numbers of 0 or more: {error}") from error


def decode_offsets(blob: bytes, *place: int) -> array[int]:
    return decode_column("Q", unseal(blob, "settled messages", 8, *place))


def require_times(records: Sequence[Record]) -> None:
    """Refuse messages whose times are not finite numbers."""
    try:
        are_times = all(isfinite(published) and isfinite(not_before) for published, not_before in map(_TIMES, records))
    except TypeError as error:
        raise InvalidArgument(f"times of messages must be numbers: {error}") from None
    if not are_times:
        raise InvalidArgument("times of messages must be finite numbers")


def checked_troubles(troubles: Iterable[TroubleRow]) -> list[TroubleRow]:
    found = list(troubles)
    for row in found:
        _require_number("offset", row.offset)
        _require_number("failures", row.failures)
        require_finite("not_before", row.not_before)
        _require_text("error", row.error)
    return found


def checked_letters(letters: Iterable[DeadLetterRow]) -> list[DeadLetterRow]:
    found = list(letters)
    for row in found:
        _require_number("offset", row.offset)
        _require_number("attempts", row.attempts)
        require_finite("time", row.time)
        _require_text("key", row.key)
        _require_text("error", row.error)
        for name in ("copy_topic_id", "copy_offset"):
            if getattr(row, name) is not None:
                _require_number(name, getattr(row, name))
    return found


def require_pause(key: str | None, reason: str | None) -> None:
    _require_text("key", key)
    _require_text("reason", reason)


def require_cursor(cursor: Cursor) -> None:
    _require_number("floor", cursor.floor)


def require_reader(reader: ReaderRow) -> None:
    check_name("reader", reader.name)
    _require_number("position", reader.position)


def require_document(document: DocumentRow) -> None:
    check_name("kind", document.kind)
    check_name("name", document.name)
    check_text("text", document.text)


def require_snapshot(snapshot: SnapshotRow) -> None:
    check_name("snapshot", snapshot.name)
    require_cursor(snapshot.cursor)
    require_finite("expires", snapshot.expires)


def require_batch(writer: str, batch: int) -> None:
    check_name("writer", writer)
    require_whole("batch", batch, 0)


def _require_number(name: str, value: int) -> None:
    require_whole(name, value, 0, MAX_INTEGER)


def _require_text(name: str, text: str | None) -> None:
    if text is not None:
        check_text(name, text)


def require_rising(records: Sequence[Record], next_offset: int) -> None:
    """Refuse offsets that are not above every offset that the log ever held."""
    offsets = [record.offset for record in records]
    require_new(offsets[0], next_offset)
    if not all(map(lt, offsets, offsets[1:])):
        raise InvalidArgument("offsets must rise within an append")


def require_new(offset: int, next_offset: int) -> None:
    """Refuse an offset that is not above every offset that the log ever held."""
    if offset < next_offset:
        raise InvalidArgument(f"offset {offset} was already used: the next one is {next_offset}")


def lane_of(key: str | None) -> str:
    """A key as text, in which no key differs from every key."""
    return "" if key is None else f":{key}"


def key_of(lane: str) -> str | None:
    """The inverse of ``lane_of``."""
    return lane[1:] if lane else None


def end_of(batches: Sequence[Range]) -> int:
    """One past the highest number that a writer has claimed."""
    return batches[-1][1] + 1 if batches else 0


def require_position(writer: str, found: int, start: int, end: int) -> None:
    """Refuse to move a writer that has another position, or to move it back."""
    if found != start:
        raise FailedPrecondition(
            f"writer {writer!r} stands at {found} and not at {start}: another program writes under this name, "
            "or this one has to ask again where it stands"
        )
    if end < start:
        raise InvalidArgument(f"writer {writer!r} can't go back from {start} to {end}")
