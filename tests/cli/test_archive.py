"""`tailrace archive`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

import tailrace
from tests.cli.conftest import Shell
from tests.project import NEEDS_JAVA

T0 = 1_700_000_000_000


@pytest.fixture
def filled(shell: Shell) -> Shell:
    with tailrace.open(shell.store, upkeep=False, flush="async") as store:
        for name in ("events", "orders"):
            stream = store.stream(name, segment_bytes=2_000, compression="none")
            for number in range(60):
                stream.publish(b"value %d" % number, timestamp=T0 + number * 1000)
            stream.log.flush()
    return shell


def note(shell: Shell) -> dict[str, object]:
    [item] = shell.items("stats", "events")
    found: dict[str, object] = item["queues"][0]
    return found


def test_it_archives_what_is_new_and_says_so(filled: Shell) -> None:
    said = filled.ok("archive", "events", "--to", "lake")
    assert said.startswith("events: archived ")
    assert "directly, without Spark" in said
    assert "not archived yet: their segment is still written to" in said
    assert filled.ok("archive", "events").startswith("events: nothing new to archive")
    [report] = filled.items("archive", "events")
    assert report["folder"] == str(filled.folder / "lake")
    assert (report["steps"], report["engine"]) == (0, "direct")
    assert report["remaining"] > 0
    assert note(filled)["archive"] == str(filled.folder / "lake")


def test_a_part_by_time_and_partitions(filled: Shell) -> None:
    since, until = "2023-11-14T22:13:30Z", str(T0 + 20_000)
    line = ("archive", "events", "--to", "lake", "--partition-by", "hour")
    [report] = filled.items(*line, "--since", since, "--until", until)
    assert (report["first"], report["last"], report["rows"]) == (10, 20, 10)
    [file] = (filled.folder / "lake").glob("date=2023-11-14/hour=22/*.parquet")
    assert file.name == f"{10:020d}-{20:020d}.parquet"
    assert "partitioned by hour, not by date" in filled.refused(
        "archive", "events", "--partition-by", "date"
    )


def test_delete_and_release(filled: Shell) -> None:
    said = filled.ok("archive", "events", "--to", "lake", "--delete")
    assert "verified below offset" in said
    found = note(filled)
    assert found["start_offset"] == found["archive_verified"]
    assert found["archive_holds"] is True
    assert "which is verified in" in filled.ok("stats", "events")
    filled.ok("create", "events", "--update", "--type", "stream", "--max-age", "1s")
    assert "nothing to delete" in filled.ok("vacuum", "events")
    assert "waits for that one" in filled.refused("archive", "events", "--to", "other")
    assert "retention goes by its limits" in filled.ok("archive", "events", "--release")
    assert note(filled)["archive_holds"] is False
    assert "deleted" in filled.ok("vacuum", "events")
    [released] = filled.items("archive", "orders", "--release")
    assert released == {"type": "released", "queue": "orders", "folder": None}


@pytest.mark.parametrize("bound", ["--since", "--until"])
def test_a_date_without_its_dashes_deletes_nothing(filled: Shell, bound: str) -> None:
    refused = filled("archive", "events", "--to", "lake", "--delete", bound, "20260131")
    assert refused.returncode == 2
    assert "'20260131' may be a date or milliseconds" in " ".join(refused.stderr.split())
    assert note(filled)["start_offset"] == 0


def test_a_damaged_note_is_dropped_by_release(filled: Shell) -> None:
    filled.ok("archive", "events", "--to", "lake", "--delete")
    [path] = filled.store.glob("queue/queues/events/.tailrace/archive")
    assert filled("verify", "data").returncode == 0
    path.write_bytes(b"{}\n")
    verified = filled("verify", "data")
    assert verified.returncode == 1
    assert "the note of the archive is damaged" in " ".join(verified.stdout.split())
    assert "is damaged" in filled.refused("archive", "events", "--to", "lake")
    assert "is damaged, so nothing is deleted" in filled.ok("stats", "events")
    assert "no archive is known" in filled.ok("archive", "events", "--release")
    filled.ok("archive", "events", "--to", "lake")


def test_it_goes_on_only_where_the_archive_is_and_is_its_own(filled: Shell) -> None:
    filled.ok("archive", "events", "--to", "lake")
    (filled.folder / "lake").rename(filled.folder / "away")
    assert "is not in" in filled.refused("archive", "events")
    (filled.folder / "away").rename(filled.folder / "lake")
    filled.ok("archive", "events")
    filled.ok("backup", "copied")
    filled.ok("restore-backup", "copied", "--store", "copy")
    said = filled.refused("archive", "events", "--store", "copy")
    assert "is the archive of the store that this one was restored from" in said
    (filled.folder / "copy/tailrace.yaml").write_text(
        "queues: [{name: events, type: stream, archive: {to: ../lake, every: 0}}]"
    )
    said = filled.refused("archive", "--all", "--store", "copy")
    assert "was restored from" in said
    filled.ok("archive", "events", "--store", "copy", "--to", "lake")
    filled.ok("archive", "--all", "--store", "copy")


CONFIG = """
queues:
  - {name: events, type: stream, archive: {to: lake/events, partition_by: date, delete: true}}
  - {name: orders, type: stream, archive: {to: lake/orders, every: 0}}
  - {name: others, type: stream}
