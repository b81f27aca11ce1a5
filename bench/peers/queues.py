"""Peers that are queues: a message is claimed, worked on, and acknowledged.

None of them is quite the same as another, or as ours; `promises` says in what. Each is used as its
documentation says, and where there is a choice, in the faster way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any

from bench.peers.base import Peer, Session, installed, missing, version_of
from bench.peers.queue_servers import queue_server_peers
from bench.peers.servers import Servers

__all__ = ["embedded_queue_peers", "queue_peers"]

_PATIENCE_S = 60.0
_LEASE_NS = 30_000_000_000
_CLEAR_EVERY = 1000
_SINGLES = frozenset({"put", "claim"})
_BATCHES = _SINGLES | {"put_batch", "claim_batch"}

_SQLITE_PROMISES = (
    "a table with a lease per row: a claim is UPDATE … RETURNING, an acknowledgement DELETE, each "
    "a transaction. Leases expire. One group, no delivery counts, no lease tokens, no replay. "
)
_SQLITE_LEVELS = {
    "NORMAL": "No fsync per commit: compared with async",
    "FULL": "An fsync per commit, so two for a claim and its acknowledgement: compared with sync",
}
_PERSIST_PROMISES = (
    "no leases: what was claimed comes back when the queue is opened again. One process. SQLite at "
    "FULL, an fsync per claim and per acknowledgement, in all rows since it has no other mode. It "
    f"looks past what was acknowledged, so that is cleared every {_CLEAR_EVERY:,}, in the time"
)
_LITEQUEUE_PROMISES = (
    "no leases: what was claimed stays locked until somebody retries it. SQLite at NORMAL, no "
    "fsync per commit. Each claim sorts all that is ready, so it gets slower as the queue gets "
    "deeper than it is here"
)


def queue_peers(servers: Servers) -> list[Peer]:
    """All that are known; one that is not installed is there too, and says so."""
    return [*embedded_queue_peers(), *queue_server_peers(servers)]


def embedded_queue_peers() -> Iterator[Peer]:
    for level, durable in (("NORMAL", False), ("FULL", True)):
        yield Peer(
            f"SQLite WAL {level}",
            sqlite3.sqlite_version,
            durable,
            _BATCHES,
            partial(_open_sqlite, level),
            promises=_SQLITE_PROMISES + _SQLITE_LEVELS[level],
        )
    name = "persist-queue ack"
    if (persistqueue := installed("persistqueue")) is not None:
        yield Peer(
            name,
            version_of("persist-queue"),
            True,
            _SINGLES,
            partial(_open_persist, persistqueue),
            only_mode=True,
            promises=_PERSIST_PROMISES,
        )
    else:
        yield missing(name, durable=True, can=_SINGLES, only_mode=True)
    name = "litequeue"
    if (litequeue := installed("litequeue")) is not None:
        yield Peer(
            name,
            version_of("litequeue"),
            False,
            _SINGLES,
            partial(_open_litequeue, litequeue),
            promises=_LITEQUEUE_PROMISES,
        )
    else:
        yield missing(name, durable=False, can=_SINGLES)


def _open_sqlite(level: str, folder: Path) -> Session:
    db = sqlite3.connect(folder / "queue.db", timeout=_PATIENCE_S, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={level}")
    db.execute(
        "CREATE TABLE IF NOT EXISTS queue ("
        "id INTEGER PRIMARY KEY, value BLOB NOT NULL, lease INTEGER NOT NULL DEFAULT 0)"
    )
    insert = "INSERT INTO queue (value) VALUES (?)"
    take = (
        "UPDATE queue SET lease = ? WHERE id IN "
        "(SELECT id FROM queue WHERE lease <= ? ORDER BY id LIMIT ?) RETURNING id, value"
    )

    def put(value: bytes) -> None:
        db.execute(insert, (value,))

    def put_batch(values: list[bytes]) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(insert, ((value,) for value in values))
        db.execute("COMMIT")

    def claim(most: int) -> list[Any]:
        now = time_ns()
        return db.execute(take, (now + _LEASE_NS, now, most)).fetchall()

    def settle(claimed: list[Any]) -> None:
        # One statement is faster than one for each row in a transaction.
        marks = ",".join("?" * len(claimed))
        db.execute(f"DELETE FROM queue WHERE id IN ({marks})", [row[0] for row in claimed])

    return Session(put, put_batch, claim=claim, settle=settle, close=db.close)


def _open_persist(persistqueue: Any, folder: Path) -> Session:
    queue = persistqueue.SQLiteAckQueue(str(folder))
    settled = 0

    def claim(most: int) -> list[Any]:
        claimed: list[Any] = []
        try:
            while len(claimed) < most:
                claimed.append(queue.get(block=False, raw=True))
        except persistqueue.Empty:
            return claimed
        return claimed

    def settle(claimed: list[Any]) -> None:
        nonlocal settled
        for item in claimed:
            queue.ack(id=item["pqid"])
            settled += 1
            if settled % _CLEAR_EVERY == 0:
                queue.clear_acked_data(max_delete=_CLEAR_EVERY, keep_latest=0)

    return Session(queue.put, claim=claim, settle=settle, close=queue.close)


def _open_litequeue(litequeue: Any, folder: Path) -> Session:
    queue = litequeue.LiteQueue(str(folder / "queue.db"))

    def put(value: bytes) -> None:
        queue.put(value)  # typed as text, kept as given

    def claim(most: int) -> list[Any]:
        claimed: list[Any] = []
        while len(claimed) < most and (message := queue.pop()) is not None:
            claimed.append(message)
        return claimed

    def settle(claimed: list[Any]) -> None:
        for message in claimed:
            queue.done(message.message_id)

    return Session(put, claim=claim, settle=settle, close=queue.close)
