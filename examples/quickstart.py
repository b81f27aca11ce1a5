"""Append records to a log and read them back: by offset, by time, and after closing it."""

from __future__ import annotations

import tempfile
import time

import tailrace


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with tailrace.Log(folder) as log:
            # One batch, written as a whole or not at all. A record is a value, a pair of key and
            # value, or a Record with everything. wait() returns when the batch is on the disk.
            receipt = log.append(
                [
                    b"a value",
                    ("user-1", b"a value with a key"),
                    tailrace.Record(value=b"with headers", headers={"type": b"greeting"}),
                ]
            )
            receipt.wait()
            print(f"{receipt.count} records, the first at offset {receipt.offset}")

            time.sleep(0.01)
            noon = int(time.time() * 1000)
            log.append_one(b"a later value", key="user-2").wait()

        # Readers need no lock, and no writer.
        with tailrace.Log(folder, read_only=True) as log:
            for record in log.read():
                print(record.offset, record.timestamp, record.key, record.value)
            print("since then:", [record.value for record in log.read(log.offset_at(noon))])


if __name__ == "__main__":
    main()
