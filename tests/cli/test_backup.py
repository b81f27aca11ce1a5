"""`tailrace backup` and `tailrace restore-backup`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tailrace import Store
from tests.cli.conftest import Run, command, flip, lines, tailrace


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with Store(path) as store:
        queue = store.queue("q", segment_bytes=1000)
        for number in range(50):
            queue.publish(b"%d" % number)
        with queue.consumer("w") as consumer:
            consumer.ack(consumer.receive(10))
    return path


def test_there_and_back(store: Path, run: Run, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    result = run("backup", backup, "--store", store)
    assert result.exit_code == 0
    assert f"{backup}: 1 queue, 1 group, " in result.stdout
    result = run("restore-backup", backup, "--check")
    assert result.exit_code == 0
    assert "; it is whole" in result.stdout
    result = run("restore-backup", backup, "--store", restored)
    assert result.exit_code == 0
    assert f"{restored}: 1 queue, " in result.stdout
    assert result.stdout.endswith(", restored\n")
    assert run("verify", restored).exit_code == 0
    with Store(restored) as copy, copy.queue("q").consumer("w") as consumer:
        assert [message.offset for message in consumer.receive(5)] == [10, 11, 12, 13, 14]


def test_there_and_back_twice(store: Path, tmp_path: Path) -> None:
    """A restored store can be backed up before anybody has used it."""
    for number, source in enumerate([store, tmp_path / "restored0"]):
        backup = tmp_path / f"backup{number}"
        done = tailrace("backup", backup, "--store", source)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{backup}: 1 queue, 1 group, " in done.stdout
        done = tailrace("restore-backup", backup, "--store", tmp_path / f"restored{number}")
        assert done.returncode == 0, done.stderr
    with Store(tmp_path / "restored1") as copy, copy.queue("q").consumer("w") as consumer:
        assert [message.offset for message in consumer.receive(2)] == [10, 11]


def test_the_configuration(store: Path, tmp_path: Path) -> None:
    """The store's own goes with it, and comes back where there is none."""
    text = "storage: {disk: {refuse_ratio: 1.0}}\n"
    (store / "tailrace.yaml").write_text(text)
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    done = tailrace("backup", backup, "--store", store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(", with tailrace.yaml\n")
    done = tailrace("restore-backup", backup, "--store", restored)
    assert done.stdout.endswith(", with tailrace.yaml, restored\n")
    assert (restored / "tailrace.yaml").read_text() == text
    assert sorted(path.name for path in restored.iterdir()) == ["queue", "tailrace.yaml"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "tailrace.toml").write_text("")
    done = tailrace("restore-backup", backup, "--store", other)
    assert done.returncode == 0, done.stderr
    assert "tailrace.yaml" not in done.stdout
    assert sorted(path.name for path in other.iterdir()) == ["queue", "tailrace.toml"]
    flip(backup / "config" / "tailrace.yaml", 3)
    done = tailrace("restore-backup", backup, "--check")
    assert done.returncode == 2
    assert "tailrace.yaml is damaged" in done.stderr


def test_a_configuration_elsewhere_is_named(store: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tailrace.yaml"
    file.write_text("storage: {path: data}\n")
    result = run("backup", tmp_path / "1", "--store", store)
    assert result.stdout.splitlines()[1:] == [f"{file}, its configuration, is not part of it"]
    (report,) = lines(run("backup", tmp_path / "2", "--store", store, "--json"))
    assert (report["config"], report["config_elsewhere"]) == ([], str(file))
    (store / "tailrace.toml").write_text("")
    (report,) = lines(run("backup", tmp_path / "3", "--store", store, "--json"))
    assert (report["config"], report["config_elsewhere"]) == (["tailrace.toml"], None)
    arguments = ("--store", store, "--config", file, "--json")
    (report,) = lines(run("backup", tmp_path / "4", *arguments))
    assert (report["config"], report["config_elsewhere"]) == (["tailrace.toml"], str(file))


def test_the_reports(store: Path, run: Run, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    (report,) = lines(run("backup", backup, "--store", store, "--json"))
    assert (report["type"], report["path"]) == ("report", str(backup))
    assert (report["queues"], report["groups"], report["linked"]) == (1, 1, 0)
    manifest = json.loads((backup / "backup.json").read_bytes())
    assert report["files"] == len(manifest["files"])
    assert report["bytes"] == sum(each["size"] for each in manifest["files"])
    (checked,) = lines(run("restore-backup", backup, "--check", "--json"))
    assert (checked["restored"], checked["files"]) == (False, report["files"])
    (done,) = lines(run("restore-backup", backup, "--store", tmp_path / "r", "--json"))
    assert (done["restored"], done["bytes"]) == (True, report["bytes"])
    linked = run("backup", tmp_path / "2", "--store", store, "--since", backup, "--json")
    assert lines(linked)[0]["linked"] > 0
    result = run("backup", tmp_path / "3", "--store", store, "--link")
    assert "of it linked" in result.stdout


def test_the_store_of_the_environment(store: Path, tmp_path: Path) -> None:
    done = tailrace("backup", tmp_path / "b", env={"TAILRACE_STORE": str(store)})
    assert done.returncode == 0, done.stderr
    target = {"TAILRACE_STORE": str(tmp_path / "r")}
    done = tailrace("restore-backup", tmp_path / "b", env=target)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "queue" / "config" / "queues.json").exists()


def test_errors(store: Path, run: Run, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    for arguments, words in [
        (("backup", backup, "--store", tmp_path / "nothing"), "there is no store in"),
        (("backup", store, "--store", store), "is not empty"),
        (("backup", store / "queue" / "b", "--store", store), "in the store"),
        (("backup", backup, "--store", store, "--since", store), "is no backup"),
        (("restore-backup", store, "--store", tmp_path / "r"), "is no backup"),
        (("restore-backup", tmp_path / "nothing", "--check"), "is no backup"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "nothing").exists()
    assert not backup.exists()
    assert run("backup", backup, "--store", store).exit_code == 0
    assert run("backup", backup, "--store", store).exit_code == 2
    result = run("restore-backup", backup, "--store", store)
    assert result.exit_code == 2
    assert "is not empty" in result.stderr


def test_a_damaged_backup(store: Path, run: Run, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    assert run("backup", backup, "--store", store).exit_code == 0
    segment = min(backup.rglob("*.seg"))
    flip(segment, 60)
    for arguments in (["--check"], ["--store", tmp_path / "r"]):
        result = run("restore-backup", backup, *arguments)
        assert result.exit_code == 2
        assert str(segment) in result.stderr
        assert "is damaged" in result.stderr
    assert not (tmp_path / "r").exists()


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C leaves nothing behind."""
    with Store(tmp_path / "data") as store:
        queue = store.queue("q", flush="none", segment_bytes="16MiB", compression="none")
        block = os.urandom(1 << 20)
        for _ in range(200):
            queue.publish(block)
    arguments = ("backup", tmp_path / "backup", "--store", tmp_path / "data")
    with subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("backup.*.tmp/content/files/queues/q/segments/*.seg")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
