"""Content as bytes that are searched in place, without loading them.

Rules
-----
1. Keys are sorted by hash. A key's facts and the offsets of its texts and lists are one record of fixed width; a fact
   that all keys share is not in the records, and numbers are as narrow as possible.
2. The bytes are divided into pages, each with a digest. No page is used before it was compared with its digest after
   the segment was opened. So opening costs 16 bytes a page, and a look-up the pages that it needs.
3. Equal content gives equal bytes if the same version of pyarrow writes the rows. ``Content.digest`` is compared.

A key is found through *fences*, the hash of every 64th key, and a binary search between two of them. Deadlines and idle
times are stored a second time, sorted by time, to be found without a scan. Rows are in chunks, each an Arrow stream.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property, wraps
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.errors import DamagedStore
from seriatim.spark.kernel.arrays import DTYPES, Columns, Floats, Ints, Owned, arange, first_at_least, narrow
from seriatim.spark.kernel.key_state import HELD, KEY, Content, Times
from seriatim.spark.kernel.keys import Hashes, bytes_of, hash_raw, raw_of
from seriatim.spark.kernel.schema_evolution import fitted

PAGE_BYTES = 4096
DIGEST_BYTES = 16
FENCE_KEYS = 64
CHUNK_ROWS = 1024
MAX_EXACT = 2**53
MOMENT = np.dtype([("time", "<f8"), ("slot", "<i8")])
NUMBER = re.compile("[<>|][iufb][1248]")
CHUNK = np.dtype([("end", "<i8"), ("begin", "<i8"), ("bytes", "<i8")])
Structured: TypeAlias = npt.NDArray[Any]
C = TypeVar("C", bound=Columns)
P = ParamSpec("P")
T = TypeVar("T")
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    pa.ArrowException,
)
"""What comes of bytes that have the right digests and are no content, by pyarrow and numpy too."""


def page_digests(body: memoryview | bytes) -> bytes:
    """The digests of the pages of a body, concatenated."""
    view = memoryview(body)
    starts = range(0, len(view), PAGE_BYTES)
    return b"".join(_digest(view[start : start + PAGE_BYTES]) for start in starts)


def _digest(content: memoryview | bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


@dataclass
class Body:
    """The bytes of a segment, each page of which is compared with its digest before it is used.

    ``digests`` is None if the bytes were just created. ``reload`` reads them again if a copy was damaged.
    """

    content: memoryview
    name: str = "a new segment"
    digests: memoryview | None = None
    reload: Callable[[], memoryview] | None = None
    remedy: str = ""
    _is_checked: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        pages = -(-len(self.content) // PAGE_BYTES)
        self._is_checked = np.full(pages, self.digests is None)

    def check(self, begin: Ints, end: Ints) -> None:
        """Verify non-empty ranges of bytes."""
        if self.digests is None or not len(begin):
            return
        if int(end.max()) > len(self.content):
            raise self.damaged("it is too short")
        if self._is_checked.all():
            return
        edges = np.zeros(len(self._is_checked) + 1, np.int64)
        np.add.at(edges, begin // PAGE_BYTES, 1)
        np.add.at(edges, (end - 1) // PAGE_BYTES + 1, -1)
        for page in np.flatnonzero((np.cumsum(edges)[:-1] > 0) & ~self._is_checked).tolist():
            if not self._is_right(page):
                if self.reload is None:
                    raise self.damaged("a checksum is wrong")
                self.content, self.reload = self.reload(), None
                self._is_checked[:] = False
                self.check(begin, end)
                return
            self._is_checked[page] = True

    def _is_right(self, page: int) -> bool:
        assert self.digests is not None
        expected = self.digests[page * DIGEST_BYTES : (page + 1) * DIGEST_BYTES]
        return _digest(self.content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]) == expected

    def damaged(self, what: str) -> DamagedStore:
        return DamagedStore(f"{self.name} is damaged: {what}; {self.remedy}")

    def array(self, section: list[int], kind: npt.DTypeLike) -> Structured:
        """A section as an array, unverified."""
        begin, size = section
        if begin + size > len(self.content):
            raise self.damaged("it is too short")
        return np.frombuffer(self.content[begin : begin + size], kind)

    def whole(self, section: list[int], kind: npt.DTypeLike) -> Structured:
        begin, size = section
        if size:
            self.check(np.array([begin]), np.array([begin + size]))
        return self.array(section, kind)

    def at(self, section: list[int], kind: npt.DTypeLike, places: Ints) -> Structured:
        """Some elements of a section."""
        width, begin = np.dtype(kind).itemsize, section[0]
        self.check(begin + places * width, begin + (places + 1) * width)
        return self.array(section, kind)[places]


def _reading(method: Callable[Concatenate[Segment, P], T]) -> Callable[Concatenate[Segment, P], T]:
    @wraps(method)
    def read(self: Segment, /, *given: P.args, **named: P.kwargs) -> T:
        try:
            return method(self, *given, **named)
        except UNREADABLE as error:
            if self.body.digests is None:  # this process just created it
                raise
            raise self.body.damaged(f"it can't be read ({error!r})") from error

    return read


class Segment:
    """Encoded content. ``layout`` has the position of everything in the body."""

    def __init__(self, layout: dict[str, Any], body: Body, shape: type[Columns], lists: dict[str, type[Owned]]) -> None:
        self.layout, self.body, self._shape, self._lists = layout, body, shape, lists
        self._sections: dict[str, list[int]] = layout["sections"]
        self._record = _fields_of(layout["record"])
        self._chunks: dict[int, pa.Table] = {}

    def __len__(self) -> int:
        return int(self.layout["count"])

    @property
    def entries(self) -> int:
        return int(self.layout["entries"])

    def require_sound(self) -> None:
        """Raise ValueError, or another error of ``UNREADABLE``, unless the layout fits the body. This bounds all
        reads."""
        layout, count = self.layout, len(self)
        lists = {name: _fields_of(layout["lists"][name]).itemsize for name in self._lists}
        widths = {"records": self._record.itemsize, **dict.fromkeys(layout["texts"], 1), **lists}
        for begin, size in self._sections.values():
            if begin < 0 or not 0 <= size <= len(self.body.content) - begin:
                raise ValueError("a section outside the body")
        for name, width in widths.items():
            total = count if name == "records" else layout["totals"][name]
            if count < 0 or total < 0 or total * width != self._sections[name][1]:
                raise ValueError(f"{name} do not fill their section")
            each = layout["each"].get(name)
            if each is not None and each * count != total:
                raise ValueError(f"{name} are not {each} for each key")

    # -- searching ------------------------------------------------------------------------------------------------------

    @cached_property
    def _fences(self) -> Hashes:
        return self.body.whole(self._sections["fences"], "<u8")

    @_reading
    def find(self, raw: pa.Array, hashes: Hashes) -> Ints:
        """The slot of each key, or -1."""
        slots = np.full(len(raw), -1, np.int64)
        if not len(self) or not len(raw):
            return slots
        begin = (np.maximum(np.searchsorted(self._fences, hashes) - 1, 0) * FENCE_KEYS).astype(np.int64)
        end = np.minimum(begin + FENCE_KEYS, len(self))
        first, width = self._sections["records"][0], self._record.itemsize
        self.body.check(first + begin * width, first + np.minimum(end + 1, len(self)) * width)
        own = self.body.array(self._sections["records"], self._record)["hash"]
        place = first_at_least(own, begin, end, hashes)
        asked = np.flatnonzero(own[np.minimum(place, len(self) - 1)] == hashes)
        asked = asked[place[asked] < len(self)]
        place = place[asked]
        while asked.size:  # once, unless keys share a hash
            equal = pc.equal(self._text(KEY, place), raw.take(pa.array(asked))).to_numpy(zero_copy_only=False)
            slots[asked[equal]] = place[equal]
            asked, place = asked[~equal], place[~equal] + 1
            inside = place < len(self)
            asked, place = asked[inside], place[inside]
            same = self._records(place)["hash"] == hashes[asked]
            asked, place = asked[same], place[same]
        return slots

    @_reading
    def moments(self, name: str, after: float, until: float, limit: int | None = None, skip: int = 0) -> Ints:
        """The slots of keys with a time after one moment and not after another, earliest first: all, or ``limit``."""
        section = self._sections.get(name)
        if section is None:  # not written: nobody queried it then
            now = self.content().facts.now  # type: ignore[attr-defined]
            return np.flatnonzero((now > after) & (now <= until))
        if not section[1] or float.fromhex(self.layout["least"][name]) > until:
            return arange(0)
        times = self.body.array(section, MOMENT)["time"]
        first, last = (_count_until(times, moment) for moment in (after, until))
        if limit is not None:
            first = min(first + skip, last)
            last = min(first + limit, last)
        # Damage may have misled the search, but not past both neighbours of its result.
        begin, end = max(first - 1, 0), min(last + 1, len(times))
        checked = self.body.at(section, MOMENT, arange(end - begin) + begin)
        found = checked[first - begin : last - begin]
        if np.any((found["time"] <= after) | (found["time"] > until)) or np.any(np.diff(checked["time"]) < 0):
            raise self.body.damaged("its order is wrong")
        slots: Ints = found["slot"].astype(np.int64)
        return slots

    # -- reading --------------------------------------------------------------------------------------------------------

    def _records(self, slots: Ints) -> Structured:
        return self.body.at(self._sections["records"], self._record, slots)

    def _bounds(self, name: str, slots: Ints) -> tuple[Ints, Ints]:
        """Where the data of some keys begins and ends."""
        each, total = self.layout["each"][name], self.layout["totals"][name]
        if each is not None:
            return slots * each, (slots + 1) * each
        following = np.minimum(slots + 1, len(self) - 1)
        first, width = self._sections["records"][0], self._record.itemsize
        self.body.check(first + slots * width, first + (following + 1) * width)
        at = self.body.array(self._sections["records"], self._record)[f"{name}_at"]
        begin = at[slots].astype(np.int64)
        end = np.where(slots + 1 < len(self), at[following].astype(np.int64), total)
        if np.any((begin < 0) | (end < begin) | (end > total)):
            raise ValueError(f"{name} that lie beyond their section")
        return begin, end

    def _text(self, name: str, slots: Ints) -> pa.Array:
        begin, end = self._bounds(name, slots)
        some = begin < end
        first, _ = self._sections[name]
        self.body.check(first + begin[some], first + end[some])
        return _sliced(begin, end, self.body.array(self._sections[name], np.uint8))

    @_reading
    def texts(self, slots: Ints) -> dict[str, pa.Array]:
        return {name: self._text(name, slots) for name in self.layout["texts"]}

    @_reading
    def content(self, slots: Ints | None = None) -> Content:
        """The content of some keys, or of all; owners are indexes into the slots. The rows are not read."""
        slots = arange(len(self)) if slots is None else slots
        records = self._records(slots)

        def column(name: str, kind: type) -> npt.NDArray[Any]:
            constant = self.layout["constants"].get(name)
            return (
                np.full(len(slots), float.fromhex(constant), kind)
                if constant is not None
                else records[name].astype(kind)
            )

        lists: dict[str, Owned] = {}
        for name, shape in self._lists.items():
            begin, end = self._bounds(name, slots)
            place = ranges(begin, end)
            kind = _fields_of(self.layout["lists"][name])
            arrays: dict[str, npt.NDArray[Any]] = {}
            if kind.names:
                found = self.body.at(self._sections[name], kind, place)
                stored = [own for own in fields(shape) if own.name in kind.names]
                arrays = {own.name: found[own.name].astype(DTYPES[own.type]) for own in stored}
            owner = np.repeat(arange(len(slots)), end - begin)
            lists[name] = shape(**{"owner": owner, **({"row": place} if name == HELD else {}), **arrays})
        return Content(
            times=times_of(self.layout),
            texts=self.texts(slots),
            facts=self._shape(*(column(own.name, DTYPES[own.type]) for own in fields(self._shape))),
            due=column("due", np.float64),
            fresh=column("flags", np.int64) & 1 > 0,
            gone=column("flags", np.int64) & 2 > 0,
            lists=lists,
            rows=schema_of(self.layout).empty_table(),
        )

    @_reading
    def rows(self, places: Ints, schema: pa.Schema) -> pa.Table:
        """Some rows, by rising indexes, with the given columns."""
        chunks = self.body.whole(self._sections["chunks"], CHUNK)
        numbers = np.searchsorted(chunks["end"], places, "right")
        needed, first = np.unique(numbers, return_index=True)
        parts = []
        for number, own in zip(needed.tolist(), np.split(places, first[1:]), strict=False):
            if number not in self._chunks:
                section = [int(chunks[number]["begin"]), int(chunks[number]["bytes"])]
                stream = self.body.whole(section, np.uint8)
                self._chunks[number] = fitted(table_of(stream), schema)
            begin = int(chunks[number - 1]["end"]) if number else 0
            parts.append(self._chunks[number].take(pa.array(own - begin)))
        return pa.concat_tables(parts) if parts else schema.empty_table()


def _fields_of(layout: list[list[str]]) -> np.dtype[Any]:
    """The fields of a record: only numbers."""
    if not all(NUMBER.fullmatch(kind) for _, kind in layout):
        raise ValueError(f"{layout} are no numbers")
    return np.dtype([(name, kind) for name, kind in layout])


def table_of(stream: Structured | bytes | memoryview) -> pa.Table:
    """Read an Arrow stream. Its metadata is validated: a forged one could make Arrow read other memory."""
    table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    table.validate(full=True)
    return table


def schema_of(layout: dict[str, Any]) -> pa.Schema:
    """The columns of the rows."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(layout["columns"])))


