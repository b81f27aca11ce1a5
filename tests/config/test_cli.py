"""`tailrace config`, as a person or a script runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, lines, run, tailrace
from tests.config.support import EVERYTHING, SMALL, write

__all__ = ["run"]  # a fixture


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_STORE", raising=False)
    return tmp_path


def test_check_a_good_file(here: Path) -> None:
    write(here, SMALL)
    done = tailrace("config", "check", "tailrace.yaml")
    assert (done.returncode, done.stdout) == (0, "tailrace.yaml: no problem; 1 queue\n")
    assert tailrace("config", "check").stdout == done.stdout  # beside ./data


def test_check_lists_every_problem(here: Path) -> None:
    write(here, "storge: {}\nqueues:\n- name: a\n  limits: {max_dept: 1}\n")
    done = tailrace("config", "check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "tailrace.yaml:1: storge: unknown key; did you mean storage?",
        "tailrace.yaml:4: queues[0].limits.max_dept: unknown key; did you mean max_depth?",
    ]
    assert not done.stderr


def test_check_for_programs(here: Path, run: Run) -> None:
    path = write(here, "[storage]\nflush = 1\n", "conf.toml")
    result = run("config", "check", path, "--json")
    assert result.exit_code == 1
    problem, report = lines(result)
    assert problem == {
        "type": "problem",
        "file": str(path),
        "line": 2,
        "key": "storage.flush",
        "message": "expected one of sync, async, none, got 1",
    }
    assert report == {"type": "report", "file": str(path), "problems": 1}


def test_check_without_a_file(run: Run) -> None:
    result = run("config", "check")
    assert result.exit_code == 2
    assert "there is no tailrace.yaml, tailrace.yml, tailrace.toml in data or" in result.stderr
    result = run("config", "check", "no.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("tailrace: no.yaml: No such file or directory")


def test_the_store_says_which_file(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "there").mkdir()
    write(here / "there", SMALL, "tailrace.yml")
    shown = f"{Path('there', 'tailrace.yml')}: no problem; 1 queue\n"
    assert run("config", "check", "--store", "there/data").stdout == shown
    monkeypatch.setenv("TAILRACE_STORE", "there/data")
    assert run("config", "check").stdout == shown


def test_show(here: Path, run: Run) -> None:
    write(here, EVERYTHING)
    shown = run("config", "show", "tailrace.yaml")
    assert shown.exit_code == 0
    assert "\n  flush: async\n" in shown.stdout
    with_origin = run("config", "show", "tailrace.yaml", "--origin").stdout.splitlines()
    assert [line.partition("  #")[0].rstrip() for line in with_origin] == shown.stdout.splitlines()
    [flush] = [line.split() for line in with_origin if line.startswith("  flush: ")]
    assert flush == ["flush:", "async", "#", "tailrace.yaml:6"]
    write(here, shown.stdout, "again.yaml")
    assert run("config", "show", "again.yaml").stdout == shown.stdout


def test_show_for_programs(here: Path, run: Run) -> None:
    write(here, SMALL)
    values = lines(run("config", "show", "--json"))
    assert {value["type"] for value in values} == {"value"}
    [ttl] = [value for value in values if value["key"] == "queues[0].limits.message_ttl"]
    assert (ttl["value"], ttl["origin"]) == ("30m", "tailrace.yaml:5")


def test_show_without_a_file(run: Run) -> None:
    result = run("config", "show", "--json")
    assert result.exit_code == 0
    assert {value["origin"] for value in lines(result)} == {"default"}


def test_show_a_wrong_file(here: Path) -> None:
    write(here, "storge: {}\n")
    done = tailrace("config", "show")
    assert done.returncode == 2
    assert done.stderr == (
        "tailrace: tailrace.yaml:1: storge: unknown key; did you mean storage?\n"
    )


def test_schema() -> None:
    done = tailrace("config", "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "tailrace"


def test_help_has_examples(run: Run) -> None:
    for command in ("check", "show", "schema"):
        shown = run("config", command, "--help").stdout
        assert f"tailrace config {command}" in shown.partition("Example")[2]
