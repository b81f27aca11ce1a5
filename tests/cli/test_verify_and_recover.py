"""`tailrace verify` and `tailrace recover`: what they print and how they exit."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tailrace import Log
from tests.cli.conftest import Run, flip, lines, pid_of_nobody, segments, tailrace


def test_a_sound_log(run: Run, log: Path) -> None:
    result = run("verify", log)
    assert result.exit_code == 0
    assert "36 records in 12 batches" in result.stdout
    assert "no problems" in result.stdout
    (report,) = lines(run("verify", "--json", log))
    assert report["type"] == "report"
    assert report["ok"] is True
    assert (report["records"], report["end_offset"], report["problems"]) == (36, 36, 0)


def test_an_empty_log(run: Run, tmp_path: Path) -> None:
    Log(tmp_path / "log").close()
    result = run("verify", tmp_path / "log")
    assert result.exit_code == 0
    assert "no records; the next offset is 0" in result.stdout


def test_problems(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    segments(log)[1].with_suffix(".idx").unlink()
    result = run("verify", log)
    assert result.exit_code == 1
    assert "2 problems" in result.stdout
    assert f"{segments(log)[0].name}:0" in result.stdout
    assert f"tailrace recover {log}" in result.stdout
    body = [line for line in result.stdout.splitlines() if str(log) not in line]
    assert max(map(len, body)) <= 100
    first, second, report = lines(run("verify", "--json", log))
    assert first["type"] == second["type"] == "finding"
    assert first["severity"] == "problem"
    assert (first["path"], first["position"], first["offset"]) == (segments(log)[0].name, 0, 0)
    assert "missing" in second["message"]
    assert report["problems"] == 2


def test_notes_are_no_problem(run: Run, log: Path) -> None:
    (log / ".tailrace" / "producers").write_text("rubbish")
    result = run("verify", log)
    assert result.exit_code == 0
    assert "no problems, 1 note" in result.stdout


def test_a_dry_run(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    before = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    result = run("recover", log)
    assert result.exit_code == 1
    assert "nothing was changed" in result.stdout
    assert f"tailrace recover --apply {log}" in result.stdout
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == before
    *actions, report = lines(run("recover", "--json", log))
    assert [action["kind"] for action in actions] == ["split", "lost"]
    assert (actions[1]["first_offset"], actions[1]["next_offset"]) == (0, 3)
    assert report == {
        "type": "report",
        "folder": str(log),
        "applied": False,
        "actions": 2,
        "quarantined": [],
    }


def test_apply(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    result = run("recover", "--apply", log)
    assert result.exit_code == 0
    assert f"{log}: done" in result.stdout
    assert "kept aside: .tailrace/quarantine/" in result.stdout
    assert run("verify", log).exit_code == 0
    again = run("recover", log)
    assert again.exit_code == 0
    assert "nothing to do" in again.stdout
    with Log(log, read_only=True) as opened:
        assert [record.offset for record in opened.read()] == list(range(3, 36))


def test_apply_as_json(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    report = lines(run("recover", "--apply", "--json", log))[-1]
    assert report["applied"] is True
    assert len(report["quarantined"]) == 1
    assert lines(run("recover", "--apply", "--json", log))[-1]["actions"] == 0


def test_a_log_in_use(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    with Log(log, upkeep=False):
        done = tailrace("recover", "--apply", log)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tailrace: {log}: another process (pid {os.getpid()} on ")
    assert done.stderr.endswith(") writes to it; stop it first\n")
    assert "read_only" not in done.stderr


def test_verifying_a_log_in_use(run: Run, log: Path) -> None:
    (report,) = lines(run("verify", "--json", log))
    assert report["holder"] is None
    assert report["writers"] == []
    with Log(log, upkeep=False) as opened:
        opened.append([b"more"]).wait()
        done = tailrace("verify", log)
        *_, report = lines(run("verify", "--json", log))
        opened.append([b"still ours"]).wait()
        assert tailrace("vacuum", log).returncode == 0  # which joins us
        assert opened.append([b"the last one"]).wait().offset == 38
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == (
        f"pid {os.getpid()} on {os.uname().nodename} is writing to it"
    )
    assert "the next open" not in done.stdout
    assert report["holder"]["pid"] == os.getpid()
    assert report["writers"] == [report["holder"]]


def test_verifying_a_log_that_several_use(run: Run, log: Path) -> None:
    with Log(log, upkeep=False), Log(log, upkeep=False, mode="shared") as opened:
        opened.append([b"more"]).wait()
        result = run("verify", log)
        *_, report = lines(run("verify", "--json", log))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        f"pid {os.getpid()} on {os.uname().nodename} and 1 more are writing to it"
    )
    assert [writer["mode"] for writer in report["writers"]] == ["owner", "shared"]
    assert report["holder"] == report["writers"][0]


def test_problems_of_a_log_in_use(run: Run, log: Path) -> None:
    flip(segments(log)[0], 60)
    with Log(log, upkeep=False):
        result = run("verify", log)
    assert result.exit_code == 1
    assert "is writing to it; verify it again when nobody does" in result.stdout
    assert "tailrace recover" not in result.stdout.splitlines()[-1]


def test_a_writer_that_was_killed_does_not_write(run: Run, log: Path) -> None:
    note = {"pid": pid_of_nobody(), "host": os.uname().nodename, "since": 1, "mode": "owner"}
    (log / ".tailrace" / "members").write_text(json.dumps([note]))
    assert "is writing" not in run("verify", log).stdout
    report = lines(run("verify", "--json", log))[-1]
    assert report["holder"] is None
    assert report["writers"] == []


def test_one_of_everything(run: Run, tmp_path: Path) -> None:
    with Log(tmp_path / "log", upkeep=False) as log:
        log.append([b"x"])
    text = run("verify", tmp_path / "log").stdout
    assert ": 1 record in 1 batch, 1 segment, " in text
    assert text.splitlines()[0].endswith("; offset 0")
    flip(segments(tmp_path / "log")[0], 45)
    text = run("verify", tmp_path / "log").stdout
    assert "\n1 problem\n" in text