"""


def test_all_that_a_configuration_says(filled: Shell) -> None:
    (filled.folder / "tailrace.yaml").write_text(CONFIG)
    events, orders = filled.items("archive", "--all", "--config", "tailrace.yaml")
    assert (events["queue"], orders["queue"]) == ("events", "orders")
    assert events["deleted_segments"] > 0
    assert orders["verified"] is None
    assert sorted(path.name for path in (filled.folder / "lake").iterdir()) == ["events", "orders"]
    assert [report["steps"] for report in filled.items("archive", "--all")] == [0, 0]


def test_one_that_fails_does_not_keep_the_others_waiting(filled: Shell) -> None:
    (filled.folder / "tailrace.yaml").write_text(CONFIG)
    filled.ok("archive", "--all")
    shutil.rmtree(filled.folder / "lake")
    filled.ok("archive", "orders", "--release")
    done = filled("archive", "--all", "--json")
    assert done.returncode == 2
    events, orders = (json.loads(line) for line in done.stdout.splitlines())
    assert (events["type"], events["queue"]) == ("error", "events")
    assert "bring the archive back" in events["error"]
    assert (orders["type"], orders["queue"]) == ("report", "orders")
    assert orders["rows"] > 0
    first, last = done.stderr.splitlines()
    assert first.startswith("tailrace: events: ")
    assert last == "tailrace: 1 of 2 queues could not be archived: events"
    (filled.folder / "lake/orders/_tailrace/manifest.jsonl").write_bytes(b"no\n")
    done = filled("archive", "--all")
    assert done.returncode == 2
    assert done.stderr.endswith("2 of 2 queues could not be archived: events, orders\n")


def test_what_is_refused(filled: Shell) -> None:
    assert "was never archived" in filled.refused("archive", "events")
    assert "no queue 'missing'" in filled.refused("archive", "missing", "--to", "lake")
    assert "name it with --config" in filled.refused("archive", "--all")
    (filled.folder / "tailrace.yaml").write_text("queues: [{name: events, type: stream}]")
    assert "no queue has an archive" in filled.refused("archive", "--all")
    inside = filled.refused("archive", "events", "--to", "data/queue/lake")
    assert "in the store itself" in inside
    filled.ok("archive", "orders", "--to", "orders")
    assert "its name is empty" in filled.refused("archive", "orders", "--to", "")
    address = "s3://bucket/lake"
    said = filled.refused("archive", "events", "--to", address, "--delete")
    assert "s3://bucket/lake is an address, and an archive is a folder: mount it" in said
    said = filled.refused("sql", "SELECT 1", "--include-archive", "--archive", f"events={address}")
    assert "is an address" in said
    assert note(filled)["start_offset"] == 0
    for wrong in (
        ["archive"],
        ["archive", "events", "--all"],
        ["archive", "--all", "--to", "lake"],
        ["archive", "events", "--release", "--delete"],
        ["archive", "events", "--to", "lake", "--no-spark", "--master", "local"],
        ["archive", "events", "--to", "lake", "--since", "soon"],
        ["archive", "events", "--to", "lake", "--since", "2030-01-01", "--until", "2020-01-01"],
        ["archive", "events", "--to", "lake", "--format", "csv"],
    ):
        assert filled.refused(*wrong).endswith("; see tailrace archive --help"), wrong
    assert not (filled.folder / "lake").exists()
    assert not (filled.folder / "s3:").exists()


def test_without_pyarrow_it_says_what_to_install(filled: Shell, tmp_path: Path) -> None:
    (tmp_path / "hidden" / "pyarrow").mkdir(parents=True)
    (tmp_path / "hidden" / "pyarrow" / "__init__.py").write_text("raise ImportError('no')")
    path = f"{tmp_path / 'hidden'}:{filled.environment.get('PYTHONPATH', '')}"
    done = filled("archive", "events", "--to", "lake", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr == "tailrace: pyarrow is missing: pip install 'tailrace[arrow]'\n"


@NEEDS_JAVA
def test_with_spark(filled: Shell) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    said = filled.ok(
        "archive", "events", "--to", "lake", "--master", "local[2]", "--json",
        "--conf", "spark.driver.memory=1g",
    )  # fmt: skip
    report = json.loads(said)
    assert report["engine"] == "spark"
    assert report["rows"] + report["remaining"] == 60
