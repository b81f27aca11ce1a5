"""Consumers that nobody has closed, in a process that lives on."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Queue, Store, Stream
from tests.log.helpers import WAIT, eventually
from tests.queue.support import numbers, values

LONG: dict[str, Any] = {"visibility_timeout": "1h"}


def take_and_drop(store: Store, kind: str) -> None:
    """Have one message, and others fetched ahead or in one's range; then forget the consumer."""
    if kind == "stream":
        for _ in store.stream("q").consume("g", auto_commit=False):
            break
    else:
        for message in store.queue("q").consume("g", prefetch=10, **LONG):
            message.ack()
            break
    gc.collect()


def prepared(store: Store, kind: str) -> Queue | Stream:
    queue = store.queue("q") if kind == "queue" else store.stream("q")
    queue.publish_many(numbers(5))
    return queue


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_what_they_had_is_given_back_soon(tmp_path: Path, kind: str) -> None:
    with tailrace.open(tmp_path) as store, tailrace.open(tmp_path) as elsewhere:
        prepared(store, kind)
        take_and_drop(store, kind)
        began_s = time.monotonic()
        consumer = elsewhere.get("q").consumer("g")
        got: list[bytes | None] = []
        expected = numbers(5) if kind == "stream" else numbers(5)[1:]
        while len(got) < len(expected) and time.monotonic() - began_s < WAIT:
            got += values(consumer.receive(10, wait=5))
        assert sorted(filter(None, got)) == expected
        [group] = elsewhere.get("q").groups()
        assert len(group.members) == 1
        consumer.close()


def test_nobody_is_woken_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tailrace.open(tmp_path) as store:
        queue = prepared(store, "queue")
        looks: list[Store] = []
        tidy = Store.tidy

        def counting(store: Store) -> None:
            looks.append(store)
            tidy(store)

        monkeypatch.setattr(Store, "tidy", counting)
        for _ in range(20):
            queue.consumer("g").close()
            queue.consumer("g")
        eventually(lambda: bool(looks))
        eventually(lambda: not queue.group("g")._mine)
        count = len(looks)
        assert count <= 3
        time.sleep(0.6)
        assert len(looks) == count


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_without_upkeep_the_next_use_does_it(tmp_path: Path, kind: str) -> None:
    with tailrace.open(tmp_path, upkeep=False) as store:
        queue = prepared(store, kind)
        take_and_drop(store, kind)
        group = queue._groups["g"]
        assert group._mine
        time.sleep(0.7)
        assert group._mine
        [info] = queue.groups()
        assert not group._mine
        assert not info.members


def test_what_cannot_be_given_back_now_is_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tailrace.queue.caretaker._LONGEST_S", 0.05)
    with tailrace.open(tmp_path) as store:
        queue = prepared(store, "queue")
        group = queue.open_group("g")
        leave, failed = type(group).leave, list[str]()

        def fail_once(self: Any, consumer: str) -> None:
            if not failed:
                failed.append(consumer)
                raise OSError("not now")
            leave(self, consumer)

        monkeypatch.setattr(type(group), "leave", fail_once)
        take_and_drop(store, "queue")
        eventually(lambda: not group._mine)
        assert failed
        assert "tidying of" in caplog.text
