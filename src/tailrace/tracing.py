"""`tailrace.tracing`: a trace goes on from whoever published a message to whoever processes it.

OpenTelemetry carries the context of a span in headers (`traceparent`, `tracestate`, or whatever the
program's propagator writes). After `enable()`, what is published inside of a span gets them, unless
the publisher has set them itself; they are headers like any other. `span(message)` goes on from
there:

    from tailrace import tracing

    tracing.enable()
    ...
    for message in queue.consume("workers"):
        with tracing.span(message), message:
            work(message)

Before `enable()`, and without OpenTelemetry, nothing is imported, and `span` does nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tailrace import hooks
from tailrace._version import __version__
from tailrace.errors import ConfigError
from tailrace.kernel import Headers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["Traced", "disable", "enable", "inject", "is_enabled", "span"]

logger = logging.getLogger("tailrace")

_SYSTEM = "tailrace"


class Traced(Protocol):
    """A message, of a consumer of either kind."""

    @property
    def queue(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def routing_key(self) -> str: ...

    @property
    def message_id(self) -> str: ...

    @property
    def delivery_count(self) -> int: ...


class _Library(NamedTuple):
    """OpenTelemetry's modules."""

    context: ModuleType
    propagate: ModuleType
    trace: ModuleType


_library: _Library | None = None  # when it is enabled


def enable() -> None:
    """Carry the context of spans in messages from now on, in this process. `ConfigError` if
    OpenTelemetry is not installed."""
    global _library
    try:
        from opentelemetry import context, propagate, trace
    except ImportError as error:
        raise ConfigError(
            "tracing needs OpenTelemetry: install opentelemetry-api, and opentelemetry-sdk to "
            f"have spans recorded ({error})"
        ) from error
    _library = _Library(context, propagate, trace)
    hooks.carry_context = inject


def disable() -> None:
    """Carry it no more."""
    global _library
    hooks.carry_context = _library = None


def is_enabled() -> bool:
    """Is it carried?"""
    return _library is not None


# --- publishing -----------------------------------------------------------------------------


def inject(headers: Any = None) -> Any:
    """Headers with the context of the current span. They are returned as they are if there is no
    span, if they have a context already, or if tracing is not enabled.

    Publishing does this by itself, with asyncio as well; it is for headers that are made in another
    thread or task than the one that publishes.
    """
    library = _library
    if library is None or not library.trace.get_current_span().get_span_context().is_valid:
        return headers
    carrier: dict[str, str] = {}
    try:
        propagator = library.propagate.get_global_textmap()
        propagator.inject(carrier)
        names = {name.lower() for name in (*propagator.fields, *carrier)}
    except Exception:  # a message is published all the same
        logger.exception("the context of a span cannot be carried")
        return headers
    pairs = _pairs(headers)
    if any(isinstance(name, str) and name.lower() in names for name, *_ in pairs):
        return headers if isinstance(headers, Mapping) else pairs
    # Names that begin with an underscore are not a publisher's to give.
    return [*pairs, *(pair for pair in carrier.items() if not pair[0].startswith("_"))]


def _pairs(headers: Any) -> list[Any]:
    if headers is None:
        return []
    return list(headers.items() if isinstance(headers, Mapping) else headers)


# --- processing -----------------------------------------------------------------------------


@contextlib.contextmanager
def span(
    messages: Traced | Iterable[Traced],
    *,
    name: str | None = None,
    link: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> Iterator[Span | None]:
    """`with span(message):` is a span for the processing of a message, and the child of the one in
    which it was published; of the current one if that is not known. With `link` it is the child of
    the current one, if there is any, and only points to the other: so it is, too, for several
    messages at once.

    It is named `process <queue>`, and has the attributes that OpenTelemetry has for messages. An
    error in the block is recorded. What `as` gives is the span; `None` if tracing is not enabled.
    """
    library = _library
    if library is None:
        yield None
        return
    batch = list(messages) if isinstance(messages, Iterable) else [messages]
    context: Context = library.context.get_current()
    links = []
    if len(batch) == 1 and not link:
        context = library.propagate.extract(_carrier_of(batch[0]), context=context)
    else:
        links = [each for message in batch for each in _links_to(library, message)]
    tracer = library.trace.get_tracer("tailrace", __version__)
    token = library.context.attach(context)  # with what else it carries, such as baggage
    try:
        with tracer.start_as_current_span(
            name or _name_of(batch),
            kind=library.trace.SpanKind.CONSUMER,
            attributes={**_attributes_of(batch), **(attributes or {})},
            links=links,
        ) as made:
            yield made
    finally:
        library.context.detach(token)


def _carrier_of(message: Traced) -> dict[str, str]:
    carrier: dict[str, str] = {}
    for name, value in message.headers.pairs:
        carrier.setdefault(name.lower(), value.decode("utf-8", "replace"))
    return carrier


def _links_to(library: _Library, message: Traced) -> Iterator[Any]:
    """To the span in which a message was published, if it tells."""
    nothing = library.context.Context()  # and not the current one
    context = library.propagate.extract(_carrier_of(message), context=nothing)
    found = library.trace.get_current_span(context).get_span_context()
    if found.is_valid:
        yield library.trace.Link(found)


def _name_of(batch: list[Traced]) -> str:
    queues = {message.queue for message in batch}
    return f"process {queues.pop()}" if len(queues) == 1 else "process"


def _attributes_of(batch: list[Traced]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    if len({message.queue for message in batch}) == 1:
        found["messaging.destination.name"] = batch[0].queue
        group = _group_of(batch[0])
        if group:
            found["messaging.consumer.group.name"] = group
    if len(batch) == 1:
        [message] = batch
        found["messaging.message.id"] = message.message_id
        found["messaging.message.body.size"] = len(message.value or b"")
        found["messaging.tailrace.offset"] = message.offset
        found["messaging.tailrace.delivery_count"] = message.delivery_count
        if message.routing_key:
            found["messaging.tailrace.routing_key"] = message.routing_key
    else:
        found["messaging.batch.message_count"] = len(batch)
    return found


def _group_of(message: Traced) -> str:
    """The group whose consumer has got it. What asyncio has is a cover of the other kind."""
    settler = getattr(getattr(message, "_message", message), "settler", None)
    return getattr(settler, "id", "")
