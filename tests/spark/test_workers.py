"""What the processes that Spark starts are spared."""

from __future__ import annotations

import gc
import socket
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from tailrace.spark import workers


def test_a_process_of_the_user_is_left_alone() -> None:
    before = gc.get_freeze_count()
    workers.freeze_imports()
    assert not workers.is_worker()
    assert gc.get_freeze_count() == before


def become_worker(monkeypatch: pytest.MonkeyPatch, name: str = "pyspark.daemon") -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize(
    "name", ["pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"]
)
def test_a_worker_freezes_before_its_first_task_and_its_second(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    become_worker(monkeypatch, name)
    monkeypatch.setattr(workers, "_frozen", 0)
    assert workers.is_worker()
    try:
        for _ in range(2):
            workers.freeze_imports()
            assert gc.get_freeze_count() > 1_000
            gc.unfreeze()
        workers.freeze_imports()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the system has no such option")
def test_a_worker_confirms_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    option = (socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        ours.setsockopt(*option, 0)  # as it is after answers that followed soon
        workers.confirm_quickly()  # not in a process of the user
        assert not ours.getsockopt(*option)
        become_worker(monkeypatch)
        workers.confirm_quickly()
        assert ours.getsockopt(*option)
        ours.sendall(b"still open")


def connections(_: Any) -> list[str]:
    """What a worker's sockets are."""
    import os
    import stat

    found = set()
    for name in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(name).st_mode):
                with socket.socket(fileno=os.dup(name)) as each:
                    found.add(each.family.name)
        except OSError:
            continue
    return sorted(found)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_local_session_talks_to_its_workers_by_files(spark: Any) -> None:
    import pyspark

    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    [found] = spark.sparkContext.parallelize([0], 1).map(connections).collect()
    assert found == (["AF_INET"] if version < (4, 1) else ["AF_UNIX"])
