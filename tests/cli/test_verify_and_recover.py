"""`tailrace verify` and `tailrace recover`: what they print and how they exit."""

from __future__ import annotations

from pathlib import Path

from tailrace import Log
from tests.cli.conftest import Run, flip, lines, segments


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
        result = run("recover", "--apply", log)
    assert result.exit_code == 2
    assert result.stderr.startswith("tailrace: ")
    assert "is held by" in result.stderr
