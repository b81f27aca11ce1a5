"""Check every checksum of a log or of a store: what `tailrace verify` does, in parallel.

Tasks look at pieces of segments and return how much was there, or that it has to be looked at
closely; those segments are then read once more, each by a task, which returns what it found. All
that is not in segments (side files, groups, what is delayed) is checked here, in the driver.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.segment import (
    Glance,
    Piece,
    SegmentCheck,
    cut,
    glance,
    look_closely,
    settle,
)
from tailrace.log.offline.survey import SegmentSurvey
from tailrace.log.offline.verify import LogCheck, VerifyReport
from tailrace.queue.offline.verify import StoreCheck, StoreReport
from tailrace.spark.jobs.running import PIECE_BYTES, Means, Running

__all__ = ["verify_log", "verify_store"]


def verify_store(
    root: str, means: Means, piece_bytes: int = PIECE_BYTES
) -> tuple[StoreReport, Running]:
    """Check a store; the report, and how it was made."""
    check = StoreCheck(OsFileSystem(), root)
    planned = [queue.begin() for queue in check.queues]
    running, surveys = _survey([each for checks in planned for each in checks], means, piece_bytes)
    for queue, checks in zip(check.queues, planned, strict=True):
        queue.finish([next(surveys) for _ in checks])
    return check.report(), running


def verify_log(
    folder: str, means: Means, piece_bytes: int = PIECE_BYTES
) -> tuple[VerifyReport, Running]:
    """Check a log."""
    check = LogCheck(OsFileSystem(), folder)
    running, surveys = _survey(check.checks, means, piece_bytes)
    return check.report(surveys), running


def _survey(
    checks: list[SegmentCheck], means: Means, piece_bytes: int
) -> tuple[Running, Iterator[SegmentSurvey]]:
    fs = OsFileSystem()
    running = Running(means, sum(check.size for check in checks))
    checks = [replace(check, folder=os.path.abspath(check.folder)) for check in checks]
    pieces = [cut(fs, check, piece_bytes) for check in checks]
    glances = iter(running.run(_glance, [_Item(each) for few in pieces for each in few]))
    settled = [
        settle(check, [next(glances) for _ in few])
        for check, few in zip(checks, pieces, strict=True)
    ]
    odd = [check for check, found in zip(checks, settled, strict=True) if found is None]
    close = iter(running.run(_look, odd, counts=False))
    running.finish()
    return running, iter([next(close) if found is None else found for found in settled])


class _Item(NamedTuple):
    piece: Piece

    @property
    def size(self) -> int:
        return self.piece.stop - self.piece.start


def _glance(item: _Item) -> Glance | None:
    return glance(OsFileSystem(), item.piece)


def _look(check: SegmentCheck) -> SegmentSurvey:
    return look_closely(OsFileSystem(), check)
