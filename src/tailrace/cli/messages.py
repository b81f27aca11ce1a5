"""Messages as JSON lines, and as lines for people.

The same line goes both ways: what `read`, `consume`, `peek`, `dead` and `delayed` write with
`--json`, `publish --json` takes. Bytes that are not clean text are in a key with `_base64` behind
its name; the lines of a bare log, where they are an object `{"base64": …}`, are taken as well.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.cli.dump_text import describe_record
from tailrace.cli.output import as_json
from tailrace.cli.times import describe_early
from tailrace.errors import TailraceError
from tailrace.queue.message import given_id, routing_key_of

if TYPE_CHECKING:
    from tailrace.kernel import Headers
    from tailrace.queue.delays import Scheduled
    from tailrace.queue.message import Message

__all__ = ["Line", "describe_message", "message_item", "parse_message", "scheduled_item"]


# --- out ------------------------------------------------------------------------------------


def message_item(message: Message, **more: object) -> dict[str, object]:
    """A message in JSON. `id` is what its publisher called it, and not there if it has no name."""
    topic = message.topic
    item: dict[str, object] = {
        "type": "message",
        "queue": message.queue,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **_bytes("key", message.key),
        **_bytes("value", message.value),
        "headers": _pairs(message.headers),
        "topic": topic,
        "routing_key": routing_key_of(message.queue, topic),
        "message_id": message.message_id,
    }
    named = given_id(message.record)
    if named is not None:
        item["id"] = named
    expires_at = message.expires_at
    if expires_at is not None:
        item["expires_at"] = expires_at
    item.update(more)
    return item


def scheduled_item(queue: str, scheduled: Scheduled) -> dict[str, object]:
    """A message in JSON that is to be delivered later."""
    item: dict[str, object] = {
        "type": "delayed",
        "queue": queue,
        "delay_id": scheduled.delay_id,
        "deliver_at": scheduled.deliver_at,
        **_bytes("key", scheduled.key),
        **_bytes("value", scheduled.value),
        "headers": _pairs(scheduled.headers),
        "topic": scheduled.topic,
        "routing_key": routing_key_of(queue, scheduled.topic),
    }
    if scheduled.id is not None:
        item["id"] = scheduled.id
    if scheduled.expires_at is not None:
        item["expires_at"] = scheduled.expires_at
    return item


def _pairs(headers: Headers) -> list[list[object]]:
    """Pairs, since names may repeat."""
    return [
        [as_json(name.encode("utf-8", "surrogateescape")), as_json(value)]
        for name, value in headers.pairs
    ]


def _bytes(name: str, value: bytes | None) -> dict[str, object]:
    if value is None:
        return {name: None}
    shown = as_json(value)
    return {f"{name}_base64": shown["base64"]} if isinstance(shown, dict) else {name: shown}


def describe_message(message: Message) -> str:
    """A message in a line, for people."""
    text = describe_record(
        {
            "offset": message.offset,
            "timestamp": message.timestamp,
            "key": as_json(message.key),
            "value": as_json(message.value),
            "headers": _pairs(message.headers),
        }
    )
    if message.routing_key:
        text += f"  routing key {message.routing_key!r}"
    if message.expires_at is not None:
        from tailrace.cli.output import as_time

        text += f"  expires {as_time(message.expires_at)}"
    return text


# --- in -------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A message to be published."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    routing_key: str = ""
    id: str | None = None
    ttl: float | str | None = None
    delay: float | str | None = None
    deliver_at: int | None = None
    producer: str | None = None
    sequence: int | None = None
    where: str = ""  # it comes from, if that helps to find it


_TAKEN = (
    "value",
    "value_base64",
    "key",
    "key_base64",
    "headers",
    "routing_key",
    "id",
    "ttl",
    "expires_at",
    "delay",
    "deliver_at",
    "producer",
    "sequence",
)
# What messages and records say of themselves where they are.
_TOLD = (
    "type",
    "queue",
    "offset",
    "timestamp",
    "topic",
    "message_id",
    "delay_id",
    "group",
    "delivery_count",
    "last_error",
    "reason",
    "pipeline",
    "file",
)
_KNOWN = frozenset((*_TAKEN, *_TOLD))
_SECONDS_MOST = 2**49


def parse_message(text: bytes | str, now_ms: int, where: str = "") -> Line:
    """The message in a JSON line, which comes from `where`; `TailraceError` says what is wrong with
    it."""
    item = _parse_json(text)
    if not isinstance(item, dict):
        raise TailraceError('it is no JSON object, such as {"value": "text"}')
    if not _KNOWN.issuperset(item):
        name = next(name for name in item if name not in _KNOWN)
        raise TailraceError(f"{name!r} is not known; a message has {', '.join(_TAKEN)}")
    if "value" not in item and "value_base64" not in item:
        raise TailraceError('it has no "value"; one that is null is written as null')
    return Line(
        _take_bytes(item, "value"),
        _take_bytes(item, "key") or None,
        _take_headers(item),
        _take_text(item, "routing_key") or "",
        _take_text(item, "id"),
        _take_ttl(item, now_ms),
        _take_duration(item, "delay"),
        _take_moment(item, "deliver_at"),
        _take_text(item, "producer"),
        _take_sequence(item),
        where,
    )


def _parse_json(text: bytes | str) -> Any:
    """msgspec takes half the time, and refuses some that Python takes, such as half of a surrogate
    pair: Python decides."""
    import msgspec

    with contextlib.suppress(ValueError, RecursionError):
        return msgspec.json.decode(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TailraceError(f"it is not JSON: {error}") from None


def _take_bytes(item: dict[str, Any], name: str) -> bytes | None:
    coded = f"{name}_base64"
    if item.get(name) is not None and item.get(coded) is not None:
        raise TailraceError(f"it has both {name!r} and {coded!r}")
    if item.get(coded) is not None:
        return _decode(item[coded], coded)
    return _plain(item.get(name), name)


def _plain(value: Any, name: str) -> bytes | None:
    """Text, an object with base64, or nothing."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        return _decode(value["base64"], name)
    raise TailraceError(f"{name!r} is text or null, not {json.dumps(value):.60}")


