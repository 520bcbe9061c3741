"""Traces: one from a publish to every delivery, whatever happens in between."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from seriatim import Message, PubSub, PubSubMessage, RetryPolicy
from seriatim.engine.engine import Engine
from seriatim.errors import InvalidArgument
from seriatim.telemetry.tracing import trace_context
from seriatim.testing import run_in_virtual_time
from tests.server.served import server_in_thread

SOON = RetryPolicy.immediate(max_attempts=2)


class Spans:
    """A provider that remembers what was traced."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self()]

    def first(self, name: str) -> ReadableSpan:
        """The one that began first."""
        return min(self.named(name), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


async def until(reached) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - spans tell nobody
            await asyncio.sleep(0.005)


def test_a_message_is_one_trace_from_its_publish_to_its_handler(spans, tmp_path):
    async def main() -> None:
        async with PubSub(f"sqlite:///{tmp_path}/store.db", tracing=spans.provider) as pubsub:
            topic = await pubsub.topic("orders").ensure()
            subscription = await topic.subscription("billing").ensure()

            async def handle(message: Message) -> None:
                if message.data == b"first":
                    await topic.publish(b"follow-up", ordering_key="other")
                message.ack()

            subscription.on("message", handle)
            subscription.open()
            identity = await topic.publish(b"first", ordering_key="alice", attributes={"size": "small"})
            await until(lambda: len(spans.named("process billing")) == 2)
        published, waited, processed = (
            spans.first(what) for what in ("publish orders", "wait billing", "process billing")
        )
        assert len({trace_of(span) for span in spans()}) == 1
        assert waited.parent.span_id == processed.parent.span_id == published.context.span_id
        assert waited.end_time >= waited.start_time >= published.start_time - 1_000_000_000
        (follow_up,) = (span for span in spans.named("publish orders") if span is not published)
        assert follow_up.parent.span_id == processed.context.span_id
        assert published.attributes["messaging.message.id"] == processed.attributes["messaging.message.id"] == identity
        assert processed.attributes["messaging.seriatim.ordering_key"] == "alice"
        assert processed.attributes["messaging.seriatim.delivery_attempt"] == 1

    asyncio.run(main())


def test_retries_a_dead_letter_topic_and_a_redrive_continue_the_trace(spans):
    async def main() -> None:
        async with PubSub(tracing=spans.provider) as pubsub:
            await pubsub.topic("failed").ensure()
            topic = await pubsub.topic("orders").ensure()
            failed = await pubsub.topic("failed").subscription("rescue").ensure()
            billing = await topic.subscription("billing").ensure(retry=SOON, dead_letter_topic="failed")
            is_broken = True

            def handle(message: Message) -> None:
                if is_broken:
                    raise ValueError("out of paper")
                message.ack()

            billing.on("message", handle)
            billing.on("error", lambda _: None)
            billing.open()
            failed.on("message", Message.ack)
            failed.open()
            await topic.publish(b"x", ordering_key="alice")
            await until(lambda: spans.named("process rescue"))
            is_broken = False
            (letter,) = await billing.dead_letters()
            await billing.redrive(letter.id)
            await until(lambda: len(spans.named("process billing")) == 3)
        first, second, third = spans.named("process billing")
        attempts = [span.attributes["messaging.seriatim.delivery_attempt"] for span in (first, second, third)]
        assert attempts[:2] == [1, 2]
        assert first.status.status_code == second.status.status_code == trace.StatusCode.ERROR
        assert "out of paper" in first.events[0].attributes["exception.message"]
        assert third.status.status_code == trace.StatusCode.UNSET
        assert len({trace_of(span) for span in spans()}) == 1

    asyncio.run(main())


async def published(pubsub: PubSub) -> str:
    topic = await pubsub.topic("orders").create()
    await topic.subscription("billing").create(enable_message_ordering=True)
    return await topic.publish(b"x", ordering_key="alice")


@asynccontextmanager
async def handled_elsewhere(way: str, folder: Path, spans: Spans) -> AsyncIterator[tuple[str, PubSub]]:
    """The id of a message that was published, and where it is to be handled."""
    url = f"sqlite:///{folder}/store.db"
    if way == "a Pub/Sub server":
        with server_in_thread() as server:
            async with PubSub(f"pubsub://{server.clients.address}/demo", tracing=spans.provider) as pubsub:
                yield await published(pubsub), pubsub
        return
    async with PubSub(url, tracing=spans.provider) as owner:
        identity = await published(owner)
        if way == "a link":
            async with PubSub(url, tracing=spans.provider) as other:
                assert not isinstance(other.broker, Engine)
                yield identity, other
    if way == "a restart":
        async with PubSub(url, tracing=spans.provider) as other:
            yield identity, other


@pytest.mark.parametrize("way", ["a restart", "a link", "a Pub/Sub server"])
def test_the_trace_goes_on_across(way, spans, tmp_path) -> None:
    async def main() -> None:
        async with handled_elsewhere(way, tmp_path, spans) as (identity, other):
            billing = other.subscription("billing")
            billing.on("message", Message.ack)
            billing.open()
            await until(lambda: spans.named("process billing"))
        published, processed = spans.first("publish orders"), spans.first("process billing")
        assert processed.parent.span_id == published.context.span_id
        assert processed.attributes["messaging.message.id"] == identity
        assert len({trace_of(span) for span in spans()}) == 1

    asyncio.run(main())


def test_a_dead_letter_from_the_handler_continues_the_trace(spans) -> None:
    async def main() -> None:
        async with PubSub(tracing=spans.provider) as pubsub:
            rescue = await (await pubsub.topic("failed").ensure()).subscription("rescue").ensure()
            topic = await pubsub.topic("orders").ensure()
            billing = await topic.subscription("billing").ensure(dead_letter_topic="failed")
            billing.on("message", lambda message: message.dead_letter("not for us"))
            billing.open()
            rescue.on("message", Message.ack)
            rescue.open()
            await topic.publish(b"x", ordering_key="alice")
            await until(lambda: spans.named("process rescue"))
        assert spans.first("process billing").status.status_code == trace.StatusCode.UNSET
        assert len({trace_of(span) for span in spans()}) == 1
        assert len(spans.named("process billing")) == 1

    asyncio.run(main())


def test_a_batch_is_one_span_with_links_to_the_traces_of_its_messages(spans):
    async def main() -> None:
        async with PubSub(tracing=spans.provider) as pubsub:
            topic = await pubsub.topic("orders").ensure()
            billing = await topic.subscription("billing").ensure()
            await topic.publish_many(
                [PubSubMessage(b"x", "alice"), PubSubMessage(b"y", "alice"), PubSubMessage(b"z", "bob")]
            )
            handling = asyncio.create_task(billing.run(lambda messages: messages[-1].ack(), batch=10))
            await billing.wait_until_empty()
            handling.cancel()
            await asyncio.wait({handling})
        published = [span.get_span_context() for span in spans.named("publish orders")]
        batch, single = spans.named("process billing")
        assert [link.context.span_id for link in batch.links] == [context.span_id for context in published[:2]]
        assert batch.attributes["messaging.batch.message_count"] == 2
        assert trace_of(batch) not in {context.trace_id for context in published}
        assert trace_of(single) == published[2].trace_id
        assert len(spans.named("wait billing")) == 3

    asyncio.run(main())


@pytest.mark.parametrize("of", ["a function", "an async function", "a lambda that calls an async function", "two"])
def test_every_kind_of_handler_is_traced(spans, of):
    async def wait_and_ack(message: Message) -> None:
        await asyncio.sleep(0)
        assert trace.get_current_span().is_recording()
        message.ack()

    def ack(message: Message) -> None:
        assert trace.get_current_span().is_recording()
        message.ack()

    handlers: dict[str, list[Callable[..., Any]]] = {
        "a function": [ack],
        "an async function": [wait_and_ack],
        "a lambda that calls an async function": [lambda message, handle=wait_and_ack: handle(message)],
        "two": [lambda _: None, wait_and_ack],
    }

    async def main() -> None:
        async with PubSub(tracing=spans.provider) as pubsub:
            topic = await pubsub.topic("t").ensure()
            subscription = await topic.subscription("s").ensure()
            for handler in handlers[of]:
                subscription.on("message", handler)
            subscription.open()
            await topic.publish(b"x", ordering_key="k")
            await until(lambda: spans.named("process s"))
        assert spans.named("process s")[0].status.status_code == trace.StatusCode.UNSET
        assert sorted(spans.names()) == ["process s", "publish t", "wait s"]

    asyncio.run(main())


def test_without_a_handler_the_context_is_in_the_message_and_googles_is_understood(spans):
    async def main() -> None:
        async with PubSub(tracing=spans.provider) as traced, PubSub() as plain:
            topic = await traced.topic("t").ensure()
            subscription = await topic.subscription("s").ensure()
            await topic.publish(b"x")
            (message,) = await subscription.pull(timeout=5)
            message.ack()
            context = trace.get_current_span(trace_context(message)).get_span_context()
            assert context.trace_id == trace_of(spans.named("publish t")[0])
            topic = await plain.topic("t").ensure()
            subscription = await topic.subscription("s").ensure()
            google = {"googclient_traceparent": f"00-{7:032x}-{8:016x}-01"}
            await topic.publish(b"x", attributes=google)
            await topic.publish(b"y")
            seen = await subscription.pull(2, timeout=5)
            found = [trace.get_current_span(trace_context(message)).get_span_context() for message in seen]
            assert [context.trace_id for context in found] == [7, 0]
            assert dict(seen[0].attributes) == google

    asyncio.run(main())


def test_a_refused_publish_is_an_error_of_its_span_and_wrong_attributes_are_refused_as_ever(spans):
    async def main() -> None:
        async with PubSub(tracing=spans.provider) as pubsub:
            topic = await pubsub.topic("t").ensure()
            with pytest.raises(InvalidArgument, match="Attributes must be a mapping"):
                topic.publish(b"x", attributes="oops")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="Message data must be bytes"):
                topic.publish("text")  # type: ignore[arg-type]
        (failed,) = spans.named("publish t")
        assert failed.status.status_code == trace.StatusCode.ERROR
        assert "Message data must be bytes" in failed.status.description

    asyncio.run(main())


