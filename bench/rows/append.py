"""Rows 1 to 5: appending, in batches and one by one, with and without waiting for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time
from typing import Any

from bench.peers import Peer, Session
from bench.support.crowd import run_tasks, run_threads
from bench.support.duel import Duel
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from tailrace import Log
from tailrace.cli.measure import RawFile, Sample, cycle_of, pinned, time_all, time_each

__all__ = [
    "append_batches_async",
    "append_batches_sync",
    "append_concurrently",
    "append_singles_async",
    "append_singles_sync",
]

_SLICES = 10  # ours and the limit change places so often within a round
_RATE = Unit.RECORDS_PER_SECOND


@contextlib.contextmanager
def _new_log(setting: Setting, flush: str) -> Iterator[Log]:
    with setting.scratch("log") as folder, Log(folder, flush=flush) as log:
        yield log


@contextlib.contextmanager
def _raw(setting: Setting) -> Iterator[RawFile]:
    with setting.scratch("raw") as folder, RawFile(folder / "raw") as raw:
        yield raw


@contextlib.contextmanager
def _opened(setting: Setting, peer: Peer) -> Iterator[Session]:
    with setting.scratch("peer") as folder:
        session = peer.open(folder)
        try:
            yield session
        finally:
            session.close()


def _peers(
    setting: Setting, durable: bool, can: str, items: Sequence[Any], count: int, each: int
) -> list[Contestant]:
    """Contestants that put `count` of `items` (of `each` records), or as many as time allows."""

    def run(peer: Peer) -> Sample:
        with _opened(setting, peer) as session:
            put = getattr(session, can)
            work = cycle_of(items, count)
            return time_each(put, work, records=each, seconds=setting.sizes.peer_seconds)

    peers = setting.peers_that(durable=durable, can=can)
    return [Contestant(peer.name, Role.PEER, partial(run, peer)) for peer in peers]


def _sync_duel(
    setting: Setting,
    put: Callable[[Log], Callable[[Any], object]],
    ours: Sequence[Any],
    raw_items: Sequence[bytes],
    count: int,
    each: int,
) -> Duel:
    def both() -> tuple[Sample, Sample]:
        mine, theirs = Sample(0, 0.0), Sample(0, 0.0)
        with _new_log(setting, "sync") as log, _raw(setting) as raw:
            append, write = put(log), raw.syncing_writer()
            for _ in range(_SLICES):
                size = max(count // _SLICES, 1)
                mine.add(time_each(append, cycle_of(ours, size), records=each))
                theirs.add(time_each(write, cycle_of(raw_items, size), records=each))
        return mine, theirs

    return Duel(both)


# --- async ----------------------------------------------------------------------------------


def append_batches_async(setting: Setting) -> Row:
    payload, count = setting.payload, setting.sizes.batches

    def ours() -> Sample:
        with _new_log(setting, "async") as log:
            return time_each(log.append, cycle_of(payload.batches, count), records=BATCH)

    def limit() -> Sample:
        with _raw(setting) as raw:
            items = cycle_of(payload.encoded_batches, count)
            return time_each(raw.writer(), items, records=BATCH)

    contestants = [
        Contestant("tailrace", Role.OURS, ours),
        Contestant("os.write of the same bytes", Role.LIMIT, limit),
        *_peers(setting, False, "put_batch", payload.batches, count, BATCH),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("append, async, batches of 1,000", _RATE, results)
    line.target = "45 % of os.write; ahead of LMDB nosync; p99 of a batch under 10 ms"
    line.checks = [
        Check("of os.write", line.speed_against(line.limit()), 0.45),
        Check("of LMDB nosync", line.speed_against(line.find("LMDB nosync")), 1.0),
        Check("p99 of a batch, ms", line.percentile(99) / 1e6, 10.0, at_least=False),
    ]
    line.note_cpu()
    return _row(1, "append-async-batch", [line], batch=BATCH, flush="async", core=core)


def _singles_async(setting: Setting) -> tuple[Sample, Sample]:
    """Ours and the limit by turns, since the machine changes its speed within a second."""
    payload, sizes = setting.payload, setting.sizes
    mine, theirs = (Sample(0, 0.0, extra={"cpu_seconds": 0.0}) for _ in range(2))
    with _new_log(setting, "async") as log, _raw(setting) as raw:
        for _ in range(_SLICES):
            size = max(sizes.singles // _SLICES, 1)
            items, raw_items = payload.values, payload.encoded_values
            with _counting(mine, size):
                mine.seconds += time_all(log.append_one, cycle_of(items, size))
            with _counting(theirs, size):
                theirs.seconds += raw.time_writes(cycle_of(raw_items, size))
        for _ in range(_SLICES):
            size = max(sizes.timed_singles // _SLICES, 1)
            mine.latencies += time_each(log.append_one, cycle_of(items, size)).latencies
            theirs.latencies += time_each(raw.writer(), cycle_of(raw_items, size)).latencies
    return mine, theirs


@contextlib.contextmanager
def _counting(sample: Sample, count: int) -> Iterator[None]:
    used = process_time()
    yield
    sample.extra["cpu_seconds"] += process_time() - used
    sample.count += count


def append_singles_async(setting: Setting) -> Row:
    """The rate is taken without a look at the clock between records, the latencies in a second
    pass: at a microsecond each, the clock would be part of the figure."""
    payload, sizes = setting.payload, setting.sizes
    duel = Duel(partial(_singles_async, setting))
    contestants = [
        Contestant("tailrace", Role.OURS, duel.first),
        Contestant("os.write per record", Role.LIMIT, duel.second),
        *_peers(setting, False, "put", payload.values, sizes.singles, 1),
    ]
    with pinned() as core:
        results = race(contestants, sizes.rounds)
    line = Line("append one by one, async", _RATE, results)
    line.target = "40 % of os.write per record; p99 under 1 ms"
    line.checks = [
        Check("of os.write", line.speed_against(line.limit()), 0.40),
        Check("p99, ms", line.percentile(99) / 1e6, 1.0, at_least=False),
    ]
    line.note_cpu()
    return _row(2, "append-async-single", [line], batch=1, flush="async", core=core)


# --- sync -----------------------------------------------------------------------------------


def _put_one_durably(log: Log) -> Callable[[bytes], object]:
    append = log.append_one
    return lambda value: append(value).wait()


def _put_batch_durably(log: Log) -> Callable[[list[bytes]], object]:
    append = log.append
    return lambda values: append(values).wait()


def append_singles_sync(setting: Setting) -> Row:
    payload, count = setting.payload, setting.sizes.sync_singles
    values, raw_values = payload.values, payload.encoded_values
    duel = _sync_duel(setting, _put_one_durably, values, raw_values, count, 1)
    contestants = [
        Contestant("tailrace", Role.OURS, duel.first),
        Contestant("write + fdatasync per record", Role.LIMIT, duel.second),
        *_peers(setting, True, "put", values, count, 1),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("append one by one, sync", _RATE, results)
    line.target = "85 % of write + fdatasync; ahead of SQLite FULL"
    line.checks = [
        Check("of write + fdatasync", line.speed_against(line.limit()), 0.85),
        Check("of SQLite FULL", line.speed_against(line.find("SQLite WAL FULL")), 1.0),
    ]
    return _row(3, "append-sync-single", [line], batch=1, flush="sync", core=core)


def append_batches_sync(setting: Setting) -> Row:
    payload, count = setting.payload, setting.sizes.sync_batches
    batches, raw_batches = payload.batches, payload.encoded_batches
    duel = _sync_duel(setting, _put_batch_durably, batches, raw_batches, count, BATCH)
    contestants = [
        Contestant("tailrace", Role.OURS, duel.first),
        Contestant("write + fdatasync of the same bytes", Role.LIMIT, duel.second),
        *_peers(setting, True, "put_batch", batches, count, BATCH),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("append, sync, batches of 1,000", _RATE, results)
    line.target = "80 % of write + fdatasync of the same bytes"
    line.checks = [Check("of write + fdatasync", line.speed_against(line.limit()), 0.80)]
    return _row(5, "append-sync-batch", [line], batch=BATCH, flush="sync", core=core)


# --- many writers ---------------------------------------------------------------------------


def append_concurrently(setting: Setting) -> Row:
    with pinned() as core:
        lines = [_tasks_line(setting), _threads_line(setting)]
    row = _row(4, "append-sync-concurrent", lines, batch=1, flush="sync", core=core)
    row.conditions["writers"] = setting.sizes.writers
    return row


def _group_limit(setting: Setting) -> Contestant:
    """What group commit could do at best: the records of all writers in one write, one flush."""
    payload, writers = setting.payload, setting.sizes.writers
    group = [b"".join(payload.encoded_values[:writers])]

    def run() -> Sample:
        with _raw(setting) as raw:
            seconds = setting.sizes.concurrent_seconds / 2
            items = cycle_of(group, 1 << 20)
            return time_each(raw.syncing_writer(), items, records=writers, seconds=seconds)

    return Contestant(f"{writers} records, one write + fdatasync", Role.LIMIT, run)


def _tasks_line(setting: Setting) -> Line:
    sizes = setting.sizes
    values = setting.payload.values[: sizes.writers]

    def ours() -> Sample:
        with _new_log(setting, "sync") as log:

            async def put(value: bytes) -> None:
                await log.append_one(value)

            return asyncio.run(run_tasks(put, values, sizes.concurrent_seconds))

    def single() -> Sample:
        with _new_log(setting, "sync") as log:
            items = cycle_of(values, 1 << 20)
            seconds = sizes.concurrent_seconds / 2
            return time_each(_put_one_durably(log), items, seconds=seconds)

    def peer_tasks(peer: Peer) -> Sample:
        with _opened(setting, peer) as session:
            assert session.tasks is not None
            return session.tasks(values, sizes.peer_seconds)

    contestants = [
        Contestant(f"tailrace, {sizes.writers} tasks", Role.OURS, ours),
        Contestant("tailrace, one writer, sync", Role.BASE, single),
        _group_limit(setting),
        *(
            Contestant(peer.name, Role.PEER, partial(peer_tasks, peer))
            for peer in setting.peers_that(durable=True, can="tasks")
        ),
    ]
    line = Line(
        f"append one by one, sync, {sizes.writers} asyncio tasks",
        _RATE,
        race(contestants, sizes.rounds),
    )
    line.target = "12x the single writer"
    base = line.find("tailrace, one writer, sync")
    line.checks = [Check("x one writer", line.speed_against(base), 12.0)]
    return line


def _threads_line(setting: Setting) -> Line:
    """The denominator, "the same threads without fsync", is the same code on a log that never
    syncs: every thread calls `append_one(value).wait()`, which has nothing to wait for."""
    sizes = setting.sizes
    values = setting.payload.values[: sizes.writers]

    def threads(flush: str) -> Sample:
        with _new_log(setting, flush) as log:
            return run_threads(_put_one_durably(log), values, sizes.concurrent_seconds)

    def peer_threads(peer: Peer) -> Sample:
        with _opened(setting, peer) as session:
            assert session.put_by_threads is not None
            return run_threads(session.put_by_threads, values, sizes.peer_seconds)

    contestants = [
        Contestant(f"tailrace, {sizes.writers} threads", Role.OURS, partial(threads, "sync")),
        Contestant("tailrace, same threads, no fsync", Role.BASE, partial(threads, "none")),
        _group_limit(setting),
        *(
            Contestant(peer.name, Role.PEER, partial(peer_threads, peer))
            for peer in setting.peers_that(durable=True, can="put_by_threads")
        ),
    ]
    line = Line(
        f"append one by one, sync, {sizes.writers} threads", _RATE, race(contestants, sizes.rounds)
    )
    line.target = "25 % of the same threads without fsync"
    base = line.find("tailrace, same threads, no fsync")
    line.checks = [Check("of the same threads, no fsync", line.speed_against(base), 0.25)]
    return line


def _row(
    number: int, key: str, lines: list[Line], *, batch: int, flush: str, core: int | None
) -> Row:
    conditions = {"value_bytes": 256, "batch": batch, "codec": "none", "flush": flush, "core": core}
    return Row(number, key, lines[0].title, lines, conditions)
