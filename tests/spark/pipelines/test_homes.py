"""What a pipeline keeps, without Spark: whose checkpoint it is, and what is moved aside."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import Locked, TailraceError
from tailrace.spark.pipelines.definition import Files, FileTable
from tailrace.spark.pipelines.files import FileWriter
from tailrace.spark.pipelines.homes import Home
from tailrace.spark.pipelines.running import Run, check
from tailrace.spark.pipelines.targets import check_places
from tests.spark.pipelines.support import Place


def home_of(place: Place, **given: Any) -> Home:
    with place.open():
        pass
    home = Home(str(place.store), place.define(**{"sql": "SELECT value FROM events", **given}))
    os.makedirs(home.folder, exist_ok=True)
    return home


def test_an_id_is_that_of_one_checkpoint(place: Place) -> None:
    home = home_of(place)
    first = home.make({"events": 3})
    assert home.made() == first
    assert home.make({"events": 7}) == first
    shutil.rmtree(home.checkpoint)
    assert home.made() is None
    assert home.changed() == []
    second = home.make({"events": 7})
    assert second.id != first.id
    assert second.starts == {"events": 7}


def test_another_checkpoint(place: Place) -> None:
    first = home_of(place, checkpoint="one").make({})
    other = home_of(place, checkpoint="two", sql="SELECT 1 AS value FROM events")
    other.check()
    assert other.make({}).id != first.id
    again = home_of(place, checkpoint="one")
    with pytest.raises(TailraceError, match="made for another from, output_mode, sql, tables, to"):
        again.check()
    assert again.make({}).id == first.id  # as with --keep-checkpoint


def test_another_checkpoint_elsewhere(place: Place) -> None:
    home = home_of(place, checkpoint="s3a://bucket/one")
    first = home.make({})
    assert home.make({}) == first
    other = home_of(place, checkpoint="s3a://bucket/two", sql="SELECT 1 AS value FROM events")
    other.check()
    assert other.make({}).id != first.id
    with pytest.raises(TailraceError, match="not on this machine"):
        other.begin_anew()
    assert other.made() is not None


def test_a_checkpoint_that_was_moved(place: Place) -> None:
    first = home_of(place, checkpoint="one").make({})
    os.rename(place.folder / "one", place.folder / "two")
    home = home_of(place, checkpoint="two")
    home.check()
    assert home.make({}) == first


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"id": 5}', b'{"id": "x"}', b"\xff"])
def test_a_checkpoint_that_cannot_be_read(place: Place, damage: bytes) -> None:
    home = home_of(place)
    home.make({})
    Path(home.checkpoint, "metadata").write_bytes(damage)
    with pytest.raises(TailraceError, match="--restart-from-scratch"):
        home.check()


def test_killed_while_it_moves_aside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever that is: the old checkpoint is not gone on with, nor its id with a new one."""
    home = home_of(place)
    first = home.make({})
    rename = os.rename

    def once(source: str, target: str) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        home.begin_anew()
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(TailraceError, match="--restart-from-scratch"):
        home.check()
    assert len(home.begin_anew()) == 1
    assert home.make({}).id != first.id


def test_who_looks_whether_it_runs_keeps_nobody_from_running_it(place: Place) -> None:
    home, looked = home_of(place), 0
    with home.held():
        assert home.is_held
        with pytest.raises(Locked, match="runs it"), home_of(place).held():
            pass
    is_over = threading.Event()

    def look() -> None:
        nonlocal looked
        while not is_over.is_set():
            _ = home.is_held
            looked += 1

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(300):
        with home_of(place).held():
            pass
    is_over.set()
    thread.join()
    assert looked > 10


class Frame:
    """What a writer of files uses of Spark's, for one file."""

    def __init__(self, text: str | bytes, name: str = "part-0.json") -> None:
        self._data = text if isinstance(text, bytes) else text.encode()
        self._name = name
        self.write = self

    def format(self, kind: str) -> Frame:
        return self

    def partitionBy(self, *names: str) -> Frame:  # noqa: N802  Spark's name
        return self

    def mode(self, kind: str) -> Frame:
        return self

    def option(self, name: str, value: str) -> Frame:
        return self

    def save(self, path: str) -> None:
        folder = Path(path.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / self._name).write_bytes(self._data)


@pytest.mark.parametrize("is_moved", [True, False])
def test_files_of_the_run_before(place: Place, *, is_moved: bool) -> None:
    """They stay, whatever has become of the checkpoint; those of a first attempt do not."""
    to = Files(str(place.folder / "target"), "json")
    home = home_of(place, to={"path": to.path, "format": "json"})

    def write(text: str) -> None:
        writer: Any = FileWriter(to, home.files, f"p-{home.make({}).id[:8]}")
        writer(Frame(text), 0)

    write("november")
    if is_moved:
        assert len(home.begin_anew()) == 3
        assert not os.path.exists(home.files)
    else:
        shutil.rmtree(home.checkpoint)
    write("december")
    write("december again")
    found = sorted(path.read_text() for path in Path(to.path).iterdir())
    assert found == ["december again", "november"]


class Watched(Frame):
    """Looks below the target while a batch is written."""

    def __init__(self, target: str) -> None:
        super().__init__("half")
        self._target = Path(target)
        self.seen: list[str] = []
        self.place = ""

    def save(self, path: str) -> None:
        super().save(path)
        self.place = path.removeprefix("file://")
        self.seen = [str(found) for found in self._target.rglob("*.json")]


