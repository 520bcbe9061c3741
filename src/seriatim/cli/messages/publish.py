"""``seriatim messages publish``: one message, or one per line of the input.

Rules
    - Lines are published in order, one batch at a time; the next batch is read when the one before is durable. So memory is
      bounded, nothing overtakes, and an error names the first line that was not published.
    - Ids are printed when their messages are durable.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.common.command import with_broker
from seriatim.cli.common.display import progress_display
from seriatim.cli.common.output import Output, counted
from seriatim.cli.common.parameters import Attribute, Duration
from seriatim.cli.messages.input_chunks import Source
from seriatim.core.publishing.message_limits import MAX_MESSAGE_BYTES
from seriatim.engine.broker import Outgoing, check_outgoing
from seriatim.errors import AlreadyExists, InvalidArgument, SeriatimError

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the options set for every message."""

    key: str | None
    attributes: dict[str, str]
    delay: float
    dedup_id: str | None

    def message(self, data: bytes, key: str | None = None) -> Outgoing:
        return Outgoing(self.key if key is None else key, data, self.attributes or None, self.delay, self.dedup_id)


Reading = Callable[[bytes], Outgoing]

LINE_FIELDS = ("key", "data", "encoding", "attributes", "delay", "dedup_id")
PRINTED_FIELDS = ("id", "published", "attempt")
"""What 'pull' and 'read' print besides. A new message gets its own."""


@click.command("publish")
@click.argument("topic")
@click.argument("data", required=False)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read from this file instead of standard input.",
)
@click.option("--key", help="The ordering key.")
@click.option("--attribute", "attributes", type=Attribute(), multiple=True, help="An attribute; repeatable.")
@click.option("--delay", type=Duration(), default="0", help="Deliver after this delay: 1.5s, 10m, 2h.")
@click.option("--dedup-id", metavar="ID", help="Store the message only if no other one has this id (publish once).")
@click.option("--lines", is_flag=True, help="Each line of the input is a message.")
@click.option("--key-field", metavar="NAME", help="Each line is a JSON object with the key in this field.")
@click.option(
    "--json-lines",
    is_flag=True,
    help='Each line is a JSON object: {"key": ..., "data": ..., "attributes": ..., "dedup_id": ...}.',
)
@click.option("--create", is_flag=True, help="Create the topic, and the store, if they do not exist.")
@click.option("-q", "--quiet", is_flag=True, help="Don't print ids.")
@with_broker
async def command(
    broker: Broker, output: Output, topic: str, data: str | None, path: Path | None, quiet: bool, **options: Any
) -> None:
    """Publish a message, or one per line of the input.

    The message is DATA, or the contents of a file or of standard input. Prints the ids of the messages once they are durable.

    With --lines, --key-field or --json-lines, each line of the input is a message. They are published in order; the first line
    that can't be published ends it with an error that names the line. The output of 'messages pull --json' and 'messages read
    --json' can be published with --json-lines.
    """
    reading = _reading_of_lines(options)
    if reading and options["dedup_id"] is not None:
        raise click.UsageError("--dedup-id is the id of one message: with --json-lines, give each line a dedup_id.")
    if data is not None and (path or reading):
        raise click.UsageError("Give DATA, or a file or lines, not both.")
    if options["create"]:
        with suppress(AlreadyExists):
            await broker.create_topic(topic)
    broker.require_topic(topic)
    publishing = Publishing(broker, output, topic, quiet=quiet)
    if data is None and path is None and sys.stdin.isatty():
        output.note("reading the message from standard input; Ctrl-D ends it")
    if data == "-":
        output.note("publishing '-' itself: to publish standard input, leave out DATA")
    with Source(path) as source:
        if reading is not None:
            await publishing.lines(source, reading)
            return
        payload = await source.read_all(MAX_MESSAGE_BYTES) if data is None else os.fsencode(data)
    if not payload and data is None and not options["attributes"]:
        raise InvalidArgument("the input is empty: to publish a message without data, give '' as DATA")
    await publishing.send([_checked(_defaults(options).message(payload))])


def _defaults(options: dict[str, Any]) -> Defaults:
    return Defaults(options["key"], dict(options["attributes"]), options["delay"], options["dedup_id"])


