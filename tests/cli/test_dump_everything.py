"""Every file that a store has, and a backup of it, can be looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.log.fs import OsFileSystem
from tailrace.queue.alarm import Alarm
from tests.cli.conftest import Run, lines
from tests.log.helpers import eventually


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tailrace.Store]:
    """A bit of everything, in use, with all that is done in the background."""
    with tailrace.open(tmp_path / "data") as store:
        queue = store.queue("orders/eu", retry={"max_retries": 0})
        queue.publish_many([b"%d" % number for number in range(6)])
        with queue.consumer("w") as consumer:
            acked, rejected, failed, _held = consumer.receive(4)
            acked.ack()
            rejected.reject("no")
            failed.nack()
        queue.consumer("w", filter="a/+").receive()
        queue.publish(b"later", delay="1h")
        assert queue.cancel(queue.publish(b"never", delay="1h").delay_id)
        stream = store.stream("s")
        stream.publish_many([b"x", b"y"])
        stream.consumer("g").receive(1)
        small = store.stream("small", limits={"max_depth": 1, "on_full": "drop_oldest"})
        small.publish(b"x")
        small.publish(b"y")
        store.publish("ephemeral", b"x")
        store.consumer("ephemeral", "w").receive()
        delayed = Path(store.layout.delayed())
        eventually((delayed / "pump").exists)
        yield store


def check_all(run: Run, folder: Path, *, quiet: bool = True) -> set[str]:
    """The names of the files; those that are numbers or ids without these."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert files
    for file in files:
        text = run("dump", file)
        assert text.exit_code == 0, text.stderr
        assert str(file) in text.stdout.partition("\n")[0]
        assert text.stdout.count("\n") >= 2, text.stdout
        assert not quiet or "!!" not in text.stdout, text.stdout
        found = run("dump", "--json", file)
        assert found.exit_code == 0, found.stderr
        items = lines(found)
        assert len(items) >= 2
        assert all(item["file"] == str(file) for item in items)
    return {
        file.suffix if len(file.stem) > 18 and file.stem.isalnum() else file.name for file in files
    }


def test_a_store_that_is_used(run: Run, store: tailrace.Store, tmp_path: Path) -> None:
    names = check_all(run, tmp_path / "data", quiet=False)  # what is being written is not whole
    assert names >= {"board", "bell", "pump", ".open", "lock", "lock.flush", "reserve", "attended"}
    assert names >= {".seg", ".idx", ".tix", "schedule.json", "queues.json", "ops.log"}
    assert names >= {"dropped", "lock.dropped"}
    dropped = tmp_path / "data" / "queue" / "queues" / "small" / ".tailrace" / "dropped"
    assert "count" in run("dump", dropped).stdout


def test_a_store_that_was_closed(run: Run, store: tailrace.Store, tmp_path: Path) -> None:
    store.close()
    assert check_all(run, tmp_path / "data") >= {"clean", "state.json", "pel_0.json", "g.json"}


def test_a_backup(run: Run, store: tailrace.Store, tmp_path: Path) -> None:
    assert run("backup", tmp_path / "b", "--store", tmp_path / "data").exit_code == 0
    assert check_all(run, tmp_path / "b") >= {"backup.json", "schedule.json", "watermark", ".seg"}
    manifest = tmp_path / "b" / "backup.json"
    items = lines(run("dump", "--json", manifest))
    copied = {item["contents"]["path"] for item in items if item["type"] == "copied"}
    files = tmp_path / "b" / "files"
    assert copied == {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}
    assert len(lines(run("dump", "--json", "--limit", 2, manifest))) == 4
    text = run("dump", manifest).stdout
    assert "began_ms: 20" in text  # as people write it
    assert "config/queues.json  " in text


def test_a_backup_that_says_something_else(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "backup.json"
    path.write_text("{}")
    assert "checksum none" in run("dump", path).stdout
    path.write_text(json.dumps({"files": [1, {"path": "x"}]}))
    assert run("dump", path).stdout.count("!! ") == 2


def test_an_archive(run: Run, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with tailrace.open(data, segment_bytes="4KiB") as store:
        for _ in range(20):
            store.queue("q").publish(os.urandom(1000))
    archived = run("archive", "q", "--to", lake, "--store", data, "--delete")
    assert archived.exit_code == 0, archived.stderr
    (lake / "_tailrace" / "ran").write_text("1700000000000\n")
    assert check_all(run, lake / "_tailrace") >= {"manifest.jsonl", "lock", "placing", "ran"}
    assert check_all(run, data) >= {"archive", "lock.archive"}
    steps = lines(run("dump", "--json", lake / "_tailrace" / "manifest.jsonl"))
    assert [item["op"] for item in steps[1:3]] == ["archive", "step"]
    assert steps[2]["contents"]["first"] == 0
    [note] = lines(run("dump", "--json", data / "queue/queues/q/.tailrace/archive"))[1:-1]
    assert note["contents"]["holds"] is True


def test_pages(run: Run, store: tailrace.Store, tmp_path: Path) -> None:
    delayed = Path(store.layout.delayed())
    [page] = lines(run("dump", "--json", delayed / "board"))[1:]
    contents = page["contents"]
    assert list(contents) == ["next_ms", "looking", "keeper", "stirred_uptime_s"]
    assert contents["looking"] is False
    alarm = Alarm(OsFileSystem(), str(delayed))
    alarm.open()
    alarm.stirred_ms, keeper = 12_345, alarm.take_over()
    alarm.close()
    [page] = lines(run("dump", "--json", delayed / "board"))[1:]
    assert page["contents"] == {**contents, "keeper": keeper, "stirred_uptime_s": 12.345}
    assert "next: 20" in run("dump", delayed / "board").stdout
    incarnation = store.get("orders/eu").incarnation
    [page] = lines(run("dump", "--json", delayed / incarnation / "board"))[1:]
    assert page["contents"]["carried_out_below"] == 0
    assert page["contents"]["unsorted_bytes"] > 0
    board = Path(store.layout.segments("s"), ".tailrace", "board")
    [page] = lines(run("dump", "--json", board))[1:]
    assert page["contents"]["in_use"] is True
    assert page["contents"]["next_offset"] == 2
    assert "somebody waits: no" in run("dump", board).stdout
    store.close()
    for path in (delayed / "board", delayed / incarnation / "board", board):
        path.write_bytes(b"x")
        assert "!! too short" in run("dump", path).stdout
        assert lines(run("dump", "--json", path))[1]["contents"] is None


def test_what_does_not_have_its_name_yet(run: Run, store: tailrace.Store, tmp_path: Path) -> None:
    store.close()
    side = Path(store.layout.segments("s"), ".tailrace")
    (side / "log.json").rename(side / "log.json.123.tmp")
    assert "checksum ok" in run("dump", side / "log.json.123.tmp").stdout
