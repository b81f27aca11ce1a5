"""Logs that workers of Spark keep open between two calls."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tailrace import Store
from tailrace.errors import Closed, OffsetOutOfRange
from tailrace.spark import kept
from tailrace.spark.kept import kept_log
from tailrace.spark.planning import Place
from tests.spark.support import fill, read


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch, kept_logs: dict[str, Any]) -> dict[str, Any]:
    """As if this were a process of Spark's; what it keeps."""
    monkeypatch.setattr(kept, "is_worker", lambda: True)
    return kept_logs


def values(path: Path, **options: Any) -> list[bytes]:
    return [row["value"] for row in read(path, "value", queue="q", **options)]


def test_what_is_kept_sees_what_comes(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    with Store(str(tmp_path), upkeep=False) as store:
        stream = store.stream("q", flush="async")
        stream.publish(b"a")
        assert values(tmp_path) == [b"a"]
        [log] = in_worker.values()
        stream.publish(b"b")
        assert values(tmp_path) == [b"a", b"b"]
    with Store(str(tmp_path), upkeep=False) as store:  # another writer
        store.stream("q").publish(b"c")
    assert values(tmp_path) == [b"a", b"b", b"c"]
    assert list(in_worker.values()) == [log]


def test_a_queue_that_was_made_anew(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    with Store(str(tmp_path), upkeep=False) as store:
        store.stream("q").publish_many([b"a", b"b"])
        assert values(tmp_path) == [b"a", b"b"]
        [log] = in_worker.values()
        store.delete("q")
        store.stream("q").publish(b"c")
        assert values(tmp_path) == [b"c"]
    with pytest.raises(Closed):
        list(log.read())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_store_in_the_place_of_another(
    tmp_path: Path, in_worker: dict[str, Any], flush: str
) -> None:
    """As a backup that was restored: the queue is the same one, and its segments have the same
    names and sizes."""
    path, copy = tmp_path / "store", tmp_path / "copy"

    def publish(word: str, count: int) -> None:
        with Store(str(path), upkeep=False) as store:
            stream = store.stream("q", flush=flush, segment_bytes=2_000, compression="none")
            for number in range(count):
                stream.publish(f"{word} {number:02d}")

    publish("before", 1)
    shutil.copytree(path, copy)
    publish("gone", 60)
    assert values(path)[-1] == b"gone 59"
    [log] = in_worker.values()
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    publish("here", 60)
    assert values(path) == [b"before 00", *(b"here %02d" % number for number in range(60))]
    with pytest.raises(Closed):
        list(log.read())
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError), kept_log(log.path, log._incarnation):
        pass
    assert not in_worker


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it looks at /proc")
def test_no_segment_stays_open(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    """What is deleted while nobody reads is gone from the disk."""

    def is_open(ending: str) -> bool:
        return any(path.endswith(ending) for path in open_files(str(tmp_path)))

    fill(tmp_path, "q", 50)
    with Place(str(tmp_path)).log("q", incarnation(tmp_path)) as log:
        assert log is not None
        assert len(list(log.read())) == 50
        assert is_open(".seg")
    assert list(in_worker.values()) == [log]
    assert not is_open(".seg")
    with Place(str(tmp_path)).log("q", incarnation(tmp_path)) as again:
        assert again is log
        assert len(list(log.read())) == 50


def test_one_that_is_in_use_is_not_shared(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    folder = make_log(tmp_path, "l")
    with kept_log(folder, "1") as one, kept_log(folder, "1") as other:
        assert one is not other
    with kept_log(folder, "1") as again:
        assert again is one
    assert len(in_worker) == 1


def test_few_are_kept(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    for number in range(kept._MOST + 3):
        with kept_log(make_log(tmp_path, f"l{number}"), "1"):
            pass
    assert len(in_worker) == kept._MOST


def test_none_is_kept_after_an_error(tmp_path: Path, in_worker: dict[str, Any]) -> None:
    with pytest.raises(OffsetOutOfRange), kept_log(make_log(tmp_path, "l"), "1") as log:
        log.read(7)
    assert not in_worker


@pytest.mark.parametrize("incarnation", ["", "1"])
def test_none_is_kept_elsewhere(tmp_path: Path, incarnation: str) -> None:
    """Not in a process of the user's, and not where a queue made anew would look the same."""
    with kept_log(make_log(tmp_path, "l"), incarnation):
        pass
    assert not kept._kept


def open_files(folder: str) -> list[str]:
    """Of this process, in a folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was that of the listing
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(folder)]


def incarnation(path: Path) -> str:
    return Place(str(path)).queues()["q"].incarnation


def make_log(path: Path, name: str) -> str:
    from tailrace import Log

    with Log(str(path / name), upkeep=False) as log:
        log.append_one(b"x")
    return str(path / name)
