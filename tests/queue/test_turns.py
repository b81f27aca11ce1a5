"""Whose turn it is to change a group: kept while nobody else wants it, given when somebody does,
and free again when its process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from tailrace import Closed, Consumer, Store
from tailrace.queue.turns import Turn
from tests.log.helpers import WAIT, eventually
from tests.queue.support import another_process, one, states, values

MANY = 2_000  # more than enough turns without a pause to keep one


def turn_of(consumer: Consumer) -> Turn:
    return consumer._group._turn


def is_kept(consumer: Consumer) -> bool:
    return turn_of(consumer)._processes.held


def work(consumer: Consumer, count: int = MANY) -> None:
    """One after the other, until the turn is kept."""
    for _ in range(count):
        one(consumer).ack()
        if is_kept(consumer):
            return
    raise AssertionError("it is given back each time")


@contextmanager
def worker(store: Store) -> Iterator[Consumer]:
    """A consumer with much to do."""
    queue = store.queue("q")
    with queue.consumer("g") as consumer:
        queue.publish_many([b"%d" % number for number in range(20 * MANY)])
        yield consumer


@contextmanager
def busy(consumer: Consumer) -> Iterator[list[bytes | None]]:
    """Have a thread go from message to message; what it got."""
    done: list[bytes | None] = []
    errors: list[Exception] = []
    stop = threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                for message in consumer.receive(1):
                    done.append(message.value)
                    message.ack()
        except Exception as error:  # noqa: BLE001  whatever it is, the test tells
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: is_kept(consumer) or bool(errors))
        yield done
    finally:
        stop.set()
        thread.join(WAIT)
    assert not errors, errors


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with tailrace.open(tmp_path / "data", flush="async") as store:
        yield store


def test_who_works_alone_keeps_it_and_needs_no_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(store) as consumer:
        work(consumer)
        processes = turn_of(consumer)._processes
        taken: list[object] = []
        monkeypatch.setattr(processes, "take", lambda: taken.append(None))
        for _ in range(10):
            message = one(consumer)
            assert states(store.queue("q"), "g") == {message.offset: ("leased", 1)}
            message.ack()
            if not is_kept(consumer):  # the keeper was quick
                return
        assert not taken


def test_who_shares_gives_it_back_each_time(tmp_path: Path) -> None:
    with (
        tailrace.open(tmp_path / "data", flush="async", mode="shared") as store,
        worker(store) as consumer,
    ):
        for _ in range(MANY):
            one(consumer).ack()
            assert not is_kept(consumer)


def test_who_pauses_gives_it_back(store: Store) -> None:
    with worker(store) as consumer:
        work(consumer)
        eventually(lambda: not is_kept(consumer))


def test_another_process_gets_it_at_once_and_sees_all_that_was_done(
    store: Store, tmp_path: Path
) -> None:
    with worker(store) as consumer, another_process(tmp_path / "data") as other:
        assert other.ask("(c := store.queue('q').consumer('g')).group") == "'g'"
        with busy(consumer) as done:
            theirs = [other.ask("[m.value for m in c.receive(1)][0]") for _ in range(50)]
            before = len(done)
            eventually(lambda: len(done) > before)
        got = sorted([*map(eval, theirs), *done], key=lambda value: int(value or b""))
        assert got == [b"%d" % number for number in range(len(got))], "each once, none left out"
        assert len(store.queue("q").pending("g")) == 50


def test_it_is_kept_again_when_the_other_one_is_gone(store: Store, tmp_path: Path) -> None:
    with worker(store) as consumer:
        work(consumer)
        with another_process(tmp_path / "data") as other:
            other.ask("store.queue('q').pending('g')")
        work(consumer)


_KEEP = """
import sys, tailrace
store = tailrace.open(sys.argv[1], flush="async")
consumer = store.queue("q").consumer("g")
done = 0
while True:
    [message] = consumer.receive(1)
    message.ack()
    done += 1
    if consumer._group._turn._processes.held and done > 500:
        print(done, flush=True)
