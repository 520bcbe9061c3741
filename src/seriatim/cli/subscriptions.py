"""``seriatim subscriptions``: create, list, show, update, delete; pause, resume, seek."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.command_groups import CommandGroup
from seriatim.cli.common.command import with_broker
from seriatim.cli.common.output import Columns, Fields, Output, column_if_set, duration, moment
from seriatim.cli.common.parameters import Choice, Duration, Moment, asks_first, require_subscription
from seriatim.core.lanes.types import Keep, OnExhausted, ReleaseAfter, RetryMode, RetryPolicy
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from seriatim.engine.broker import Broker, SubscriptionInfo

RETRY = {
    "min_backoff": "min_backoff",
    "max_backoff": "max_backoff",
    "retry_mode": "mode",
    "on_exhausted": "on_exhausted",
}
"""The options that belong to the retry policy, and what it calls them. (``max_attempts`` does, too.)"""


@click.group("subscriptions", cls=CommandGroup)
def command() -> None:
    """Create, inspect, change, move and delete subscriptions."""


def delivery_options(*, is_new: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that ``create`` and ``update`` share. What is not given is None; new subscriptions have defaults."""
    options, retry = SubscriptionOptions(), RetryPolicy()

    def option(name: str, explanation: str, default: object, **settings: Any) -> Callable[..., Any]:
        shown = f"  [default: {default}]" if is_new and default is not None else ""
        return click.option(name, help=explanation + shown, default=None, **settings)

    declared = (
        option("--ordered/--unordered", "Keep the order of each key.", "ordered"),
        option("--ack-deadline", "Duration of a lease.", duration(options.ack_deadline), type=Duration()),
        option(
            "--min-backoff",
            "Delay before the first retry; it doubles each time.",
            duration(retry.min_backoff),
            type=Duration(),
        ),
        option("--max-backoff", "Longest delay before a retry.", duration(retry.max_backoff), type=Duration()),
        option(
            "--retry-mode",
            "Whether a message that waits for its retry blocks its key, or is overtaken.",
            retry.mode,
            type=Choice(RetryMode),
        ),
        option("--max-attempts", "Deliveries of a message; 0 for no limit.", 0, type=click.IntRange(min=0)),
        option(
            "--on-exhausted",
            "What to do with a message that is out of attempts.",
            retry.on_exhausted,
            type=Choice(OnExhausted),
        ),
        option("--window", "Messages in flight per key.", options.window, type=click.IntRange(min=1)),
        option(
            "--release",
            "Release the next message of a key when the ack is durable, or on receipt.",
            options.release,
            type=Choice(ReleaseAfter),
        ),
        option(
            "--keep",
            "Deliver all messages, or only the latest of those of a key that wait.",
            options.keep,
            type=Choice(Keep),
        ),
        option(
            "--tenant-limit",
            "Messages in flight per tenant, which is the start of a key; 0 for no limit.",
            0,
            type=click.IntRange(min=0),
        ),
        option("--tenant-separator", "What ends the tenant's name in a key.", options.tenant_separator, metavar="TEXT"),
        option("--dead-letter-topic", "Copy dead letters to this topic; '' for none.", None, metavar="TOPIC"),
    )
    return lambda command: reduce(lambda wrapped, add: add(wrapped), reversed(declared), command)


@command.command("create")
@click.argument("topic")
@click.argument("name")
@delivery_options(is_new=True)
@click.option(
    "--filter",
    "filter_",
    metavar="FILTER",
    help='Deliver only messages whose attributes match: attributes.kind = "order".',
)
@with_broker
async def create(
    broker: Broker,
    output: Output,
    topic: str,
    name: str,
    filter_: str | None,
    **given: Any,
) -> None:
    """Create the subscription NAME of TOPIC.

    It receives what is published from now on, in order per key; 'subscriptions seek' moves it to earlier messages. Durations
    are seconds, or 1.5s, 10m, 2h, 7d.
    """
    options, _ = _options({"ordered": True, **{name: value for name, value in given.items() if value is not None}})
    try:
        info = await broker.create_subscription(topic, name, replace(options, filter=filter_))
    except NotFound as error:
        if name in {info.name for info in await broker.list_topics()}:
            raise NotFound(f"topic '{topic}' does not exist; the topic comes first: {name} {topic}") from error
        raise
    except AlreadyExists as error:
        raise AlreadyExists(f"{error}, or use 'seriatim subscriptions update {name}' to change its options") from error
    output.result(_fields(info), f"created subscription '{name}' of topic '{topic}'")
    if earlier := await _first_kept_message(broker, topic):
        output.note(
            f"the topic keeps earlier messages, which '{name}' does not receive unless it is moved to them: "
            f"seriatim subscriptions seek {name} --message {earlier}"
        )