def _decode(value: Any, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise TailraceError(f"{name!r} is not base64: {json.dumps(value):.60}") from None


def _take_headers(item: dict[str, Any]) -> list[tuple[str, bytes]] | None:
    """Without those that tailrace wrote, whose names begin with `_`: they are about the message
    that it was."""
    given = item.get("headers")
    if given is None:
        return None
    pairs = given.items() if isinstance(given, dict) else given
    found: list[tuple[str, bytes]] = []
    try:
        for name, value in pairs:
            raw = _plain(name, "headers")
            coded = _plain(value, "headers")
            if raw is None or coded is None:
                raise ValueError
            found.append((raw.decode("utf-8", "surrogateescape"), coded))
    except (TypeError, ValueError):
        raise TailraceError(
            "'headers' is an object, or a list of pairs, of names and values that are text"
        ) from None
    return [pair for pair in found if not pair[0].startswith("_")] or None


def _take_text(item: dict[str, Any], name: str) -> str | None:
    value = item.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise TailraceError(f"{name!r} is text, not {json.dumps(value):.60}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TailraceError(
            f"{name!r} is no text: {json.dumps(value):.60} has half of a surrogate pair"
        ) from None
    return value


def _take_sequence(item: dict[str, Any]) -> int | None:
    value = item.get("sequence")
    if value is not None and type(value) is not int:
        raise TailraceError(f"'sequence' is a whole number, not {json.dumps(value):.60}")
    return value


def _take_duration(item: dict[str, Any], name: str) -> float | str | None:
    value = item.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TailraceError(f'{name!r} is a duration such as "30s", or seconds')
    return value


def _take_milliseconds(item: dict[str, Any], name: str) -> int | None:
    value = item.get(name)
    if value is not None and type(value) is not int:
        raise TailraceError(f"{name!r} is a number of milliseconds since 1970")
    return value


def _take_moment(item: dict[str, Any], name: str) -> int | None:
    """A time that is to come, or may be."""
    value = _take_milliseconds(item, name)
    if value is not None and (wrong := describe_early(value)):
        raise TailraceError(f"{name!r}: {wrong}")
    return value


def _take_ttl(item: dict[str, Any], now_ms: int) -> float | str | None:
    """How long it lives, or until when: as it was, however often it is passed on."""
    ttl = _take_duration(item, "ttl")
    expires_at = _take_milliseconds(item, "expires_at")
    if ttl is not None or expires_at is None:
        return ttl
    from tailrace.queue.publishing import Until

    return Until(min(max(expires_at, 1), now_ms + _SECONDS_MOST * 1000))
