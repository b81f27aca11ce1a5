"""Messages, and the records that carry them.

A message is a record whose headers begin with ours: `_topic`, `_id`, `_state` and, if it expires,
`_expires_at`, as FluxMQ writes them; then the publisher's. Names that begin with `_` are reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count, repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.errors import LeaseLost
from tailrace.kernel import Headers, Record, encode_headers, find_header, numbered, stamped
from tailrace.kernel.headers import as_pairs
from tailrace.log.producers import PRODUCER_HEADER, SEQUENCE_HEADER, SETTLED_HEADER
from tailrace.queue.addresses import ROOT, address_of
from tailrace.queue.inputs import as_outgoing, as_reason

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "RAW_EXPIRES",
    "RAW_FOR_GROUP",
    "Message",
    "Settler",
    "Stamp",
    "check_headers",
    "describe",
    "expires_at",
    "given_id",
    "meant_for",
    "new_record",
    "routing_key_of",
    "stamp_of",
    "topic_of",
]

TOPIC, ID, STATE, EXPIRES = "_topic", "_id", "_state", "_expires_at"
FOR_GROUP = "_for_group"  # a redriven message: for the group that had it
_OURS = frozenset(
    {TOPIC, ID, STATE, EXPIRES, FOR_GROUP, PRODUCER_HEADER, SEQUENCE_HEADER, SETTLED_HEADER}
)

_RAW_TOPIC, RAW_EXPIRES, RAW_FOR_GROUP = TOPIC.encode(), EXPIRES.encode(), FOR_GROUP.encode()

_numbers = count(1)


def new_record(
    value: bytes | str | None,
    topic: str,
    *,
    key: bytes | str | None = None,
    headers: Any = None,
    message_id: str | None = None,
    expires_at: int | None = None,
    timestamp: int | None = None,
    state: str = "queued",
    for_group: str | None = None,
) -> Record:
    """The record of a message that is published. A number of ours is behind the state: see
    `given_id`."""
    pairs: list[tuple[str, Any]] = [(TOPIC, topic), (STATE, state)]
    if message_id is None:
        pairs.append((ID, str(next(_numbers))))
    elif isinstance(message_id, str | bytes):
        pairs.insert(1, (ID, message_id))
    else:
        raise TypeError(f"message_id is text, not {message_id!r:.60}")
    if expires_at is not None:
        pairs.append((EXPIRES, str(expires_at)))
    if for_group is not None:
        pairs.append((FOR_GROUP, for_group))
    if headers is not None:
        pairs += headers.items() if isinstance(headers, Mapping) else headers
    return Record(None, timestamp, b"" if key is None else key, value, pairs)


class Stamp:
    """The headers of what is published to one topic without any of its own, as they are on disk:
    only the number changes, and when it expires, if it does."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._head = self._head_with()
        self._expiring = (0, b"")  # what is the same for all that expire in the same millisecond

    def __call__(self, expires_at: int | None = None) -> bytes:
        if expires_at is None:
            return numbered(self._head, next(_numbers))
        when, head = self._expiring
        if when != expires_at:
            head = self._head_until(expires_at)
        return numbered(head, next(_numbers))

    def record(self, value: Any, key: Any, expires_at: int | None) -> Record:
        return stamped(key, value, self(expires_at))

    def records(self, values: Iterable[bytes], expires_at: int | None) -> Iterator[Record]:
        """Of messages that are nothing but their value."""
        head = self._head if expires_at is None else self._head_until(expires_at)
        return map(stamped, repeat(b""), values, map(numbered, repeat(head), _numbers))

    def _head_until(self, expires_at: int) -> bytes:
        head = self._head_with((EXPIRES, b"%d" % expires_at))
        self._expiring = (expires_at, head)
        return head

    def _head_with(self, *more: tuple[str, bytes]) -> bytes:
        pairs = [(TOPIC, self.topic.encode()), (STATE, b"queued"), *more, (ID, b"")]
        return encode_headers(pairs)[:-1]  # without the length of the number, which is 0


