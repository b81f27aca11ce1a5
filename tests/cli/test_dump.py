"""`tailrace dump`: every kind of file, whole and damaged, for people and for programs."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, Record
from tailrace.kernel import crc32c
from tests.cli.conftest import T0, Run, flip, lines, pid_of_nobody, segments

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "fluxmq"
SIDE_FILES = ["log.json", "watermark", "start", "clean", "seals", "gaps", "poisoned", "producers"]


def of_type(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in items if item["type"] == kind]


# --- segments -------------------------------------------------------------------------------


def test_a_segment(run: Run, log: Path) -> None:
    result = run("dump", segments(log)[0])
    assert result.exit_code == 0
    first, batch, record, *_ = result.stdout.splitlines()
    assert first == f"{segments(log)[0]}: {segments(log)[0].stat().st_size} bytes"
    assert batch.startswith("@0 ")
    assert batch.endswith(" ok")
    assert "  | 0  2023-11-14T22:13:20.000Z  key 'k'  value 'value 0'" in record
    assert "value null  headers 'h'='\\x01', 't'='text'" in result.stdout
    assert "value b'\\xff\\x00'" in result.stdout


def test_a_segment_that_is_being_written(run: Run, tmp_path: Path) -> None:
    """Room for what comes is no damage."""
    with Log(tmp_path / "open") as log:
        log.append([b"v"]).wait()
        [path] = segments(tmp_path / "open")
        result = run("dump", path)
        assert result.exit_code == 0
        assert "zeros up to byte" in result.stdout
        assert result.stdout.splitlines()[-1] == "1 batch, 1 record"
        [space] = of_type(lines(run("dump", "--json", path)), "space")
        assert space["end"] == path.stat().st_size


def test_a_segment_as_json(run: Run, log: Path) -> None:
    items = lines(run("dump", "--json", segments(log)[0]))
    assert items[0] == {
        "type": "segment",
        "file": str(segments(log)[0]),
        "base_offset": 0,
        "size": segments(log)[0].stat().st_size,
    }
    batch, record, binary, third = items[1:5]
    assert batch["type"] == "batch"
    assert (batch["position"], batch["base_offset"], batch["count"]) == (0, 0, 3)
    assert batch["checksum"] == "ok"
    assert batch["codec"] == "none"
    assert set(batch["flags"]) == {"timestamps", "keys", "headers"}
    assert record == {
        "type": "record",
        "file": str(segments(log)[0]),
        "offset": 0,
        "timestamp": T0,
        "key": "k",
        "value": "value 0",
        "headers": [],
    }
    assert base64.b64decode(binary["value"]["base64"]) == b"\xff\x00"
    assert third["value"] is None
    assert third["headers"] == [["h", {"base64": "AQ=="}], ["t", "text"]]
    assert items[-1]["type"] == "end"
    assert items[-1]["records"] == len(of_type(items, "record"))


def test_all_segments_together_are_the_log(run: Run, log: Path) -> None:
    dumped = []
    for path in segments(log):
        dumped += [r["offset"] for r in of_type(lines(run("dump", "--json", path)), "record")]
    assert dumped == list(range(36))


def test_batches_only(run: Run, log: Path) -> None:
    items = lines(run("dump", "--json", "--no-records", segments(log)[0]))
    assert not of_type(items, "record")
    assert of_type(items, "batch")
    assert "|" not in run("dump", "--no-records", segments(log)[0]).stdout


def test_start_and_limit(run: Run, log: Path) -> None:
    items = lines(run("dump", "--json", "--start", 4, "--limit", 3, segments(log)[0]))
    assert [item["offset"] for item in of_type(items, "record")] == [4, 5, 6]
    assert len(of_type(items, "batch")) == 2
    items = lines(run("dump", "--json", "--no-records", "--limit", 2, segments(log)[0]))
    assert len(of_type(items, "batch")) == 2
    assert run("dump", "--limit", 0, segments(log)[0]).exit_code == 2


def test_damage_is_shown_and_passed(run: Run, log: Path) -> None:
    path = segments(log)[0]
    whole = lines(run("dump", "--json", path))
    second = of_type(whole, "batch")[1]
    flip(path, second["position"] + 50)
    result = run("dump", "--json", path)
    assert result.exit_code == 0
    items = lines(result)
    (damage,) = of_type(items, "damage")
    assert damage["position"] == second["position"]
    assert damage["end"] == second["position"] + second["size"]
    assert "checksum" in damage["why"]
    assert damage["header"]["checksum"] == "bad"
    assert damage["header"]["base_offset"] == second["base_offset"]
    offsets = [item["offset"] for item in of_type(items, "record")]
    lost = range(second["base_offset"], second["next_offset"])
    assert offsets == [r["offset"] for r in of_type(whole, "record") if r["offset"] not in lost]
    text = run("dump", path).stdout
    assert "!! damaged up to byte" in text
    assert "its header says: offsets 3 to 5" in text


def test_no_flipped_byte_is_an_error(run: Run, tmp_path: Path) -> None:
    with Log(tmp_path / "log", upkeep=False) as log:
        for value in (b"one", b"two"):
            log.append([value])
    path = segments(tmp_path / "log")[0]
    for position in range(path.stat().st_size):
        flip(path, position)
        result = run("dump", "--json", path)
        assert result.exit_code == 0
        assert of_type(lines(result), "damage"), position
        assert run("dump", path).exit_code == 0
        flip(path, position)


def test_a_torn_end(run: Run, log: Path) -> None:
    path = segments(log)[0]
    path.write_bytes(path.read_bytes()[:-5])
    (damage,) = of_type(lines(run("dump", "--json", path)), "damage")
    assert "the file ends inside a batch" in damage["why"]
    assert damage["next_offset"] is None


def test_records_that_cannot_be_decoded(run: Run, log: Path) -> None:
    path = segments(log)[0]
    data = bytearray(path.read_bytes())
    size = 44 + int.from_bytes(data[16:20], "little")
    data[44] = 9
    data[4:8] = crc32c(bytes(data[8:size])).to_bytes(4, "little")
    path.write_bytes(data)
    batch = of_type(lines(run("dump", "--json", path)), "batch")[0]
    assert "offset delta" in batch["fault"]
    assert "!! " in run("dump", path).stdout


def test_an_empty_segment(run: Run, tmp_path: Path) -> None:
    path = tmp_path / f"{7:020d}.seg"
    path.touch()
    assert [item["type"] for item in lines(run("dump", "--json", path))] == ["segment", "end"]


def test_text_that_is_not_clean(run: Run, tmp_path: Path) -> None:
    values = ["plain", "zwei\nZeilen\t", "ünï", "\x1b[31m", "", "\x7f"]
    with Log(tmp_path / "log", upkeep=False) as log:
        log.append([Record(value=value, headers={"\udcff": b""}) for value in values])
    records = of_type(lines(run("dump", "--json", *segments(tmp_path / "log"))), "record")
    shown = [item["value"] for item in records]
    assert [v for v in shown if isinstance(v, str)] == ["plain", "zwei\nZeilen\t", "ünï", ""]
    assert [base64.b64decode(v["base64"]) for v in shown if isinstance(v, dict)] == [
        b"\x1b[31m",
        b"\x7f",
    ]
    assert records[0]["headers"] == [[{"base64": "/w=="}, ""]]
    text = run("dump", *segments(tmp_path / "log")).stdout
    assert "\x1b" not in text


def test_long_values_are_shortened_for_people_only(run: Run, tmp_path: Path) -> None:
    with Log(tmp_path / "log", upkeep=False) as log:
        log.append([b"x" * 5_000])
    (path,) = segments(tmp_path / "log")
    assert "(5000 bytes)" in run("dump", path).stdout
    _heading, *shown = run("dump", path).stdout.splitlines()
    assert max(map(len, shown)) <= 110
    assert of_type(lines(run("dump", "--json", path)), "record")[0]["value"] == "x" * 5_000


def test_bytes_in_quarantine(run: Run, log: Path) -> None:
    path = segments(log)[0]
    flip(path, 60)
    assert run("recover", "--apply", log).exit_code == 0
    (cut,) = (log / ".tailrace" / "quarantine").iterdir()
    items = lines(run("dump", "--json", cut))
    assert items[0]["base_offset"] == 0
    assert of_type(items, "damage")[0]["header"]["base_offset"] == 0


# --- indexes --------------------------------------------------------------------------------


def test_indexes(run: Run, log: Path) -> None:
    batches = of_type(lines(run("dump", "--json", segments(log)[0])), "batch")
    places = {(batch["base_offset"], batch["position"]) for batch in batches}
    index, *entries = lines(run("dump", "--json", segments(log)[0].with_suffix(".idx")))
    assert index["interval"] == 100
    assert index["entries"] == len(entries)
    assert {(entry["offset"], entry["position"]) for entry in entries} <= places
    index, *entries = lines(run("dump", "--json", segments(log)[0].with_suffix(".tix")))
    times = {(batch["base_offset"], batch["max_timestamp"]) for batch in batches}
    assert {(entry["offset"], entry["timestamp"]) for entry in entries} <= times
    assert index["min_timestamp"] == entries[0]["timestamp"]
    for extension in (".idx", ".tix"):
        text = run("dump", segments(log)[0].with_suffix(extension)).stdout.splitlines()
        assert len(text) == 1 + len(entries) or extension == ".idx"
        assert max(map(len, text)) <= 105 + len(str(segments(log)[0]))


def test_a_part_of_an_index(run: Run, log: Path) -> None:
    path = segments(log)[0].with_suffix(".idx")
    (_, *entries) = lines(run("dump", "--json", "--start", 3, "--limit", 1, path))
    assert len(entries) == 1
    assert entries[0]["offset"] >= 3


@pytest.mark.parametrize("extension", [".idx", ".tix"])
def test_damaged_indexes(extension: str, run: Run, log: Path) -> None:
    path = segments(log)[0].with_suffix(extension)
    data = path.read_bytes()
    for position in range(len(data)):
        flip(path, position)
        assert lines(run("dump", "--json", path))[0]["type"] == "index"
        assert run("dump", path).exit_code == 0
        flip(path, position)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert "fault" in lines(run("dump", "--json", path))[0]
        assert "!!" in run("dump", path).stdout


# --- side files -----------------------------------------------------------------------------


@pytest.fixture
def full_log(tmp_path: Path) -> Path:
    """A log that has every side file."""
    from tailrace.log.fs import OsFileSystem
    from tailrace.log.sidefiles import Gap, Gaps, Poison

    path = tmp_path / "full"
    with Log(path, upkeep=False, flush="async", segment_bytes=300) as log:
        for i in range(10):
            log.append([b"%d" % i], producer="p", sequence=i).wait()
        log.truncate_before(2)
    Gaps(OsFileSystem(), str(path)).add(Gap(0, 1, "lost", True, "for a test", T0))
    Poison(10, 8, 0, "EIO").store(OsFileSystem(), str(path))
    return path


@pytest.mark.parametrize("name", [*SIDE_FILES, "reserved"])
def test_side_files(name: str, run: Run, full_log: Path) -> None:
    path = full_log / ".tailrace" / name
    items = lines(run("dump", "--json", path))
    assert items[0] == {"type": "file", "file": str(path), "size": path.stat().st_size}
    assert len(items) > 1
    assert {item["checksum"] for item in items[1:]} <= {"ok", "empty"}
    assert items[1].get("contents") or items[2]["contents"]
    result = run("dump", path)
    assert result.exit_code == 0
    assert "checksum ok" in result.stdout


@pytest.mark.parametrize("name", [*SIDE_FILES, "reserved"])
@pytest.mark.parametrize("contents", [b"rubbish", b"\xff" * 700, b""])
def test_damaged_side_files(name: str, contents: bytes, run: Run, full_log: Path) -> None:
    path = full_log / ".tailrace" / name
    path.write_bytes(contents)
    items = lines(run("dump", "--json", path))
    states = {item["checksum"] for item in items[1:]}
    assert "ok" not in states
    assert "bad" in states or not contents
    assert run("dump", path).exit_code == 0


def test_what_side_files_say(run: Run, full_log: Path) -> None:
    folder = full_log / ".tailrace"
    slots = lines(run("dump", "--json", folder / "start"))[1:]
    assert [slot["contents"]["offset"] for slot in slots] == [2, 2]
    gap = lines(run("dump", "--json", folder / "gaps"))[1]["contents"]
    assert (gap["first"], gap["next"], gap["kind"]) == (0, 1, "lost")
    assert "2023-11-14T22:13:20.000Z" in run("dump", folder / "gaps").stdout
    assert lines(run("dump", "--json", folder / "log.json"))[1]["contents"]["flush"] == "async"


def test_the_members(run: Run, log: Path) -> None:
    path = log / ".tailrace" / "members"
    nobody = dict.fromkeys(("pid", "host", "since", "mode", "running"))
    for note in ("[]", "", "[]"):
        assert "nobody has it open for writing" in run("dump", path).stdout
        (_, item) = lines(run("dump", "--json", path))
        assert item == {"type": "member", "file": str(path), **nobody}
        path.write_text(note)
    with Log(log, upkeep=False), Log(log, upkeep=False, mode="shared"):
        (_, *items) = lines(run("dump", "--json", path))
        texts = run("dump", path).stdout.splitlines()[1:]
    assert [item["mode"] for item in items] == ["owner", "shared"]
    for item, text in zip(items, texts, strict=True):
        assert (item["pid"], item["host"]) == (os.getpid(), os.uname().nodename)
        assert item["running"] is True
        assert text.startswith(f"  pid {os.getpid()} on {os.uname().nodename} since 2")
        assert text.endswith(f"Z ({item['mode']})")
    with Log(log, upkeep=False, exclusive=True):
        assert lines(run("dump", "--json", path))[1]["mode"] == "exclusive"


def test_a_member_that_was_killed(run: Run, log: Path) -> None:
    path = log / ".tailrace" / "members"
    host, since = os.uname().nodename, T0 // 1000
    note = {"pid": pid_of_nobody(), "host": host, "since": since, "mode": "owner"}
    path.write_text(json.dumps([note, {**note, "pid": os.getpid()}]))
    items = lines(run("dump", "--json", path))[1:]
    assert [item["running"] for item in items] == [False, True]
    text = run("dump", path).stdout.splitlines()[1:]
    assert text[0].endswith("since 2023-11-14T22:13:20.000Z (owner); that process has ended")
    assert text[1].endswith("since 2023-11-14T22:13:20.000Z (owner)")
    path.write_text(json.dumps([{**note, "host": "elsewhere.invalid"}]))
    assert lines(run("dump", "--json", path))[1]["running"] is None
    assert "has ended" not in run("dump", path).stdout


@pytest.mark.parametrize(
    "note",
    [
        "rubbish",
        "{}",
        "[1]",
        '[{"pid": 1}]',
        '[{"pid": "1", "host": "a", "since": 0, "mode": "owner"}]',
        '{"pid": 1, "host": "a", "since": 0, "mode": "owner"}',
        "\xff",
    ],
)
def test_members_with_something_else_in_it(note: str, run: Run, log: Path) -> None:
    path = log / ".tailrace" / "members"
    path.write_text(note, encoding="latin-1")
    item = lines(run("dump", "--json", path))[1]
    assert item["pid"] is None
    assert item["text"]
    assert "!! not a note" in run("dump", path).stdout


# --- names ----------------------------------------------------------------------------------


def test_several_files(run: Run, log: Path) -> None:
    files = [*segments(log)[:2], segments(log)[0].with_suffix(".idx"), log / ".tailrace" / "seals"]
    items = lines(run("dump", "--json", *files))
    assert list(dict.fromkeys(item["file"] for item in items)) == [str(file) for file in files]
    assert items == [item for file in files for item in lines(run("dump", "--json", file))]
    parts = [run("dump", file).stdout for file in files]
    assert [part.partition(":")[0] for part in parts] == [str(file) for file in files]
    assert run("dump", *files).stdout == "\n".join(parts)


def test_limits_count_for_each_file(run: Run, log: Path) -> None:
    items = lines(run("dump", "--json", "--limit", 1, *segments(log)[:2]))
    assert len(of_type(items, "record")) == 2


def test_a_file_that_is_not_there(run: Run, log: Path) -> None:
    """Whatever its name is; and nothing is shown before that."""
    for name in ("nope", "nope.seg", "nope.idx", "watermark"):
        result = run("dump", segments(log)[0], name)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr == f"tailrace: {name}: there is no such file\n"


def test_one_of_everything(run: Run, tmp_path: Path) -> None:
    with Log(tmp_path / "log", upkeep=False) as log:
        log.append([b"x"])
    (path,) = segments(tmp_path / "log")
    text = run("dump", path).stdout
    assert text.endswith("\n1 batch, 1 record\n")
    assert "  offset 0  " in text.replace("@0        ", " ")
    flip(path, 45)
    assert run("dump", path).stdout.endswith("\n0 batches, 0 records, 1 damaged place\n")
    path.with_suffix(".idx").write_bytes(b"x")
    text = run("dump", path.with_suffix(".idx")).stdout
    assert ": 1 byte\n  !! 1 byte; the header alone has 32" in text


def test_an_unknown_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.touch()
    result = run("dump", path)
    assert result.exit_code == 2
    assert "dump knows .seg" in result.stderr
    result = run("dump", tmp_path)
    assert result.exit_code == 2
    assert "is a directory" in result.stderr


def contents(record: dict[str, Any]) -> bytes | None:
    """A record's value, as it was before it was JSON."""
    value = record["value"]
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()


# --- FluxMQ ---------------------------------------------------------------------------------


@pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")
@pytest.mark.parametrize("codec", ["none", "s2"])
def test_files_of_fluxmq(codec: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    shutil.copytree(FIXTURES / codec / "queues" / "orders" / "segments", folder)
    records = []
    for path in segments(folder):
        items = lines(run("dump", "--json", path))
        assert not of_type(items, "damage")
        records += of_type(items, "record")
        for extension in (".idx", ".tix"):
            assert lines(run("dump", "--json", path.with_suffix(extension)))[1:]
    assert [record["offset"] for record in records] == list(range(53))
    expected = json.loads((FIXTURES / f"{codec}.expected.json").read_text())
    assert [contents(record) for record in records] == [
        None if item["null"] else base64.b64decode(item["payload"] or "") for item in expected
    ]
    assert run("verify", folder).exit_code == 0
    assert run("recover", folder).exit_code == 0
