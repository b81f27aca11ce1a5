"""`tailrace vacuum`: old segments go, and those of a store stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace import Log, Store
from tests.cli.conftest import Run, Shell, lines, segments, tailrace


def start_of(log: Path) -> int:
    with Log(log, read_only=True) as opened:
        return opened.start_offset


def test_nothing_to_delete(run: Run, log: Path) -> None:
    result = run("vacuum", log)
    assert result.exit_code == 0
    assert "nothing to delete; it starts at offset 0" in result.stdout


def test_before(run: Run, log: Path) -> None:
    before = len(segments(log))
    result = run("vacuum", log, "--before", 20)
    assert result.exit_code == 0
    assert "deleted" in result.stdout
    assert start_of(log) == 20
    assert len(segments(log)) < before
    assert run("vacuum", log, "--before", 5).exit_code == 0  # it has been done
    assert start_of(log) == 20
    assert run("verify", log).exit_code == 0


def test_before_too_far(run: Run, log: Path) -> None:
    result = run("vacuum", log, "--before", 37)
    assert result.exit_code == 2
    assert "beyond the end" in result.stderr
    assert run("vacuum", log, "--before", 36).exit_code == 0
    assert start_of(log) == 36


@pytest.mark.parametrize(
    "limit",
    [("--max-age", "1ms"), ("--max-bytes", "400"), ("--max-records", "10")],
    ids=lambda limit: str(limit[0]),
)
def test_limits(limit: tuple[str, str], run: Run, log: Path) -> None:
    (report,) = lines(run("vacuum", log, *limit, "--json"))
    assert report["type"] == "report"
    assert report["segments"] > 0
    assert report["bytes"] > 0
    assert report["end_offset"] == 36
    assert report["start_offset"] == start_of(log) > 0
    (report,) = lines(run("vacuum", log, *limit, "--json"))
    assert report["segments"] == 0


@pytest.mark.parametrize(
    "limit",
    [("--max-age", "long"), ("--max-bytes", "many"), ("--max-records", "0"), ("--max-age", "0")],
)
def test_wrong_limits(limit: tuple[str, str], run: Run, log: Path) -> None:
    result = run("vacuum", log, *limit)
    assert result.exit_code == 2
    assert limit[0] in result.stderr or "--before" in result.stderr
    assert start_of(log) == 0


def test_a_log_in_use(run: Run, log: Path) -> None:
    """It joins the others, who go on with what is left."""
    before = len(segments(log))
    with Log(log, upkeep=False) as opened:
        opened.append([b"ours"]).wait()
        done = tailrace("vacuum", log, "--before", 20)
        assert done.returncode == 0
        assert "deleted" in done.stdout
        assert "it starts at offset 20" in done.stdout
        assert len(segments(log)) < before
        assert opened.start_offset == 20
        assert opened.append([b"still ours"]).wait().offset == 37
        assert [record.offset for record in opened.read()] == list(range(20, 38))
    assert start_of(log) == 20
    assert run("verify", log).exit_code == 0


def test_a_log_that_somebody_keeps_for_itself(log: Path) -> None:
    before = segments(log)
    with Log(log, upkeep=False, exclusive=True):
        done = tailrace("vacuum", log, "--before", 20)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tailrace: {log}: another process (pid {os.getpid()} on ")
    assert done.stderr.endswith(") writes to it; stop it first\n")
    assert segments(log) == before
    assert start_of(log) == 0


def test_one_segment(run: Run, log: Path) -> None:
    second = int(segments(log)[1].stem)
    result = run("vacuum", log, "--before", second)
    assert f"deleted 1 segment, 516 B; it starts at offset {second}" in result.stdout


@pytest.mark.parametrize("marker", ["config", ".tailrace"])
def test_a_store_is_refused(marker: str, run: Run, log: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    folder = store / "queues" / "orders" / "segments"
    folder.parent.mkdir(parents=True)
    log.rename(folder)
    (store / marker).mkdir()
    for given in (folder, folder.parent):
        result = run("vacuum", given, "--before", 36)
        assert result.exit_code == 2
        assert "the queue 'orders'" in result.stderr
        assert "retention" in result.stderr
    assert start_of(folder) == 0


def test_a_folder_called_segments_is_no_store(run: Run, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    log.rename(folder)
    assert run("vacuum", tmp_path, "--before", 36).exit_code == 0


# --- queues ---------------------------------------------------------------------------------


@pytest.fixture
def filled(shell: Shell) -> Shell:
    """A queue of several segments of which the only group needs nothing any more, and another that
    no group has read."""
    with Store(shell.store, segment_bytes=4096, compression="none", upkeep=False) as store:
        for name in ("done", "new"):
            queue = store.queue(name)
            for _ in range(5):
                queue.publish_many([b"x" * 1000] * 4)
        with store.queue("done").consumer("g") as consumer:
            consumer.ack(consumer.receive(20))
    return shell


def test_a_queue(filled: Shell) -> None:
    [report] = filled.items("vacuum", "done")
    assert report["queue"] == "done"
    assert report["segments"] >= 4
    start = report["start_offset"]
    assert start >= 16
    assert filled.ok("vacuum", "done") == f"done: nothing to delete; it starts at offset {start}\n"


def test_all_queues(filled: Shell) -> None:
    done, new = filled.items("vacuum")
    assert done["queue"] == "done"
    assert done["segments"] >= 4
    assert (new["queue"], new["segments"]) == ("new", 0)


def test_a_queue_with_mistakes(filled: Shell) -> None:
    assert "there is no queue 'x'" in filled.refused("vacuum", "x")
    done = filled("vacuum", "done", "--max-age", "1s")
    assert done.returncode == 2
    assert "a queue goes by its own retention" in done.stderr
    assert "there is no store" in filled.refused("vacuum", "--store", "nothing")
