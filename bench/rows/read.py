"""Rows 6 to 8: reading everything, as records and to Arrow, and finding one record."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers import Peer, Session
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from tailrace import Log, Record
from tailrace.cli.measure import (
    Sample,
    cycle_of,
    memory_copy,
    pinned,
    read_files,
    time_all,
    time_each,
)

__all__ = ["read_arrow", "read_records", "seek"]

_INTERVAL = 4096  # bytes between two entries of an index
_CONDITIONS = {"value_bytes": 256, "batch": BATCH, "codec": "none", "page_cache": "warm"}


@contextlib.contextmanager
def _filled_log(setting: Setting, records: int) -> Iterator[Log]:
    """A log to read. It is never flushed: reading is the same, and the disk has peace."""
    with setting.scratch("log") as folder:
        with Log(folder, flush="none") as log:
            for batch in cycle_of(setting.payload.batches, records // BATCH):
                log.append(batch)
        with Log(folder, read_only=True) as log:
            yield log


def _segments(log: Log) -> list[Path]:
    return sorted(Path(log.path).glob("*.seg"))


def _read_limits(log: Log, count: int) -> list[Contestant]:
    """Getting the same bytes by plain means; the first is the one that counts."""
    files = _segments(log)
    total = sum(path.stat().st_size for path in files)
    largest = max(path.stat().st_size for path in files)

    def timed(work: Callable[[Any], object], item: Any) -> Sample:
        return Sample(count, time_all(work, [item]))

    whole = partial(read_files, piece=largest)
    return [
        Contestant("read() of the files", Role.LIMIT, partial(timed, whole, files)),
        Contestant("read() in pieces of 1 MiB", Role.LIMIT, partial(timed, read_files, files)),
        Contestant("memcpy", Role.LIMIT, partial(timed, memory_copy, total)),
    ]


def read_records(setting: Setting) -> Row:
    count = setting.sizes.read_records

    def ours() -> Sample:
        began = time.perf_counter()
        number = 0
        for record in log.read():
            _ = record.value
            number += 1
        return Sample(number, time.perf_counter() - began)

    with _filled_log(setting, count) as log, contextlib.ExitStack() as stack:
        scans = _scanning_peers(setting, stack)
        contestants = [Contestant("tailrace", Role.OURS, ours), *_read_limits(log, count), *scans]
        with pinned() as core:
            results = race(contestants, setting.sizes.rounds)
    line = Line("read all, as Records, .value touched", Unit.RECORDS_PER_SECOND, results)
    line.target = "2 million/s; ratio to an LMDB cursor scan reported"
    line.checks = [Check("records/s", line.value(line.ours), 2e6)]
    against = line.speed_against(line.find("LMDB nosync, cursor scan"))
    if against is not None:
        line.notes.append(f"{against:.2f} of an LMDB cursor scan that yields the values as bytes")
    return Row(6, "read-records", line.title, [line], {**_CONDITIONS, "core": core})


def _scanning_peers(setting: Setting, stack: contextlib.ExitStack) -> list[Contestant]:
    """Each is filled once, for as long as it is allowed, and then scanned in every round."""
    contestants: list[Contestant] = []
    for peer in setting.peers_that(durable=False, can="scan"):
        folder = stack.enter_context(setting.scratch(f"scan-{len(contestants)}"))
        with contextlib.suppress(Exception):  # the others do not suffer from one that fails
            session = peer.open(folder)
            stack.callback(session.close)
            _fill(session, setting, 6 * setting.sizes.peer_seconds)
            assert session.scan is not None
            name = f"{peer.name}, {'cursor ' if 'LMDB' in peer.name else ''}scan"
            contestants.append(Contestant(name, Role.PEER, partial(_scan, session.scan)))
    return contestants


def _fill(session: Session, setting: Setting, seconds: float) -> None:
    assert session.put_batch is not None
    batches = cycle_of(setting.payload.batches, setting.sizes.read_records // BATCH)
    time_each(session.put_batch, batches, seconds=seconds)


def _scan(scan: Callable[[], int]) -> Sample:
    began = time.perf_counter()
    return Sample(scan(), time.perf_counter() - began)


def read_arrow(setting: Setting) -> Row:
    count = setting.sizes.read_records

    def run(columns: list[str] | None) -> Sample:
        began = time.perf_counter()
        number = sum(batch.num_rows for batch in log.read_arrow(columns=columns))
        return Sample(number, time.perf_counter() - began)

    with _filled_log(setting, count) as log, pinned() as core:
        next(log.read_arrow(end=1))  # importing pyarrow is not reading
        contestants = [
            Contestant("tailrace, all columns", Role.OURS, partial(run, None)),
            *_read_limits(log, count),
            Contestant("tailrace, only values", Role.VARIANT, partial(run, ["value"])),
        ]
        results = race(contestants, setting.sizes.rounds)
    line = Line("read all, to Arrow", Unit.RECORDS_PER_SECOND, results)
    line.target = "60 % of reading the same files with read()"
    line.checks = [Check("of read()", line.speed_against(line.limit()), 0.60)]
    return Row(7, "read-arrow", line.title, [line], {**_CONDITIONS, "core": core})


# --- finding one ----------------------------------------------------------------------------


@contextlib.contextmanager
def _timed_log(setting: Setting, records: int, *, spread: bool) -> Iterator[tuple[Log, int, int]]:
    """A log with the timestamps of a real one: `spread` over time, a record per millisecond, or as
    they come when one appends as fast as one can. Yields its first and last timestamp too."""
    now = time.time_ns() // 1_000_000
    first = now - records if spread else now
    with setting.scratch(f"seek-{spread}") as folder:
        with Log(folder, flush="none") as log:
            batches = cycle_of(setting.payload.batches, records // BATCH)
            for number, batch in enumerate(batches):
                if spread:
                    start = first + number * BATCH
                    log.append([Record(None, start + i, None, v) for i, v in enumerate(batch)])
                else:
                    log.append(batch)
        with Log(folder) as log:
            last = next(log.read("last")).timestamp
            assert last is not None
            yield log, first, last


def seek(setting: Setting) -> Row:
    sizes = setting.sizes
    dice = random.Random(20260101)
    with (
        _timed_log(setting, sizes.seek_records, spread=True) as (log, first, last),
        _timed_log(setting, sizes.seek_records // 10, spread=False) as (burst, early, late),
        Log(log.path, read_only=True) as observer,
        contextlib.ExitStack() as stack,
    ):
        offsets = [dice.randrange(log.end_offset) for _ in range(sizes.seeks)]
        times = [dice.randint(first, last) for _ in range(sizes.seeks)]
        burst_times = [dice.randint(early, late) for _ in range(sizes.seeks // 10)]
        limits = _seek_limits(setting, log, dice)
        peers = _getting_peers(setting, stack, offsets)
        by_offset = [
            Contestant("tailrace, read(o, o + 1)", Role.OURS, _each(_read_one(log), offsets)),
            *limits,
            Contestant(
                "tailrace, first of read(o)", Role.VARIANT, _each(_read_first(log), offsets)
            ),
            Contestant("read-only handle", Role.VARIANT, _each(_read_one(observer), offsets)),
            *peers,
        ]
        by_time = [
            Contestant("tailrace, offset_at + read one", Role.OURS, _each(_find(log), times)),
            *limits,
            Contestant(
                "tailrace, first of read(timestamp=t)", Role.VARIANT, _each(_read_at(log), times)
            ),
            Contestant("read-only handle", Role.VARIANT, _each(_find(observer), times)),
            Contestant("log of one burst", Role.VARIANT, _each(_find(burst), burst_times)),
        ]
        with pinned() as core:
            lines = [
                Line("seek to a random offset, read one", Unit.MICROSECONDS, race(by_offset, 3)),
                Line("seek to a random timestamp, read one", Unit.MICROSECONDS, race(by_time, 3)),
            ]
    for line in lines:
        line.target = f"median under 100 µs, {sizes.seek_records:,} records"
        line.checks = [Check("median, µs", line.value(line.ours), 100.0, at_least=False)]
    lines[1].notes.append(
        "the log has a record per millisecond, the burst a tenth of the records in "
        f"{(late - early) / 1000:.1f} s; the time index has an entry per second"
    )
    conditions = {**_CONDITIONS, "records": sizes.seek_records, "core": core}
    return Row(8, "seek", "seek and read one", lines, conditions)


def _each(operation: Callable[[int], object], items: list[int]) -> Callable[[], Sample]:
    return lambda: time_each(operation, items)


def _read_one(log: Log) -> Callable[[int], object]:
    return lambda offset: next(log.read(offset, offset + 1)).value


def _read_first(log: Log) -> Callable[[int], object]:
    return lambda offset: next(log.read(offset)).value


def _read_at(log: Log) -> Callable[[int], object]:
    return lambda timestamp: next(log.read(timestamp=timestamp)).value


def _find(log: Log) -> Callable[[int], object]:
    def find(timestamp: int) -> object:
        offset = log.offset_at(timestamp)
        return next(log.read(offset, offset + 1)).value

    return find


def _seek_limits(setting: Setting, log: Log, dice: random.Random) -> list[Contestant]:
    """A read at a random place: of as much as lies between two index entries, and of a batch."""
    files = [(path, path.stat().st_size) for path in _segments(log)]
    batch = len(setting.payload.encoded_batches[0])

    def run(size: int) -> Sample:
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(path.open("rb")).fileno() for path, _ in files]
            places = []
            for _ in range(setting.sizes.seeks):
                i = dice.randrange(len(files))
                places.append((opened[i], dice.randrange(max(files[i][1] - size, 1))))
            return time_each(lambda place: os.pread(place[0], size, place[1]), places)

    return [
        Contestant("pread of 4 KiB", Role.LIMIT, partial(run, _INTERVAL)),
        Contestant("pread of one batch", Role.LIMIT, partial(run, batch)),
    ]


def _getting_peers(
    setting: Setting, stack: contextlib.ExitStack, offsets: list[int]
) -> list[Contestant]:
    contestants = []
    for peer in setting.peers_that(durable=False, can="get"):
        session = _filled_with_all(setting, stack, peer)
        assert session.get is not None
        contestants.append(Contestant(f"{peer.name}, get", Role.PEER, _each(session.get, offsets)))
    return contestants


def _filled_with_all(setting: Setting, stack: contextlib.ExitStack, peer: Peer) -> Session:
    folder = stack.enter_context(setting.scratch("seek-peer"))
    session = peer.open(folder)
    stack.callback(session.close)
    assert session.put_batch is not None
    for batch in cycle_of(setting.payload.batches, setting.sizes.seek_records // BATCH):
        session.put_batch(batch)
    return session
