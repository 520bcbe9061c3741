"""``seriatim messages read``: read a topic without a subscription, beside the owner of the store.

Rules
    - Reading changes nothing: no message is leased, settled or kept longer.
    - A follower polls twice a second: only the owner of a store is notified of new messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import click

from seriatim.cli.common.command import with_reader
from seriatim.cli.common.output import Output, message_fields, message_line
from seriatim.cli.common.parameters import Moment, limit_option
from seriatim.errors import NotFound

if TYPE_CHECKING:
    from seriatim.cli.common.brokers import ApiReader
    from seriatim.store.base import Record, StoreReader

PAGE = 500
SECONDS_BETWEEN_LOOKS = 0.5


@click.command("read")
@click.argument("topic")
@click.option("--from", "first", metavar="ID", type=click.IntRange(min=0), default=0, help="Start at this message.")
@click.option("--to", "last", metavar="ID", type=click.IntRange(min=0), default=None, help="Stop after this message.")
@click.option("--since", type=Moment(), help="Only messages published at or after this time (ISO 8601).")
@click.option("--until", type=Moment(), help="Only messages published before this time (ISO 8601).")
@click.option("--key", help="Only messages with this key.")
@click.option("--last", "tail", metavar="N", type=click.IntRange(min=0), help="Only the last N messages of the range.")
@limit_option(100)
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C, regardless of --limit.")
@with_reader
def command(
    reader: StoreReader | ApiReader,
    output: Output,
    topic: str,
    first: int,
    last: int | None,
    since: float | None,
    until: float | None,
    key: str | None,
    tail: int | None,
    limit: int,
    follow: bool,
) -> None:
    """Read a topic without a subscription.

    Prints the messages that the topic still keeps, in order, whether or not any subscription has acked them. Nothing is
    changed, and a program that owns the store is not disturbed. With --json, each message is one line.
    """

    def is_wanted(record: Record) -> bool:
        return key in {None, record.key} and (since or 0) <= record.published < (until or inf)

    log = _Log(reader, topic, is_wanted, inf if last is None else last)
    found = log.messages(first) if tail is None else iter(log.last(first, tail))
    shown = _show(found if follow else islice(found, limit), output)
    if not (shown or follow):
        output.note(log.why_nothing(topic))
    while follow:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        _show(log.messages(log.position), output)


def _show(records: Iterable[Record], output: Output) -> int:
    shown = 0
    for shown, found in enumerate(records, 1):  # noqa: B007 - how many there were is what is returned
        fields = message_fields(str(found.offset), found.key, found.data, found.attributes or {}, found.published)
        output.result(fields, message_line(fields))
    return shown


class _Log:
    """The messages of a topic up to ``end`` that are wanted, and how far they have been read."""

    def __init__(
        self, reader: StoreReader | ApiReader, topic: str, is_wanted: Callable[[Record], bool], end: float
    ) -> None:
        row = next((row for row in reader.catalog().topics if row.name == topic), None)
        if row is None:
            nearest = get_close_matches(topic, [row.name for row in reader.catalog().topics], n=1)
            advice = f"did you mean '{nearest[0]}'?" if nearest else "see 'seriatim topics list'"
            raise NotFound(f"topic '{topic}' does not exist: {advice}")
        self._reader, self._id, self._next_offset = reader, row.id, row.next_offset
        self._is_wanted, self._end = is_wanted, end
        self.position = 0
        self.has_messages = False

    def messages(self, first: int) -> Iterator[Record]:
        self.position = first
        while page := self._reader.read(self._id, self.position, PAGE):
            self.has_messages = True
            for record in page:
                self.position = record.offset + 1
                if record.offset > self._end:
                    return
                if self._is_wanted(record):
                    yield record

    def why_nothing(self, topic: str) -> str:
        if self.has_messages:
            return f"no messages in topic '{topic}' match"
        if self._next_offset:
            return (
                f"topic '{topic}' keeps no messages: all that were published are settled or expired; "
                "'seriatim topics update --retain-settled' keeps settled ones longer"
            )
        return f"no messages in topic '{topic}'"

    def last(self, first: int, count: int) -> list[Record]:
        """The last ``count`` messages from ``first`` on. It looks further back until there are enough."""
        end, span = min(self._end + 1, self._next_offset), max(count, PAGE)
        while True:
            begin = max(first, int(end) - span)
            found = list(self.messages(begin))
            if len(found) >= count or begin == first:
                return found[len(found) - min(count, len(found)) :]
            span *= 4