def _reading_of_lines(options: dict[str, Any]) -> Reading | None:
    """How a line becomes a message; None when the input is not made of lines."""
    defaults, field = _defaults(options), options["key_field"]
    if options["json_lines"] and field:
        raise click.UsageError("Give --json-lines or --key-field, not both.")
    if options["json_lines"]:
        return lambda line: _message_of(_json_object(line), defaults)
    if field:
        return lambda line: defaults.message(line, _key_of(_json_object(line), field))
    return defaults.message if options["lines"] else None


class Publishing:
    """Publishes to one topic, and says what was published."""

    def __init__(self, broker: Broker, output: Output, topic: str, *, quiet: bool) -> None:
        self._broker = broker
        self._output = output
        self._topic = topic
        self._quiet = quiet
        self._published = 0

    async def send(self, messages: Sequence[Outgoing]) -> None:
        ids = await self._broker.publish(self._topic, messages)
        self._published += len(messages)
        if not self._quiet:
            for message_id, message in zip(ids, messages, strict=True):
                self._output.result({"id": message_id, "key": message.key, "topic": self._topic}, message_id)

    async def lines(self, source: Source, reading: Reading) -> None:
        # Beside a list of ids on the same terminal, progress would only be in the way.
        enabled = self._output.progress and source.size is not None and (self._quiet or not sys.stdout.isatty())
        done = 0
        with progress_display("publishing", source.size, enabled=enabled) as progress:
            async for lines in source.line_batches():
                await self._send_lines(lines, reading)
                done += sum(map(len, lines)) + len(lines)
                progress.move_to(done)
        click.echo(f"published {counted(self._published, 'message')}", err=True)

    async def _send_lines(self, lines: Sequence[bytes], reading: Reading) -> None:
        """Publish what comes before the first line that can't be published, then say what is wrong with that one."""
        messages: list[Outgoing] = []
        try:
            for line in lines:
                messages.append(_checked(reading(line)))  # noqa: PERF401 - what was read before an error counts
        except InvalidArgument as error:
            await self._send_batch(messages)
            raise InvalidArgument(f"line {self._published + 1}: {error}; the lines before it are published") from error
        await self._send_batch(messages)

    async def _send_batch(self, messages: list[Outgoing]) -> None:
        if not messages:
            return
        try:
            await self.send(messages)
        except SeriatimError as error:
            raise type(error)(f"{error} (line {self._published + 1} and what follows is not confirmed)") from error


def _checked(message: Outgoing) -> Outgoing:
    check_outgoing([message])
    return message


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise InvalidArgument("it is not a JSON object")
    return found


def _key_of(fields: dict[str, Any], name: str) -> str:
    key = fields.get(name)
    if key is None or isinstance(key, dict | list):
        raise InvalidArgument(f"its field {name!r} can't be a key: give text or a number")
    return key if isinstance(key, str) else json.dumps(key)


def _message_of(fields: dict[str, Any], defaults: Defaults) -> Outgoing:
    unknown = fields.keys() - {*LINE_FIELDS, *PRINTED_FIELDS}
    if unknown:  # a misspelt key must not cost a message its order
        raise InvalidArgument(f"its field {min(unknown)!r} is unknown: there are {', '.join(LINE_FIELDS)}")
    key, attributes, delay = fields.get("key"), fields.get("attributes") or {}, fields.get("delay", defaults.delay)
    if not isinstance(attributes, dict):
        raise InvalidArgument("its attributes are not a JSON object")
    if not isinstance(delay, int | float) or not 0 <= delay < inf:
        raise InvalidArgument("its delay is not a number of seconds")
    attributes = {**defaults.attributes, **attributes} or None
    return Outgoing(defaults.key if key is None else key, _data_of(fields), attributes, delay, fields.get("dedup_id"))


def _data_of(fields: dict[str, Any]) -> bytes:
    data, encoding = fields.get("data"), fields.get("encoding", "text")
    if data is None:
        raise InvalidArgument("it has no data")
    if encoding not in ("text", "base64"):
        raise InvalidArgument("its encoding is neither 'text' nor 'base64'")
    try:
        if not isinstance(data, str):
            return json.dumps(data, ensure_ascii=False).encode()
        return base64.b64decode(data, validate=True) if encoding == "base64" else data.encode()
    except binascii.Error as error:
        raise InvalidArgument(f"its data is not base64 ({error})") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument("its data is not Unicode text: give it as base64") from error
