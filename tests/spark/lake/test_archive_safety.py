"""Nothing goes from a queue that is not in its archive, whatever became of either before."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import ConfigError, Corrupt, NotWritten, Queue, Store, Stream
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.repair import recover
from tailrace.log.options import Retention
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.backup_restore import restore_backup
from tailrace.queue.stats import look_through
from tailrace.spark.lake import archive as archiving
from tailrace.spark.lake import restore as restoring
from tailrace.spark.lake.archive import archive, release
from tailrace.spark.lake.engines import Task
from tailrace.spark.lake.manifest import Manifest, Origin, Writing
from tailrace.spark.lake.writing import Piece, Staged
from tests.spark.lake.support import HOUR, SMALL, T0, Inline, fill, open_store, order, pieces, put

__all__ = ["pieces"]  # a fixture

FS = OsFileSystem()


class NoRoom:
    """An engine whose disk is full from the beginning."""

    name = "no room"

    def run(
        self, fs: FileSystem, log: Any, task: Task, pieces: Sequence[Piece]
    ) -> Generator[Staged, None, None]:
        if pieces:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield from ()


def note_of(store: Store, queue: Queue | Stream) -> ArchiveNote:
    found = ArchiveNote.load(store.fs, store.layout, queue.name)
    assert found is not None
    return found


def bring_back(queue: Queue | Stream, folder: Path, **wanted: Any) -> restoring.RestoreReport:
    manifest = Manifest.load(FS, str(folder))
    incarnation = queue.settings.incarnation
    asked = restoring.Wanted(**wanted)
    bounds = restoring.choose(queue.log, manifest, queue.name, incarnation, asked)
    return restoring.restore(queue.log, manifest, bounds)


@pytest.mark.parametrize("is_released", [True, False])
def test_a_new_archive_has_nothing_of_the_lost_one(tmp_path: Path, is_released: bool) -> None:
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL, retention={"max_length_messages": 1})
        fill(stream, 60)
        verified = put(store, stream, lake, delete=True).verified
        assert verified
        fill(stream, 60)
        shutil.rmtree(lake)
        if is_released:
            release(look_through(store), "events")
        else:  # as when a version that kept it has released the note, and begun anew
            Writing(FS, str(lake), Origin("events", stream.settings.incarnation)).close()
            kept = ArchiveNote(
                stream.settings.incarnation, ArchiveNote.place_of(store.layout, str(lake)), 100
            )
            ArchiveNote.change(store.fs, store.layout, "events", lambda _: kept)
        start = stream.log.start_offset
        with pytest.raises(NotWritten):
            archive(look_through(store), order(stream, lake, delete=True), NoRoom())
        note = note_of(store, stream)
        assert (note.holds, note.verified) == (True, 0)
        assert stream.vacuum().segments == 0
        assert stream.log.start_offset == start
        assert put(store, stream, lake, delete=True).deleted_segments > 0


@pytest.mark.parametrize("delete", [False, True])
def test_an_archive_that_is_not_there_is_not_begun_anew(tmp_path: Path, delete: bool) -> None:
    """As that of a disk that is not mounted, whether retention waits for it or not."""
    lake, away = tmp_path / "lake", tmp_path / "away"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        put(store, stream, lake)
        fill(stream, 60)
        lake.rename(away)
        for is_named in (True, False):
            with pytest.raises(ConfigError, match=r"bring the archive back, .* --release, then"):
                put(store, stream, lake, delete=delete, is_named=is_named)
        assert not lake.exists()
        away.rename(lake)
        assert put(store, stream, lake).rows
        release(look_through(store), "events")  # while it is there: that says nothing yet
        shutil.rmtree(lake)
        with pytest.raises(ConfigError, match="bring the archive back"):
            put(store, stream, lake, delete=delete)
        assert release(look_through(store), "events") is None
        assert put(store, stream, lake, delete=delete).first == 0


@pytest.mark.parametrize("delete", [False, True])
def test_an_archive_that_was_begun_goes_on(tmp_path: Path, delete: bool) -> None:
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        Writing(FS, str(lake), Origin("events", stream.settings.incarnation)).close()  # and a kill
        put(store, stream, lake, delete=delete, is_named=False)
        fill(stream, 60)
        shutil.rmtree(lake)
        release(look_through(store), "events")
        with pytest.raises(NotWritten):  # before any step
            archive(look_through(store), order(stream, lake, delete=delete), NoRoom())
        assert put(store, stream, lake, delete=delete, is_named=False).rows


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("partition_by", ["", "hour"])
def test_what_the_log_has_lost_since_is_in_the_archive(tmp_path: Path, partition_by: str) -> None:
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60, every_ms=HOUR // 8)
        rows = put(store, stream, lake, partition_by=partition_by).rows
        segment = sorted((tmp_path / "data").rglob("*.seg"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with open_store(tmp_path / "data") as store, pytest.raises(Corrupt):
        put(store, store.stream("events"), lake, delete=True)  # nobody has accepted it yet
    recover(FS, str(segment.parent), apply=True)
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events")
        left = len(list(stream.log.read()))
        assert left < 60
        report = put(store, stream, lake, delete=True)
        assert report.verified == rows
        assert stream.log.start_offset == rows


@pytest.mark.usefixtures("pieces")
def test_what_came_back_from_another_archive_is_not_verified_in_this_one(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL, retention={"max_bytes": 2_000})
        fill(stream, 100)
        put(store, stream, tmp_path / "one", delete=True)
        release(look_through(store), "events")
        begin = stream.log.start_offset
        fill(stream, 100)
        put(store, stream, tmp_path / "two", delete=True)
        assert note_of(store, stream).verified_from == begin
        bring_back(stream, tmp_path / "two")
        bring_back(stream, tmp_path / "one")
        assert stream.log.start_offset == 0
        assert stream.vacuum().segments == 0
        assert stream.drop_archived().segments == 0
        assert not stream.drop_segment()
        report = put(store, stream, tmp_path / "two", delete=True)  # now it has them
        assert Manifest.load(FS, str(tmp_path / "two")).reaches(0) == report.verified
        note = note_of(store, stream)
        assert (note.verified_from, note.verified) == (0, report.verified)
        assert stream.log.start_offset == report.verified


def test_tasks_that_nobody_has_begun_with_stay(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        queue = store.queue("tasks", **SMALL)
        fill(queue, 60)
        report = put(store, queue, tmp_path / "lake", delete=True)
        assert report.verified
        assert report.deleted_segments == 0
        assert "no group has begun" in (report.notice or "")
        with queue.consumer("workers") as consumer:
            messages = consumer.receive(60)
            assert messages[0].offset == 0
            consumer.ack(messages)
        report = put(store, queue, tmp_path / "lake", delete=True)
        assert report.deleted_segments > 0
        assert report.notice is None


def empty(queue: Queue | Stream) -> None:
    queue.log.let_go(Retention(max_bytes=0), None)


def test_a_step_without_rows_is_like_any_other(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 100)
        put(store, stream, lake, until_ms=T0 + 30_000)
        empty(stream)
        bring_back(stream, lake)  # and then a gap up to 100
        fill(stream, 100)
        put(store, stream, lake, until_ms=T0 + 100_000)
        assert any(not step.files for step in Manifest.load(FS, str(lake)).steps)
        assert put(store, stream, lake).rows > 0
        assert put(store, stream, lake).steps == 0


@pytest.mark.parametrize("more", [0, 20, 150])
@pytest.mark.parametrize("partition_by", ["", "hour"])
def test_a_log_that_went_back_is_told(tmp_path: Path, more: int, partition_by: str) -> None:
    """As that of a backup: its new messages have offsets that the archive has of others."""
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 50)
        store.backup(tmp_path / "backup")
        fill(stream, 50, every_ms=100_000)
        last = put(store, stream, lake, partition_by=partition_by).last
        assert last
        fill(stream, 20)
        put(store, stream, lake)  # as it should be
    restore_backup(tmp_path / "backup", tmp_path / "again")
    with open_store(tmp_path / "again") as store:
        stream = store.stream("events", **SMALL)
        for number in range(more):
            stream.publish(b"another %d" % number)
        stream.log.flush()
        before = Manifest.load(FS, str(lake))
        for delete in (False, True):
            with pytest.raises(Corrupt, match=r"went back, .* --release"):
                put(store, stream, lake, delete=delete)
        assert Manifest.load(FS, str(lake)) == before
        assert stream.log.start_offset == 0
        release(look_through(store), "events")
        put(store, stream, tmp_path / "new", delete=True)


@pytest.mark.parametrize("delete", [False, True])
def test_a_copy_does_not_go_on_with_the_archive_of_the_original(
    tmp_path: Path, delete: bool
) -> None:
    """It is restored beside it, so the note leads to the same folder."""
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 50)
        put(store, stream, lake, delete=delete)
        before = note_of(store, stream)
        store.backup(tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "copy")
    with open_store(tmp_path / "copy") as store:
        copy = store.stream("events")
        assert note_of(store, copy) == replace(before, restored=True)
        for number in range(50):
            copy.publish(b"another %d" % number)
        copy.log.flush()
        archived = Manifest.load(FS, str(lake))
        for is_released in (False, True):
            if is_released:
                release(look_through(store), "events")
            with pytest.raises(ConfigError, match=r"restored from; .* --release, then --to"):
                put(store, copy, lake, delete=delete, is_named=False)
        assert Manifest.load(FS, str(lake)) == archived
        put(store, copy, tmp_path / "new", delete=delete)
        assert not note_of(store, copy).restored
        put(store, copy, tmp_path / "new", delete=delete, is_named=False)
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events")
        fill(stream, 50)
        assert put(store, stream, lake, delete=delete, is_named=False).rows


def test_who_names_the_archive_goes_on_with_it_after_a_restore(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 50)
        put(store, stream, lake, delete=True)
        store.backup(tmp_path / "backup")
    shutil.rmtree(tmp_path / "data")
    restore_backup(tmp_path / "backup", tmp_path / "again")
    with open_store(tmp_path / "again") as store:
        stream = store.stream("events")
        held = note_of(store, stream)
        assert (held.holds, held.restored) == (True, True)
        fill(stream, 50)
        stream.vacuum()
        assert stream.log.start_offset <= held.verified
        assert put(store, stream, lake, delete=True).deleted_segments
        assert not note_of(store, stream).restored
        assert put(store, stream, lake, is_named=False).steps == 0


def test_the_note_of_another_archive_tells_nothing(tmp_path: Path) -> None:
    """Somebody archives the queue elsewhere at the same time: what was compared there is not
    compared here."""
    lake = tmp_path / "lake"

    class Elsewhere(Inline):
        def run(self, *given: Any) -> Generator[Staged, None, None]:
            yield from super().run(*given)
            other = ArchiveNote(
                stream.settings.incarnation, ArchiveNote.place_of(store.layout, "other"), 1000, True
            )
            ArchiveNote.change(store.fs, store.layout, "events", lambda _: other)
            [file, *_] = lake.glob("*.parquet")
            file.write_bytes(b"damaged")

    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 60)
        with pytest.raises(Corrupt, match="is damaged"):
            put(store, stream, lake, delete=True, engine=Elsewhere())
        assert stream.log.start_offset == 0


def test_what_another_archive_holds_meanwhile_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two begin at once: one of them deletes, when the other has looked at the note already."""
    with open_store(tmp_path / "data") as store:
        stream = store.stream("events", **SMALL, retention={"max_length_messages": 1})
        fill(stream, 50)

        def at_last(*_: Any) -> bool:
            monkeypatch.undo()
            put(store, stream, tmp_path / "one", delete=True)
            fill(stream, 50)
            return True

        monkeypatch.setattr(archiving, "is_of", at_last)
        with pytest.raises(ConfigError, match="retention waits for that one"):
            put(store, stream, tmp_path / "two")
        note = note_of(store, stream)
        assert (note.holds, note.folder(store.layout)) == (True, str(tmp_path / "one"))
        stream.vacuum()
        assert stream.log.start_offset == note.verified


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("how", ["gone", "shorter"])
def test_what_was_verified_and_is_gone_keeps_the_log(tmp_path: Path, how: str) -> None:
    """As after a VACUUM of the table: the manifest names what is not there."""
    lake = tmp_path / "lake"
    with open_store(tmp_path / "data") as store:
        queue = store.queue("tasks", retention={"max_length_messages": 1}, **SMALL)
        fill(queue, 60)
        with queue.consumer("workers") as consumer:
            messages = consumer.receive(60)
            verified = put(store, queue, lake, delete=True).verified
            assert (queue.log.start_offset, verified) == (0, note_of(store, queue).verified)
            step = Manifest.load(FS, str(lake)).steps[1]
            path = lake / step.files[0].path
            data = path.read_bytes()
            path.unlink() if how == "gone" else path.write_bytes(data[:-1])
            consumer.ack(messages)
        for _ in range(2):
            with pytest.raises(Corrupt, match=path.name):
                put(store, queue, lake, delete=True)
            assert note_of(store, queue).verified == step.first
            queue.vacuum()
            assert queue.log.start_offset <= step.first
        path.write_bytes(data)
        assert put(store, queue, lake, delete=True).verified == verified
        assert queue.log.start_offset == verified


