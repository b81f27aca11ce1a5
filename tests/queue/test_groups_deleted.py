"""A group is deleted, and perhaps made anew, while others come into it, use it or delete it, too:
nobody works on one without having its turn, and everybody is told what has become of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tailrace
from tailrace import Closed, Consumer, Queue, Stream
from tests.log.helpers import WAIT
from tests.queue.conftest import OpenStore
from tests.queue.support import numbers, offsets, one, values

AnyQueue = Queue | Stream

# What opens a file of a group.
OPENINGS = ("lock", "map", "open", "make_dirs")


@contextmanager
def happening(queue: AnyQueue, nth: int, happens: Callable[[], None]) -> Iterator[list[str]]:
    """Before the n-th file of a group that this process opens; or, if somebody waits for us then,
    as soon as that is over. Yields what was opened so far."""
    fs, opened = queue._store.fs, list[str]()
    thread = threading.Thread(target=happens)

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: str, *arguments: Any, **options: Any) -> Any:
            if "/consumers/" in path:
                opened.append(path)
                if len(opened) == nth:
                    thread.start()
                    thread.join(0.2)
            return call(path, *arguments, **options)

        return wrapped

    patches: dict[str, Any] = {name: before(getattr(fs, name)) for name in OPENINGS}
    with mock.patch.multiple(fs, **patches):
        yield opened
    if len(opened) >= nth:
        thread.join(WAIT)


def in_two_stores(open_store: OpenStore, name: str) -> tuple[Queue, Queue, list[Consumer]]:
    """A queue with a group, in two stores; and who will have it in the second."""
    queue, elsewhere = (open_store().queue(name) for _ in range(2))
    queue.publish_many(numbers(9))
    elsewhere.consumer("g").close()
    return queue, elsewhere, []


def make_anew(queue: Queue, consumers: list[Consumer]) -> None:
    queue.delete_group("g")
    consumers.append(queue.consumer("g", id="theirs"))


def test_whoever_comes_in_while_it_is_made_anew_has_its_turn(open_store: OpenStore) -> None:
    """At each file that is opened on the way."""
    nth, was_reached, shared = 1, True, 0
    while was_reached:
        queue, elsewhere, theirs = in_two_stores(open_store, f"q{nth}")
        with happening(queue, nth, partial(make_anew, elsewhere, theirs)):
            ours = queue.consumer("g", id="ours")
        was_reached = bool(theirs)
        if was_reached and not _was_deleted(ours):
            mine, other = queue.group("g"), elsewhere.group("g")
            assert mine._uid == other._uid
            with mine._turn:  # which nobody else has then
                assert not other._turn._processes.lock.acquire_now()
            assert offsets(ours.receive(2)) == [0, 1]
            assert offsets(theirs[0].receive(2)) == [2, 3]
            members = {each.id: each.alive for each in elsewhere.groups()[0].members}
            assert members == {"ours": True, "theirs": True}
            shared += 1
        nth += 1
    assert shared > 3


def _was_deleted(consumer: Consumer) -> bool:
    try:
        consumer._group.progress()
    except Closed:
        return True
    return False


def test_whoever_deletes_one_that_was_made_anew_has_its_turn(open_store: OpenStore) -> None:
    nth, was_reached, kept = 1, True, 0
    while was_reached:
        queue, elsewhere, theirs = in_two_stores(open_store, f"q{nth}")
        with happening(queue, nth, partial(make_anew, elsewhere, theirs)):
            queue.delete_group("g")
        was_reached = bool(theirs)
        if was_reached and queue.group_ids():
            assert offsets(theirs[0].receive(2)) == [0, 1]
            kept += 1
        elif was_reached:
            with pytest.raises(Closed, match="'g' was deleted"):
                theirs[0].receive(2)
        nth += 1
    assert kept > 0


@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.parametrize("use", ["receive", "close", "delete_group"])
def test_one_that_is_to_be_loaded_anew(open_store: OpenStore, kind: str, use: str) -> None:
    """Something went wrong in the last turn; and before the next somebody deletes the group."""
    queue = getattr(open_store(), kind)("q")
    elsewhere = getattr(open_store(), kind)("q")
    consumer = queue.consumer("g")
    queue.group("g")._is_stale = True
    elsewhere.delete_group("g")
    if use == "receive":
        with pytest.raises(Closed, match="'g' was deleted"):
            consumer.receive(1)
    elif use == "close":
        consumer.close()
    else:
        elsewhere.consumer("g")
        queue.delete_group("g")
    assert queue.group_ids() in ([], ["g"])


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_before_a_consumer_can_listen(open_store: OpenStore, kind: str) -> None:
    """Then it is made anew."""
    queue = getattr(open_store(), kind)("q")
    elsewhere = getattr(open_store(), kind)("q")
    tail, tries = queue._tail, iter(range(9))

    def late(group: Any) -> Any:
        if next(tries) < 3:
            elsewhere.delete_group("g")
        return tail(group)

    with mock.patch.object(queue, "_tail", late):
        consumer = queue.consumer("g")
    queue.publish(b"x")
    assert values(consumer.receive(1)) == [b"x"]


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_whoever_has_had_it_open_makes_it_anew(open_store: OpenStore, kind: str) -> None:
    queue = getattr(open_store(), kind)("q")
    elsewhere = getattr(open_store(), kind)("q")
    queue.consumer("g").close()
    elsewhere.delete_group("g")
    queue.publish(b"x")
    assert values(queue.consumer("g").receive(1)) == [b"x"]


def test_a_queue_that_is_deleted_while_it_is_purged(open_store: OpenStore) -> None:
    queue, elsewhere = open_store().queue("q"), open_store()
    queue.publish(b"x", delay="1h")
    clear = queue.delays.clear

    def late() -> None:
        elsewhere.delete("q")
        clear()

    with mock.patch.object(queue.delays, "clear", late), pytest.raises(Closed, match="'q' was del"):
        queue.purge()


def test_a_queue_that_is_deleted_while_something_is_delayed(open_store: OpenStore) -> None:
    queue, elsewhere = open_store().queue("q"), open_store()
    open_delays = queue.delays._open

    def late() -> Any:
        found = open_delays()
        elsewhere.delete("q")
        found.close()
        raise FileNotFoundError(2, "its folder went away")

    with mock.patch.object(queue.delays, "_open", late), pytest.raises(Closed, match="'q' was del"):
        queue.publish(b"x", delay="1h")


def test_a_log_is_opened_by_the_settings_of_then(open_store: OpenStore) -> None:
    """An ephemeral queue becomes durable, and others have it open by then."""
    first, second = open_store(), open_store()
    first.publish("$queue/q/a", b"x")
    first.close()
    first = open_store()
    queue = first.get("q")
    open_log = queue._opened_log

    def late(settings: Any) -> Any:
        second.queue("q", ephemeral=False).publish(b"y")
        return open_log(settings)

    with mock.patch.object(queue, "_opened_log", late):
        queue.publish(b"z")
    assert values(queue.read()) == [b"x", b"y", b"z"]


STORM = """
import collections, json, random, sys, time, tailrace

