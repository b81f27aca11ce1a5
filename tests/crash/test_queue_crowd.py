"""Many processes on one queue, killed at random: no message is lost, none has two owners, none
comes back that was acknowledged, and dead letters are there once.

The seed decides what each of them does and when it is killed. A run that failed says its seed;
the scheduler has its own will, so a replay may have to be tried a few times:

    TAILRACE_SEED=7 TAILRACE_CROWD_S=60 pytest tests/crash/test_queue_crowd.py -k "replay and sync"

`TAILRACE_CROWD_S` is how long a long run takes.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import Queue, Store
from tailrace.queue import burying
from tailrace.queue.dead_letters import origin
from tailrace.testing.queue_history import (
    Death,
    Delivery,
    Letter,
    Processed,
    Progress,
    Publish,
    QueueHistory,
    Report,
    Settlement,
    check,
)
from tests.crash import queue_crowd
from tests.crash.crowd import PATIENCE_S, read_book
from tests.crash.queue_crowd import QUEUE, QueuePlan, boot_s, errors_of, open_store

USUAL_S = 2.5
LONG_S = float(os.environ.get("TAILRACE_CROWD_S", "120"))
SEED = os.environ.get("TAILRACE_SEED")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "sync": {"flush": "sync", "writers": 2, "consumers": 5},
    "async": {"flush": "async", "writers": 2, "consumers": 3, "aio_consumers": 2, "keepers": 1},
    "sync-keys": {
        "flush": "sync",
        "modes": ("owner", "shared"),
        "writers": 2,
        "consumers": 3,
        "aio_consumers": 1,
        "keyed": True,
    },
    "sync-groups": {
        "flush": "sync",
        "modes": ("shared",),
        "writers": 1,
        "consumers": 4,
        "groups": ("w", "v"),
        "keepers": 2,
        "max_retries": 2,
    },
    "async-stream": {"flush": "async", "writers": 2, "consumers": 2, "is_stream": True},
    "sync-stream": {"flush": "sync", "writers": 1, "consumers": 3, "is_stream": True},
}


@dataclass
class Books:
    """All the histories together."""

    plan: QueuePlan
    history: QueueHistory
    incarnations: int = 0
    redriven: int = 0
    ways: Counter[str] = field(default_factory=Counter)

    def add(self, path: Path) -> None:
        self.incarnations += 1
        role, slot, incarnation = path.name.split("-")
        name = f"{role}{slot}.{int(incarnation)}"
        plan, history = self.plan, self.history
        group = plan.groups[int(slot) % len(plan.groups)]
        sends: dict[int, list[Publish]] = {}
        settlements: dict[int, list[Settlement]] = {}
        for event in read_book(path):
            match event:
                case ["send", number, pairs, now]:
                    sends[number] = [
                        Publish(name, value, now, "unknown", key=key) for key, value in pairs
                    ]
                case ["written" | "acked" as outcome, number, offset, now]:
                    sends[number] = [
                        each._replace(outcome=outcome, offset=offset + k, answered=now)
                        for k, each in enumerate(sends[number])
                    ]
                case ["got", since, now, lease_s, messages]:
                    history.deliveries += [
                        Delivery(group, name, offset, value, attempt, since, now, lease_s)
                        for offset, value, attempt in messages
                    ]
                case ["settle", number, kind, leases, now, lease_s]:
                    settlements[number] = [
                        Settlement(
                            group, name, offset, attempt, kind, now, "unknown", lease=lease_s
                        )
                        for offset, attempt in leases
                    ]
                case ["settled", number, now, lost]:
                    settlements[number] = [
                        each._replace(
                            outcome="lost" if each.offset in lost else "done", answered=now
                        )
                        for each in settlements[number]
                    ]
                case ["death", who, now]:
                    history.deaths.append(Death(who, now))
                case ["processed", offset, value, now]:
                    history.processed.append(Processed(group, name, offset, value, now))
                case ["progress", since, committed, now]:
                    history.progress.append(Progress(group, committed, since, now))
                case ["redriven", count]:
                    self.redriven += count
                case ["error", _text]:
                    pass  # `errors_of` has it
                case _:
                    raise ValueError(f"{path}: {event}")
        for publishes in sends.values():
            history.publishes += publishes
        for settled in settlements.values():
            history.settlements += settled
            self.ways.update(each.kind for each in settled)


def read_books(plan: QueuePlan) -> Books:
    history = QueueHistory(flush=plan.flush, redriven=plan.keepers > 0)
    if plan.is_stream:
        history.streams = plan.groups
    else:
        history.groups = plan.groups
        history.keyed = plan.groups if plan.keyed else ()
    books = Books(plan, history)
    for path in sorted(plan.books.iterdir()):
        books.add(path)
    deaths: dict[str, float] = {}
    for death in history.deaths:
        deaths[death.consumer] = min(death.time, deaths.get(death.consumer, death.time))
    history.deaths = [Death(*death) for death in deaths.items()]
    return books


# --- what is left -----------------------------------------------------------------------------


def drain(queue: Queue, group: str, plan: QueuePlan, history: QueueHistory) -> None:
    """Acknowledge all that is left, as the next one would; leases end, and so does dying."""
    options: dict[str, Any] = {"key_order": True} if plan.keyed else {}
    until = time.monotonic() + PATIENCE_S
    with queue.consumer(group, visibility_timeout=PATIENCE_S, **options) as consumer:
        while True:
            since = boot_s()
            messages = consumer.receive(100, wait=0.1)
            now = boot_s()
            for m in messages:
                value = (m.value or b"").decode()
                history.deliveries.append(
                    Delivery(group, "drain", m.offset, value, m.attempt, since, now, PATIENCE_S)
                )
            consumer.ack(messages)
            answered = boot_s()
            history.settlements += [
                Settlement(group, "drain", m.offset, m.attempt, "ack", now, "done", answered)
                for m in messages
            ]
            if not messages and not queue.pending(group):
                return
            assert time.monotonic() < until, f"it stays: {queue.pending(group)[:5]}"


def bring_back(store: Store) -> None:
    """All dead letters. Of one who was killed on the way they are both back and still there."""
    until = time.monotonic() + PATIENCE_S
    while store.dead(QUEUE):
        store.redrive(QUEUE)
        assert time.monotonic() < until, f"they stay: {store.dead(QUEUE, 5)}"
        time.sleep(0.02)


def look(store: Store, plan: QueuePlan, history: QueueHistory) -> None:
    """What is there in the end."""
    queue = store.queue(QUEUE)
    if plan.keepers:
        bring_back(store)
    for group in plan.groups:
        drain(queue, group, plan, history)
    for message in store.dead(QUEUE):
        offset = int(message.headers["_dlq_original_offset"])
        group = origin(message)[1]
        history.dead.append(Letter(group, offset, (message.value or b"").decode()))
    end = queue.log.end_offset
    for group in plan.groups:
        found = queue.group(group)
        history.left += [
            Letter(group, m.offset, (m.value or b"").decode()) for m in found.unsettled()
        ]
        assert found.progress() == (end, end)
        state = found.state
        if len(plan.groups) == 1:  # others don't see what was brought back for one
            assert state.acked + state.dead == end, "the group has lost count"
        assert not state.gone
        assert state.delivered >= state.acked


def look_at_stream(store: Store, plan: QueuePlan, history: QueueHistory) -> None:
    """Read to the end what nobody has committed."""
    stream, group = store.stream(QUEUE), plan.groups[0]
    until = time.monotonic() + PATIENCE_S
    with stream.consumer(group, auto_commit=False) as consumer:
        while True:
            since = boot_s()
            history.progress.append(Progress(group, consumer.committed, since, boot_s()))
            if history.progress[-1].committed == stream.log.end_offset:
                return
            assert time.monotonic() < until, f"it stays at {history.progress[-1]}"
            for m in consumer.receive(100, wait=0.1):
                value = (m.value or b"").decode()
                history.processed.append(Processed(group, "drain", m.offset, value, boot_s()))
                consumer.commit(m)


def judge(plan: QueuePlan) -> tuple[Books, Report]:
    errors = errors_of(plan)
    assert not errors, "\n".join(errors)
    books = read_books(plan)
    with open_store(plan) as store:
        (look_at_stream if plan.is_stream else look)(store, plan, books.history)
    with open_store(plan) as store:
        if not plan.is_stream:
            for group in plan.groups:
                assert not store.queue(QUEUE).pending(group)
                assert not store.queue(QUEUE).peek(group)
            assert len(store.dead(QUEUE)) == len(books.history.dead)
        assert not any(info.pending or info.lag for info in store.get(QUEUE).groups())
    return books, check(books.history)


# --- the tests --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Goes with a run that went well: there may be much in it."""
    monkeypatch.setattr(burying, "_BURIAL_MS", queue_crowd.BURIAL_MS)
    yield tmp_path
    shutil.rmtree(tmp_path / "crowd", ignore_errors=True)


