"""Archives in a configuration: what may be said, and that it happens by itself."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import ConfigError
from tailrace.config.model import ArchiveConfig, Config, check

WAIT = 30.0


def write(folder: Path, archive: str) -> Path:
    path = folder / "tailrace.yaml"
    options = "type: stream, flush: async, segment_bytes: 2000, compression: none"
    path.write_text(f"queues:\n  - name: events\n    {options.replace(', ', chr(10) + '    ')}\n")
    with path.open("a") as file:
        file.write(f"    archive: {archive}\n")
    return path


def test_what_is_said_and_what_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, "{to: lake, every: 5m, delete: true, format: delta}")
    [found] = Config.load(path).archives
    assert found == ArchiveConfig("events", str(tmp_path / "lake"), "delta", "", 300.0, True)
    [found] = Config.load(write(tmp_path, "{to: /lake, partition_by: hour}")).archives
    assert found == ArchiveConfig("events", "/lake", "parquet", "hour", 3600.0, False)
    assert Config.load(write(tmp_path, "{to: ''}")).archives == []
    assert Config.empty().archives == []


@pytest.mark.parametrize(
    ("archive", "key", "said"),
    [
        ("{to: lake, when: 1h}", "archive.when", "unknown key"),
        ("{every: 1h}", "archive.to", "it is missing"),
        ("{to: 's3://bucket/lake'}", "archive.to", "an address, and an archive is a folder"),
        ("{to: lake, every: soon}", "archive.every", "soon"),
        ("{to: lake, format: csv}", "archive.format", "one of parquet, delta, iceberg"),
        ("{to: lake, partition_by: week}", "archive.partition_by", "one of none, date, hour"),
        ("{to: lake, delete: 3}", "archive.delete", "true or false"),
        ("lake", "archive", "a mapping of to, format"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, archive: str, key: str, said: str
) -> None:
    path = write(tmp_path, archive)
    [problem] = check(path)
    assert (problem.line, problem.key) == (7, f"queues[0].{key}")
    assert said in problem.message
    with pytest.raises(ConfigError, match=r"tailrace\.yaml:7"):
        Config.load(path)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("lake", "lake/b", "it is in another queue's, on line 2"),
        ("lake", "link/b/c", "it is in another queue's, on line 2"),
        ("lake/b", "lake", "it has another queue's, on line 2"),
        ("lake/b", "lake/bc", None),
    ],
)
def test_no_archive_is_in_another(
    tmp_path: Path, first: str, second: str, said: str | None
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    path = tmp_path / "tailrace.yaml"
    path.write_text(
        "queues:\n"
        f"- {{name: a, archive: {{to: {first}}}}}\n"
        f"- {{name: b, archive: {{to: {second}}}}}\n"
    )
    found = check(path)
    assert [problem.line for problem in found] == ([] if said is None else [3])
    assert said is None or said in found[0].message


@pytest.mark.parametrize("to", ["lake", "{folder}/lake", "./x/../lake", "link"])
def test_each_queue_has_a_folder_of_its_own(tmp_path: Path, to: str) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    path = tmp_path / "tailrace.yaml"
    path.write_text(
        "queues:\n"
        "- {name: a, archive: {to: lake}}\n"
        "- {name: b, archive: {to: other}}\n"
        f"- {{name: c, archive: {{to: {to.format(folder=tmp_path)}}}}}\n"
        "- {name: d, archive: {to: ''}}\n"
        "- {name: e, archive: {to: ''}}\n"
    )
    [problem] = check(path)
    assert (problem.line, problem.key) == (4, "queues[2].archive.to")
    assert "another queue's, on line 2" in problem.message


@pytest.mark.parametrize(
    ("storage", "to", "is_good"),
    [
        ("{path: store}", "store/queue/lake", False),
        ("{badger_dir: store}", "store/queue", False),
        ("{}", "data/queue/lake", False),
        ("{path: link}", "store/queue/lake", False),
        ("{path: store}", "store/lake", True),
        ("{path: store}", "data/queue/lake", True),
        ("{path: file}", "file/queue/lake", True),  # what is wrong there is said by who opens it
    ],
)
def test_an_archive_is_not_in_the_store(
    tmp_path: Path, storage: str, to: str, is_good: bool
) -> None:
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "tailrace.yaml"
    path.write_text(
        f"storage: {storage}\nqueues:\n- name: events\n  archive:\n    to: {to}\n",
    )
    found = check(path)
    if is_good:
        assert found == []
        return
    [problem] = found
    assert (problem.line, problem.key) == (5, "queues[0].archive.to")
    assert "is in the store itself" in problem.message


def test_whoever_has_the_store_open_archives(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")
    path = write(tmp_path, "{to: lake, every: 50ms, delete: true}")
    with tailrace.open(tmp_path / "data", config=path) as store:
        stream = store.stream("events")
        for number in range(200):
            stream.publish(b"value %d" % number)
        stream.log.flush()
        deadline = time.monotonic() + WAIT
        while stream.log.start_offset < 100:
            assert time.monotonic() < deadline, "nothing was archived"
            time.sleep(0.05)
        start = stream.log.start_offset
    files = sorted((tmp_path / "lake").glob("*.parquet"))
    assert files
    assert int(files[-1].stem.partition("-")[2]) >= start


def test_one_that_fails_is_logged_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "tailrace.yaml"
    path.write_text(
        "queues:\n"
        "- {name: broken, type: stream, archive: {to: file/lake, every: 50ms}}\n"
        "- {name: events, type: stream, archive: {to: lake, every: 50ms}}\n"
    )
    small = {"segment_bytes": 2_000, "compression": "none", "flush": "async"}
    with (
        caplog.at_level(logging.WARNING, "tailrace"),
        tailrace.open(tmp_path / "data", config=path, **small) as store,
    ):
        for name in ("broken", "events"):
            for number in range(200):
                store.stream(name).publish(b"value %d" % number)

        def said() -> list[str]:
            return [record.getMessage() for record in caplog.records]

        deadline = time.monotonic() + WAIT
        while not (said() and any((tmp_path / "lake").glob("*.parquet"))):
            assert time.monotonic() < deadline, said()
            time.sleep(0.05)
        assert store.stream("broken").log.start_offset == 0
    assert all("archiving of broken" in each for each in said()), said()
    assert "file/lake" in caplog.text
    assert (tmp_path / "file").read_text() == "no folder"


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None  # as if it were not installed
import tailrace
with tailrace.open(sys.argv[1], config=sys.argv[2]) as store:
    store.stream("events").publish(b"x")
"""


def test_without_pyarrow_a_warning_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "{to: lake, every: 50ms}")
    command = [sys.executable, "-c", WITHOUT_PYARROW, str(tmp_path / "data"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "queues are not archived, because pyarrow" in done.stderr
    assert "pip install 'tailrace[arrow]'" in done.stderr
    assert not (tmp_path / "lake").exists()


def test_nobody_archives_without_upkeep(tmp_path: Path) -> None:
    path = write(tmp_path, "{to: lake, every: 20ms}")
    with tailrace.open(tmp_path / "data", config=path, upkeep=False) as store:
        store.stream("events").publish(b"x")
        time.sleep(0.2)
    assert not (tmp_path / "lake").exists()
