"""Rows 5 to 8 of queues: receiving a stream, publishing, the time from one to the other, and what
a message takes in memory while it is pending."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any

import tailrace
from bench.peers import Peer
from bench.rows.claims import CLAIM_BATCH, peers_for
from bench.rows.wake import BARE, PAUSE_S, Stage, Way, note_longest, race_ways
from bench.support.crew import Crew
from bench.support.queueing import GROUP, OURS, open_queue
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from bench.support.writing import Tool
from tailrace import Log
from tailrace.cli.measure import RawFile, Sample, cycle_of, pinned, time_each

__all__ = ["hold_pending", "publish_singles", "receive_stream", "wake_consumer"]

_STREAM_BATCH = 500
_WAIT_S = 1.0
_RATE = Unit.RECORDS_PER_SECOND


# --- a stream -------------------------------------------------------------------------------


@contextlib.contextmanager
def _filled_stream(setting: Setting, count: int) -> Iterator[Any]:
    """A consumer of a stream that has so many records, none of which it has received."""
    with setting.scratch("store") as folder:
        store = tailrace.open(folder, flush="async")
        try:
            stream = store.stream("events")
            consumer = stream.consumer(group=GROUP, auto_commit=False)
            for batch in cycle_of(setting.payload.batches, -(-count // BATCH)):
                stream.publish_many(batch)
            yield consumer
        finally:
            store.close()


def receive_stream(setting: Setting) -> Row:
    count = setting.sizes.queue.streamed

    def ours(commits: bool) -> Sample:
        with _filled_stream(setting, count) as consumer:
            return _receive(consumer, count, consumer.commit if commits else None)

    def reading() -> Sample:
        with setting.scratch("log") as folder, Log(folder, flush="async") as log:
            for batch in cycle_of(setting.payload.batches, -(-count // BATCH)):
                log.append(batch)
            began = perf_counter_ns()
            for record in log.read(0, count):
                _ = record.value
            return Sample(count, (perf_counter_ns() - began) / 1e9)

    contestants = [
        Contestant("tailrace", Role.OURS, partial(ours, True)),
        Contestant("tailrace, never committing", Role.VARIANT, partial(ours, False)),
        Contestant("tailrace, reading the log", Role.BASE, reading),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("receive a stream, batches of 500", _RATE, results)
    line.target = "500,000/s, committing each batch"
    line.checks = [Check("messages/s", line.value(line.ours), 500_000.0)]
    conditions = {"value_bytes": 256, "batch": _STREAM_BATCH, "flush": "async", "core": core}
    return Row(5, "stream-receive", line.title, [line], conditions)


def _receive(consumer: Any, count: int, commit: Callable[[], object] | None) -> Sample:
    """Latencies are of a batch."""
    latencies = array("q")
    receive, clock = consumer.receive, perf_counter_ns
    done = 0
    began = before = clock()
    while done < count:
        messages = receive(_STREAM_BATCH, wait=_WAIT_S)
        if not messages:
            raise RuntimeError(f"{done} of {count} messages came")
        for message in messages:
            _ = message.value
        if commit is not None:
            commit()
        now = clock()
        latencies.append(now - before)
        before = now
        done += len(messages)
    return Sample(done, (before - began) / 1e9, latencies)


# --- publishing -----------------------------------------------------------------------------


def publish_singles(setting: Setting) -> Row:
    sizes, payload = setting.sizes.queue, setting.payload
    count = sizes.published

    def ours() -> Sample:
        with setting.scratch("store") as folder, open_queue(folder) as queue:
            return time_each(queue.publish, cycle_of(payload.values, count))

    def limit() -> Sample:
        with setting.scratch("raw") as folder, RawFile(folder / "raw") as raw:
            return time_each(raw.writer(), cycle_of(payload.encoded_values, count))

    def appending() -> Sample:
        with setting.scratch("log") as folder, Log(folder, flush="async") as log:
            return time_each(log.append_one, cycle_of(payload.values, count))

    def theirs(peer: Peer) -> Sample:
        with setting.scratch("peer") as folder:
            session = peer.open(folder)
            try:
                values = cycle_of(payload.values, count)
                return time_each(session.put, values, seconds=sizes.peer_seconds)
            finally:
                session.close()

    contestants = [
        Contestant("tailrace", Role.OURS, ours),
        Contestant("os.write per record", Role.LIMIT, limit),
        Contestant("tailrace, log.append_one", Role.BASE, appending),
        *(
            Contestant(peer.name, Role.PEER, partial(theirs, peer))
            for peer in peers_for(setting, durable=False, can="put")
        ),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("publish one by one, async, owner", _RATE, results)
    line.target = "100,000/s"
    line.checks = [Check("messages/s", line.value(line.ours), 100_000.0)]
    line.note_cpu()
    conditions = {"value_bytes": 256, "batch": 1, "flush": "async", "core": core}
    return Row(6, "publish-single", line.title, [line], conditions)


# --- from one process to another ------------------------------------------------------------


def wake_consumer(setting: Setting) -> Row:
    count = setting.sizes.wake_records
    ways = [
        Way("tailrace", Role.OURS, Tool(OURS), "consumer"),
        BARE,
        Way("tailrace, following the log", Role.BASE, Tool("log"), "threads"),
    ]
    with Crew(2) as crew:
        stage = Stage(setting, crew)
        results = race_ways(setting, ways, lambda way: stage.wake(way, 1, count, PAUSE_S))
    line = Line("publish → received elsewhere, async", Unit.MICROSECONDS, results)
    line.target = "p50 under 250 µs, p99 under 2 ms"
    line.checks = [
        Check("p50, µs", line.percentile(50) / 1e3, 250.0, at_least=False),
        Check("p99, ms", line.percentile(99) / 1e6, 2.0, at_least=False),
    ]
    note_longest(line)
    conditions = {"value_bytes": 256, "flush": "async", "pause_ms": PAUSE_S * 1e3}
    return Row(7, "queue-wake", line.title, [line], conditions)


# --- memory ---------------------------------------------------------------------------------


def hold_pending(setting: Setting) -> Row:
    """Once: an allocator does not have good and bad days."""
    count = setting.sizes.queue.held
    ways = ((CLAIM_BATCH, "in batches of 100"), (1, "one by one"))
    lines = [_memory_line(setting, count, size, how) for size, how in ways]
    conditions = {"value_bytes": 256, "flush": "async", "pending": count}
    return Row(8, "pending-memory", lines[0].title, lines, conditions)


def _memory_line(setting: Setting, count: int, size: int, how: str) -> Line:
    half = count // 2

    def ours() -> Sample:
        with setting.scratch("store") as folder, open_queue(folder) as queue:
            queue.fill(setting.payload.values, count)
            gc.collect()
            began = perf_counter_ns()
            tracemalloc.start()
            try:
                queue.hold(half, size)
                first = _traced()
                queue.hold(count - half, size)
                taken = _traced()
            finally:
                tracemalloc.stop()
            seconds = (perf_counter_ns() - began) / 1e9
            extra = {"heap_bytes": float(taken), "second_half": float(taken - first)}
            return Sample(count, seconds, extra=extra)

    results = race([Contestant("tailrace", Role.OURS, ours)], rounds=1)
    line = Line(f"memory of a pending message, claimed {how}", Unit.BYTES_PER_MESSAGE, results)
    line.target = "under 200 bytes"
    line.checks = [Check("bytes", line.value(line.ours), 200.0, at_least=False)]
    each = line.ours.samples[0].extra["second_half"] / (count - half)
    line.notes.append(
        f"{each:.0f} bytes for each of the second half, without what is there once, such as what "
        "was read ahead"
    )
    return line


def _traced() -> int:
    """What is allocated, without what is only waiting to be collected."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