def gather(name: str, folder: Path, seed: int, seconds: float) -> tuple[Books, Report]:
    print(f"{name}: seed {seed}")
    plan = QueuePlan(str(folder / "crowd"), seed, seconds, **CONFIGURATIONS[name])
    try:
        queue_crowd.run(plan)
        books, report = judge(plan)
        print(report)
        assert report.ok, report
    except BaseException as error:
        plan = replace(plan, folder=shutil.move(plan.folder, str(folder / "failed")))
        error.add_note(f"what is left is in {plan.folder}")
        error.add_note(
            f"replay: TAILRACE_SEED={seed} TAILRACE_CROWD_S={seconds} .venv/bin/python -m pytest "
            f"tests/crash/test_queue_crowd.py -k 'replay and {name}'"
        )
        raise
    return books, report


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_crowd_keeps_its_queue(name: str, folder: Path) -> None:
    books, report = gather(name, folder, seed=1, seconds=USUAL_S)
    assert books.incarnations > 2 * 5, "hardly anybody was killed"
    if books.plan.is_stream:
        assert report.counts["processed"]
        assert books.history.progress
    else:
        assert report.counts["acks"]
        assert report.counts["of them again"]
        assert set(books.ways) >= {"ack", "nack", "release", "reject"}
        assert books.plan.keepers == 0 or books.redriven


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_crowd_keeps_its_queue_for_long(name: str, folder: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    gather(name, folder, seed, LONG_S)


@pytest.mark.skipif(SEED is None, reason="set TAILRACE_SEED to replay a seed")
@pytest.mark.timeout(LONG_S + 600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_replay(name: str, folder: Path) -> None:
    assert SEED is not None
    gather(name, folder, int(SEED), LONG_S)
