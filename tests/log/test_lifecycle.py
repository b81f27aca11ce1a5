"""Open, close, and what a closed or read-only log refuses."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace import Closed, ConfigError, Log, NotWritten, TailraceError
from tailrace.log.fs import OsFileSystem
from tailrace.log.upkeep import Upkeep
from tailrace.testing import Fail, FaultyFileSystem, on
from tests.log.conftest import OpenLog
from tests.log.helpers import bases, fill, offsets, run_python, segment, side_file, tree, values


def test_a_new_log_is_a_folder_with_one_segment(log: Log, path: Path) -> None:
    assert bases(path) == [0]
    assert sorted(file.name for file in path.iterdir()) == [
        ".tailrace",
        "00000000000000000000.idx",
        "00000000000000000000.seg",
        "00000000000000000000.tix",
    ]


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with Log(tmp_path / "a" / "b" / "log") as log:
        log.append([b"x"]).wait()
    assert segment(tmp_path / "a" / "b" / "log", 0).exists()


def test_a_path_may_be_text(tmp_path: Path) -> None:
    with Log(str(tmp_path / "log")) as log:
        assert log.path == str(tmp_path / "log")


def test_a_relative_path_is_the_one_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Log("log", segment_bytes=100) as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        fill(log, 10, size=80)
        assert len(list(log.read())) == 10
    assert len(bases(tmp_path / "log")) == 10
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        Log(tmp_path / "file")


def test_what_it_is_cannot_be_read(log: Log, path: Path) -> None:
    """Whoever asks for it while a log is opened, the first or the last: the lock is given back."""
    fill(log, 3)
    log.close()
    for nth in itertools.count():
        fs = FaultyFileSystem(
            OsFileSystem(), on("open", Fail(errno.EIO), path="*/log.json", nth=nth)
        )
        try:
            Log(path, fs=fs, exclusive=True).close()
        except (OSError, TailraceError):
            with Log(path, exclusive=True) as again:
                assert offsets(again.read()) == [0, 1, 2]
        else:
            break
    assert nth >= 2  # the writer, and who reads for it


def test_the_context_manager_closes(path: Path) -> None:
    with Log(path) as log:
        fill(log, 3)
    assert side_file(path, "clean").exists()
    with pytest.raises(Closed):
        log.append([b"x"])


def test_the_context_manager_closes_after_an_error(path: Path) -> None:
    def fail(log: Log) -> None:
        with log:
            log.append([b"x"])
            raise LookupError

    with pytest.raises(LookupError):
        fail(Log(path))
    with Log(path) as log:
        assert values(log.read()) == [b"x"]  # close flushed it


def test_a_second_close_does_nothing(log: Log, path: Path) -> None:
    fill(log, 3)
    log.close()
    files = tree(path)
    log.close()
    assert tree(path) == files


WRITES: list[Callable[[Log], object]] = [
    lambda log: log.append([b"x"]),
    lambda log: log.append([b"x"], producer="p", sequence=0),
    lambda log: log.append_one(b"x"),
    lambda log: log.append_one(b"x", producer="p", sequence=0),
    lambda log: log.append_many([b"x"]),
    lambda log: log.flush(),
    lambda log: log.truncate_before(0),
    lambda log: log.vacuum(),
]
READS: list[Callable[[Log], object]] = [
    lambda log: log.read(),
    lambda log: log.read("next"),
    lambda log: log.read_batches(),
    lambda log: log.read_arrow(),
    lambda log: log.offset_at(0),
    lambda log: log.__enter__(),
]


@pytest.mark.parametrize("use", WRITES + READS)
def test_a_closed_log_refuses(log: Log, path: Path, use: Callable[[Log], object]) -> None:
    fill(log, 3)
    log.close()
    files = tree(path)
    with pytest.raises(Closed, match="is closed"):
        use(log)
    assert tree(path) == files


def test_a_closed_log_tells_where_it_was(log: Log) -> None:
    fill(log, 3)
    log.close()
    assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 3, 3)


def test_a_reader_that_goes_on_after_close(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=100)
    fill(log, 5, size=80)
    reader = log.read()
    assert next(reader).offset == 0
    log.close()
    with pytest.raises(Closed):
        list(reader)


def test_repr(log: Log, path: Path) -> None:
    assert repr(log) == f"Log({str(path)!r}, sync, 0..0)"
    receipt = log.append([b"x", b"y"])
    assert repr(log) == f"Log({str(path)!r}, sync, 0..2)"
    assert repr(receipt) == "Receipt(offset=0, count=2, pending)"
    receipt.wait()
    assert repr(receipt) == "Receipt(offset=0, count=2, done)"
    with Log(path, read_only=True) as reader:
        assert repr(reader) == f"Log({str(path)!r}, sync, read-only)"
    log.close()
    assert repr(log) == f"Log({str(path)!r}, sync, closed)"


def test_reopen_goes_on(open_log: OpenLog) -> None:
    for round_ in range(4):
        with open_log() as log:
            assert log.end_offset == log.durable_offset == 3 * round_
            fill(log, 3, first=3 * round_)
    with open_log() as log:
        assert values(log.read()) == [b"%010d" % n for n in range(12)]


def test_reopening_without_writing_changes_nothing_of_the_log(open_log: OpenLog) -> None:
    with open_log(segment_bytes=200) as log:
        fill(log, 10)
    path = Path(log.path)
    before = {name: data for name, data in tree(path).items() if "/" not in name}
    for _ in range(3):
        open_log(segment_bytes=200).close()
    assert {name: data for name, data in tree(path).items() if "/" not in name} == before


def test_the_clean_marker_is_consumed(open_log: OpenLog, path: Path) -> None:
    open_log().close()
    assert side_file(path, "clean").exists()
    log = open_log()
    assert not side_file(path, "clean").exists()
    log.close()
    assert side_file(path, "clean").exists()


# --- read-only ----------------------------------------------------------------------------------


@pytest.mark.parametrize("use", WRITES)
def test_read_only_cannot_write(open_log: OpenLog, use: Callable[[Log], object]) -> None:
    with open_log() as log:
        fill(log, 3)
    with open_log(read_only=True) as log, pytest.raises(NotWritten, match="open read-only"):
        use(log)


def test_read_only_of_a_missing_folder(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(path)):
        Log(path, read_only=True)
    assert not path.exists()


def test_read_only_of_an_empty_folder(path: Path) -> None:
    path.mkdir()
    with Log(path, read_only=True) as log:
        assert (log.start_offset, log.end_offset, log.durable_offset) == (0, 0, 0)
        assert list(log.read()) == []
        assert log.offset_at(0) == 0
    assert not list(path.iterdir())


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_read_only_leaves_no_trace(open_log: OpenLog, path: Path, flush: str, closed: bool) -> None:
    writer = open_log(flush=flush, segment_bytes=300, upkeep=False)
    fill(writer, 30)
    if closed:
        writer.close()
    for file in path.glob("*.?ix"):  # what a writer would make again
        file.unlink()
    before = tree(path)
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with open_log(read_only=True) as log:
        assert len(list(log.read())) == 30
        assert offsets(log.read(17, 19)) == [17, 18]
        assert log.offset_at(0) == 0
        assert sum(batch.num_rows for batch in log.read_arrow()) == 30
    assert tree(path) == before
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == times


def test_read_only_sees_the_watermark(open_log: OpenLog) -> None:
    writer = open_log()
    reader = open_log(read_only=True)
    receipt = writer.append([b"1"])
    assert (reader.end_offset, list(reader.read())) == (0, [])
    receipt.wait()
    assert (reader.end_offset, reader.durable_offset) == (1, 1)
    assert values(reader.read()) == [b"1"]


def test_read_only_follows_rolls_and_deletion(open_log: OpenLog) -> None:
    writer = open_log(segment_bytes=100)
    reader = open_log(read_only=True)
    for count in range(1, 8):
        fill(writer, 1, size=80, first=count)
        assert offsets(reader.read()) == list(range(count))
    writer.truncate_before(4)
    assert offsets(reader.read()) == [4, 5, 6]
    writer.vacuum()
    assert (reader.start_offset, reader.end_offset) == (4, 7)
    assert offsets(reader.read()) == [4, 5, 6]


def test_read_only_is_right_after_the_writer_closed(open_log: OpenLog) -> None:
    with open_log() as writer:
        fill(writer, 5)
        reader = open_log(read_only=True)
    assert offsets(reader.read()) == [0, 1, 2, 3, 4]
    assert (reader.start_offset, reader.end_offset) == (0, 5)
    assert reader.read_only
    assert reader.flush_mode == "sync"


SEE = """
import json, sys, tailrace
with tailrace.Log(sys.argv[1], read_only=True) as log:
    print(json.dumps([log.end_offset, log.durable_offset, [r.value.decode() for r in log.read()]]))
"""


@pytest.mark.parametrize(("flush", "pending"), [("sync", []), ("async", ["1"]), ("none", ["1"])])
def test_another_process_sees_what_the_flush_mode_shows(
    open_log: OpenLog, path: Path, flush: str, pending: list[str]
) -> None:
    log = open_log(flush=flush, upkeep=False)
    log.append([b"1"])
    assert run_python(SEE, path) == [len(pending), 0, pending]
    log.flush()
    assert run_python(SEE, path) == [1, 1, ["1"]]


def test_a_close_that_was_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one does the rest."""
    log = Log(path, flush="async")
    fill(log, 3)

    def interrupted(_upkeep: Upkeep) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Upkeep, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.close()
    with pytest.raises(Closed):
        log.append_one(b"x")
    log.close()
    log.close()
    with Log(path, exclusive=True) as again:
        assert offsets(again.read()) == [0, 1, 2]


def test_an_empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="path: it is empty"):
        Log("")
    assert not list(tmp_path.iterdir())


def test_at_the_end_of_the_process_nothing_is_let_go(log: Log) -> None:
    """Threads have stopped then, wherever they were, and may have any lock."""
    log.__del__(lambda: True)
    log.append([b"x"]).wait()
    assert values(log.read()) == [b"x"]
