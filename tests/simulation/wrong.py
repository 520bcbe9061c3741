"""Calls that can never work: each must be refused with an error of ours, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

from seriatim import Batching, ConsumeOptions, FlowControl, PublishOptions, PubSub, PubSubMessage, RetryPolicy
from tests.simulation.program import LIMITED, STRICT
from tests.simulation.world import Actor

NO_TEXTS: tuple[Any, ...] = ("\ud800", "", "x" * 3000, 5, b"bytes")
NO_DURATIONS: tuple[Any, ...] = (nan, inf, -1, "5", True, 1e300)
NO_COUNTS: tuple[Any, ...] = (-1, 1.5, "2", True, nan)
NO_ATTRIBUTES: tuple[Any, ...] = ({"a": 5}, {"\ud800": "x"}, {"a": "\ud800"}, "abc", {"": "x"}, {5: "x"}, [("a", "b")])
NO_RETRIES: tuple[Any, ...] = ("often", 3, {"max_attempts": 2})
NO_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"ack_deadline": wrong} for wrong in (0, *NO_DURATIONS)),
    *({"retry": wrong} for wrong in NO_RETRIES),
    *({"window": wrong} for wrong in (0, *NO_COUNTS)),
    *({"release": wrong} for wrong in (3, "later", None)),
    *({"dead_letter_topic": wrong} for wrong in NO_TEXTS),
    *({"tenant_limit": wrong} for wrong in (0, *NO_COUNTS)),
    *({"tenant_limit": 1, "tenant_separator": wrong} for wrong in ("", 5, None, b"/")),
    *({"keep": wrong} for wrong in ("newest", 3, None)),
)
NO_CONSUMING: tuple[dict[str, Any], ...] = (
    *({"batch": wrong} for wrong in (0, *NO_COUNTS)),
    {"batch": 5, "max_messages": 4},
    *({"batch": 2, "across_keys": wrong} for wrong in (1, "yes", None)),
    {"across_keys": True},
    *({"ack": wrong} for wrong in ("later", 5, None)),
)
NO_MESSAGES: tuple[Any, ...] = ("text", 5, None, {"data": b"0"}, *map(PubSubMessage, ("text", None, 5)))  # type: ignore[arg-type]
NO_TOPIC_OPTIONS: tuple[dict[str, Any], ...] = (
    *({"retention": wrong} for wrong in NO_DURATIONS),
    *({"retain_settled": wrong} for wrong in NO_DURATIONS),
    *({"dedup_window": wrong} for wrong in (0, 1, *NO_DURATIONS)),
    *({"dedup_max_ids": wrong} for wrong in (0, *NO_COUNTS)),
)
NO_PATHS: tuple[Any, ...] = (5, None, b"path")

Call = Callable[[Actor], Any]
WRONG: dict[str, Call] = {}


def _add(name: str, call: Call) -> None:
    WRONG[name] = call


def _call_with(call: Callable[[Actor, Any], Any], value: Any, actor: Actor) -> Any:
    return call(actor, value)


def _add_each(name: str, values: tuple[Any, ...], call: Callable[[Actor, Any], Any]) -> None:
    for value in values:
        _add(f"{name} {ascii(value)[:20]}", partial(_call_with, call, value))


def _publish(actor: Actor, *args: Any, **options: Any) -> Any:
    return actor.topic("events").publish(*args, **options)


def _strict(actor: Actor) -> Any:
    return actor.subscription(STRICT)


def _as_run(wrong: dict[str, Any]) -> dict[str, Any]:
    """How ``run`` calls the limits of a consumer."""
    return {{"max_messages": "concurrency"}.get(name, name): value for name, value in wrong.items()}


_add_each("topic", NO_TEXTS, lambda a, v: a.topic(v).create())
_add_each("topic options", NO_TOPIC_OPTIONS, lambda a, v: a.topic("wrong").create(**v))
_add_each("subscription", NO_TEXTS, lambda a, v: a.topic("events").subscription(v).create())
_add_each("create", NO_OPTIONS, lambda a, v: a.topic("events").subscription("wrong").create(**v))
_add_each("filter", ("nonsense(", 5, "\ud800"), lambda a, v: a.topic("events").subscription("wrong").create(filter=v))
_add_each("set_options", (*NO_OPTIONS, {"retry": None}), lambda a, v: _strict(a).set_options(**v))
_add_each(
    "set_options ordering", (1, "yes", None), lambda a, v: a.subscription(LIMITED).set_options(message_ordering=v)
)
_add_each("retry backoff", NO_DURATIONS, lambda a, v: _strict(a).set_options(retry=RetryPolicy(min_backoff=v)))
_add_each(
    "retry attempts", (0, *NO_COUNTS), lambda a, v: _strict(a).set_options(retry=RetryPolicy.immediate(max_attempts=v))
)
_add_each("publish data", ("text", None, 5), _publish)
_add_each("publish key", NO_TEXTS, lambda a, v: _publish(a, b"0", ordering_key=v))
_add_each("publish attributes", NO_ATTRIBUTES, lambda a, v: _publish(a, b"0", attributes=v))
_add_each("publish delay", NO_DURATIONS, lambda a, v: _publish(a, b"0", delay=v))
_add_each("publish dedup_id", NO_TEXTS, lambda a, v: _publish(a, b"0", dedup_id=v))
_add_each("publish_message", NO_MESSAGES, lambda a, v: a.topic("events").publish_message(v))
_add_each("publish_many", (None, 5, b"0", "text"), lambda a, v: a.topic("events").publish_many(v))
_add_each("publish_many of", NO_MESSAGES, lambda a, v: a.topic("events").publish_many([b"0", v]))
_add_each("publish_json", (object(), {1, 2}, nan, b"0"), lambda a, v: a.topic("events").publish_json(v))
_add_each("pull", (0, *NO_COUNTS), lambda a, v: _strict(a).pull(v, 0))
_add_each("pull timeout", (nan, "5", True, b"5"), lambda a, v: _strict(a).pull(1, v))
_add_each("open", NO_CONSUMING, lambda a, v: _strict(a).open(**v))
_add_each("consume", NO_CONSUMING, lambda a, v: ConsumeOptions(**v))
_add_each("run", NO_CONSUMING, lambda a, v: a.subscription("wrong").run(**_as_run(v)))
_add_each("run concurrency", (0, *NO_COUNTS), lambda a, v: _strict(a).run(concurrency=v))
_add_each("handler", (5, None, "print"), lambda a, v: _strict(a).handler(v))
_add_each("add_outbox", NO_PATHS, lambda a, v: a.pubsub.add_outbox(v))
_add_each("remove_outbox", NO_PATHS, lambda a, v: a.pubsub.remove_outbox(v))
_add_each("backup", ("a\0b", "", 5), lambda a, v: a.pubsub.backup(v))
_add_each("pause_key", NO_TEXTS, lambda a, v: _strict(a).pause_key(v))
_add_each("pause_key reason", (5, b"why"), lambda a, v: _strict(a).pause_key("wrong", v))
_add_each("dead_letter error", (5, b"why"), lambda a, v: _strict(a).dead_letter("wrong", v))
_add_each("resume_key", NO_TEXTS, lambda a, v: _strict(a).resume_key(v))
_add_each("skip", NO_TEXTS, lambda a, v: _strict(a).skip(v))
_add_each("retry", NO_TEXTS, lambda a, v: _strict(a).retry(v))
_add_each("peek", NO_TEXTS, lambda a, v: _strict(a).peek(v))
_add_each("peek limit", NO_COUNTS, lambda a, v: _strict(a).peek("wrong", v))
_add_each("keys limit", NO_COUNTS, lambda a, v: _strict(a).keys(limit=v))
_add_each("dead_letters limit", NO_COUNTS, lambda a, v: _strict(a).dead_letters(limit=v))
_add_each("redrive", ("x", "-1", 5, None), lambda a, v: _strict(a).redrive(v))
_add_each("purge", ("x", "-1", 5, None), lambda a, v: _strict(a).purge(v))
_add_each("remove", ("x", "-1", 5, None), lambda a, v: _strict(a).remove(v))
_add_each("seek time", (nan, inf, -1, "x", True), lambda a, v: _strict(a).seek(time=v))
_add_each("seek id", ("x", "-1", 5, "9" * 30), lambda a, v: _strict(a).seek(message_id=v))
_add_each("seek snapshot", NO_TEXTS, lambda a, v: _strict(a).seek(snapshot=v))
_add("seek nowhere", lambda a: _strict(a).seek())
_add_each("snapshot", NO_TEXTS, lambda a, v: _strict(a).snapshot(v))
_add_each("snapshot lasts", NO_DURATIONS, lambda a, v: _strict(a).snapshot("wrong", lasts=v))
_add_each("delete_snapshot", NO_TEXTS, lambda a, v: a.pubsub.delete_snapshot(v))
_add_each("messages", (0, *NO_COUNTS), lambda a, v: _strict(a).messages(max_messages=v))
_add_each("messages bytes", (0, nan, -1, "5", True), lambda a, v: _strict(a).messages(max_bytes=v))
_add_each("messages extension", (nan, -1, "5", True), lambda a, v: _strict(a).messages(max_extension=v))
_add_each("publish options", (None, 5), lambda a, v: a.topic("events").set_publish_options(v))
_add_each("batching", (0, *NO_COUNTS), lambda a, v: PublishOptions(Batching(max_messages=v)))
_add_each("flow control", NO_DURATIONS, lambda a, v: PublishOptions(flow_control=FlowControl(timeout=v)))
_add_each("event", ("nothing", 5), lambda a, v: _strict(a).on(v, print))
_add_each("address", (5, None, "nowhere://", "sqlite:////a\0b"), lambda a, v: PubSub(v).__aenter__())