stamp_of = lru_cache(1024)(Stamp)


def check_headers(headers: Any) -> None:
    """Refuse what are no headers, names that are not the publisher's to give, and what can be read
    only once: after this there would be nothing left of it."""
    if isinstance(headers, Iterator):
        raise TypeError(f"headers must be a mapping or a list of pairs, not {headers!r:.60}")
    for name in (
        headers if isinstance(headers, Mapping) else (pair[0] for pair in as_pairs(headers))
    ):
        if isinstance(name, str) and name.startswith("_"):
            raise ValueError(f"the header {name!r}: names that begin with '_' are reserved")


def expires_at(record: Record) -> int | None:
    """When it expires, in milliseconds; `None` if never, or if that is not a number."""
    raw = find_header(record, RAW_EXPIRES)
    return int(raw) if raw is not None and raw.isdigit() else None


def given_id(record: Record) -> str | None:
    """The id that its publisher gave it; `None` if it has only a number, which others have, too."""
    states = 0
    for name, raw in record.headers.pairs:
        if name == STATE:
            states += 1
        elif name == ID:
            is_number = raw.isdigit() and states == 1
            return None if is_number or not raw else raw.decode("utf-8", "surrogateescape")
    return None


def meant_for(record: Record) -> str | None:
    """The one group that is to get it; `None` for all of them."""
    raw = find_header(record, RAW_FOR_GROUP)
    return None if raw is None else raw.decode("utf-8", "surrogateescape")


def topic_of(record: Record) -> str:
    raw = find_header(record, _RAW_TOPIC)
    return "" if raw is None else raw.decode("utf-8", "surrogateescape")


def routing_key_of(queue: str, topic: str) -> str:
    """What is behind the queue's name; empty if the topic is not an address of the queue."""
    root = f"{ROOT}/{queue}/"
    return topic[len(root) :] if topic.startswith(root) else ""


class Settler(Protocol):
    """What a message asks when it is settled. The messages are all of one group."""

    def ack(self, messages: list[Message], publish: Iterable[Any] = ()) -> None: ...

    def nack(self, messages: list[Message], delay: Any = None, error: str = "") -> None: ...

    def reject(self, messages: list[Message], reason: str = "") -> None: ...

    def release(self, messages: list[Message]) -> None: ...

    def extend(self, messages: list[Message], seconds: Any = None) -> None: ...

    def auto_extend(self, message: Message) -> AbstractContextManager[object]: ...

    def properties(self, message: Message) -> dict[str, Any]: ...


