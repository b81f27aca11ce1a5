"""Messages and dead letters, as the tables of the reference have them: every header with its value,
key, value and time.

What is expected is written out here, and what was written is read by a decoder that shares nothing
with the package: nothing of ours is compared with itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace import Outgoing, Queue, Store
from tailrace.queue import message as message_module
from tests.log import fluxmq
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore

NOW_MS = 1_794_770_309_808  # 2026-11-15T19:18:29.808Z
HOUR_MS = 3_600_000
WEEK_MS = 604_800_000

Headers = dict[str, str]


class World:
    """A queue `orders` whose messages are numbered from 7 on, at a time that is known."""

    def __init__(self, open_store: OpenStore, clock: ManualClock, path: Path) -> None:
        clock.set_wall(NOW_MS)
        self.clock = clock
        self.path = path
        self.store: Store = open_store(compression="none")

    def queue(self, **options: Any) -> Queue:
        return self.store.queue("orders", **options)

    def segment(self, folder: str = "orders") -> Path:
        """The only one of a queue, which is closed."""
        self.store.close()
        [found] = (self.path / "queue" / "queues" / folder / "segments").glob("*.seg")
        return found

    def records(self, folder: str = "orders") -> list[fluxmq.Rec]:
        batches = fluxmq.scan(self.segment(folder))
        return [record for batch in batches for record in fluxmq.decode(batch)]

    def letter(self) -> fluxmq.Rec:
        [record] = self.records("$dlq%2Forders")
        return record

    def producer(self, kind: str, group: str) -> str:
        """By FORMAT.md: named after its cause."""
        root = self.path / "queue"
        document = json.loads((root / "config" / "queues.json").read_bytes())
        [entry] = [each for each in document["configs"] if each["Name"] == "orders"]
        state = root / "queues" / "orders" / "consumers" / group / "state.json"
        ours = json.loads(state.read_bytes())["tailrace"]
        cause = [entry["Tailrace"]["incarnation"], group, ours["id"], ours["resets"]]
        name = "\0".join(map(str, cause)).encode()
        return f"{kind}-{hashlib.blake2b(name, digest_size=16).hexdigest()}"


@pytest.fixture
def world(
    open_store: OpenStore, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr(message_module, "_numbers", count(7))
    return World(open_store, clock, tmp_path / "data")


def headers_of(record: fluxmq.Rec) -> Headers:
    """Each once, in any order, as the reference has it. FORMAT.md says one thing of the order: a
    number of ours is behind the state, and an id that the publisher gave is before it."""
    found = {name.decode(): value.decode() for name, value in record.headers}
    assert len(found) == len(record.headers)
    order = [name for name, _ in record.headers]
    assert (order.index(b"_id") > order.index(b"_state")) is found["_id"].isdigit()
    return found


# --- messages -------------------------------------------------------------------------------


def test_the_bytes_of_a_plain_message(world: World) -> None:
    """The example of the reference, byte by byte; only that the number is behind the state."""
    world.queue().publish(b"hello")
    body = bytes.fromhex(
        "0000000000000000 33000000 0100 0e00 00 01 0000 b092a5e0a1010000 b092a5e0a1010000"
        "00 00 00 0a 68656c6c6f 03 06 5f746f706963 0d 2471756575652f6f7264657273"
        "06 5f7374617465 06 717565756564 03 5f6964 01 37"
    )
    crc = fluxmq.crc32c(body).to_bytes(4, "little")
    assert world.segment().read_bytes() == bytes.fromhex("58554c46") + crc + body


PLAIN: Headers = {"_topic": "$queue/orders", "_state": "queued", "_id": "7"}

WAYS: dict[str, Callable[[Store, Queue], object]] = {
    "publish": lambda store, queue: queue.publish(b"hello"),
    "text": lambda store, queue: queue.publish("hello"),
    "no headers": lambda store, queue: queue.publish(b"hello", headers={}),
    "many": lambda store, queue: queue.publish_many([b"hello"]),
    "pairs": lambda store, queue: queue.publish_many([(None, b"hello")]),
    "triples": lambda store, queue: queue.publish_many([(None, b"hello", None)]),
    "iterator": lambda store, queue: queue.publish_many(iter([b"hello"])),
    "topic": lambda store, queue: store.publish("$queue/orders", b"hello"),
}


@pytest.mark.parametrize("ttl", [None, "1h"])
@pytest.mark.parametrize("way", WAYS)
def test_a_plain_message_however_it_is_published(world: World, way: str, ttl: str | None) -> None:
    WAYS[way](world.store, world.queue(limits={} if ttl is None else {"message_ttl": ttl}))
    [record] = world.records()
    assert record[:4] == (0, NOW_MS, b"", b"hello")
    expiry = {} if ttl is None else {"_expires_at": str(NOW_MS + HOUR_MS)}
    assert headers_of(record) == {**PLAIN, **expiry}


@pytest.mark.parametrize("value", [None, b""])
def test_no_value_and_an_empty_one(world: World, value: bytes | None) -> None:
    world.queue().publish(value)
    [record] = world.records()
    assert record[:4] == (0, NOW_MS, b"", value)
    assert headers_of(record) == PLAIN


def test_a_message_with_every_option(world: World) -> None:
    world.queue(limits={"message_ttl": "168h"}).publish(
        b"\0\xff",
        key="k1",
        routing_key="eu/ü",
        headers={"a": b"b", "ä": "ß", "empty": b""},
        message_id="mine-1",
        ttl="1h",
        timestamp=NOW_MS - 5,
        producer="me",
        sequence=5,
    )
    [record] = world.records()
    assert record[:4] == (0, NOW_MS - 5, b"k1", b"\0\xff")
    assert headers_of(record) == {
        "_producer": "me",
        "_sequence": "5",
        "_topic": "$queue/orders/eu/ü",
        "_id": "mine-1",
        "_state": "queued",
        "_expires_at": str(NOW_MS + HOUR_MS),
        "a": "b",
        "ä": "ß",
        "empty": "",
    }
    assert [name for name, _ in record.headers][:2] == [b"_producer", b"_sequence"]


def test_a_topic_that_is_no_address_and_the_time_of_the_queue(world: World) -> None:
    world.queue(topics=["shop/#"], limits={"message_ttl": "168h"})
    world.store.publish("shop/7/paid", b"x", key=b"k", headers=[("n", "1"), ("n", "2")])
    [record] = world.records()
    assert record[:4] == (0, NOW_MS, b"k", b"x")
    assert sorted(record.headers) == [
        (b"_expires_at", str(NOW_MS + WEEK_MS).encode()),
        (b"_id", b"7"),
        (b"_state", b"queued"),
        (b"_topic", b"shop/7/paid"),
        (b"n", b"1"),
        (b"n", b"2"),
    ]


def test_a_message_that_comes_later(world: World) -> None:
    """It has the time at which it was due."""
    queue = world.queue(limits={"message_ttl": "1h"})
    queue.publish(b"x", delay="2h", headers={"a": "b"})
    world.clock.advance(3 * 3600)
    assert world.store.deliver_due() == 1
    [record] = world.records()
    assert record[:4] == (0, NOW_MS + 2 * HOUR_MS, b"", b"x")
    found = headers_of(record)
    del found["_producer"], found["_sequence"]  # it is written once, whoever is killed
    assert found == {**PLAIN, "_expires_at": str(NOW_MS + 3 * HOUR_MS), "a": "b"}


def test_what_is_published_by_an_ack(world: World) -> None:
    queue = world.queue()
    queue.publish(b"x")
    with queue.consumer("w") as consumer:
        [message] = consumer.receive()
        message.ack(publish=[Outgoing("$queue/orders/eu", b"y", key=b"k", headers={"a": "b"})])
    _, record = world.records()
    assert record[:4] == (1, NOW_MS, b"k", b"y")
    assert headers_of(record) == {
        "_producer": world.producer("ack", "w"),
        "_sequence": "0",
        "_settled": "0",
        "_topic": "$queue/orders/eu",
        "_state": "queued",
        "_id": "8",
        "a": "b",
    }


# --- dead letters ---------------------------------------------------------------------------


def reject(world: World, queue: Queue) -> None:
    [message] = queue.consumer("w").receive()
    message.reject("cannot be read")


def nack(world: World, queue: Queue) -> None:
    consumer = queue.consumer("w")
    for number in range(3):
        [message] = consumer.receive()
        message.nack(error=f"try {number}")


def keep_too_long(world: World, queue: Queue) -> None:
    consumer = queue.consumer("w")
    for _ in range(3):
        assert len(consumer.receive()) == 1
        world.clock.advance(1.1)
    assert consumer.receive() == []


def expire(world: World, queue: Queue) -> None:
    world.clock.advance(3600.001)
    assert queue.consumer("w").receive() == []


# What the group did, how long that took, how often it had the message, and why it is dead.
DEATHS: dict[str, tuple[Callable[[World, Queue], None], int, str, str]] = {
    "reject": (reject, 0, "1", "cannot be read"),
    "nack": (nack, 0, "3", "delivered 3 times: try 2"),
    "too long": (keep_too_long, 3_300, "3", "delivered 3 times, and never settled"),
    "expired": (expire, 3_600_001, "0", "expired"),
}
MOVED_AT = {
    0: "2026-11-15T19:18:29Z",
    3_300: "2026-11-15T19:18:33Z",
    3_600_001: "2026-11-15T20:18:29Z",
}


@pytest.mark.parametrize("message_id", [None, "mine-1"])
@pytest.mark.parametrize("how", DEATHS)
def test_a_dead_letter(world: World, how: str, message_id: str | None) -> None:
    die, later_ms, times, reason = DEATHS[how]
    queue = world.queue(
        visibility_timeout="1s",
        retry={"max_retries": 2, "initial_backoff": 0},
        dlq={"expired": True},
    )
    queue.publish(b"before")
    queue.consumer("w").ack(queue.consumer("w").receive())
    queue.publish(
        b"\0\xff",
        key="k1",
        routing_key="eu",
        ttl="1h",
        message_id=message_id,
        headers={"a": "b", "ä": "ß"},
    )
    die(world, queue)
    letter = world.letter()
    assert letter[:4] == (0, NOW_MS + later_ms, b"k1", b"\0\xff")
    assert headers_of(letter) == {
        "_producer": world.producer("dlq", "w"),
        "_sequence": "1",
        "_settled": "0",
        "_topic": "$dlq/orders",
        "_state": "dlq",
        "_id": message_id or "9",
        "a": "b",
        "ä": "ß",
        "_dlq_original_queue": "orders",
        "_dlq_original_topic": "$queue/orders/eu",
        "_dlq_original_id": message_id or "8",
        "_dlq_original_offset": "1",
        "_dlq_group": "w",
        "_dlq_delivery_count": times,
        "_dlq_moved_at": MOVED_AT[later_ms],
        "_dlq_reason": reason,
    }


def test_a_dead_letter_without_anything(world: World) -> None:
    """Of a filter's group, in a place of its own; no reason was given."""
    queue = world.queue(dlq={"topic": "$queue/morgue/of/orders"})
    queue.publish(None)
    [message] = queue.consumer("w", filter="#").receive()
    message.reject()
    [letter] = world.records("morgue")
    assert letter[:4] == (0, NOW_MS, b"", None)
    assert headers_of(letter) == {
        "_producer": world.producer("dlq", "w@#"),
        "_sequence": "0",
        "_settled": "0",
        "_topic": "$queue/morgue/of/orders",
        "_state": "dlq",
        "_id": "8",
        "_dlq_original_queue": "orders",
        "_dlq_original_topic": "$queue/orders",
        "_dlq_original_id": "7",
        "_dlq_original_offset": "0",
        "_dlq_group": "w@#",
        "_dlq_delivery_count": "1",
        "_dlq_moved_at": "2026-11-15T19:18:29Z",
        "_dlq_reason": "rejected",
    }


def test_what_comes_back(world: World) -> None:
    """It is what it was, for the group that had it."""
    queue = world.queue(limits={"message_ttl": "168h"})
    queue.publish(b"x", key="k1", routing_key="eu", headers={"a": "b"})
    [message] = queue.consumer("w").receive()
    message.reject("no")
    world.clock.advance(1)
    assert world.store.redrive("orders") == 1
    _, record = world.records()
    assert record[:4] == (1, NOW_MS + 1000, b"k1", b"x")
    found = headers_of(record)
    assert found.pop("_producer").startswith("redrive-")
    assert found == {
        "_sequence": "0",
        "_settled": "0",
        "_topic": "$queue/orders/eu",
        "_state": "queued",
        "_id": "9",
        "_expires_at": str(NOW_MS + 1000 + WEEK_MS),
        "_for_group": "w",
        "a": "b",
    }
