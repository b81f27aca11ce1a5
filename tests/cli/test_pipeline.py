"""`tailrace pipeline`. What pipelines do is tested with Spark's tables; this is how they are run,
stopped and looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tailrace
from tailrace.cli import main
from tailrace.errors import TailraceError
from tailrace.spark.pipelines import running
from tailrace.spark.pipelines.definition import Definition
from tailrace.spark.pipelines.status import Status
from tests.cli.conftest import Shell
from tests.project import NEEDS_JAVA
from tests.queue.support import refuse

PATIENCE_S = 150
CONFIG = """\
pipelines:
  - {name: copy, from: orders, sql: SELECT key AS value FROM orders, to: copied}
  - name: files
    from: orders
    sql: SELECT string(value) AS text FROM orders
    to: {path: lake}
    trigger: 1m
"""
WITH_SCHEMA = """\
pipelines:
  - name: copy
    from: orders
    to: copied
    format: avro
    schema_file: schemas/orders.avsc
    sql: SELECT * FROM orders
"""
SLOW = """\
pipelines:
  - name: slow
    from: orders
    max_offsets_per_trigger: 15
    sql: SELECT value FROM orders WHERE reflect('java.lang.Thread', 'sleep', 200L) IS NOT NULL
    to: copied
"""


def fill(shell: Shell, config: str, count: int) -> None:
    shell.folder.mkdir(exist_ok=True)
    (shell.folder / "tailrace.yaml").write_text(config)
    with tailrace.open(shell.store, upkeep=False) as store:
        store.stream("orders").publish_many([b"%d" % number for number in range(count)])


def test_list_and_status_need_no_spark(shell: Shell) -> None:
    fill(shell, CONFIG, 2)
    before = shell.files()
    first, second = shell.items("pipeline", "list")
    assert (first["name"], first["from"], first["to"], first["path"]) == (
        *("copy", "orders", "copied"),
        None,
    )
    assert second["path"].endswith("lake")
    assert second["trigger"] == 60_000
    assert shell.ok("pipeline", "list").splitlines()[0].split() == [
        *("pipeline", "from", "format", "to", "trigger")
    ]
    assert shell.items("pipeline", "status", "copy") == [
        {"type": "pipeline", "name": "copy", "state": "never ran"}
    ]
    assert "never ran" in shell.ok("pipeline", "status")
    assert shell.files() == before


REFUSING = """\
pipelines:
  - {name: a, from: orders, to: x, sql: SELECT 1, format: json, schema: n long}
  - {name: b, from: orders, to: x, sql: SELECT 1, format: csv, schema: n long, dead_letters: bad}
  - {name: c, from: other, to: x, sql: SELECT 1, format: csv, schema: n long, dead_letters: more}