class Message:
    """A message that a consumer has got. Settle it once, in any thread: `ack`, `nack`, `reject` or
    `release`; or let `with message:` do it.

    `queue` is the name of its queue and `offset` its place there; `delivery_count` counts its
    deliveries with this one, and `last_error` is what was said of the last. `settled` is how this
    object was settled, or `None`.

    A lease that ends gives the message to another consumer; from then on everything but reading
    it raises `LeaseLost`.
    """

    __slots__ = (
        "attempt",
        "delivery_count",
        "epoch",
        "last_error",
        "lease_ms",
        "offset",
        "queue",
        "record",
        "settled",
        "settler",
    )

    def __init__(
        self,
        queue: str,
        record: Record,
        settler: Settler | None,
        attempt: int = 1,
        epoch: int = 0,
        delivery_count: int = 1,
        last_error: str = "",
    ) -> None:
        self.queue = queue
        self.record = record
        self.offset: int = record.offset  # type: ignore[assignment]
        self.settler = settler
        self.attempt = attempt
        self.epoch = epoch
        self.delivery_count = delivery_count
        self.last_error = last_error
        self.lease_ms: int | None = None  # what its consumer asked for; None: the queue's
        self.settled: str | None = None  # how, if this object has settled it

    # --- what it is -------------------------------------------------------------------------

    @property
    def timestamp(self) -> int:
        """When it was appended, in milliseconds."""
        return self.record.timestamp  # type: ignore[return-value]

    @property
    def key(self) -> bytes | None:
        """The key; `None` if it was published without one."""
        return self.record.key or None

    @property
    def value(self) -> bytes | None:
        """What was published; `None` is not the same as empty."""
        return self.record.value

    @property
    def headers(self) -> Headers:
        """What the publisher gave, and where it is a dead letter, what became of it."""
        pairs = self.record.headers.pairs
        return Headers.from_pairs(tuple([pair for pair in pairs if pair[0] not in _OURS]))

    @property
    def topic(self) -> str:
        """The topic to which it was published."""
        return topic_of(self.record)

    @property
    def routing_key(self) -> str:
        """What follows the queue's name in the topic."""
        return routing_key_of(self.queue, self.topic)

    @property
    def id(self) -> str:
        """The id that its publisher gave it, or else a number."""
        return self.record.headers.get(ID, b"").decode("utf-8", "surrogateescape")

    @property
    def message_id(self) -> str:
        """Its name for acknowledgements: `<queue>:<offset>`."""
        return f"{self.queue}:{self.offset}"

    @property
    def expires_at(self) -> int | None:
        """When it expires, in milliseconds; `None` if never."""
        return expires_at(self.record)

    @property
    def partition(self) -> int:
        """Always 0: a queue is one log."""
        return 0

    @property
    def properties(self) -> dict[str, Any]:
        """What a delivery carries besides the publisher's headers."""
        properties: dict[str, Any] = {
            "message-id": self.message_id,
            "queue": self.queue,
            "offset": self.offset,
            "x-source-topic": self.topic or address_of(self.queue),
        }
        if self.settler is not None:
            properties |= self.settler.properties(self)
        return properties

    def __repr__(self) -> str:
        return f"Message({self.message_id!r}, delivery_count={self.delivery_count})"

    # --- what becomes of it -----------------------------------------------------------------

    def ack(self, publish: Iterable[Any] = ()) -> None:
        """It is done. Returns when that is as durable as the queue's flush mode promises.

        What is in `publish` is published first, once, however often the message is delivered: pairs
        of a topic (or a queue) and a value, or `Outgoing`.
        """
        self._settling().ack([self], as_outgoing(publish) if publish else ())

    def nack(self, delay: float | str | None = None, error: str = "") -> None:
        """It failed: deliver it again, after `delay`, or as the queue's `retry` says; when it has
        failed too often it becomes a dead letter. `error` travels with it, as far as its first
        thousand characters."""
        self._settling().nack([self], delay, as_reason("error", error))

    def reject(self, reason: str = "") -> None:
        """It can never succeed: it becomes a dead letter, with the first thousand characters of the
        reason."""
        self._settling().reject([self], as_reason("reason", reason))

    def release(self) -> None:
        """Give it back at once, as if it had not been delivered."""
        self._settling().release([self])

    def extend(self, seconds: float | str | None = None) -> None:
        """Keep it for so long from now on; by default for the visibility timeout."""
        self._settling().extend([self], seconds)

    def auto_extend(self) -> AbstractContextManager[object]:
        """`with message.auto_extend():` keeps it as long as the block runs."""
        return self._settling().auto_extend(self)

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ack it; after an error nack it; if the program is being stopped, release it. If it was
        settled in the block, that stands."""
        if self.settled is not None:
            return
        try:
            if error is None:
                self.ack()
            elif isinstance(error, Exception):
                self.nack(error=describe(error))
            else:
                self.release()
        except LeaseLost:
            if error is None:
                raise

    def _settling(self) -> Settler:
        if self.settler is None:
            raise LeaseLost(f"{self.message_id} was only looked at: nobody has a lease on it")
        return self.settler


def describe(error: Exception) -> str:
    """An error, as it travels with the message that led to it; at least its kind, if it cannot be
    made text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  of somebody else's code: the error it is about matters more
        return type(error).__name__
