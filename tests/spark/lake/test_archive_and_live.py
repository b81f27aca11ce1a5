"""The archive and the live log are all there was, while it is appended, retained and archived."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import Stream
from tailrace.log.fs import OsFileSystem
from tailrace.spark.lake import archive as archiving
from tests.spark.lake.support import SMALL, archived, open_store, put
from tests.spark.support import schema, source

SECONDS = 1.5
FIRST = 60
KEPT = 40


def rows_of(path: Path, lake: Path, pause: float) -> list[tuple[int, bytes]]:
    """By the reader, as tasks read them: some time after it was planned what each of them reads."""
    options = {"queue": "q", "includeArchive": "true", "archive": str(lake)}
    reader = source(path, **options).reader(schema("offset", "value"))
    parts = reader.partitions()
    time.sleep(pause)
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted((row["offset"], bytes(row["value"])) for row in found)


class Appends:
    """Each message has its offset as its value."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.count = 0

    def one(self) -> None:
        self.stream.publish(b"v%d" % self.count)
        self.count += 1

    def some(self) -> None:
        for _ in range(15):
            self.one()
        self.stream.log.flush()
        time.sleep(0.002)


class AtOnce:
    """Threads that do their work again and again until the block ends, and what they failed at."""

    def __init__(self, *works: Callable[[], Any]) -> None:
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.threads = [threading.Thread(target=self._repeat, args=[work]) for work in works]

    def _repeat(self, work: Callable[[], Any]) -> None:
        try:
            while not self.stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  told at the end
            self.failures.append(error)

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("partition_by", ["", "hour"])
def test_all_of_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: str
) -> None:
    """Retention would delete nearly everything, and may delete only what is in the archive."""
    monkeypatch.setattr(archiving, "PIECE_BYTES", 2_500)  # many steps
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, lake = tmp_path / "store", tmp_path / "lake"
    with open_store(path) as store:
        stream = store.stream("q", **SMALL, retention={"max_length_messages": KEPT})
        appends = Appends(stream)
        for _ in range(FIRST):
            appends.one()
        stream.log.flush()
        put(store, stream, lake, delete=True, partition_by=partition_by)

        def retain() -> None:
            stream.vacuum()
            time.sleep(0.003)

        def move() -> None:
            put(store, stream, lake, delete=True)

        work = AtOnce(appends.some, retain, move)
        end, last, reads = time.monotonic() + SECONDS, 0, 0
        with work:  # that is for some time, and until enough has happened at once
            while time.monotonic() < end or reads < 3 or appends.count <= 10 * FIRST:
                assert not work.failures
                found = rows_of(path, lake, chance.random() * 0.05)
                assert found == [(n, b"v%d" % n) for n in range(len(found))]
                assert len(found) >= max(last, FIRST)
                last = len(found)
                reads += 1
        assert work.failures == []
        stream.log.flush()
        found = rows_of(path, lake, 0)
        assert found == [(n, b"v%d" % n) for n in range(appends.count)]
        offsets = archived(OsFileSystem(), lake).column("offset").to_pylist()
        assert offsets == list(range(len(offsets)))
        assert 0 < stream.log.start_offset <= len(offsets)
