"""What the processes that Spark starts are spared."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tailrace.spark import workers


def test_a_process_of_the_user_is_left_alone() -> None:
    before = gc.get_freeze_count()
    workers.settle()
    assert not workers.is_worker()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize(
    "name", ["pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"]
)
def test_a_worker_is_settled_before_its_first_task_and_its_second(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(workers, "_settled", 0)
    assert workers.is_worker()
    try:
        for _ in range(2):
            workers.settle()
            assert gc.get_freeze_count() > 1_000
            gc.unfreeze()
        workers.settle()
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
