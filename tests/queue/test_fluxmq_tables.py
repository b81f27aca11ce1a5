"""A whole store of FluxMQ's, written out by the tables of its formats, and what we make of it.

The files that FluxMQ itself has written are not everywhere; these are, and nothing of ours has made
them. What we leave is read by the same tables.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tailrace import Message, Store
from tests.log import fluxmq
from tests.queue.clocks import ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.fluxmq_store import batch
from tests.queue.support import offsets, values
from tests.queue.test_fluxmq_config import ENTRY, file_of

NOW_MS = 1_794_770_400_000

# The example of the reference: offset 0, "hello", not compressed.
GOLDEN = bytes.fromhex(
    "58554c46 91995bfe 0000000000000000 33000000 0100 0e00 00 01 0000 b092a5e0a1010000"
    "b092a5e0a1010000 00 00 00 0a 68656c6c6f 03 06 5f746f706963 0d 2471756575652f6f7264657273"
    "03 5f6964 01 37 06 5f7374617465 06 717565756564"
)

# Offset 1: a value of 300 times "ab", as an S2 block. The record is 650 bytes: 5 of delta, time,
# key and the length of the value (600, zigzag 1200), the value, and 45 of headers. The elements: a
# literal up to the first "ab", a copy of 4 from 2 before, a repeat of the other 594, a literal.
HEAD = bytes.fromhex("00 00 00 b009 6162")
HEADERS = bytes.fromhex(
    "03 06 5f746f706963 10 2471756575652f6f72646572732f6575 03 5f6964 01 38"
    "06 5f7374617465 06 717565756564"
)
S2_BLOCK = (
    bytes.fromhex("8a05")  # 650: 10 + 5 * 128
    + bytes([(len(HEAD) - 1) << 2])
    + HEAD
    + bytes.fromhex("01 02")  # a copy of 4, from 2 before
    + bytes.fromhex("19 00 4e01")  # L=6, offset 0: a repeat of 260 + 334
    + bytes([(len(HEADERS) - 1) << 2])
    + HEADERS
)

STATE = b"""{
  "version": 7,
  "group_id": "workers",
  "state": {
    "AckFloor": 1,
    "Cursor": 5,
    "Delivered": 6,
    "CreatedAt": 1794770309768,
    "UpdatedAt": 1794770309776
  },
  "saved_at": 1794770309778
}"""

PEL = b"""{
  "version": 7,
  "shard_id": %d,
  "entries": {%s},
  "saved_at": 1794770309778
}"""

ENTRIES = {
    2: b"""
    "2": {
      "o": 2,
      "c": "c1",
      "d": 1794770309774,
      "n": 1,
      "l": 1794770309774
    }
  """,
    4: b"""
    "4": {
      "o": 4,
      "c": "c1",
      "d": 1794770309774,
      "n": 3,
      "l": 1794770309775
    }
  """,
}

# 5 is delivered, 2 acked, 4 was not: the cursor is 6, and all below is done but for 4 and 5.
OPS = (
    b'{"t":1,"o":5,"c":"c1","ts":1794770309780}\n'
    b'{"t":2,"o":2,"ts":1794770309781}\n'
    b'{"t":8,"o":6,"ts":1794770309782}\n'
)

GROUP = b"""{
  "version": 2,
  "state": {
    "ID": "workers",
    "QueueName": "orders",
    "Pattern": "",
    "Mode": "queue",
    "AutoCommit": true,
    "Cursor": {
      "Cursor": 6,
      "Committed": 3
    },
    "PEL": {
      "c1": [
        {
          "Offset": 4,
          "ConsumerID": "c1",
          "ClaimedAt": "2026-11-15T19:18:29.774Z",
          "DeliveryCount": 3
        }
      ]
    },
    "Consumers": {},
    "CreatedAt": "2026-11-15T19:18:29.768055613Z",
    "UpdatedAt": "2026-11-15T19:18:29.782Z"
  },
  "saved_at": 1794770309782
}"""


def compressed(offset: int, codec: int, body: bytes) -> bytes:
    at_ms = 1_794_770_309_809
    checked = struct.pack("<QIHHBBHqq", offset, len(body), 1, 0x0F, codec, 1, 0, at_ms, at_ms)
    checked += body
    return struct.pack("<II", 0x464C5558, fluxmq.crc32c(checked)) + checked


SEGMENT = (
    GOLDEN
    + compressed(1, 1, S2_BLOCK)
    + b"".join(batch(offset, b"%d" % offset, "orders") for offset in range(2, 10))
)


@pytest.fixture
def root(tmp_path: Path, clock: ManualClock) -> Path:
    clock.set_wall(NOW_MS)
    root = tmp_path / "data"
    files = {
        "config/queues.json": file_of(ENTRY),
        "groups/orders/workers.json": GROUP,
        f"queues/orders/segments/{0:020}.seg": SEGMENT,
        "queues/orders/consumers/workers/state.json": STATE,
        "queues/orders/consumers/workers/ops.log": OPS,
    }
    for shard in range(8):
        files[f"queues/orders/consumers/workers/pel_{shard}.json"] = PEL % (
            shard,
            ENTRIES.get(shard, b""),
        )
    for name, data in files.items():
        path = root / "queue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "queue"


def settle_some(store: Store) -> list[Message]:
    """Take all, and settle 4, 6 and 7."""
    with store.queue("orders").consumer("workers", id="c9") as consumer:
        messages = consumer.receive(100)
        consumer.ack([message for message in messages if message.offset in (4, 6, 7)])
    return messages


def test_its_messages(root: Path, open_store: OpenStore) -> None:
    found = list(open_store().queue("orders").read())
    assert offsets(found) == list(range(10))
    assert values(found) == [b"hello", b"ab" * 300, *(b"%d" % number for number in range(2, 10))]
    assert [(m.topic, m.id, m.key, m.timestamp) for m in found[:3]] == [
        ("$queue/orders", "7", None, 1_794_770_309_808),
        ("$queue/orders/eu", "8", None, 1_794_770_309_809),
        ("$queue/orders", "3", None, 1_794_770_309_772),
    ]


def test_its_group(root: Path, open_store: OpenStore) -> None:
    messages = settle_some(open_store())
    assert offsets(messages) == [4, 5, 6, 7, 8, 9]
    assert [message.delivery_count for message in messages] == [4, 2, 1, 1, 1, 1]


def test_its_other_files_are_left_as_they_were(root: Path, open_store: OpenStore) -> None:
    with open_store() as store:
        settle_some(store)
    assert (root / "queues" / "orders" / "segments" / f"{0:020}.seg").read_bytes() == SEGMENT
    [entry] = json.loads((root / "config" / "queues.json").read_bytes())["configs"]
    assert set(entry.pop("Tailrace")) <= {"incarnation", "survives"}
    assert entry == json.loads(ENTRY)


def test_what_it_finds_of_the_group(root: Path, open_store: OpenStore) -> None:
    """By the tables: every key, with a value of its type. 5, 8 and 9 are not settled."""
    with open_store() as store:
        settle_some(store)
    folder = root / "queues" / "orders" / "consumers" / "workers"
    assert (folder / "ops.log").read_bytes() == b""

    document = json.loads((folder / "state.json").read_bytes())
    state = document["state"]
    assert document["group_id"] == "workers"
    assert document["saved_at"] == NOW_MS
    assert document["version"] > 0
    assert state == {
        "AckFloor": 4,
        "Cursor": 10,
        "Delivered": 13,  # 6 in the snapshot, one in the operations, and six by us
        "CreatedAt": 1_794_770_309_768,
        "UpdatedAt": NOW_MS,
    }

    pending: dict[int, tuple[str, int]] = {}
    for shard in range(8):
        document = json.loads((folder / f"pel_{shard}.json").read_bytes())
        assert document["shard_id"] == shard
        assert document["saved_at"] == NOW_MS
        for key, entry in document["entries"].items():
            assert int(key) == entry["o"]
            assert entry["o"] % 8 == shard
            assert type(entry["d"]) is type(entry["l"]) is int
            pending[entry["o"]] = entry["c"], entry["n"]
    assert {offset: times for offset, (_, times) in pending.items()} == {5: 2, 8: 1, 9: 1}

    document = json.loads((root / "groups" / "orders" / "workers.json").read_bytes())
    assert (document["version"], document["saved_at"]) == (2, NOW_MS)
    group: dict[str, Any] = document["state"]
    before = json.loads(GROUP)["state"]
    assert list(group) == list(before)
    for name in ("ID", "QueueName", "Pattern", "Mode", "AutoCommit", "CreatedAt"):
        assert group[name] == before[name]
    assert group["Cursor"] == {"Cursor": 10, "Committed": 5}
    listed = [entry for entries in group["PEL"].values() for entry in entries]
    assert {entry["Offset"]: entry["DeliveryCount"] for entry in listed} == {5: 2, 8: 1, 9: 1}
    for consumer, entries in group["PEL"].items():
        for entry in entries:
            assert list(entry) == ["Offset", "ConsumerID", "ClaimedAt", "DeliveryCount"]
            assert (entry["ConsumerID"], entry["Offset"] in pending) == (consumer, True)


def test_what_it_does_next_counts(root: Path, open_store: OpenStore) -> None:
    """It goes on from what we left, gets 10, acks it, nacks 8, acks 5, and dies while it writes. Of
    what we had pending an ack of its is not believed: with each it drops the next one, too."""
    with open_store() as store:
        settle_some(store)
    with (root / "queues" / "orders" / "segments" / f"{0:020}.seg").open("ab") as segment:
        segment.write(batch(10, b"10", "orders") + batch(11, b"11", "orders"))
    ops = root / "queues" / "orders" / "consumers" / "workers" / "ops.log"
    ops.write_bytes(
        b'{"t":1,"o":10,"c":"c1","ts":1794770400001}\n{"t":2,"o":10,"ts":1794770400002}\n'
        b'{"t":4,"o":8,"ts":1794770400003}\n{"t":3,"os":[5],"ts":1794770400004}\n{"t":2,"o'
    )
    messages = settle_some(open_store())
    found = [(message.offset, message.delivery_count) for message in messages]
    assert found == [(5, 3), (8, 3), (9, 2), (11, 1)]
