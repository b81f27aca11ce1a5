"""Move from persist-queue: what is left in a SQLiteAckQueue is published to a queue, once.

Stop whoever uses the old queue first. What nobody had taken is moved, and so is what somebody had
taken and not acknowledged. This may be killed at any moment and started again: an item is
acknowledged in the old queue when it is on the disk in the new one, and if it is published again,
because that did not come to pass, the log notices by its producer (the old queue) and its sequence
(the item's id). It remembers the last 64 of a producer, so at most 64 items are on their way.

    pip install persist-queue
    python examples/from_persist_queue.py [FOLDER [OLD_FOLDER]]

Without an old folder it makes a small queue, and moves that.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import tailrace

try:
    import persistqueue
except ImportError:
    raise SystemExit("persist-queue is not installed: pip install persist-queue") from None

AT_ONCE = 64  # so many appends of a producer the log remembers


def encode(item: Any) -> bytes:
    """Items are pickled Python objects; messages are bytes. Choose what suits your consumers."""
    return item if isinstance(item, bytes) else json.dumps(item).encode()


def move(old_folder: str, queue: tailrace.Queue, name: str = "default") -> int:
    """Publish what the old queue of this name has; how many items that were."""
    if not Path(old_folder, "data.db").exists():
        raise SystemExit(f"there is no queue of persist-queue in {old_folder}")
    # Opening it makes ready again what was taken and not acknowledged. If you made the queue with
    # a serializer, give it that one.
    old = persistqueue.SQLiteAckQueue(old_folder, name=name)
    producer = f"persist-queue {token_of(old_folder)} {name}"
    count = 0
    while items := take(old):
        receipts = [
            queue.log.append_one(encode(item["data"]), producer=producer, sequence=item["pqid"])
            for item in items
        ]
        for receipt in receipts:
            receipt.wait()  # until it is on the disk; they share a flush
        for item in items:
            old.ack(id=item["pqid"])
        count += len(items)
    old.close()
    return count


def token_of(old_folder: str) -> str:
    """What tells this database from all others, also from a later one in the same place, whose ids
    begin anew. It is kept in the database."""
    with closing(sqlite3.connect(Path(old_folder, "data.db"))) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS moving (token TEXT NOT NULL)")
        found = database.execute("SELECT token FROM moving").fetchone()
        token = found[0] if found else uuid.uuid4().hex
        if not found:
            database.execute("INSERT INTO moving VALUES (?)", (token,))
    return str(token)


def take(old: persistqueue.SQLiteAckQueue) -> list[dict[str, Any]]:
    """The next items, in the order of their ids, with them."""
    items: list[dict[str, Any]] = []
    while len(items) < AT_ONCE and not old.empty():
        items.append(old.get(block=False, raw=True))
    return items


def make_old_queue(folder: str) -> None:
    """Five jobs: two are done, one was taken by a worker that died, two wait."""
    old = persistqueue.SQLiteAckQueue(folder)
    for number in range(5):
        old.put({"job": number})
    old.ack(old.get())
    old.ack(old.get())
    old.get()
    old.close()


def run(folder: str, old_folder: str) -> None:
    with tailrace.open(folder) as store:
        jobs = store.queue("jobs")
        print(f"moved: {move(old_folder, jobs)}")
        print(f"moved, the second time: {move(old_folder, jobs)}")
        for message in jobs.peek("workers", 5):
            print("next:", (message.value or b"").decode())


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        given = sys.argv[1:]
        folder = given[0] if given else str(Path(scratch, "store"))
        old_folder = given[1] if len(given) > 1 else str(Path(scratch, "old"))
        if len(given) < 2:
            make_old_queue(old_folder)
        run(folder, old_folder)


if __name__ == "__main__":
    main()