def test_patterns_do_not_find_half_a_batch(place: Place) -> None:
    to = Files(str(place.folder / "target"), "json")
    home = home_of(place, to={"path": to.path, "format": "json"})
    left = Path(to.path) / "_p-0.tmp"  # of an attempt that had no better place
    left.mkdir(parents=True)
    (left / "part-0.json").touch()
    frame = Watched(to.path)
    writer: Any = FileWriter(to, home.files, "p")
    writer(frame, 0)
    assert frame.seen == []
    assert os.path.dirname(frame.place) == home.files
    assert os.listdir(to.path) == ["part-p-000000-0000.json"]
    assert os.listdir(home.files) == ["moving.json"]


def test_a_target_on_another_file_system(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renames are all that is atomic: so it is staged there."""
    to = Files(str(place.folder / "target"), "json")
    home = home_of(place, to={"path": to.path, "format": "json"})
    rename = os.rename

    def within(source: str, target: str) -> None:
        if source.startswith(home.files) and target.startswith(to.path):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    monkeypatch.setattr(os, "rename", within)
    frame = Watched(to.path)
    writer: Any = FileWriter(to, home.files, "p")
    for batch in range(2):
        writer(frame, batch)
        assert os.path.dirname(frame.place) == to.path
    found = sorted(os.listdir(to.path))
    assert found == ["part-p-000000-0000.json", "part-p-000001-0000.json"]
    assert os.listdir(home.files) == ["moving.json"]


@pytest.mark.parametrize("kill", range(1, 7))
def test_files_of_an_attempt_that_was_cut_short(
    place: Place, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    """At each rename and each removal: the next attempt has each row once, and nothing is left."""
    to = Files(str(place.folder / "target"), "json")
    home = home_of(place, to={"path": to.path, "format": "json"})
    count = 0

    def dying(call: Any) -> Any:
        def wrapped(*given: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= kill:
                raise KeyboardInterrupt
            return call(*given, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, dying(getattr(os, name)))
        writer: Any = FileWriter(to, home.files, "p")
        with contextlib.suppress(KeyboardInterrupt):
            writer(Frame("first"), 0)
    writer = FileWriter(to, home.files, "p")
    writer(Frame("second"), 0)
    [found] = Path(to.path).iterdir()
    assert found.read_text() == "second"
    assert os.listdir(home.files) == ["moving.json"]


def parquet_of(count: int) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(range(count), pa.int64())}), sink)
    return sink.getvalue().to_pybytes()


def test_files_without_rows(place: Place) -> None:
    """Spark writes one for a batch that comes to nothing; the target does not get it."""
    home = home_of(place)
    home.make({})
    written = {
        "json": (b"", b'{"n":1}\n'),
        "csv": (b"n,m\n", b"n,m\n1,2\n"),
        "parquet": (parquet_of(0), parquet_of(1)),
    }
    for kind, contents in written.items():
        to = Files(str(place.folder / kind), kind)
        writer: Any = FileWriter(to, home.files, "p")
        for batch, data in enumerate(contents):
            writer(Frame(data, f"part-0.{kind}"), batch)
        assert os.listdir(to.path) == [f"part-p-000001-0000.{kind}"]


def test_a_folder_that_looks_like_a_pattern(tmp_path: Path) -> None:
    """That of the configuration is what it is; what is named in it may be a pattern."""
    place = Place(tmp_path / "a{b,c}[d]*?")
    place.folder.mkdir()
    given = {"one": "t*.csv", "two": "/x/{a,b}.csv", "three": "s3://x/*.csv"}
    found = place.define(sql="SELECT 1", tables=given).tables
    paths = {name: each.path for name, each in found.items() if isinstance(each, FileTable)}
    escaped = r"a\{b,c\}\[d\]\*\?"
    assert paths == {**given, "one": f"{tmp_path}/{escaped}/t*.csv"}


NOT_THERE: list[tuple[dict[str, Any], str]] = [
    ({"to": {"path": "data/queue/queues/orders"}}, "to.path: .* is in the store itself"),
    ({"to": {"path": "linked/x"}}, "to.path: .* is in the store itself"),
    ({"to": {"path": "old"}}, "to.path: .*/old is an archive of a queue"),
    ({"to": {"path": "old/date=2026-01-31"}}, "to.path: .*/old is an archive of a queue"),
    ({"to": {"path": "file"}}, "to.path: .*/file is a file, not a folder"),
    ({"to": {"path": "file/x"}}, "to.path: .*/file is a file, not a folder"),
    ({"checkpoint": "file"}, "checkpoint: .*/file is a file, not a folder"),
]


@pytest.mark.parametrize(("given", "said"), NOT_THERE)
def test_where_it_may_not_write(place: Place, given: dict[str, Any], said: str) -> None:
    place.publish("events", b"1")
    (place.folder / "linked").symlink_to(place.store / "queue")
    (place.folder / "old/_tailrace").mkdir(parents=True)
    (place.folder / "old/_tailrace/manifest.jsonl").touch()
    (place.folder / "file").touch()
    definition = place.define(sql="SELECT value FROM events", **given)
    with pytest.raises(TailraceError, match=f"^pipeline 'p': {said}"):
        check_places(str(place.store), definition)
    with pytest.raises(TailraceError, match=said):
        check(None, str(place.store), definition)  # type: ignore[arg-type]
    with pytest.raises(TailraceError, match=said):
        Run(None, str(place.store), definition).start()  # type: ignore[arg-type]


def test_where_it_may_write(place: Place) -> None:
    place.publish("events", b"1")
    (place.folder / "lake").mkdir()
    for path in ("lake", "lake/more", "new/one", "s3a://bucket/data"):
        definition = place.define(sql="SELECT 1", to={"path": path}, checkpoint="lake/c")
        check_places(str(place.store), definition)
