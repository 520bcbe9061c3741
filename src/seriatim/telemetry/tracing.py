"""Traces for OpenTelemetry: follow a message from its publish to its handler, across retries, dead letters and redrives.

Rules
    - The context of a trace travels with its message, in the W3C attributes ``traceparent`` and ``tracestate``. So it is
      stored, and every later delivery, even from a dead-letter topic or after a redrive, continues the trace.
    - ``publish`` is a span from the call until the message is durable. Each delivery to a handler is two spans below it:
      ``wait``, from the publish to the delivery, and ``process``, while the handler runs. Inside the handler ``process`` is the
      current span, so what it publishes belongs to the same trace. An error of the handler is recorded. A batch of several
      messages has one ``process``, in a trace of its own that links to theirs.
    - The attribute of Google's clients (``googclient_traceparent``) is supported, too.
    - A program without tracing runs none of this code.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from seriatim.core.publishing.message_limits import copy_attributes
from seriatim.extras import require_extra

require_extra("otel", "opentelemetry", what="tracing")

from opentelemetry import trace  # noqa: E402
from opentelemetry.context import Context  # noqa: E402
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider  # noqa: E402
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: E402

GOOGLE_PREFIX = "googclient_"

_PROPAGATOR = TraceContextTextMapPropagator()


class Traceable(Protocol):
    """The part of a message that tracing needs."""

    @property
    def id(self) -> str: ...
    @property
    def ordering_key(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...
    @property
    def publish_time(self) -> Any: ...
    @property
    def delivery_attempt(self) -> int: ...


Published = TypeVar("Published", bound="asyncio.Future[str]")


def trace_context(message: Traceable) -> Context:
    """The context in which a message was published, for programs that receive messages without a handler."""
    return _PROPAGATOR.extract(_carrier(message.attributes))


def _carrier(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes with the context of a trace; ours take precedence over Google's."""
    names = ("traceparent", "tracestate")
    prefix = "" if "traceparent" in attributes else GOOGLE_PREFIX
    return {name: attributes[prefix + name] for name in names if prefix + name in attributes}


class Tracing:
    """Creates the spans of one PubSub."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("seriatim", tracer_provider=provider)

    def publish(
        self,
        topic: str,
        publish: Callable[..., Published],
        data: bytes,
        *,
        ordering_key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Published:
        """Call ``publish`` with the attributes to send, inside a span."""
        sent = {} if attributes is None else copy_attributes(attributes)
        described = _described(topic, "send", ordering_key)
        span = self._tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=described)
        _PROPAGATOR.inject(sent, trace.set_span_in_context(span))
        try:
            published = publish(data, ordering_key=ordering_key, attributes=sent, **options)
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise
        published.add_done_callback(lambda done: _published(span, done))
        return published

    def handler(self, subscription: str, handle: Callable[[Any], object]) -> Callable[[Any], object]:
        """Wrap the handler in spans."""
        if inspect.iscoroutinefunction(handle):

            async def handle_later(message: Any) -> None:
                span = self._delivered(subscription, message)
                await self._finish(span, handle(message))

            return handle_later

        def handle_now(message: Any) -> object:
            span = self._delivered(subscription, message)
            try:
                with trace.use_span(span):
                    result = handle(message)
            except BaseException:
                span.end()
                raise
            if inspect.iscoroutine(result):
                finishing = self._finish(span, result)
                weakref.finalize(finishing, result.close)  # in case it is never awaited
                return finishing
            span.end()
            return result

        return handle_now

    def _delivered(self, subscription: str, given: Traceable | list[Traceable]) -> Span:
        """The ``process`` span of a handler call, and the ``wait`` span before it."""
        messages = given if isinstance(given, list) else [given]
        contexts = [self._waited(subscription, message) for message in messages]
        described = _described(subscription, "process", messages[0].ordering_key)
        if len(messages) == 1:
            described |= _identity(messages[0])
            return self._tracer.start_span(f"process {subscription}", contexts[0], SpanKind.CONSUMER, described)
        described["messaging.batch.message_count"] = len(messages)
        links = [Link(trace.get_current_span(context).get_span_context()) for context in contexts]
        return self._tracer.start_span(f"process {subscription}", Context(), SpanKind.CONSUMER, described, links)

    def _waited(self, subscription: str, message: Traceable) -> Context:
        context = trace_context(message)
        described = _described(subscription, "process", message.ordering_key) | _identity(message)
        published = int(message.publish_time.timestamp() * 1e9)
        waited = self._tracer.start_span(f"wait {subscription}", context, attributes=described, start_time=published)
        waited.end()
        return context

    async def _finish(self, span: Span, result: Coroutine[Any, Any, object]) -> None:
        try:
            with trace.use_span(span):
                await result
        finally:
            span.end()


def _described(destination: str, operation: str, key: str | None) -> dict[str, str | int]:
    described: dict[str, str | int] = {
        "messaging.system": "seriatim",
        "messaging.destination.name": destination,
        "messaging.operation.type": operation,
    }
    return described if key is None else described | {"messaging.seriatim.ordering_key": key}


def _identity(message: Traceable) -> dict[str, str | int]:
    return {
        "messaging.message.id": message.id,
        "messaging.seriatim.delivery_attempt": message.delivery_attempt,
    }


def _published(span: Span, done: asyncio.Future[str]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else asyncio.Future.exception(done)  # without looking at it
    if error is None:
        span.set_attribute("messaging.message.id", asyncio.Future.result(done))
    else:
        _fail(span, error)
    span.end()


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