"""


def test_what_they_refuse_is_shown_and_brought_back(shell: Shell) -> None:
    """Wherever the configuration says that it is, and each message once."""
    fill(shell, REFUSING, 2)
    with tailrace.open(shell.store, upkeep=False) as store:
        refuse(store, "a", 1)
        refuse(store, "b", 0, 1, place="bad")
    found = [
        (item["queue"], item["pipeline"], dict(item["headers"])["_dlq_original_offset"])
        for item in shell.items("dead", "orders")
    ]
    assert found == [("$dlq/orders", "a", "1"), ("bad", "b", "0"), ("bad", "b", "1")]
    assert "  pipeline 'b'  was 0  value '0'  reason 'bad'" in shell.ok("dead", "orders")
    assert "group" not in shell.ok("dead", "orders")
    assert shell.ok("redrive", "orders") == "orders: 2 dead letters brought back\n"
    assert (shell.ok("dead", "orders"), shell.ok("dead", "bad")) == ("", "")
    assert [item["value"] for item in shell.items("read", "orders")] == ["0", "1", "1", "0"]


def test_dead_letters_are_shown_although_the_configuration_is_wrong(shell: Shell) -> None:
    fill(shell, REFUSING, 1)
    with tailrace.open(shell.store, upkeep=False) as store:
        refuse(store, "a", 0)
    (shell.folder / "tailrace.yaml").write_text("pipelines: 5\n")
    done = shell("dead", "orders")
    assert done.returncode == 0
    assert "pipeline 'a'" in done.stdout
    assert "tailrace.yaml:1: pipelines: expected a list" in done.stderr
    assert "dead_letters of pipelines are not looked at" in done.stderr


def test_what_is_wrong_is_one_line(shell: Shell) -> None:
    fill(shell, CONFIG, 1)
    assert "no pipeline 'other'; there are copy, files" in shell.refused("pipeline", "run", "other")
    assert "Name pipelines, or give --all" in shell("pipeline", "run").stderr
    both = ("--restart-from-scratch", "--keep-checkpoint")
    assert "exclude each other" in shell("pipeline", "run", "copy", *both).stderr
    (shell.folder / "tailrace.yaml").write_text("queues: []\n")
    assert "there are no pipelines" in shell.refused("pipeline", "list")
    (shell.folder / "tailrace.yaml").write_text(WITH_SCHEMA)
    said = shell.refused("pipeline", "run", "copy")
    assert "tailrace.yaml:6: pipelines[0].schema_file: " in said
    assert said.endswith("orders.avsc: No such file or directory")
    (shell.folder / "tailrace.yaml").write_text("pipelines: [{name: a}]\n")
    assert "tailrace.yaml:1: pipelines[0].from: it is missing" in shell.refused("pipeline", "list")


class Slow:
    """A pipeline that is in the middle of a batch until it is told to finish, and that twice. The
    second one sees a signal while it starts, or fails."""

    runs: list[Slow]
    when_it_starts: str

    def __init__(self, _: Any, __: str, definition: Definition, *, once: bool) -> None:
        self.status = Status(definition.name)
        self.definition = definition
        self.told = 0
        self.runs.append(self)

    def start(self, *, keep_checkpoint: bool) -> None:
        self.status.state = "running"
        if len(self.runs) == 2:
            if self.when_it_starts == "fail":
                self.status.state = "failed"
                raise TailraceError("there is no table")
            for _ in self.when_it_starts.split():
                os.kill(os.getpid(), signal.SIGTERM)

    def poll(self, _: Any = None) -> bool:
        return self.told < 2

    def finish(self) -> None:
        self.told += 1

    def stop(self, *, now: bool = False) -> None:
        self.status.state = "stopped"


def run_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when_it_starts: str
) -> tuple[Result, list[Slow]]:
    shell = Shell(tmp_path)
    one = "  - {name: %s, from: orders, sql: SELECT value FROM orders, to: %s}\n"
    fill(shell, "pipelines:\n" + "".join(one % (name, name) for name in ("a", "b", "c")), 1)
    monkeypatch.setattr(Slow, "runs", [], raising=False)
    monkeypatch.setattr(Slow, "when_it_starts", when_it_starts, raising=False)
    monkeypatch.setattr(running, "Run", Slow)
    monkeypatch.setattr(running, "told_apart", lambda *_: None)
    monkeypatch.setattr("tailrace.spark.session.local_session", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["pipeline", "run", "--all", "--json"])
    return done, Slow.runs


def test_a_signal_while_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have begun finish their batches, and the others do not begin."""
    done, runs = run_slowly(tmp_path, monkeypatch, "term")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [(each.told, each.status.state) for each in runs] == [(2, "stopped")] * 2
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["a", "b"]


def test_two_signals_while_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, runs = run_slowly(tmp_path, monkeypatch, "term term")
    assert done.exit_code == 0
    assert [(each.told, each.status.state) for each in runs] == [(0, "stopped")] * 2


def test_one_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has begun finishes its batch."""
    done, runs = run_slowly(tmp_path, monkeypatch, "fail")
    assert (done.exit_code, done.stderr) == (2, "tailrace: there is no table\n")
    assert [(each.told, each.status.state) for each in runs] == [(2, "stopped"), (0, "failed")]


class Quick(Slow):
    """A pipeline that ends by itself, after some time."""

    events: list[tuple[str, str]]
    left = 3

    def start(self, *, keep_checkpoint: bool) -> None:
        self.status.state = "running"
        self.events.append((self.definition.name, "begins"))

    def poll(self, _: Any = None) -> bool:
        self.left -= 1
        return self.left > 0

    def stop(self, *, now: bool = False) -> None:
        self.status.state = "stopped"
        self.events.append((self.definition.name, "ends"))


CHAIN = """\
pipelines:
  - {name: last, from: mid, sql: SELECT value FROM mid, to: end}
  - {name: first, from: orders, sql: SELECT value FROM orders, to: mid}
"""


def run_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> list[tuple[str, str]]:
    shell = Shell(tmp_path)
    fill(shell, CHAIN, 1)
    monkeypatch.setattr(Quick, "runs", [], raising=False)
    monkeypatch.setattr(Quick, "events", [], raising=False)
    monkeypatch.setattr(running, "Run", Quick)
    monkeypatch.setattr(running, "told_apart", lambda *_: None)
    monkeypatch.setattr("tailrace.spark.session.local_session", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["pipeline", "run", "--json", *words])
    assert done.exit_code == 0, done.output
    with tailrace.open(shell.store, upkeep=False) as store:
        assert {queue.name for queue in store.queues()} == {"orders", "mid"}
    return Quick.events


def test_a_chain_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins when what it reads has been written, whatever the order in the file is."""
    assert run_quickly(tmp_path, monkeypatch, "--all", "--once") == [
        ("first", "begins"),
        ("first", "ends"),
        ("last", "begins"),
        ("last", "ends"),
    ]


def test_a_chain_that_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = run_quickly(tmp_path, monkeypatch, "--all")
    assert events[:2] == [("last", "begins"), ("first", "begins")]


