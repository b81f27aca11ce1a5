"""Stores to run jobs on, and ways to damage them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import tailrace
from tailrace.cli.places import find_store

T0 = 1_700_000_000_000


def make_store(path: Path, seed: int = 0, **options: Any) -> str:
    """A closed store: a stream of several segments that a group has read in part, a work queue, and
    one that nobody has used. Returns the folder with its `queues`."""
    rng = random.Random(seed)
    small = {"segment_bytes": 4_000, "index_interval": 300, **options}
    with tailrace.open(path, upkeep=False) as store:
        events = store.stream("events", **small)
        for number in range(60):
            moment = T0 + 500 * number
            for _ in range(rng.randint(1, 5)):
                key, value = f"k{rng.randrange(9)}", rng.randbytes(rng.randint(0, 120))
                events.publish(value, key=key, timestamp=moment)
        with events.consumer("readers") as consumer:
            for message in consumer.receive(20):
                message.ack()
        jobs = store.queue("jobs", **small)
        jobs.publish_many([b"%d" % number for number in range(100)])
        with jobs.consumer("workers") as worker:
            for message in worker.receive(10):
                message.ack()
        store.queue("unused")
    root = find_store(str(path))
    assert root is not None
    return root


def log_of(root: str, queue: str) -> Path:
    return Path(root, "queues", queue, "segments")


def files_of(folder: Path, *extensions: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in extensions)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def contents(folder: str | Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
