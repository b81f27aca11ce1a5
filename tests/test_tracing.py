"""Traces go on from who publishes to who processes, and nothing happens unless it is asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tailrace
from tailrace import Message, Outgoing, Queue, hooks, tracing
from tests.queue.clocks import Machine
from tests.queue.support import FAST, one

tracer = trace.get_tracer("tests")


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """What was recorded, with tracing enabled. A process has one provider, for ever."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable()
    yield exporter
    tracing.disable()
    exporter.shutdown()


@pytest.fixture
def store() -> Iterator[tailrace.Store]:
    with Machine() as machine, machine.open() as store:
        yield store


@pytest.fixture
def queue(store: tailrace.Store) -> Queue:
    return store.queue("q", **FAST)


def header_of(span: trace.Span) -> bytes:
    """What `traceparent` says of a span, by the specification."""
    found = span.get_span_context()
    return b"00-%032x-%016x-%02x" % (found.trace_id, found.span_id, found.trace_flags)


def received(queue: Queue, group: str = "w") -> list[Message]:
    with queue.consumer(group) as consumer:
        return consumer.receive(100)


Ids = tuple[int, int]


def ids(found: trace.SpanContext | None) -> Ids:
    assert found is not None
    return found.trace_id, found.span_id


def ids_of(span: ReadableSpan | trace.Span) -> Ids:
    """The ids of its trace and its own."""
    return ids(span.get_span_context())


# --- publishing -------------------------------------------------------------------------------


def test_every_way_to_publish_carries_the_context(
    spans: InMemorySpanExporter, store: tailrace.Store, queue: Queue
) -> None:
    queue.publish(b"seed")
    with queue.consumer("seed") as consumer, tracer.start_as_current_span("work") as work:
        queue.publish(b"plain")
        queue.publish(b"dict", headers={"a": "b"})
        queue.publish(b"pairs", headers=[("a", "b")])
        queue.publish(b"headers", headers=tailrace.Headers({"a": "b"}))
        queue.publish_many([b"many", ("key", b"many"), ("key", b"many", {"a": "b"})])
        store.publish("$queue/q/x", b"topic")
        one(consumer).ack(publish=[("$queue/q", b"step"), Outgoing("$queue/q", b"step")])
    seed, *messages = received(queue)
    assert "traceparent" not in seed.headers
    assert len(messages) == 10
    for message in messages:
        assert message.headers["traceparent"] == header_of(work)
        assert set(message.headers) <= {"a", "traceparent"}
    assert [message.value for message in messages if "a" in message.headers] == [
        b"dict",
        b"pairs",
        b"headers",
        b"many",
    ]


def test_delayed_messages_carry_it(
    spans: InMemorySpanExporter, store: tailrace.Store, queue: Queue
) -> None:
    with tracer.start_as_current_span("work") as work:
        queue.publish(b"x", delay=0)
    [scheduled] = queue.delayed()
    assert scheduled.headers["traceparent"] == header_of(work)
    store.deliver_due()
    [message] = received(queue)
    assert message.headers["traceparent"] == header_of(work)


def test_without_a_span_nothing_is_added(spans: InMemorySpanExporter, queue: Queue) -> None:
    queue.publish(b"x")
    queue.publish(b"x", headers={"a": "b"})
    first, second = received(queue)
    assert dict(first.headers) == {}
    assert dict(second.headers) == {"a": b"b"}


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "mine"},
        {"TraceParent": "mine"},
        [("tracestate", "mine"), ("b", "c")],
        iter([("a", "b"), ("traceparent", "mine")]),
    ],
)
def test_what_the_publisher_has_set_stays(spans: InMemorySpanExporter, headers: Any) -> None:
    with tracer.start_as_current_span("work"):
        found = dict(tracing.inject(headers))
    assert "mine" in found.values()
    assert len({name.lower() for name in found}) == len(found)
    assert not any(value.startswith("00-") for value in found.values())


def test_the_state_of_a_trace_and_baggage_go_along(
    spans: InMemorySpanExporter, queue: Queue
) -> None:
    parent = trace.SpanContext(
        0xA, 0xB, True, trace.TraceFlags(1), trace.TraceState([("vendor", "1")])
    )
    with trace.use_span(trace.NonRecordingSpan(parent)):
        token = context.attach(baggage.set_baggage("user", "7"))
        try:
            queue.publish(b"x")
        finally:
            context.detach(token)
    [message] = received(queue)
    assert message.headers["traceparent"] == b"00-%032x-%016x-01" % (0xA, 0xB)
    assert message.headers["tracestate"] == b"vendor=1"
    assert message.headers["baggage"] == b"user=7"
    with tracing.span(message):
        assert baggage.get_baggage("user") == "7"