def times_of(layout: dict[str, Any]) -> Times:
    return Times(*map(float.fromhex, layout["times"]))


def _count_until(times: Floats, moment: float) -> int:
    """How many of the rising times are not after a moment. numpy would copy a strided array."""
    begin, end = 0, len(times)
    while begin < end:
        middle = (begin + end) // 2
        if times[middle] <= moment:
            begin = middle + 1
        else:
            end = middle
    return begin


def ranges(begin: Ints, end: Ints) -> Ints:
    """All numbers from each beginning to its end, concatenated."""
    lengths = end - begin
    return np.repeat(begin - (np.cumsum(lengths) - lengths), lengths) + arange(int(lengths.sum()))


def _sliced(begin: Ints, end: Ints, data: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.append(0, np.cumsum(end - begin))
    return raw_of(offsets, data[ranges(begin, end)])


# -- writing ------------------------------------------------------------------------------------------------------------


def write_segment(content: Content) -> Segment:
    """Encode content as a segment. The order of its keys makes no difference."""
    hashes = hash_raw(content.texts[KEY])
    order = np.argsort(hashes, kind="stable")
    if np.any(hashes[order][1:] == hashes[order][:-1]):
        ranks = pc.rank(content.texts[KEY].cast(pa.binary())).to_numpy()
        order = np.lexsort((ranks, hashes))
    content, hashes = content.take(order), hashes[order]
    return _Writer(content, hashes).segment()


class _Writer:
    def __init__(self, content: Content, hashes: Hashes) -> None:
        self._content, self._parts, self._size = content, [], 0  # type: ignore[var-annotated]
        self._columns: dict[str, npt.NDArray[Any]] = {"hash": hashes}
        self._layout: dict[str, Any] = {
            "count": len(content),
            "entries": content.entries,
            "times": [float(time).hex() for time in astuple(content.times)],
            "columns": b64encode(content.rows.schema.serialize()).decode(),
            "constants": {},
            "sections": {},
            "texts": list(content.texts),
            "lists": {},
            "each": {},
            "totals": {},
            "least": {},
        }

    def segment(self) -> Segment:
        content, layout = self._content, self._layout
        for name, values in zip((own.name for own in fields(content.facts)), content.facts.arrays(), strict=True):
            self._column(name, values)
        self._column("due", content.due)
        self._column("flags", content.fresh.astype(np.int64) + 2 * content.gone.astype(np.int64))
        for name, texts in content.texts.items():
            starts, lengths, data = bytes_of(texts)
            self._owned(name, starts, lengths)
            self._add(name, data)
        for name, owned in content.lists.items():
            lengths = np.bincount(owned.owner, minlength=len(content)).astype(np.int64)
            self._owned(name, np.cumsum(lengths) - lengths, lengths)
            stored = {
                own.name: narrow(getattr(owned, own.name)) for own in fields(owned) if own.name not in ("owner", "row")
            }
            layout["lists"][name] = [[label, values.dtype.str] for label, values in stored.items()]
            self._add(name, _structured(stored, len(owned)))
        self._moments("dues", content.due)
        if content.times.idled > -inf:
            self._moments("quiet", content.facts.now)  # type: ignore[attr-defined]
        self._add("fences", self._columns["hash"][::FENCE_KEYS])
        records = _structured(self._columns, len(content))
        layout["record"] = [[name, records.dtype[name].str] for name in records.dtype.names or ()]
        self._add("records", records)
        self._rows(content.rows)
        lists = {name: type(owned) for name, owned in content.lists.items()}
        return Segment(layout, Body(memoryview(b"".join(self._parts))), type(content.facts), lists)

    def _column(self, name: str, values: npt.NDArray[Any]) -> None:
        first = values[0] if len(values) else 0
        is_constant = len(values) and (np.all(values == first) or np.all(np.isnan(values)))
        if is_constant and (not np.isfinite(first) or abs(int(first)) < MAX_EXACT):
            self._layout["constants"][name] = float(first).hex()
        else:
            self._columns[name] = narrow(values)

    def _owned(self, name: str, starts: Ints, lengths: Ints) -> None:
        """Where a key's data begins: in its record, or by its slot if all have the same length."""
        is_even = not len(lengths) or bool((lengths == lengths[0]).all())
        self._layout["each"][name] = (int(lengths[0]) if len(lengths) else 0) if is_even else None
        self._layout["totals"][name] = int(lengths.sum())
        if not is_even:
            self._columns[f"{name}_at"] = narrow(starts)

    def _moments(self, name: str, times: Floats) -> None:
        slots = np.flatnonzero(np.isfinite(times))
        slots = slots[np.argsort(times[slots], kind="stable")]
        found = np.empty(len(slots), MOMENT)
        found["time"], found["slot"] = times[slots], slots
        self._layout["least"][name] = float(found["time"][0] if len(slots) else inf).hex()
        self._add(name, found)

    def _rows(self, rows: pa.Table) -> None:
        chunks = np.empty(-(-rows.num_rows // CHUNK_ROWS), CHUNK)
        for number in range(len(chunks)):
            chunk = rows.slice(number * CHUNK_ROWS, CHUNK_ROWS).combine_chunks()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, chunk.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
                writer.write_table(chunk)
            section = self._add("", np.frombuffer(sink.getvalue(), np.uint8))
            chunks[number] = (number * CHUNK_ROWS + chunk.num_rows, *section)
        self._add("chunks", chunks)

    def _add(self, name: str, array: npt.NDArray[Any]) -> list[int]:
        section = [self._size, array.nbytes]
        padding = -array.nbytes % 8
        self._parts += [np.ascontiguousarray(array).tobytes(), bytes(padding)]
        self._size += array.nbytes + padding
        if name:
            self._layout["sections"][name] = section
        return section


def _structured(columns: dict[str, npt.NDArray[Any]], count: int) -> Structured:
    found = np.empty(count, [(name, values.dtype) for name, values in columns.items()])
    for name, values in columns.items():
        found[name] = values
    return found