folder, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rng, errors, done = random.Random(seed), collections.Counter(), 0
end = time.monotonic() + seconds
with tailrace.open(folder, flush="async", upkeep=False) as store:
    queue = store.queue("q")
    while (now := time.monotonic()) < end or (done <= 10 and now < end + 30):
        try:
            if rng.random() < 0.3:
                queue.delete_group("w")
            else:
                with queue.consumer("w", prefetch=rng.choice([1, 4])) as consumer:
                    for message in consumer.receive(3):
                        rng.choice([message.ack, message.nack, message.release])()
                        done += 1
        except (tailrace.Closed, tailrace.InvalidName, tailrace.LeaseLost):
            pass
        except Exception as error:
            errors[repr(error)] += 1
print(json.dumps([done, errors]))
"""


@pytest.mark.no_cover
def test_processes_that_delete_and_use_it(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="async") as store:
        store.queue("q").publish_many(numbers(2_000))
    command = [sys.executable, "-c", STORM, str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(seed), "2"], **pipes) for seed in range(3)]
    told = [process.communicate(timeout=60) for process in processes]
    for out, said in told:
        assert out, said
        done, errors = json.loads(out)
        assert done > 10
        assert errors == {}
        assert "damaged" not in said
    with tailrace.open(tmp_path) as store:
        one(store.queue("q").consumer("new")).ack()
