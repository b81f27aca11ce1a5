"""Processes that bring an archive back are killed, again and again, while others use the log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tailrace import Log, OffsetOutOfRange
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.verify import verify

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tests.spark.lake.making import make_archive

COUNT = 3_000
OPTIONS = "flush='sync', segment_bytes=20_000, upkeep=False"
CHILD = f"""
import sys
from tailrace import Log
from tailrace.log.fs import OsFileSystem
from tailrace.spark.lake.manifest import Manifest
from tailrace.spark.lake.restore import Wanted, choose, restore

folder, archive, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Log(folder, {OPTIONS}) as log:
    manifest = Manifest.load(OsFileSystem(), archive)
    print("ready", flush=True)
    restore(log, manifest, choose(log, manifest, "q", "", Wanted(start)))
"""


def test_a_kill_at_any_time(tmp_path: Path) -> None:
    """Whenever it hits, the log starts where it did or where it was to, and nothing is missing."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    folder, archive = str(tmp_path / "log"), str(tmp_path / "archive")
    stop, failures = threading.Event(), []
    with Log(folder, flush="sync", segment_bytes=20_000, upkeep=False) as log:
        log.append_many([b"%d" % number for number in range(COUNT)]).wait()
        make_archive(archive, log, [(0, 1_000), (1_000, COUNT)])
        log.truncate_before(COUNT - 10)
        log.vacuum()

        def use() -> None:
            try:
                with Log(folder, read_only=True) as reader:
                    while not stop.is_set():
                        log.append([b"%d" % log.end_offset]).wait()
                        try:
                            found = [(record.offset, record.value) for record in reader.read()]
                        except OffsetOutOfRange:
                            continue
                        offsets = [offset or 0 for offset, _ in found]
                        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
                        assert all(value == b"%d" % (offset or 0) for offset, value in found)
            except BaseException as error:  # noqa: BLE001  told below
                failures.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            for _ in range(8):
                before = log.start_offset
                if before < 500:
                    log.truncate_before(COUNT - chance.randrange(100))
                    log.vacuum()
                    before = log.start_offset
                start = chance.randrange(before)
                killed(folder, archive, start, chance.random() * 0.15)
                log.flush()  # with its turn, whoever died in it
                assert log.start_offset in (before, start)
        finally:
            stop.set()
            thread.join()
    assert not failures, failures
    report = verify(OsFileSystem(), folder)
    assert not [each for each in report.findings if each.severity == "problem"], report.findings


def killed(folder: str, archive: str, start: int, after_s: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, folder, archive, str(start)],
        stdout=subprocess.PIPE,
        env=os.environ,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
