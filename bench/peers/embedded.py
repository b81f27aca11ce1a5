"""Peers that are libraries: SQLite, LMDB, persist-queue, litequeue, diskcache."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, Session, installed, version_of

__all__ = ["embedded_peers"]

_LMDB_MAP = 32 << 30  # address space, not memory: a store that is full would stop


def embedded_peers() -> Iterator[Peer]:
    batch_and_scan = frozenset({"put", "put_batch", "scan"})
    for level, durable in (("FULL", True), ("NORMAL", False)):
        can = batch_and_scan | {"put_by_threads"}
        opens = partial(_open_sqlite, level)
        yield Peer(f"SQLite WAL {level}", sqlite3.sqlite_version, durable, can, opens)
    if (lmdb := installed("lmdb")) is not None:
        for name, sync in (("LMDB sync", True), ("LMDB nosync", False)):
            opens = partial(_open_lmdb, lmdb, sync)
            yield Peer(name, version_of("lmdb"), sync, batch_and_scan | {"get"}, opens)
    put = frozenset({"put"})
    if (persistqueue := installed("persistqueue")) is not None:
        version = version_of("persist-queue")
        opens = partial(_open_persist_sqlite, persistqueue)
        # It leaves SQLite's `synchronous` at FULL and commits each put.
        yield Peer("persist-queue SQLite", version, True, put, opens)
        opens = partial(_open_persist_file, persistqueue)
        # It syncs a file of 100 values when that is full.
        yield Peer("persist-queue file", version, False, put, opens)
    if (litequeue := installed("litequeue")) is not None:
        opens = partial(_open_litequeue, litequeue)
        yield Peer("litequeue", version_of("litequeue"), False, put, opens)
    if (diskcache := installed("diskcache")) is not None:
        opens = partial(_open_diskcache, diskcache)
        yield Peer("diskcache Deque", version_of("diskcache"), False, batch_and_scan, opens)


def _open_sqlite(level: str, folder: Path) -> Session:
    db = sqlite3.connect(folder / "log.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={level}")
    db.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB NOT NULL)")
    insert = "INSERT INTO log (value) VALUES (?)"
    lock = threading.Lock()

    def put(value: bytes) -> None:
        db.execute(insert, (value,))

    def put_locked(value: bytes) -> None:
        with lock:
            db.execute(insert, (value,))

    def put_batch(values: list[bytes]) -> None:
        db.execute("BEGIN")
        db.executemany(insert, ((value,) for value in values))
        db.execute("COMMIT")

    def scan() -> int:
        number = 0
        for (_value,) in db.execute("SELECT value FROM log ORDER BY offset"):
            number += 1
        return number

    return Session(put, put_batch, scan, put_by_threads=put_locked, close=db.close)


def _open_lmdb(lmdb: Any, sync: bool, folder: Path) -> Session:
    env = lmdb.open(str(folder), map_size=_LMDB_MAP, sync=sync, metasync=sync)
    numbers = count()

    def key(number: int) -> bytes:
        return number.to_bytes(8, "big")

    def put(value: bytes) -> None:
        with env.begin(write=True) as transaction:
            transaction.put(key(next(numbers)), value, append=True)

    def put_batch(values: list[bytes]) -> None:
        with env.begin(write=True) as transaction:
            add = transaction.put
            for number, value in zip(numbers, values, strict=False):
                add(number.to_bytes(8, "big"), value, append=True)

    def scan() -> int:
        number = 0
        with env.begin() as transaction:
            for _value in transaction.cursor().iternext(keys=False, values=True):
                number += 1
        return number

    def get(number: int) -> bytes | None:
        with env.begin() as transaction:
            value: bytes | None = transaction.get(key(number))
        return value

    return Session(put, put_batch, scan, get, close=env.close)


def _open_persist_sqlite(persistqueue: Any, folder: Path) -> Session:
    queue = persistqueue.SQLiteQueue(str(folder), auto_commit=True)
    return Session(queue.put, close=queue.close)


def _open_persist_file(persistqueue: Any, folder: Path) -> Session:
    queue = persistqueue.Queue(str(folder / "queue"), tempdir=str(folder))

    def close() -> None:
        queue.headf.close()
        queue.tailf.close()

    return Session(queue.put, close=close)


def _open_litequeue(litequeue: Any, folder: Path) -> Session:
    queue = litequeue.LiteQueue(str(folder / "queue.db"))

    def put(value: bytes) -> None:
        queue.put(value)  # typed as text, kept as given

    return Session(put, close=queue.close)


def _open_diskcache(diskcache: Any, folder: Path) -> Session:
    deque = diskcache.Deque(directory=str(folder))

    def put_batch(values: list[bytes]) -> None:
        with deque.transact():
            deque.extend(values)

    def scan() -> int:
        return sum(1 for _value in deque)

    return Session(deque.append, put_batch, scan, close=deque.cache.close)
