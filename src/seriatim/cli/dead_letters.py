"""``seriatim dead-letters``: list, show, redrive, purge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import (
    Columns,
    Fields,
    Output,
    attributes_text,
    counted,
    message_fields,
    moment,
    payload_text,
)
from seriatim.cli.common.parameters import asks_first, limit_option, require_subscription
from seriatim.errors import NotFound, NotSupported, RedriveRefused

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, DeadLetter

PAGE = 500


@click.group("dead-letters", cls=CommandGroup)
def command() -> None:
    """List, show, redrive and purge dead letters."""


@command.command("list")
@click.argument("subscription")
@limit_option(100)
@click.option("--after", metavar="ID", help="Only dead letters after this one.")
@with_broker
async def list_(broker: Broker, output: Output, subscription: str, limit: int, after: str | None) -> None:
    """List the dead letters of SUBSCRIPTION by id."""
    letters = await broker.dead_letters(subscription, limit=limit, after=after)
    columns: Columns = {
        "id": "id",
        "key": "key",
        "attempts": "attempts",
        "died": "time",
        "can go back": "returnable",
        "error": "error",
    }
    output.listing([_fields(letter) for letter in letters], columns, empty="there are no dead letters")


@command.command("show")
@click.argument("subscription")
@click.argument("message_id", metavar="ID")
@with_broker
async def show(broker: Broker, output: Output, subscription: str, message_id: str) -> None:
    """Show a dead letter of SUBSCRIPTION with its data."""
    letter = await anext((one async for one in _every(broker, subscription) if one.id == message_id), None)
    if letter is None:
        raise NotFound(
            f"subscription '{subscription}' has no dead letter {message_id}: see 'seriatim dead-letters list {subscription}'"
        )
    fields, held = _fields(letter), []
    with suppress(NotSupported):  # on Kafka
        topic = (await broker.describe_subscription(subscription)).topic
        held = (await broker.read_messages(topic, start=message_id, limit=1)).messages
    for one in held:
        fields |= message_fields(one.id, one.ordering_key, one.data, one.attributes, one.publish_time)
    output.details(
        fields,
        {
            "id": message_id,
            "key": fields["key"],
            "published": fields.get("published"),
            "died": fields["time"],
            "attempts": fields["attempts"],
            "error": fields["error"],
            "can go back": fields["returnable"],
            "copy": fields["copy_id"] and f"{fields['copy_id']} in topic '{fields['copy_topic']}'",
            "attributes": (attributes_text(fields) or None) if held else None,
            "data": payload_text(fields) if held else None,
        },
    )


def _either_or(ctx: click.Context, parameter: click.Parameter, everything: bool) -> bool:  # noqa: ARG001
    if bool(ctx.params.get("ids")) == everything:
        raise click.UsageError("Give either the ids of dead letters or --all.", ctx)
    return everything


# Eager, so that the argument is known when the option is checked.
_ids = click.argument("ids", metavar="[ID]...", nargs=-1, is_eager=True)
_all = click.option("--all", "everything", is_flag=True, callback=_either_or, help="All dead letters, by id.")


@command.command("redrive")
@click.argument("subscription")
@_ids
@_all
@click.option("--append", is_flag=True, help="Append to the end of the key, under a new id.")
@with_broker
async def redrive(
    broker: Broker, output: Output, subscription: str, ids: tuple[str, ...], everything: bool, append: bool
) -> None:
    """Put dead letters back for delivery.

    A dead letter returns to its original place as long as no later message of its key is settled or in flight. Otherwise it is
    refused; --append puts it at the end. Exits with 1 if any is refused.
    """
    refused, may_append, message_id = False, False, None
    async for message_id in _chosen(broker, subscription, ids, everything):
        try:
            new = await broker.redrive(subscription, message_id, append=append)
        except (RedriveRefused, NotFound) as error:
            refused = True
            may_append |= isinstance(error, RedriveRefused) and not append
            output.result(_outcome(message_id, None, str(error)), f"{message_id}: refused: {error}")
        else:
            moved = f" as {new}" if new != message_id else ""
            output.result(_outcome(message_id, new, None), f"{message_id}: put back{moved}")
    if message_id is None:
        output.note("there are no dead letters")
    if may_append:
        output.note("to put them at the end of their keys instead, add --append")
    if refused:
        raise click.exceptions.Exit(1)


@command.command("purge")
@click.argument("subscription")
@_ids
@_all
@asks_first("Discard dead letters of subscription '{subscription}'?", require_subscription)
@with_broker
async def purge(broker: Broker, output: Output, subscription: str, ids: tuple[str, ...], everything: bool) -> None:
    """Discard dead letters."""
    chosen = [message_id async for message_id in _chosen(broker, subscription, ids, everything)]
    await broker.purge(subscription, chosen)
    output.result(
        {"subscription": subscription, "purged": chosen},
        f"purged {counted(len(chosen), 'dead letter')} of subscription '{subscription}'",
    )


async def _chosen(broker: Broker, subscription: str, ids: tuple[str, ...], everything: bool) -> AsyncIterator[str]:
    for message_id in ids:
        yield message_id
    if everything:
        async for letter in _every(broker, subscription):
            yield letter.id


async def _every(broker: Broker, subscription: str) -> AsyncIterator[DeadLetter]:
    last = None
    while page := await broker.dead_letters(subscription, limit=PAGE, after=last):
        for letter in page:
            yield letter
        last = page[-1].id


def _outcome(message_id: str, new: str | None, reason: str | None) -> Fields:
    return {"id": message_id, "redriven": reason is None, "new_id": new, "reason": reason}


def _fields(letter: DeadLetter) -> Fields:
    fields = {**asdict(letter), "time": moment(letter.time)}
    return {"id": fields.pop("id"), "key": fields.pop("ordering_key"), **fields}
