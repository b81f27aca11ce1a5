"""The transactional outbox: what an application commits is published, exactly once.

An application that writes to its database and then publishes a message may die in between; one that
publishes first may announce what is rolled back. So it publishes nothing itself: it writes the
message to a table, the outbox, in the transaction of the change that it tells of. Both are
committed, or neither is. A relay carries the rows from there to the queue.

The relay may die as well, after it has published a row and before it has deleted it, and then
publishes it again. That is harmless because it appends under the name of a producer, with the id of
the row as sequence: the queue's log knows the last 64 sequences of a producer, durably, and an
append that it has already is not written again. Four things make that work:

- Each row is an append of its own. A batch would be another one after a crash, if rows were added.
- At most 64 rows are published before they are deleted, so all that may be repeated is remembered
  (for a week after the last append: see the setting `producer_expiry`).
- Ids rise in the order of the commits, and none is used twice. SQLite has one writer at a time, so
  AUTOINCREMENT does that. Where transactions commit side by side, as in PostgreSQL, let the relay
  number the rows as it first sees them, in a transaction of its own.
- The producer's name is made once, with the database, and kept there: a new database, whose ids
  begin anew, is another producer. After a restore from a backup give it a new name as well.

    python examples/outbox.py [FOLDER]
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import tailrace

AT_ONCE = 64  # so many appends of a producer the log remembers

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS relay (producer TEXT NOT NULL);
INSERT INTO relay SELECT 'shop-' || hex(randomblob(8)) WHERE NOT EXISTS (SELECT * FROM relay);
"""

Row = tuple[int, str]


# --- the application ----------------------------------------------------------------------------


def place_order(database: sqlite3.Connection, item: str, amount: int) -> None:
    with database:  # one transaction: commits, or rolls back if the block raises
        body = json.dumps({"item": item, "amount": amount})
        database.execute("INSERT INTO outbox (body) VALUES (?)", (body,))
        database.execute("INSERT INTO orders (item, amount) VALUES (?, ?)", (item, amount))
        if amount < 1:
            raise ValueError(f"an order of {amount} {item}")


# --- the relay: one at a time, in this process or another ---------------------------------------


def relay(database: sqlite3.Connection, queue: tailrace.Queue) -> int:
    """Publish what is in the outbox; how many rows that were."""
    count = 0
    while rows := waiting(database):
        publish(database, queue, rows)
        delete(database, rows)
        count += len(rows)
    return count


def waiting(database: sqlite3.Connection) -> list[Row]:
    return database.execute(
        "SELECT id, body FROM outbox ORDER BY id LIMIT ?", (AT_ONCE,)
    ).fetchall()


def publish(database: sqlite3.Connection, queue: tailrace.Queue, rows: list[Row]) -> None:
    """Returns when all of them are on the disk; they share a flush. It is the log below the queue
    that knows producers, so what is appended to it is not held against the queue's limits."""
    [producer] = database.execute("SELECT producer FROM relay").fetchone()
    receipts = [
        queue.log.append_one(body, headers={"row": str(id)}, producer=producer, sequence=id)
        for id, body in rows
    ]
    for receipt in receipts:
        receipt.wait()


def delete(database: sqlite3.Connection, rows: list[Row]) -> None:
    with database:
        database.executemany("DELETE FROM outbox WHERE id = ?", [(id,) for id, _ in rows])


# --- the story ----------------------------------------------------------------------------------


def run(folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(Path(folder, "shop.db"))) as database,
        tailrace.open(Path(folder, "queues")) as store,
    ):
        database.executescript(SCHEMA)
        placed = store.queue("orders-placed")

        place_order(database, "cups", 2)
        place_order(database, "plates", 6)
        try:
            place_order(database, "spoons", 0)
        except ValueError as error:
            print(f"rolled back: {error}")
        print(f"in the outbox: {len(waiting(database))}")

        publish(database, placed, waiting(database))
        print("published; and here the relay is killed, before it has deleted the rows")

        place_order(database, "lamps", 1)
        print(f"in the outbox: {len(waiting(database))}")
        print(f"relayed: {relay(database, placed)}")
        print(f"in the outbox: {len(waiting(database))}")

        for message in placed.consumer(group="shipping").receive(100, wait=1.0):
            with message:
                print("shipping gets", json.loads(message.value or b""))


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(folder)


if __name__ == "__main__":
    main()