def test_the_last_of_a_chain_alone_and_named_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is there, whoever is to fill it."""
    assert run_quickly(tmp_path, monkeypatch, "last", "last") == [
        ("last", "begins"),
        ("last", "ends"),
    ]


@NEEDS_JAVA
@pytest.mark.timeout(600)
@pytest.mark.spark("4.2")  # from which on a trigger has a limit
@pytest.mark.sample(2)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_is_told_to_stop(tmp_path: Path, signum: signal.Signals) -> None:
    """In the middle of a batch, which is finished. Meanwhile another process sees how it goes."""
    shell = Shell(tmp_path)
    fill(shell, SLOW, 3_000)
    local = ("--master", "local[1]", "--conf", "spark.driver.memory=1g")
    process = shell.started("pipeline", "run", "slow", "--json", *local)
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["type"], first["pipeline"], first["rows_in"]) == ("batch", "slow", 15)
        [seen] = shell.items("pipeline", "status")
        assert (seen["state"], seen["pid"]) == ("running", process.pid)
        assert seen["rows_in"] >= 15
        assert seen["lag"]["orders"] == 3_000 - seen["offsets"]["orders"]
        refused = shell.refused("pipeline", "run", "slow")
        assert refused == f"pipeline 'slow': process {process.pid} runs it; stop that first"
        batch = in_the_middle(shell)
        process.send_signal(signum)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    expected = (0, "") if signum == signal.SIGTERM else (130, "tailrace: interrupted\n")
    assert (process.returncode, err) == expected
    assert batch in numbers(shell, "commits")
    last = json.loads(out.splitlines()[-1])
    assert (last["type"], last["state"]) == ("pipeline", "stopped")
    [seen] = shell.items("pipeline", "status")
    assert seen["state"] == "stopped"
    written = [first, *map(json.loads, out.splitlines()[:-1])]
    assert {each["batch"] for each in written} >= {batch}
    with tailrace.open(shell.store, upkeep=False) as store:
        values = [message.value for message in store.stream("copied").read()]
    assert values == [b"%d" % number for number in range(len(values))]
    assert len(values) >= 15 * (batch + 1)


def numbers(shell: Shell, folder: str) -> set[int]:
    place = shell.store / "queue/.tailrace/pipelines/slow/checkpoint" / folder
    return {int(path.name) for path in place.glob("[0-9]*") if path.name.isdigit()}


def in_the_middle(shell: Shell) -> int:
    """Wait until a batch is planned and not done."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        pending = numbers(shell, "offsets") - numbers(shell, "commits")
        if pending:
            time.sleep(0.5)
            if pending - numbers(shell, "commits"):
                return max(pending)
        time.sleep(0.02)
    raise AssertionError("no batch was seen")


# Runs command lines in one process, with one Spark, and says what each came to.
RUNNER = """
import json, sys
from click.testing import CliRunner
from tailrace.cli import main

done = []
for line in json.load(sys.stdin):
    result = CliRunner().invoke(main, line)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    done.append([result.exit_code, result.stdout, result.stderr])
json.dump(done, sys.stdout)
"""


@NEEDS_JAVA
@pytest.mark.timeout(600)
def test_run_and_check(shell: Shell) -> None:
    import sys

    fill(shell, CONFIG, 3)
    wrong = CONFIG.replace("SELECT key AS value", "SELECT nothing AS value")
    (shell.folder / "wrong.yaml").write_text(wrong)
    elsewhere = ["--config", "wrong.yaml", "--store", "data"]
    lines: list[list[str]] = [
        ["check"],
        ["run", "--all", "--once"],
        ["run", "copy", "--once", "--json"],
        ["run", "copy", "--once", *elsewhere],
        ["check", *elsewhere],
        ["run", "copy", "--once", "--restart-from-scratch"],
        ["status"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=shell.folder,
        env=shell.environment,
        input=json.dumps([["pipeline", *line] for line in lines]),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: list[list[Any]] = json.loads(done.stdout)
    check, run, again, changed, bad, anew, status = found
    assert check == [0, "pipeline 'copy': no problem\npipeline 'files': no problem\n", ""]
    assert (run[0], run[2]) == (0, "")
    assert run[1].startswith("copy: orders → copied\n")
    assert "copy: 1 batch, 3 rows in, 3 out\n" in run[1]
    assert json.loads(again[1]) == {
        "type": "pipeline",
        "name": "copy",
        "state": "stopped",
        "batches": 0,
        "rows_in": 0,
        "rows_out": 0,
        "dead_letters": 0,
    }
    assert (changed[0], changed[1]) == (2, "")
    assert "--restart-from-scratch" in changed[2]
    assert changed[2].count("\n") == 1
    assert bad[0] == 1
    assert "made for another sql" in bad[1]
    assert (anew[0], anew[2].count("moved aside: ")) == (0, 2)
    assert status[1].splitlines()[1].split()[:4] == ["copy", "stopped", "3", "3"]
    with tailrace.open(shell.store, upkeep=False) as store:
        assert store.stream("copied").log.end_offset == 6
    assert len(list((shell.folder / "lake").glob("*.parquet"))) == 1
    assert os.listdir(shell.folder).count("wrong.yaml") == 1