@pytest.mark.parametrize("first", ["link", "real"])
def test_a_store_that_is_reached_by_a_link_finds_its_archive(tmp_path: Path, first: str) -> None:
    real = tmp_path / "mnt" / "store"
    real.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(real)
    ways = [link, real] if first == "link" else [real, link]
    for lake in (tmp_path / "lake", real.parent / "beside", link / "inside"):
        with open_store(ways[0]) as store:
            stream = store.stream(lake.name, **SMALL)
            fill(stream, 30)
            put(store, stream, lake, delete=True)
        for way in ways:
            with open_store(way) as store:
                stream = store.stream(lake.name)
                fill(stream, 30)
                assert os.path.samefile(note_of(store, stream).folder(store.layout), lake)
                before = note_of(store, stream)
                report = put(store, stream, os.path.realpath(lake), delete=True)
                assert report.deleted_segments > 0
                assert note_of(store, stream).place == before.place


def test_a_note_from_the_root_as_it_was_typed_is_found(tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    real, lake = tmp_path / "mnt" / "store", tmp_path / "lake"
    real.mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    with open_store(tmp_path / "link") as store:
        stream = store.stream("events", **SMALL)
        fill(stream, 30)
        put(store, stream, lake, delete=True)
        old = replace(note_of(store, stream), place="../../lake")
        ArchiveNote.change(store.fs, store.layout, "events", lambda _: old)
        assert old.folder(store.layout) == str(lake)
        fill(stream, 30)
        assert put(store, stream, lake, delete=True).deleted_segments > 0
        found = note_of(store, stream)
        assert (found.holds, found.verified > old.verified) == (True, True)
    with open_store(real) as store:  # it says the same by any way from then on
        assert note_of(store, store.stream("events")).folder(store.layout) == str(lake)
