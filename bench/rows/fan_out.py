"""Row 9 of queues: a message that goes to ten queues.

`async`, and `sync` as well: there a copy is safe in each queue when `publish` returns, which takes
as many flushes as there are queues, while one database needs one for all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import tailrace
from bench.peers.tables import LEVELS, CopyTables
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from tailrace.cli.measure import RawFile, Sample, cycle_of, human_rate, pinned, time_each

__all__ = ["fan_out"]

_QUEUES = 10
_TOPIC = "orders/created"
_AS_FAST = 0.9


def fan_out(setting: Setting) -> Row:
    sizes = setting.sizes.queue
    with pinned() as core:
        lines = [_line(setting, "async", sizes.fanned), _line(setting, "sync", sizes.sync_fanned)]
    conditions = {"value_bytes": 256, "queues": _QUEUES, "flush": ["async", "sync"], "core": core}
    return Row(9, "fan-out", lines[0].title, lines, conditions)


def _line(setting: Setting, flush: str, count: int) -> Line:
    slices = setting.sizes.slices
    each = max(count // slices, 1)
    values, encoded = setting.payload.values, setting.payload.encoded_values

    def ours() -> Sample:
        with _bound_queues(setting, flush) as store:
            store.publish(_TOPIC, values[0])  # which opens the logs
            publish = partial(store.publish, _TOPIC)
            return time_each(publish, cycle_of(values, each), records=_QUEUES)

    def by_name() -> Sample:
        with _bound_queues(setting, flush) as store:
            publishers = [store.get(name).publish for name in _names()]

            def publish(value: bytes) -> None:
                receipts = [to_one(value, wait=False) for to_one in publishers]
                for receipt in receipts:
                    receipt.wait()

            publish(values[0])
            return time_each(publish, cycle_of(values, each), records=_QUEUES)

    def limit() -> Sample:
        with setting.scratch("raw") as folder, ExitStack() as files:
            raws = [files.enter_context(RawFile(folder / name)) for name in _names()]
            writers = [raw.writer() if flush == "async" else raw.syncing_writer() for raw in raws]

            def write(data: bytes) -> None:
                for put in writers:
                    put(data)

            return time_each(write, cycle_of(encoded, each), records=_QUEUES)

    def sqlite() -> Sample:
        with setting.scratch("peer") as folder:
            tables = CopyTables(folder, flush, _QUEUES)
            try:
                items = cycle_of(values, each)
                seconds = setting.sizes.queue.peer_seconds
                return time_each(tables.publish, items, records=_QUEUES, seconds=seconds)
            finally:
                tables.close()

    peer = f"SQLite WAL {LEVELS[flush]}, ten tables"
    calls = "os.write" if flush == "async" else "write + fdatasync"
    contestants = [
        Contestant("tailrace, store.publish(topic)", Role.OURS, ours),
        Contestant("tailrace, queue.publish to each", Role.BASE, by_name),
        Contestant(f"{calls} to each of ten files", Role.LIMIT, limit),
    ]
    if setting.with_peers:
        contestants.append(Contestant(peer, Role.PEER, sqlite))
    results = race(contestants, setting.sizes.rounds, slices)
    line = Line(f"fan-out to {_QUEUES} queues, {flush}, copies", Unit.RECORDS_PER_SECOND, results)
    line.checks = [Check("of queue.publish", line.speed_against(results[1]), _AS_FAST)]
    line.target = "90 % of queue.publish to each"
    if flush == "async":
        line.target += "; ahead of SQLite"
        line.checks.append(Check("x SQLite", line.speed_against(line.best_peer()), 1.0))
    line.notes.append(
        f"{human_rate(line.value(line.ours) / _QUEUES)} messages, a copy of each in {_QUEUES} "
        "queues; the times are of all copies of a message"
    )
    if setting.with_peers:
        line.notes.append(f"{peer}: all copies of a message are one transaction")
    return line


def _names() -> list[str]:
    return [f"copy-{number}" for number in range(_QUEUES)]


@contextlib.contextmanager
def _bound_queues(setting: Setting, flush: str) -> Iterator[Any]:
    """A store whose queues are all bound to the topic. Afterwards each of them has a copy of every
    message."""
    with setting.scratch("store") as folder, tailrace.open(folder, flush=flush) as store:
        for name in _names():
            store.queue(name, topics=[_TOPIC])
        yield store
        counts = {len(queue) for queue in store.queues()}
        if len(store.queues()) != _QUEUES or len(counts) != 1:
            raise RuntimeError(f"the queues have {sorted(counts)} messages, not as many each")
