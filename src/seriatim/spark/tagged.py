"""The tagged table that all resequencing functions return, and functions that split it.

Every row has the columns of the input, and also

``_tag``       its kind (``Tag``): an ordered row, a ledger entry, …
``_position``  of an ordered row: its release position
``_reason``    of a ledger entry: late, duplicate, conflict, lost, …, invalid, expired
``_epoch``, ``_first``, ``_last``, ``_size``  the session and the numbers that it is about
``_time``, ``_detail``  when and what exactly
``_flag``      of an ordered row of an edge node: a remark about it. Such rows have an ``_epoch``, too

A ledger entry about one message carries that message's columns; one about numbers that never came has only its key. It is
one table because two would be computed twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POSITION = pa.field("_position", pa.int64())
LEDGER = (
    pa.field("_epoch", pa.int64()),
    pa.field("_reason", pa.string()),
    pa.field("_first", pa.int64()),
    pa.field("_last", pa.int64()),
    pa.field("_size", pa.int64()),
    pa.field("_time", pa.float64()),
    pa.field("_detail", pa.string()),
)
ADDED_FIELDS = (POSITION, *LEDGER)
ADDED_COLUMNS = ("_tag", *(field.name for field in ADDED_FIELDS))
FLAG = pa.field("_flag", pa.string())

INVALID, EXPIRED = "invalid", "expired"
"""Reasons of ledger entries that the core does not have: a row that can't be judged, and a key that was forgotten."""


METRICS = "metrics"
"""The tag of a row with the figures of a task, as JSON in ``_detail``. The frames that users get have no such rows."""


class Tag(StrEnum):
    """The kind of a row of the tagged table."""

    ORDERED = "ordered"  # the next message of its key
    LEDGER = "ledger"  # something was not released
    LATE = "late"  # a late message on the side output
    DEAD_LETTER = "dead-letter"  # a message stranded behind a gap that was given up
    REQUEST = "request"  # ask the source for these numbers
    REPORT = "report"  # these numbers are overdue and wait for an operator
    SYNC_LOST = "sync-lost"  # ask the source for a resend or a rebirth


def tagged_as(tagged: DataFrame, tag: str) -> DataFrame:
    """The rows of a tagged frame that have a tag."""
    return tagged.filter(f"_tag = '{Tag(tag)}'").drop("_tag")


def ordered(tagged: DataFrame) -> DataFrame:
    """The released rows of a resequenced frame: the columns of the input, and ``_position``.

    Rows of edge nodes also have ``_epoch``, which is counted from the births of the node, and ``_flag``.
    """
    of_entries = {field.name for field in LEDGER} - ({"_epoch"} if FLAG.name in tagged.columns else set())
    return tagged_as(tagged, Tag.ORDERED).drop(*of_entries)


def ledger(tagged: DataFrame) -> DataFrame:
    """The rows that were not released, and missing numbers, with reasons. Entries about missing numbers have only the key."""
    return tagged_as(tagged, Tag.LEDGER).drop(POSITION.name, FLAG.name)