async def _first_kept_message(broker: Broker, topic: str) -> str | None:
    """The id of the first message that a topic keeps from before its subscriptions, where ids are numbers."""
    info = await broker.describe_topic(topic)
    if info.earliest is None or info.next_offset is None or info.earliest >= info.next_offset:
        return None
    return str(info.earliest)


@command.command("update")
@click.argument("name")
@delivery_options(is_new=False)
@with_broker
async def update(broker: Broker, output: Output, name: str, **given: Any) -> None:
    """Change options of the subscription NAME.

    Options that are not given stay as they are. Messages in flight are finished under the old ones. A filter can't be changed.
    """
    options, changed = _options({name: value for name, value in given.items() if value is not None})
    if not changed:
        raise click.UsageError("Name at least one option to change.")
    if "retry" in ((await broker.describe_subscription(name)).problem or ""):
        # What the store holds of it can't be used, so no part of it can be kept.
        changed = list(dict.fromkeys(option.partition(".")[0] for option in changed))
    await broker.update_subscription(name, options, changed)
    named = ", ".join(_as_given(option, value) for option, value in given.items() if value is not None)
    output.result(_fields(await broker.describe_subscription(name)), f"updated subscription '{name}': {named}")


def _as_given(option: str, value: object) -> str:
    """An option as it was given."""
    if isinstance(value, bool):
        return "--ordered" if value else "--unordered"
    shown = duration(value) if isinstance(value, float) else repr(value) if value == "" else value
    return f"--{option.replace('_', '-')} {shown}"


def _options(given: Mapping[str, Any]) -> tuple[SubscriptionOptions, list[str]]:
    """The options that were given, with defaults for the others, and their names."""
    values = {
        "message_ordering" if name == "ordered" else name: value for name, value in given.items() if name not in RETRY
    }
    retry = {RETRY[name]: value for name, value in given.items() if name in RETRY}
    if "max_attempts" in values:
        retry["max_attempts"] = values.pop("max_attempts") or None
    if "tenant_limit" in values:
        values["tenant_limit"] = values["tenant_limit"] or None
    if "dead_letter_topic" in values:
        values["dead_letter_topic"] = values["dead_letter_topic"] or None
    names = [*values, *(f"retry.{name}" for name in retry)]
    if "min_backoff" in retry:
        retry.setdefault("max_backoff", max(retry["min_backoff"], RetryPolicy().max_backoff))
    return SubscriptionOptions(**values, retry=RetryPolicy(**retry)), names


@command.command("list")
@click.option("--topic", help="Only subscriptions of this topic.")
@with_broker
async def list_(broker: Broker, output: Output, topic: str | None) -> None:
    """List subscriptions."""
    columns: Columns = {
        "subscription": "subscription",
        "topic": "topic",
        "ordered": "message_ordering",
        "ack deadline": lambda row: duration(row["ack_deadline"]),
        "max attempts": lambda row: row["retry"]["max_attempts"],
        "dead-letter topic": "dead_letter_topic",
    }
    rows = [_fields(info) for info in await broker.list_subscriptions(topic=topic)]
    output.listing(rows, {**columns, **column_if_set("problem", rows)}, empty="there are no subscriptions")