def test_a_blocking_program_is_traced_in_its_worker_threads(spans):
    seen = []
    with PubSub.blocking(tracing=spans.provider) as pubsub:
        topic = pubsub.topic("t").ensure()
        subscription = topic.subscription("s").ensure()

        def handle(message) -> None:
            seen.append(trace.get_current_span().get_span_context().trace_id)
            message.ack()

        subscription.on("message", handle)
        subscription.open()
        topic.publish(b"x", ordering_key="k").result()
        asyncio.run(until(lambda: spans.named("process s")))
    assert seen == [trace_of(spans.named("publish t")[0])]


def test_while_traces_are_off_nothing_stands_between_a_program_and_its_publishes_and_handlers() -> None:
    def handle(message: Message) -> None:
        message.ack()

    async def functions(*, tracing: bool) -> tuple[bool, bool]:
        async with PubSub("memory://", tracing=tracing) as pubsub:
            topic = pubsub.topic("orders")
            subscription = topic.subscription("work")
            subscription.on("message", handle)
            return "publish" in vars(topic), subscription._handler() is not handle

    assert asyncio.run(functions(tracing=False)) == (False, False)
    assert asyncio.run(functions(tracing=True)) == (True, True)


def test_a_program_that_does_not_ask_for_traces_loads_nothing_of_it():
    code = (
        "import asyncio, sys, seriatim; seriatim.PubSub(); print(any('opentelemetry' in name for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 4)), min_size=1, max_size=8))
def test_every_delivery_of_a_message_is_in_the_trace_of_its_publish(messages):
    """Each message fails so many times; with three attempts it becomes a dead letter, and is redriven once."""
    spans, attempts = Spans(), 3
    left = {b"%d" % number: failures for number, (_, failures) in enumerate(messages)}

    def handle(message: Message) -> None:
        left[message.data] -= 1
        if left[message.data] >= 0:
            raise ValueError("not yet")

    async def main() -> dict[int, str]:
        async with PubSub(tracing=spans.provider) as pubsub:
            topic = await pubsub.topic("t").ensure()
            retry = RetryPolicy(max_attempts=attempts, on_exhausted="dead-letter")
            subscription = await topic.subscription("s").ensure(retry=retry)
            subscription.on("message", handle)
            subscription.on("error", lambda _: None)
            subscription.open(ack="on-return")
            ids = [await topic.publish(b"%d" % n, ordering_key=key) for n, (key, _) in enumerate(messages)]
            await subscription.wait_until_empty()
            for letter in await subscription.dead_letters():
                await subscription.redrive(letter.id, append=True)
            await subscription.wait_until_empty()
            return dict(enumerate(ids))

    ids = run_in_virtual_time(main())
    traces = {trace_of(span): str((span.attributes or {})["messaging.message.id"]) for span in spans.named("publish t")}
    assert len(traces) == len(messages)
    handled = Counter(traces[trace_of(span)] for span in spans.named("process s"))
    # A fourth failure would be the second one after the redrive: that delivery has three attempts of its own.
    assert handled == {ids[number]: failures + 1 for number, (_, failures) in enumerate(messages)}
    waited = Counter(traces[trace_of(span)] for span in spans.named("wait s"))
    assert waited == handled
    failed = Counter(traces[trace_of(span)] for span in spans.named("process s") if not span.status.is_ok)
    assert failed == Counter({ids[number]: failures for number, (_, failures) in enumerate(messages) if failures})
