"""Long commands show a person how far they are, and scripts nothing of it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest

import tailrace
from tests.cli.conftest import Shell, command
from tests.project import NEEDS_JAVA

BAR = "\u2501"
LETTERS = 30
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # that a terminal obeys


@pytest.fixture
def queue(shell: Shell) -> str:
    """One with dead letters, and something ahead of its group."""
    with tailrace.open(shell.store, upkeep=False) as store:
        queue = store.queue("q")
        queue.publish_many([b"%d" % number for number in range(2 * LETTERS)])
        for message in queue.consumer("g").receive(LETTERS):
            message.reject("no")
        store.queue("other")
    return "q"


def watched(shell: Shell, *arguments: object, both: bool = False) -> tuple[str, str]:
    """What a command writes whose errors go to a terminal; with `both` all of it does."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(*arguments),
        cwd=shell.folder,
        env={**shell.environment, "TERM": "xterm", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        stdout=theirs if both else subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            shown += data
        written = b"" if process.stdout is None else process.stdout.read()
        assert process.wait(30) == 0, shown
    os.close(ours)
    return written.decode(), shown.decode()


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        (["stats", "--exact"], "count"),
        (["stats", "q", "--exact"], "count"),
        (["dead", "q"], "dead"),
        (["vacuum"], "vacuum"),
        (["vacuum", "q"], "vacuum"),
        (["redrive", "q"], "redrive"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_those_who_watch_see_a_bar(
    shell: Shell, queue: str, arguments: list[str], label: str, form: list[str]
) -> None:
    """What the command writes is as it is without it."""
    written, shown = watched(shell, *arguments, *form)
    assert BAR in shown
    assert label in shown
    assert BAR not in written
    assert written
    if form:
        assert all("type" in json.loads(line) for line in written.splitlines())
    assert shell(*arguments, *form).stderr == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_backup_and_what_is_made_of_it(shell: Shell, queue: str, form: list[str]) -> None:
    for arguments, label in (
        (["backup", "b"], "backup"),
        (["restore-backup", "b", "--check"], "check"),
        (["restore-backup", "b", "--store", "restored"], "restore"),
    ):
        written, shown = watched(shell, *arguments, *form)
        assert BAR in shown
        assert label in shown
        assert BAR not in written
        assert written.count("\n") == 1
        if form:
            assert json.loads(written)["type"] == "report"
    for arguments in (["backup", "c"], ["restore-backup", "c", "--store", "again"]):
        assert shell(*arguments, *form).stderr == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_archive_and_what_comes_back_of_it(shell: Shell, form: list[str]) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")
    with tailrace.open(shell.store, upkeep=False, flush="async") as store:
        events = store.stream("events", segment_bytes=2_000, compression="none")
        for number in range(200):
            events.publish(b"%d" % number)
    archive = ["archive", "events", "--to", "lake"]
    restore = ["restore", "events", "--from", "lake"]
    for arguments, label in (([*archive, "--delete"], "archive events"), (restore, "restore")):
        written, shown = watched(shell, *arguments, *form)
        assert BAR in shown
        assert label in shown
        assert BAR not in written
        assert written.startswith("{" if form else "events: ")
        if form:
            assert json.loads(written)["type"] == "report"
    shell.ok("archive", "events", "--release")
    assert shell(*archive, *form).stderr == ""
    with tailrace.open(shell.store, upkeep=False) as store:
        events = store.stream("events")
        assert events.log.start_offset == 0
        events.log.truncate_before(150)
        events.log.vacuum()
        assert events.log.start_offset > 100
    assert shell(*restore, *form).stderr == ""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_jobs(shell: Shell, queue: str, form: list[str]) -> None:
    for job in (["verify"], ["reindex"], ["stats", queue]):
        written, shown = watched(shell, "spark", *job, *form)
        assert BAR in shown
        assert job[0] in shown
        assert BAR not in written
        if form:
            assert json.loads(written)["type"] == "report"


@NEEDS_JAVA
def test_sql(shell: Shell, queue: str) -> None:
    """While Spark starts, and while it works; and nothing of it is left beside the rows."""
    statement = (
        "SELECT q.*, n FROM q, "
        "(SELECT count(*) AS n FROM range(0, 1000000000, 1, 20) WHERE id % 7 > 6)"
    )
    _, shown = watched(shell, "sql", statement, both=True)
    for label in ("start Spark", "plan", "query"):
        assert label in shown
    assert BAR in shown
    table = CODES.sub("", shown[shown.rindex("\x1b[2K") :]).splitlines()
    assert re.search(r"[1-9]\d*/\d+ tasks", CODES.sub("", shown))
    assert table[0].split()[:2] == ["key", "value"]
    assert not any(BAR in line for line in table)
    assert len(table) == 23, table


def test_how_many_have_come_back(shell: Shell, queue: str) -> None:
    written, shown = watched(shell, "redrive", "q", "--limit", "20")
    assert written == "q: 20 dead letters brought back\n"
    assert "20/20" in shown


def test_how_much_was_counted(shell: Shell, queue: str) -> None:
    _, shown = watched(shell, "stats", "q", "--exact")
    assert f"{LETTERS}/{LETTERS}" in shown
    assert "records" in shown


def test_a_bar_is_in_nobodys_way(shell: Shell, queue: str) -> None:
    """Where lines come as it goes on, they are the progress."""
    for arguments in (["dead", "q"], ["vacuum"]):
        _, shown = watched(shell, *arguments, both=True)
        assert BAR not in shown
        assert shown.count("\n") >= 2
    _, shown = watched(shell, "stats")  # which is not long
    assert BAR not in shown
