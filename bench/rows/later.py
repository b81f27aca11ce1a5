"""Rows 11 and 12 of queues: messages for later, and messages that expire.

Delays are random within an hour, so that what is published is not in the order in which it is due.
What is delivered is consumed afterwards, and each message has to be there, once.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any

import tailrace
from bench.peers.tables import DelayTable
from bench.support.duel import Turns
from bench.support.queueing import GROUP
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from tailrace.cli.measure import RawFile, Sample, cycle_of, pinned, time_each
from tailrace.queue.clock import SystemClock

__all__ = ["publish_and_deliver_later", "publish_expiring"]

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_LEAD_MS = 500  # that publishing is done before anything is due
_SLOWEST = 10_000  # a second: that publishing is done by then
_AT_ONCE = 4_096  # rows that SQLite moves, as many as we do
_CLAIMED = 500
_SLICES = 20
_TTL_S = 3600.0
_RATE = Unit.RECORDS_PER_SECOND
_TARGET = 20_000.0


class ShiftedClock(SystemClock):
    """The clock of the system, which can be put forward."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


# --- row 11 ---------------------------------------------------------------------------------


def publish_and_deliver_later(setting: Setting) -> Row:
    with pinned() as core:
        lines = [_publish_line(setting), _deliver_line(setting)]
    conditions = {
        "value_bytes": 256,
        "flush": "async",
        "due_within_seconds": _HOUR_MS // 1000,
        "core": core,
    }
    return Row(11, "delayed", lines[0].title, lines, conditions)


def _numbered(setting: Setting, count: int) -> list[bytes]:
    """Values that differ, so that each can be told from the others."""
    values = cycle_of(setting.payload.values, count)
    return [b"%08x" % number + value[8:] for number, value in enumerate(values)]


def _times(count: int) -> list[int]:
    """When they are due: within an hour, but none before all are published, in no order."""
    first_ms, rng = time.time_ns() // 1_000_000 + _MINUTE_MS, random.Random(count)
    return [first_ms + rng.randrange(_HOUR_MS) for _ in range(count)]


@contextlib.contextmanager
def _open(folder: Path, **options: Any) -> Iterator[tuple[Any, Any]]:
    with tailrace.open(folder, flush="async", **options) as store:
        yield store, store.queue("work", visibility_timeout="10m")


def _publish_line(setting: Setting) -> Line:
    count = setting.sizes.queue.delayed
    values = _numbered(setting, count)
    plain = min(count, setting.sizes.queue.published)

    def ours(upkeep: bool) -> Sample:
        with setting.scratch("store") as folder, _open(folder, upkeep=upkeep) as (_, queue):
            publish = queue.publish

            def later(item: tuple[bytes, int]) -> None:
                publish(item[0], deliver_at=item[1])

            sample = time_each(later, zip(values, _times(count), strict=True))
            if queue.delayed_count() != count:
                raise RuntimeError("what was published is not scheduled")
            return sample

    def now() -> Sample:
        with setting.scratch("store") as folder, _open(folder) as (_, queue):
            return time_each(queue.publish, values[:plain])

    def limit() -> Sample:
        with setting.scratch("raw") as folder, RawFile(folder / "raw") as raw:
            return time_each(raw.writer(), cycle_of(setting.payload.encoded_values, plain))

    def sqlite() -> Sample:
        with setting.scratch("peer") as folder, contextlib.closing(DelayTable(folder)) as table:
            items = zip(values, _times(count), strict=True)
            return time_each(table.publish, items, seconds=setting.sizes.queue.peer_seconds)

    contestants = [
        Contestant("tailrace", Role.OURS, partial(ours, True)),
        Contestant("tailrace, upkeep=False", Role.VARIANT, partial(ours, False)),
        Contestant("tailrace, without a delay", Role.BASE, now),
        Contestant("os.write per record", Role.LIMIT, limit),
    ]
    if setting.with_peers:
        contestants.append(Contestant("SQLite WAL NORMAL, by time", Role.PEER, sqlite))
    results = race(contestants, setting.sizes.rounds)
    line = Line("publish with a delay, one by one, async", _RATE, results)
    line.target = "20,000/s"
    line.checks = [Check("messages/s", line.value(line.ours), _TARGET)]
    return line


