"""Peers that several processes may use at once: SQLite, LMDB, diskcache.

Each is a log as far as it can be one: values in the order in which they were put, whoever put them.
The first process to open one makes it; all wait for each other's locks as long as it takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, Session, installed, version_of

__all__ = ["shared_peers"]

_PATIENCE_S = 60.0
_LMDB_MAP = 32 << 30  # address space, not memory
_CAN = frozenset({"put", "put_batch", "poll"})


def shared_peers() -> Iterator[Peer]:
    for level, durable in (("FULL", True), ("NORMAL", False), ("OFF", False)):
        opens = partial(_open_sqlite, level)
        yield Peer(f"SQLite WAL {level}", sqlite3.sqlite_version, durable, _CAN, opens)
    if (lmdb := installed("lmdb")) is not None:
        for name, sync in (("LMDB sync", True), ("LMDB nosync", False)):
            opens = partial(_open_lmdb, lmdb, sync)
            yield Peer(name, version_of("lmdb"), sync, _CAN, opens)
    if (diskcache := installed("diskcache")) is not None:
        opens = partial(_open_diskcache, diskcache)
        yield Peer("diskcache Deque", version_of("diskcache"), False, _CAN, opens)


def _open_sqlite(level: str, folder: Path) -> Session:
    db = sqlite3.connect(
        folder / "log.db", timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={level}")
    db.execute("CREATE TABLE IF NOT EXISTS log (offset INTEGER PRIMARY KEY, value BLOB NOT NULL)")
    insert = "INSERT INTO log (value) VALUES (?)"
    last = 0

    def put(value: bytes) -> None:
        db.execute(insert, (value,))

    def put_batch(values: list[bytes]) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(insert, ((value,) for value in values))
        db.execute("COMMIT")

    def poll() -> list[bytes]:
        nonlocal last
        found = db.execute(
            "SELECT offset, value FROM log WHERE offset > ? ORDER BY offset", (last,)
        ).fetchall()
        if found:
            last = found[-1][0]
        return [value for _offset, value in found]

    return Session(put, put_batch, poll=poll, close=db.close)


def _open_lmdb(lmdb: Any, sync: bool, folder: Path) -> Session:
    env = lmdb.open(str(folder), map_size=_LMDB_MAP, sync=sync, metasync=sync)
    last = -1

    def after_last(transaction: Any) -> int:
        """The key that comes next: others put as well, so it has to be looked up."""
        cursor = transaction.cursor()
        return int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 0

    def put(value: bytes) -> None:
        with env.begin(write=True) as transaction:
            key = after_last(transaction).to_bytes(8, "big")
            transaction.put(key, value, append=True)

    def put_batch(values: list[bytes]) -> None:
        with env.begin(write=True) as transaction:
            add = transaction.put
            for number, value in enumerate(values, after_last(transaction)):
                add(number.to_bytes(8, "big"), value, append=True)

    def poll() -> list[bytes]:
        nonlocal last
        with env.begin() as transaction:
            cursor = transaction.cursor()
            if not cursor.set_range((last + 1).to_bytes(8, "big")):
                return []
            found = [bytes(value) for value in cursor.iternext(keys=False, values=True)]
        last += len(found)
        return found

    return Session(put, put_batch, poll=poll, close=env.close)


def _open_diskcache(diskcache: Any, folder: Path) -> Session:
    deque = diskcache.Deque(directory=str(folder))

    def put_batch(values: list[bytes]) -> None:
        with deque.transact():
            deque.extend(values)

    def poll() -> list[bytes]:
        """It has no offsets: whoever reads takes out."""
        found = []
        while True:
            try:
                found.append(deque.popleft())
            except IndexError:
                return found

    return Session(deque.append, put_batch, poll=poll, close=deque.cache.close)