def test_wrong_headers_are_refused_as_ever(spans: InMemorySpanExporter, queue: Queue) -> None:
    with tracer.start_as_current_span("work"):
        with pytest.raises(ValueError, match="reserved"):
            queue.publish(b"x", headers={"_a": "b"})
        with pytest.raises(TypeError):
            queue.publish(b"x", headers=7)
    assert len(queue) == 0


def test_a_propagator_that_fails_stops_nobody(
    spans: InMemorySpanExporter,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        fields = frozenset({"x"})

        def inject(self, carrier: Any) -> None:
            raise RuntimeError("broken")

    monkeypatch.setattr(propagate, "get_global_textmap", Broken)
    with tracer.start_as_current_span("work"):
        queue.publish(b"x", headers={"a": "b"})
    [message] = received(queue)
    assert dict(message.headers) == {"a": b"b"}
    assert "cannot be carried" in caplog.text


def test_when_it_is_off_nothing_is_carried(spans: InMemorySpanExporter, queue: Queue) -> None:
    tracing.disable()
    assert not tracing.is_enabled()
    assert hooks.carry_context is None
    with tracer.start_as_current_span("work"):
        queue.publish(b"x")
        assert tracing.inject({"a": "b"}) == {"a": "b"}
    [message] = received(queue)
    assert dict(message.headers) == {}
    with tracing.span(message) as span:
        assert span is None
    assert [span.name for span in spans.get_finished_spans()] == ["work"]


# --- processing -------------------------------------------------------------------------------


def test_a_message_goes_on_with_its_trace(spans: InMemorySpanExporter, queue: Queue) -> None:
    with tracer.start_as_current_span("checkout"):
        queue.publish(b"abc", routing_key="eu/7")
    with tracer.start_as_current_span("loop"):
        [message] = received(queue)
        with tracing.span(message, attributes={"shop": 7}) as span, message:
            assert trace.get_current_span() is span
            queue.publish(b"next")
    checkout, process, loop = spans.get_finished_spans()
    assert ids(process.parent) == ids_of(checkout)
    assert ids_of(process)[0] != ids_of(loop)[0]
    assert process.name == "process q"
    assert process.kind is trace.SpanKind.CONSUMER
    assert process.attributes == {
        "messaging.system": "tailrace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "q",
        "messaging.consumer.group.name": "w",
        "messaging.message.id": "q:0",
        "messaging.message.body.size": 3,
        "messaging.tailrace.offset": 0,
        "messaging.tailrace.delivery_count": 1,
        "messaging.tailrace.routing_key": "eu/7",
        "shop": 7,
    }
    [following] = received(queue)
    assert b"%032x" % ids_of(checkout)[0] in following.headers["traceparent"]


def test_a_message_without_a_context_is_a_child_of_the_current_span(
    spans: InMemorySpanExporter, queue: Queue
) -> None:
    for headers in (None, {"traceparent": b"\xff nonsense"}):
        queue.publish(b"x", headers=headers)
    with tracer.start_as_current_span("loop") as loop:
        for message in received(queue):
            with tracing.span(message, name="work"):
                continue
    first, second, _ = spans.get_finished_spans()
    assert ids(first.parent) == ids(second.parent) == ids_of(loop)
    assert first.name == "work"


def test_links(spans: InMemorySpanExporter, store: tailrace.Store) -> None:
    stream = store.stream("s")
    with tracer.start_as_current_span("publish") as publish:
        stream.publish_many([b"1", b"2"])
    stream.publish(b"3")
    with stream.consumer("r") as consumer:
        messages = consumer.receive(3)
    with tracing.span(messages[0], link=True):
        pass
    with tracing.span(messages):
        pass
    with tracing.span([]):
        pass
    _, alone, together, nothing = spans.get_finished_spans()
    assert alone.parent is None
    assert [ids(link.context) for link in alone.links] == [ids_of(publish)]
    assert [ids(link.context) for link in together.links] == [ids_of(publish)] * 2
    assert together.attributes is not None
    assert together.attributes["messaging.batch.message_count"] == 3
    assert together.attributes["messaging.destination.name"] == "s"
    assert together.attributes["messaging.consumer.group.name"] == "r"
    assert nothing.name == "process"


def test_an_error_is_recorded_and_the_message_comes_back(
    spans: InMemorySpanExporter, queue: Queue
) -> None:
    queue.publish(b"x")
    with queue.consumer("w") as consumer:
        for _ in range(2):
            with (
                pytest.raises(RuntimeError),
                tracing.span(message := one(consumer)),
                message,
            ):
                raise RuntimeError("broken")
    first, second = spans.get_finished_spans()
    assert first.status.status_code is trace.StatusCode.ERROR
    assert [event.name for event in first.events] == ["exception"]
    assert second.attributes is not None
    assert second.attributes["messaging.tailrace.delivery_count"] == 2


def test_dead_letters_and_redriven_messages_keep_the_context(
    spans: InMemorySpanExporter, store: tailrace.Store, queue: Queue
) -> None:
    with tracer.start_as_current_span("checkout") as checkout:
        queue.publish(b"x")
    with tracer.start_as_current_span("elsewhere"):
        with queue.consumer("w") as consumer:
            one(consumer).reject()
        [letter] = store.dead("q")
        assert letter.headers["traceparent"] == header_of(checkout)
        store.redrive("q")
    [message] = received(queue)
    assert message.headers["traceparent"] == header_of(checkout)


def test_asyncio(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    async def work() -> None:
        async with tailrace.aio.open(tmp_path) as store:
            queue = await store.queue("q", **FAST)
            await queue.publish(b"before")
            with tracer.start_as_current_span("checkout"):
                await queue.publish(b"x")
            async with queue.consumer("w") as consumer:
                alone, message = await consumer.receive(2, 10)
                assert dict(alone.headers) == {}
                with tracing.span(message):
                    await message.ack()

    asyncio.run(work())
    checkout, process = spans.get_finished_spans()
    assert ids(process.parent) == ids_of(checkout)
    assert process.attributes is not None
    assert process.attributes["messaging.consumer.group.name"] == "w"


def test_everything_that_tasks_publish_carries_it(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def work() -> None:
        async with tailrace.aio.open(tmp_path) as store:
            queue = await store.queue("q", topics=["shop/#"], **FAST)
            await queue.publish(b"seed")
            with tracer.start_as_current_span("work") as span:
                await queue.publish(b"one")
                await queue.publish(b"later", delay=0)
                await queue.publish(b"with", headers={"a": "b"})
                await queue.publish_many([b"many", ("k", b"pair"), ("k", b"triple", {"a": "b"})])
                await store.publish("shop/7", b"topic")
                async with queue.consumer("w") as consumer:
                    [message] = await consumer.receive(1, 10)
                    await message.ack(publish=[(queue, b"came of it")])
            # Work that is begun in a span, and goes on in another task.
            with tracer.start_as_current_span("begun") as begun:
                task = asyncio.create_task(queue.publish(b"task"))
            await task
            await store.deliver_due()
            await queue.publish(b"outside")
            found = {m.value: m.headers.get("traceparent") async for m in queue.read()}
        expected = [b"one", b"later", b"with", b"many", b"pair", b"triple", b"topic", b"came of it"]
        assert found == {
            **dict.fromkeys(expected, header_of(span)),
            b"task": header_of(begun),
            b"seed": None,
            b"outside": None,
        }

    asyncio.run(work())


def test_tasks_beside_each_other_keep_their_own(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def work() -> None:
        async with tailrace.aio.open(tmp_path, flush="none") as store:
            queue = await store.queue("q", **FAST)
            known: dict[bytes, bytes] = {}

            async def begin(number: int) -> None:
                with tracer.start_as_current_span("begin") as span:
                    known[b"%d" % number] = header_of(span)
                    await asyncio.sleep(0)
                    await queue.publish(b"%d" % number)

            async def go_on(message: tailrace.aio.Message) -> None:
                with tracing.span(message) as span:
                    assert span is not None
                    known[b"next of %s" % message.value] = header_of(span)
                    await queue.publish(b"next of %s" % message.value)
                    await message.ack()

            await asyncio.gather(*map(begin, range(20)))
            async with queue.consumer("w") as consumer:
                messages = await consumer.receive(20, 10)
                await asyncio.gather(*map(go_on, messages))
            found = {m.value: m.headers["traceparent"] async for m in queue.read()}
            assert found == known
            assert len(found) == 40

    asyncio.run(work())
    begun = {ids_of(span) for span in spans.get_finished_spans() if span.name == "begin"}
    processed = [span for span in spans.get_finished_spans() if span.name == "process q"]
    assert {ids(span.parent) for span in processed} == begun


# --- without the library ----------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import tailrace
from tailrace import tracing
with tailrace.open(sys.argv[1]) as store:
    queue = store.queue("q")
    queue.publish(b"x", headers=tracing.inject({"a": "b"}))
    with queue.consumer("w") as consumer, tracing.span(consumer.receive(1)[0]) as span:
        assert span is None
tracing.disable()
try:
    tracing.enable()
except tailrace.ConfigError as error:
    print(error)
assert not tracing.is_enabled()
"""


def test_without_the_library_only_enabling_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("tracing needs OpenTelemetry: install opentelemetry-api")