def _deliver_line(setting: Setting) -> Line:
    count, punctual = setting.sizes.queue.delayed, setting.sizes.queue.punctual
    values = _numbered(setting, count)

    def ours() -> Sample:
        clock = ShiftedClock()
        with (
            setting.scratch("store") as folder,
            _open(folder, upkeep=False, clock=clock) as (store, queue),
        ):
            consumer = queue.consumer(group=GROUP)
            for value, due in zip(values, _times(count), strict=True):
                queue.publish(value, deliver_at=due)
            clock.shift_ms = 2 * _HOUR_MS
            sample = _timed(store.deliver_due)
            _check_once(_consume(consumer, count), values)
            return sample

    def by_itself() -> Sample:
        """From the moment that they are due until all are received and acknowledged."""
        with setting.scratch("store") as folder, _open(folder) as (_, queue):
            consumer = queue.consumer(group=GROUP)
            chosen = values[:punctual]
            due = time.time_ns() // 1_000_000 + _LEAD_MS + punctual * 1000 // _SLOWEST
            for value in chosen:
                queue.publish(value, deliver_at=due)
            if time.time_ns() // 1_000_000 >= due:
                raise RuntimeError("some were due before all were published")
            received = list(_consume(consumer, punctual))
            seconds = time.time() - due / 1000
            _check_once(received, chosen)
            return Sample(punctual, seconds)

    def at_once() -> Sample:
        with setting.scratch("store") as folder, _open(folder) as (_, queue):
            batches = [values[i : i + BATCH] for i in range(0, count, BATCH)]
            sample = time_each(queue.publish_many, batches)
            return Sample(count, sample.seconds)

    def sqlite() -> Sample:
        with setting.scratch("peer") as folder, contextlib.closing(DelayTable(folder)) as table:
            table.publish_all(zip(values, _times(count), strict=True))
            later_ms = time.time_ns() // 1_000_000 + 2 * _HOUR_MS
            sample = _timed(lambda: _sum_of(lambda: table.deliver(later_ms, _AT_ONCE)))
            _check_once(table.values(), values)
            return sample

    contestants = [
        Contestant("tailrace, store.deliver_due()", Role.OURS, ours),
        Contestant("tailrace, by its thread, and acked", Role.VARIANT, by_itself),
        Contestant("tailrace, publish_many", Role.BASE, at_once),
    ]
    if setting.with_peers:
        contestants.append(Contestant("SQLite WAL NORMAL, by time", Role.PEER, sqlite))
    results = race(contestants, setting.sizes.rounds)
    line = Line("deliver what is due, async", _RATE, results)
    line.target = "20,000/s, also until consumed; each once"
    line.checks = [
        Check("messages/s", line.value(line.ours), _TARGET),
        Check("messages/s, consumed", line.value(results[1]), _TARGET),
    ]
    line.notes.append(
        "all messages that were due were consumed afterwards, each once; by the thread: from the "
        f"moment that {punctual:,} are due at once to the last acknowledgement"
    )
    return line


def _timed(work: Callable[[], int]) -> Sample:
    used, began = process_time(), perf_counter_ns()
    count = work()
    seconds = (perf_counter_ns() - began) / 1e9
    return Sample(count, seconds, extra={"cpu_seconds": process_time() - used})


def _sum_of(step: Callable[[], int]) -> int:
    total = 0
    while done := step():
        total += done
    return total


def _consume(consumer: Any, count: int) -> Iterator[bytes]:
    """Receive and acknowledge so many."""
    done = 0
    while done < count:
        messages = consumer.receive(_CLAIMED, wait=10.0)
        if not messages:
            raise RuntimeError(f"{done} of {count} messages came")
        yield from (message.value for message in messages)
        consumer.ack(messages)
        done += len(messages)


def _check_once(received: Iterable[bytes], published: Sequence[bytes]) -> None:
    """`received` is what was published, each once, in whatever order."""
    if sorted(received) != sorted(published):
        raise RuntimeError("what was delivered is not what was published, each once")


# --- row 12 ---------------------------------------------------------------------------------


def publish_expiring(setting: Setting) -> Row:
    with pinned() as core:
        lines = [_expiring_line(setting, 1), _expiring_line(setting, BATCH)]
    conditions = {"value_bytes": 256, "batch": [1, BATCH], "flush": "async", "core": core}
    return Row(12, "ttl", lines[0].title, lines, conditions)


def _expiring_line(setting: Setting, size: int) -> Line:
    """In slices, and with the order turned round each time: who comes first has no advantage."""
    each = max(setting.sizes.queue.expiring // _SLICES, 1)
    payload = setting.payload

    def in_turns() -> list[Sample]:
        with setting.scratch("store") as folder, _open(folder) as (store, plain):
            set_on_queue = store.queue("set", limits={"message_ttl": "1h"})
            own = store.queue("own")
            samples = [Sample(0, 0.0) for _ in range(3)]
            puts: list[Callable[[Any], object]]
            # Each is called as users write it: a `partial` with keywords would cost more than both.
            if size == 1:
                puts = [
                    lambda value: own.publish(value, ttl=_TTL_S),
                    lambda value: plain.publish(value),  # noqa: PLW0108
                    lambda value: set_on_queue.publish(value),  # noqa: PLW0108
                ]
            else:
                puts = [
                    lambda values: own.publish_many(values, ttl=_TTL_S),
                    lambda values: plain.publish_many(values),  # noqa: PLW0108
                    lambda values: set_on_queue.publish_many(values),  # noqa: PLW0108
                ]
            pool: Sequence[Any] = payload.values if size == 1 else payload.batches
            for put in puts:
                put(pool[0])
            pairs = list(zip(samples, puts, strict=True))
            for number in range(_SLICES):
                for sample, put in pairs if number % 2 else reversed(pairs):
                    items = cycle_of(pool, max(each // size, 1))
                    sample.add(time_each(put, items, records=size))
            return samples

    turns = Turns(in_turns)
    contestants = [
        Contestant("tailrace, ttl=", Role.OURS, turns.of(0)),
        Contestant("tailrace, without", Role.BASE, turns.of(1)),
        Contestant("tailrace, message_ttl of the queue", Role.VARIANT, turns.of(2)),
    ]
    results = race(contestants, setting.sizes.rounds)
    how = "one by one" if size == 1 else f"batches of {size:,}"
    line = Line(f"publish with a TTL, {how}, async", _RATE, results)
    line.target = "90 % of publishing without"
    line.checks = [Check("of without", line.speed_against(results[1]), 0.90)]
    return line
