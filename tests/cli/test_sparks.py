"""Who watches Spark is told when it has nobody to work for it. No Spark is started."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.cli import sparks
from tailrace.cli.sparks import _Watch, no_executor
from tests.project import ROOT


class Tracker:
    """Of one job of one stage, of which so many tasks are at work, and are done."""

    def __init__(self, active: int = 0, done: int = 0) -> None:
        self.stage = SimpleNamespace(numTasks=4, numActiveTasks=active, numCompletedTasks=done)

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        return [1]

    def getJobInfo(self, job: int) -> Any:  # noqa: N802
        return SimpleNamespace(stageIds=[7])

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        return self.stage


def watch(master: str = "spark://h:7077", members: int = 1) -> tuple[_Watch, list[Any]]:
    """`members`: with the driver."""
    status = SimpleNamespace(size=lambda: members)
    context = SimpleNamespace(
        master=master,
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: status)),
        getConf=lambda: {"spark.executor.memory": "4g"},
    )
    told: list[Any] = []
    session: Any = SimpleNamespace(sparkContext=context)
    return _Watch(session, lambda done, total: told.append((done, total))), told


def test_how_many_tasks_are_done() -> None:
    found, told = watch()
    found._look(Tracker(active=2, done=1))
    assert told == [(1, 4)]


def test_nobody_works_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _ = watch()
    found._look(Tracker())
    assert capsys.readouterr().err == ""  # it is too early to say
    monkeypatch.setattr(sparks, "_PATIENCE_S", -1)
    for _ in range(3):
        found._look(Tracker())
    assert capsys.readouterr().err == f"tailrace: {no_executor('spark://h:7077', '4g')}\n"


def test_somebody_works_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sparks, "_PATIENCE_S", -1)
    for found, tracker in (
        (watch()[0], Tracker(active=1)),
        (watch()[0], Tracker(done=1)),
        (watch(members=2)[0], Tracker()),
        (watch("local[2]")[0], Tracker()),
    ):
        found._look(tracker)
    assert capsys.readouterr().err == ""


def test_it_is_told_beside_the_bar() -> None:
    """In lines of its own, which the bar is not drawn over."""
    code = (
        "import tests.cli.test_sparks as t, tailrace.cli.sparks as sparks\n"
        "from tailrace.cli.output import progress_bar\n"
        "sparks._PATIENCE_S = -1\n"
        "with progress_bar('query', unit='tasks') as bar:\n"
        "    found, _ = t.watch()\n"
        "    found._look(t.Tracker())\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 4096):
                shown += data
        assert process.wait(30) == 0
    os.close(ours)
    [line] = [each for each in shown.decode().splitlines() if "waiting for an executor" in each]
    assert "\u2501" not in line.rpartition("\x1b[2K")[2]


def test_where_to_look() -> None:
    said = no_executor("spark://a.example:7077,b.example:7077", "1g")
    assert "http://a.example:8080" in said
    assert "1g of memory" in said
    assert "its cluster manager shows" in no_executor("yarn", "1g")