"""


def test_who_is_killed_while_it_keeps_it_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with tailrace.open(path, flush="async") as store:
        with worker(store):
            pass
        line = [sys.executable, "-c", _KEEP, str(path)]
        with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            done = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        queue = store.queue("q")
        with queue.consumer("g") as consumer:
            began = time.monotonic()
            message = one(consumer)
            assert time.monotonic() - began < WAIT
            assert int(message.value or b"") >= done - 1
            message.ack()


@pytest.mark.parametrize(
    "ask",
    [
        lambda store, path: store.backup(path),
        lambda store, path: store.queue("q").delete_group("h"),
        lambda store, path: store.stats(),
    ],
    ids=["backup", "delete", "stats"],
)
def test_those_who_have_not_opened_the_group_are_let_in_too(
    store: Store, tmp_path: Path, ask: Callable[[Store, Path], object]
) -> None:
    with worker(store) as consumer, busy(consumer) as done:
        with tailrace.open(tmp_path / "data", flush="async") as another:
            another.queue("q").group("h")
        with tailrace.open(tmp_path / "data", flush="async") as another:
            ask(another, tmp_path / "backup")
        before = len(done)
        eventually(lambda: len(done) > before)


def test_a_group_that_another_process_deletes(store: Store, tmp_path: Path) -> None:
    with worker(store) as consumer, another_process(tmp_path / "data") as other:
        work(consumer)
        assert other.ask("store.queue('q').delete_group('g')") == "None"
        with pytest.raises(Closed, match="was deleted"):
            one(consumer)


def test_a_child_has_a_turn_of_its_own(store: Store, tmp_path: Path) -> None:
    with worker(store) as consumer:
        work(consumer)
        first = one(consumer)
        child = os.fork()
        if not child:
            try:
                got = values(consumer.receive(3))
                (tmp_path / "got").write_bytes(b" ".join(value or b"" for value in got))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        later = one(consumer)
        at = int(first.value or b"")
        assert (tmp_path / "got").read_bytes() == b"%d %d %d" % (at + 1, at + 2, at + 3)
        assert later.value == b"%d" % (at + 4), "what the child has claimed is known"


def test_a_child_that_goes_on_gives_its_turns_back(store: Store, tmp_path: Path) -> None:
    with worker(store) as consumer:
        work(consumer)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, b"%d" % len(consumer.receive(1)))
                signal.pause()
            finally:
                os._exit(0)
        try:
            assert os.read(reading, 1) == b"1"
            began = time.monotonic()
            one(consumer).ack()
            assert time.monotonic() - began < WAIT
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)


def test_an_error_in_a_kept_turn_has_everything_read_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(store) as consumer:
        work(consumer)
        group = consumer._group

        def fail(op: object) -> None:
            raise MemoryError

        monkeypatch.setattr(group.state, "apply", fail)
        with pytest.raises(MemoryError):
            consumer.receive(1)
        assert not is_kept(consumer)
        assert len(group.pending()) == 1, "it was written, and so it was claimed"


def test_all_are_served_when_many_want_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with tailrace.open(path, flush="async") as store:
        queue = store.queue("q")
        with queue.consumer("g") as consumer:
            queue.publish_many([b"%d" % number for number in range(MANY)])
            with another_process(path) as one_more, another_process(path) as and_another:
                for other in (one_more, and_another):
                    other.ask("(c := store.queue('q').consumer('g')).group")
                    other.ask("(got := [])")
                line = (
                    "[got.extend(m.value for m in c.receive(1)) for _ in range(200)] and len(got)"
                )
                threads = [
                    threading.Thread(target=other.ask, args=(line,))
                    for other in (one_more, and_another)
                ]
                for thread in threads:
                    thread.start()
                mine = [value for _ in range(200) for value in values(consumer.receive(1))]
                for thread in threads:
                    thread.join(WAIT)
                theirs = [value for o in (one_more, and_another) for value in eval(o.ask("got"))]
            assert len(mine) == 200
            assert len(theirs) == 400
            assert len({*mine, *theirs}) == 600
