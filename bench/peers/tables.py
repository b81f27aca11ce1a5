"""SQLite, doing what some rows of queues do: copies for several queues, messages for later, many
queues at once.

Each is what somebody would write who has SQLite and needs that. They are used with a transaction
for each message, or batch, as a publisher needs it that is told when its message is safe.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

__all__ = ["LEVELS", "CopyTables", "DelayTable", "make_tables"]

LEVELS = {"async": "NORMAL", "sync": "FULL"}  # which promise as much


def _connect(path: Path, flush: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={LEVELS[flush]}")
    return db


def _make_table(db: sqlite3.Connection, name: str) -> None:
    db.execute(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, value BLOB NOT NULL, "
        "lease INTEGER NOT NULL DEFAULT 0)"
    )


class CopyTables:
    """A table for each queue; all copies of a message are one transaction."""

    def __init__(self, folder: Path, flush: str, queues: int) -> None:
        self._db = _connect(folder / "queues.db", flush)
        names = [f"copy_{number}" for number in range(queues)]
        for name in names:
            _make_table(self._db, name)
        self._inserts = [f"INSERT INTO {name} (value) VALUES (?)" for name in names]

    def publish(self, value: bytes) -> None:
        execute, row = self._db.execute, (value,)
        execute("BEGIN IMMEDIATE")
        for insert in self._inserts:
            execute(insert, row)
        execute("COMMIT")

    def counts(self) -> list[int]:
        tables = range(len(self._inserts))
        return [self._db.execute(f"SELECT count(*) FROM copy_{n}").fetchone()[0] for n in tables]

    def close(self) -> None:
        self._db.close()


class DelayTable:
    """What is due later is in a table with an index on the time, from which it is moved."""

    def __init__(self, folder: Path, flush: str = "async") -> None:
        self._db = _connect(folder / "delayed.db", flush)
        _make_table(self._db, "queue")
        self._db.execute(
            "CREATE TABLE delayed (id INTEGER PRIMARY KEY, due INTEGER NOT NULL, value BLOB)"
        )
        self._db.execute("CREATE INDEX by_time ON delayed (due, id)")

    def publish(self, item: tuple[bytes, int]) -> None:
        self._db.execute("INSERT INTO delayed (value, due) VALUES (?, ?)", item)

    def publish_all(self, items: Iterable[tuple[bytes, int]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO delayed (value, due) VALUES (?, ?)", items)
        self._db.execute("COMMIT")

    def deliver(self, now_ms: int, most: int) -> int:
        """A batch of what is due, in order; how many that were."""
        execute = self._db.execute
        due = "FROM delayed WHERE due <= ? ORDER BY due, id LIMIT ?"
        execute("BEGIN IMMEDIATE")
        execute(f"INSERT INTO queue (value) SELECT value {due}", (now_ms, most))
        done = execute(f"DELETE FROM delayed WHERE id IN (SELECT id {due})", (now_ms, most))
        execute("COMMIT")
        return done.rowcount

    def values(self) -> list[bytes]:
        return [value for (value,) in self._db.execute("SELECT value FROM queue ORDER BY id")]

    def close(self) -> None:
        self._db.close()


def make_tables(path: Path, count: int, value: bytes) -> None:
    """Many queues with a message each."""
    db = _connect(path, "async")
    try:
        db.execute("BEGIN IMMEDIATE")
        for number in range(count):
            _make_table(db, f"queue_{number:05d}")
            db.execute(f"INSERT INTO queue_{number:05d} (value) VALUES (?)", (value,))
        db.execute("COMMIT")
    finally:
        db.close()
