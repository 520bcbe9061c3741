"""Why a key waits: for what, since when, and what would unblock it.

All texts come from here; everything that shows a key (``explain``, ``keys``, the command line) uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import NamedTuple

from seriatim.core.lanes.lane import LaneState
from seriatim.core.lanes.types import LaneView


class WaitsFor(StrEnum):
    """What a key is waiting for."""

    MESSAGES = "messages"  # it has none
    CONSUMER = "consumer"  # with room, in its turn
    OUTCOME = "outcome"  # of a delivery
    COMMIT = "commit"  # the outcome of a message is not durable yet
    TENANT = "tenant"  # the tenant of the key has its maximum number of messages in flight
    TIME = "time"  # a retry, or a delay
    OPERATOR = "operator"


class Explanation(NamedTuple):
    """What a key waits for, since when (None: unknown) and until when (None: it does not continue by itself), what
    would unblock it, and all of it in one sentence."""

    waits_for: WaitsFor
    since: float | None
    until: float | None
    moved_by: str
    sentence: str


def explain(
    view: LaneView | None,
    *,
    pause_reason: str | None,
    halted: str | None,
    consumers: int,
    full_tenant: str | None = None,
    elsewhere: str | None = None,
    published: float = -inf,
    barred: float | None = -inf,
    clock: Callable[[float], str],
    named: Callable[[int], str] = str,
) -> Explanation:
    """Explain a key. ``view`` is its lane (None: it has no messages); the others say why the key or the whole
    subscription is paused (None: it is not), how many consumers there are, and which tenant is full. ``elsewhere``
    names the program that has the key, whose messages in flight can't be seen from here. ``published`` is when its next
    message was published, and ``barred`` when the subscription or the tenant last began or stopped holding back ready
    keys: -inf if that was before the lanes were created, None if it is not known. ``clock`` and ``named`` format times
    and messages."""
    head = "its next message"
    if view is not None and view.head is not None and not (view.state == LaneState.READY and view.in_flight):
        head = f"message {named(view.head)}"
    waits_for, what, moved_by = _reason(view, head, pause_reason, halted, consumers, full_tenant, elsewhere)
    since = None if view is None else _since(view, published, barred)
    until = None if view is None else {WaitsFor.TIME: view.not_before, WaitsFor.OUTCOME: view.deadline}.get(waits_for)
    began = "" if since is None else f"since {clock(since)}"
    sentence = what.format(
        since=began and f", {began}",
        waiting=began and f" (waiting {began})",
        until="a moment from now" if until is None else clock(until),
    )
    return Explanation(waits_for, since, until, moved_by, f"{sentence}; {moved_by}")


def _since(view: LaneView, published: float, barred: float | None) -> float | None:
    """A ready key waits since the last of its requirements was met: its turn in the lane, the message, and room."""
    since = view.since
    if view.state == LaneState.READY and since is not None:
        since = None if barred is None else max(since, published, barred)
    return None if since == -inf else since


def _reason(
    view: LaneView | None,
    head: str,
    pause_reason: str | None,
    halted: str | None,
    consumers: int,
    full_tenant: str | None,
    elsewhere: str | None,
) -> tuple[WaitsFor, str, str]:
    if view is None:
        return WaitsFor.MESSAGES, "it has no messages", "it continues with the next published message"
    later = "" if halted is None else ", but nothing is delivered while the subscription is paused or stopped"
    match view.state:
        case LaneState.PAUSED:
            reason = f": {_literal(pause_reason)}" if pause_reason else ""
            return WaitsFor.OPERATOR, f"paused{reason}{{since}}", f"resume the key to continue{later}"
        case LaneState.DELAYED if view.attempts:
            error = f": {_literal(view.error)}" if view.error else ""
            failed = f"waits for its retry until {{until}}{error}{{since}}"
            moved_by = "it continues then, or when an operator retries, skips or dead-letters it"
            return WaitsFor.TIME, failed, f"{moved_by}{later}"
        case LaneState.DELAYED:
            return WaitsFor.TIME, "delayed until {until}", f"it continues then, or when an operator retries it{later}"
        case LaneState.LEASED if view.key is None:
            count = f"{view.in_flight} messages without a key are in flight"
            return WaitsFor.OUTCOME, count, "keyless messages wait for no other"
        case LaneState.LEASED:
            out = f"{head} is in flight (attempt {view.attempts}){{since}}"
            return WaitsFor.OUTCOME, out, "it continues after its ack or nack, or when its lease expires"
        case LaneState.SETTLING:
            return WaitsFor.COMMIT, "its acknowledgement is being written{since}", "it continues after the commit"
    return _reason_of_ready(head, halted, consumers, full_tenant, elsewhere)


def _reason_of_ready(
    head: str, halted: str | None, consumers: int, full_tenant: str | None, elsewhere: str | None
) -> tuple[WaitsFor, str, str]:
    if halted is not None:
        return WaitsFor.OPERATOR, f"{_literal(halted)}{{waiting}}", "it needs an operator"
    if full_tenant is not None:
        full = f"{head} is ready, and its tenant {_literal(repr(full_tenant))} has its maximum number of messages in flight"
        full += "{waiting}"
        return WaitsFor.TENANT, full, "it continues after an ack or nack of one of them"
    if not consumers:
        nobody = f"{head} is ready, but the subscription has no consumer{{waiting}}"
        return WaitsFor.CONSUMER, nobody, "it needs a consumer"
    if elsewhere is not None:
        there = f"{head} is with {_literal(elsewhere)}: in flight, or waiting for the key's turn{{waiting}}"
        return WaitsFor.CONSUMER, there, "it continues after its ack or nack"
    return (
        WaitsFor.CONSUMER,
        f"{head} is ready{{waiting}}",
        "it is delivered when a consumer has room and it is the key's turn",
    )


def _literal(text: str) -> str:
    """Escape braces in text that is not ours."""
    return text.replace("{", "{{").replace("}", "}}")
