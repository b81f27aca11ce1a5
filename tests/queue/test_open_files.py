"""How many files a process has open, and what happens when it may open no more."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import NotWritten, Store
from tailrace.log.fs import OsFileSystem
from tests.queue.support import numbers, values

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nothing counts them")


def count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_files(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many as there are, and 100, or as many as the test says."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + getattr(request, "param", 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def use(store: Store, name: str) -> None:
    queue = store.queue(name)
    queue.publish(b"x")
    with queue.consumer("g") as consumer:
        [message] = consumer.receive(1)
        message.ack()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_queue_in_use_has_about_twenty(tmp_path: Path, flush: str) -> None:
    """As docs/tuning.md says."""
    with tailrace.open(tmp_path, flush=flush) as store:
        consumers = []

        def have(name: str) -> None:
            queue = store.queue(name)
            queue.publish_many(numbers(2))
            consumer = queue.consumer("g")
            consumers.append(consumer)
            for message in consumer.receive(1):
                message.ack()
            consumer.receive(1, wait=0.001)

        have("first")
        before = count_files()
        for number in range(5):
            have(f"q{number}")
        assert (count_files() - before) / 5 <= 20


@pytest.mark.no_cover
def test_idle_queues_rest_when_there_may_be_no_more(tmp_path: Path, few_files: int) -> None:
    with tailrace.open(tmp_path, flush="async", upkeep=False) as store:
        for number in range(40):
            use(store, f"q{number}")
        assert count_files() <= few_files


@pytest.mark.parametrize("few_files", range(94, 116), indirect=True)
def test_if_none_is_idle_the_error_says_what_to_do(tmp_path: Path, few_files: int) -> None:
    """Whichever file is the one too many: a log's, a group's or the configuration."""
    with tailrace.open(tmp_path, flush="async", upkeep=False) as store:
        used = store.queue("used")
        consumers = [used.consumer("g")]
        used.publish(b"first")
        assert values(consumers[0].receive(1)) == [b"first"]

        def use_many() -> None:
            for number in range(40):
                queue = store.queue(f"q{number}")
                consumers.append(queue.consumer("g"))

        with pytest.raises(NotWritten) as caught:
            use_many()
        assert len(consumers) > 3
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EMFILE
        assert f"may have {few_files:,} files open" in str(caught.value)
        assert "ulimit -n" in str(caught.value)
        del caught  # which has what was half open
        gc.collect()
        used.publish(b"x")  # what is open goes on
        assert values(consumers[0].receive(1)) == [b"x"]
        for consumer in consumers[1:]:
            consumer.close()
        use(store, "another")  # those that nobody uses any more let go of theirs


def test_what_is_mapped_twice_is_open_once(tmp_path: Path) -> None:
    fs, path = OsFileSystem(), str(tmp_path / "board")
    first = fs.map(path, 4096, write=True)
    before = count_files()
    second, third = fs.map(path, 4096, write=True), fs.map(path, 4096, write=False)
    assert count_files() == before
    assert first is not None
    assert second is not None
    assert third is not None
    first[0] = 7
    assert second[0] == third[0] == 7
    assert third.readonly
    first.release()
    second[1] = 8  # each is let go of for itself
    assert third[1] == 8
    os.unlink(path)
    another = fs.map(path, 4096, write=True)
    assert another is not None
    assert another[0] == 0