@command.command("show")
@click.argument("name")
@with_broker
async def show(broker: Broker, output: Output, name: str) -> None:
    """Show the options and the backlog of the subscription NAME."""
    info = await broker.describe_subscription(name)
    fields = {**_fields(info), "stats": asdict(await broker.stats(name))}
    retry, stats = fields["retry"], fields["stats"]
    states = ", ".join(f"{stats[state]} {state}" for state in ("ready", "leased", "delayed", "blocked"))
    output.details(
        fields,
        {
            "subscription": name,
            "topic": info.topic,
            "problem": info.problem,
            "ordered": fields["message_ordering"],
            "paused": fields["paused"],
            "filter": fields["filter"],
            "ack deadline": duration(fields["ack_deadline"]),
            "window": fields["window"],
            "release": fields["release"],
            "keep": fields["keep"],
            "tenant limit": fields["tenant_limit"],
            "backoff": f"{duration(retry['min_backoff'])} to {duration(retry['max_backoff'])}, {retry['mode']}",
            "max attempts": f"{retry['max_attempts']}, then {retry['on_exhausted']}"
            if retry["max_attempts"]
            else "no limit",
            "dead-letter topic": fields["dead_letter_topic"],
            "messages": f"{stats['total']} ({states})",
            "keys": f"{stats['keys']} ({stats['blocked_keys']} blocked, {stats['paused_keys']} paused)",
            "oldest message": duration(stats["oldest_age"]),
            "dead letters": stats["dead_letters"],
            "consumers": stats["consumers"],
        },
    )


@command.command("delete")
@click.argument("name")
@asks_first("Delete subscription '{name}' and its position?", require_subscription)
@with_broker
async def delete(broker: Broker, output: Output, name: str) -> None:
    """Delete the subscription NAME.

    Its topic stays, with the messages that other subscriptions need.
    """
    await broker.delete_subscription(name)
    output.result({"subscription": name, "deleted": True}, f"deleted subscription '{name}'")


@command.command("pause")
@click.argument("name")
@with_broker
async def pause(broker: Broker, output: Output, name: str) -> None:
    """Stop delivery of the subscription NAME.

    It stays paused after a restart. Messages in flight can still be acked.
    """
    await broker.pause(name)
    output.result({"subscription": name, "paused": True}, f"paused subscription '{name}'")


@command.command("resume")
@click.argument("name")
@with_broker
async def resume(broker: Broker, output: Output, name: str) -> None:
    """Resume delivery of the subscription NAME."""
    await broker.resume(name)
    output.result({"subscription": name, "paused": False}, f"resumed subscription '{name}'")


def _seek_question(name: str, time: float | None, message: str | None, snapshot: str | None, **_: object) -> str:
    if [time, message, snapshot].count(None) != 2:
        raise click.UsageError("Give one of --time, --message and --snapshot.")
    return (
        f"Move subscription '{name}' to {_position(time, message, snapshot)}? Its leases are cancelled, and earlier messages "
        "count as settled."
    )


def _position(time: float | None, message: str | None, snapshot: str | None) -> str:
    return moment(time) or (f"snapshot '{snapshot}'" if snapshot else f"message {message}")


@command.command("seek")
@click.argument("name")
@click.option(
    "--time", type=Moment(), help="To messages published at or after this time (ISO 8601, default UTC; or 'now')."
)
@click.option("--message", metavar="ID", help="To the message with this id.")
@click.option("--snapshot", help="To the position that this snapshot holds.")
@asks_first(_seek_question, require_subscription)
@with_broker
async def seek(
    broker: Broker, output: Output, name: str, time: float | None, message: str | None, snapshot: str | None
) -> None:
    """Move the subscription NAME to a time, a message or a snapshot.

    Later messages are delivered (again), earlier ones count as settled. Leases are cancelled and failed attempts forgotten;
    dead letters stay.
    """
    if time is not None:
        await broker.seek_to_time(name, time)
    elif message is not None:
        await broker.seek_to_message(name, message)
    elif snapshot is not None:
        await broker.seek_to_snapshot(name, snapshot)
    fields = {"subscription": name, "time": moment(time), "message": message, "snapshot": snapshot}
    output.result(fields, f"moved subscription '{name}' to {_position(time, message, snapshot)}")


def _fields(info: SubscriptionInfo) -> Fields:
    return {"subscription": info.name, "topic": info.topic, **info.options.to_json(), "problem": info.problem}
