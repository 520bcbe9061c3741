"""``seriatim dead-letters``: list, redrive, purge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from seriatim.cli.output import Columns, Fields, Output, moment
from seriatim.cli.parameters import asks_first
from seriatim.cli.store import with_broker
from seriatim.errors import NotFound, RedriveRefused

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, DeadLetter

PAGE = 500


@click.group("dead-letters")
def command() -> None:
    """Look at dead letters, put them back, or give them up."""


@command.command("list")
@click.argument("subscription")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many to list at most.")
@click.option("--after", metavar="ID", type=click.IntRange(min=0), help="Only those after this one.")
@with_broker
async def list_(broker: Broker, output: Output, subscription: str, limit: int, after: int | None) -> None:
    """List the dead letters of SUBSCRIPTION in the order of their ids."""
    letters = await broker.dead_letters(subscription, limit=limit, after=-1 if after is None else after)
    columns: Columns = {
        "id": "id",
        "key": "key",
        "attempts": "attempts",
        "died": "time",
        "can go back": "returnable",
        "error": "error",
    }
    output.listing([_fields(letter) for letter in letters], columns, empty="there are no dead letters")


def _either_or(ctx: click.Context, parameter: click.Parameter, everything: bool) -> bool:  # noqa: ARG001
    if bool(ctx.params.get("ids")) == everything:
        raise click.UsageError("Give either the ids of dead letters or --all.", ctx)
    return everything


# Eager, so that the argument is known when the option is checked.
_ids = click.argument("ids", metavar="[ID]...", nargs=-1, type=click.IntRange(min=0), is_eager=True)
_all = click.option(
    "--all", "everything", is_flag=True, callback=_either_or, help="All of them, in the order of their ids."
)


@command.command("redrive")
@click.argument("subscription")
@_ids
@_all
@click.option("--append", is_flag=True, help="Put it at the end of its key, under a new id, instead of at its place.")
@with_broker
async def redrive(
    broker: Broker, output: Output, subscription: str, ids: tuple[int, ...], everything: bool, append: bool
) -> None:
    """Put dead letters back, to be delivered again.

    A dead letter goes back to its place while no later message of its key is settled or in flight; otherwise it is refused, and
    --append puts it at the end. Exit status 1 means that some were refused.
    """
    refused = 0
    async for offset in _chosen(broker, subscription, ids, everything):
        try:
            new = await broker.redrive(subscription, offset, append=append)
        except (RedriveRefused, NotFound) as error:
            refused += 1
            output.result(_outcome(offset, None, str(error)), f"{offset}: refused: {error}")
        else:
            output.result(_outcome(offset, new, None), f"{offset}: put back{f' as {new}' if new != offset else ''}")
    if refused:
        raise click.exceptions.Exit(1)


@command.command("purge")
@click.argument("subscription")
@_ids
@_all
@asks_first("Give up dead letters of '{subscription}' for good?")
@with_broker
async def purge(broker: Broker, output: Output, subscription: str, ids: tuple[int, ...], everything: bool) -> None:
    """Give dead letters up for good."""
    offsets = [offset async for offset in _chosen(broker, subscription, ids, everything)]
    await broker.purge(subscription, offsets)
    fields = {"subscription": subscription, "purged": [str(offset) for offset in offsets]}
    output.result(fields, f"purged {len(offsets)} dead letters of subscription '{subscription}'")


async def _chosen(broker: Broker, subscription: str, ids: tuple[int, ...], everything: bool) -> AsyncIterator[int]:
    for offset in ids:
        yield offset
    last = -1
    while everything and (page := await broker.dead_letters(subscription, limit=PAGE, after=last)):
        for letter in page:
            yield letter.offset
        last = page[-1].offset


def _outcome(offset: int, new: int | None, reason: str | None) -> Fields:
    return {
        "id": str(offset),
        "redriven": reason is None,
        "new_id": None if new is None else str(new),
        "reason": reason,
    }


def _fields(letter: DeadLetter) -> Fields:
    return {
        "id": str(letter.offset),
        "key": letter.key,
        "attempts": letter.attempts,
        "time": moment(letter.time),
        "error": letter.error,
        "copy_topic": letter.copy_topic,
        "copy_id": None if letter.copy_offset is None else str(letter.copy_offset),
        "returnable": letter.returnable,
    }
