"""What a queue knows of its archive, and what retention makes of that."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace import Corrupt, Full, Record, Store
from tailrace.kernel import encode
from tailrace.log.prepending import Front, joint_of, prepend
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.backup_restore import restore_backup, verify_backup
from tailrace.queue.layout import Layout
from tailrace.queue.stats import look_through, queue_stats
from tailrace.testing import Crash, FaultyFileSystem, SimulatedDisk, every_call
from tests.queue.support import drain, numbers

SMALL: dict[str, Any] = {"segment_bytes": 400, "flush": "none", "compression": "none"}


def hold(store: Store, name: str, verified: int, *, holds: bool = True) -> None:
    incarnation = store.get(name).settings.incarnation
    note = ArchiveNote(incarnation, "../../lake", verified, holds)
    ArchiveNote.change(store.fs, store.layout, name, lambda _: note)


def note_path(store: Store, name: str) -> Path:
    return Path(store.layout.queue(name)) / ".tailrace" / "archive"


def test_a_note_is_read_back_and_changed(store: Store) -> None:
    store.stream("s")
    load = ArchiveNote.load
    assert load(store.fs, store.layout, "s") is None
    hold(store, "s", 7)
    found = load(store.fs, store.layout, "s")
    assert found is not None
    assert (found.verified, found.holds) == (7, True)
    assert found.floor(found.incarnation, 0) == 7
    assert found.floor("another", 0) is None
    assert replace(found, holds=False).floor(found.incarnation, 0) is None
    later = replace(found, verified_from=5)
    assert [later.floor(found.incarnation, start) for start in (4, 5, 9)] == [0, 7, 7]
    ArchiveNote.change(store.fs, store.layout, "s", lambda note: None)
    assert load(store.fs, store.layout, "s") is None
    ArchiveNote.drop(store.fs, store.layout, "s")  # harmless


@pytest.mark.parametrize(
    ("root", "folder", "place"),
    [
        ("/srv/data/queue", "/srv/lake/q", "../../lake/q"),
        ("/srv/data/queue", "/srv/data/lake", "../lake"),
        ("/srv/data", "/srv/lake", "../lake"),
        ("/srv/data/queue", "/mnt_lake/q", "/mnt_lake/q"),
        ("/data/queue", "/lake", "/lake"),
    ],
)
def test_a_folder_beside_the_store_moves_with_it(root: str, folder: str, place: str) -> None:
    layout = Layout(SimulatedDisk(), root)
    assert ArchiveNote.place_of(layout, folder) == place
    assert ArchiveNote("x", place).folder(layout) == folder


def test_what_comes_back_while_a_vacuum_decides_stays(store: Store) -> None:
    """Another process restores it just when the vacuum has read how much is in the archive."""
    stream = store.stream("s", retention={"max_length_messages": 1}, **SMALL)
    for number in numbers(40):
        stream.publish(number)
    log = stream.log
    log.truncate_before(20)
    log.vacuum()
    start = log.start_offset
    incarnation = stream.settings.incarnation
    note = ArchiveNote(incarnation, "../../lake", 35, True, verified_from=start)
    ArchiveNote.change(store.fs, store.layout, "s", lambda _: note)

    class Restoring(ArchiveNote):
        def floor(self, incarnation: str, start: int) -> int | None:
            seam = joint_of(log).seam
            with Front(log, "t") as front:
                front.add(encode([Record(value=b"back")] * (seam - 10), 0, 0), 10)
                prepend(log, front, front.finish(), 10, seam)
            return super().floor(incarnation, start)

    restoring = Restoring(**asdict(note))
    with mock.patch.object(ArchiveNote, "load", return_value=restoring):
        assert stream.vacuum().segments == 0
    assert log.start_offset == 10
    assert stream.vacuum().segments == 0  # it is not in this archive


def test_retention_passes_only_what_is_verified(store: Store) -> None:
    stream = store.stream("s", retention={"max_length_messages": 1}, **SMALL)
    for number in numbers(40):
        stream.publish(number)
    hold(store, "s", 0)
    assert stream.vacuum().segments == 0
    hold(store, "s", 15)
    assert stream.vacuum().segments > 0
    assert 0 < stream.log.start_offset <= 15
    assert stream.vacuum().segments == 0
    hold(store, "s", 15, holds=False)
    assert stream.vacuum().segments > 0
    assert stream.log.start_offset > 15


def test_what_is_verified_goes_but_for_what_a_group_needs(store: Store) -> None:
    queue = store.queue("q", **SMALL)
    for number in numbers(40):
        queue.publish(number)
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(10))
    hold(store, "q", 30)
    assert queue.drop_archived().segments > 0
    assert 0 < queue.log.start_offset <= 10
    assert len(drain(consumer)) == 30
    assert queue.drop_archived().segments > 0
    assert 20 < queue.log.start_offset <= 30
    assert queue.vacuum().segments == 0  # all is settled, and not all is archived


def test_a_queue_that_was_never_archived_drops_nothing(store: Store) -> None:
    stream = store.stream("s", **SMALL)
    for number in numbers(40):
        stream.publish(number)
    assert stream.drop_archived().segments == 0


def test_a_full_disk_and_a_full_queue_wait_for_it_too(store: Store) -> None:
    stream = store.stream("s", **SMALL, limits={"max_depth": 40, "on_full": "drop_oldest"})
    for number in numbers(40):
        stream.publish(number)
    hold(store, "s", 0)
    assert not stream.drop_segment()
    with pytest.raises(Full):
        stream.publish(b"more")
    hold(store, "s", 1)
    with pytest.raises(Full, match="not archived yet"):
        stream.publish_many([b"more", b"and more"])
    assert stream.log.start_offset == 0
    hold(store, "s", 20)
    stream.publish(b"more")
    assert stream.log.start_offset == 1
    assert stream.drop_segment()


def test_a_damaged_note_holds_everything(store: Store) -> None:
    stream = store.stream("s", retention={"max_length_messages": 1}, **SMALL)
    for number in numbers(40):
        stream.publish(number)
    hold(store, "s", 30)
    path = note_path(store, "s")
    good = path.read_bytes()
    for position in range(len(good) - 1):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(Corrupt, match="damaged"):
            stream.vacuum()
    assert stream.log.start_offset == 0
    found = queue_stats(look_through(store), stream.settings)
    assert found.archive_holds
    path.write_bytes(good)
    assert stream.vacuum().segments > 0


def test_a_restored_note_is_marked_and_one_that_is_damaged_stays(
    store: Store, tmp_path: Path
) -> None:
    store.stream("good")
    store.stream("damaged")
    for name in ("good", "damaged"):
        hold(store, name, 7)
    damaged = note_path(store, "damaged").read_bytes()[:-3]
    note_path(store, "damaged").write_bytes(damaged)
    store.backup(tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "copy")
    verify_backup(tmp_path / "backup")
    good = ArchiveNote.load(store.fs, store.layout, "good")
    assert good is not None
    with Store(tmp_path / "copy", upkeep=False) as copy:
        assert ArchiveNote.load(copy.fs, copy.layout, "good") == replace(good, restored=True)
        assert note_path(copy, "damaged").read_bytes() == damaged


def test_a_note_of_a_queue_that_was_deleted_says_nothing_of_the_next(store: Store) -> None:
    store.stream("s")
    hold(store, "s", 3)
    store.delete("s")
    stream = store.stream("s", retention={"max_length_messages": 1}, **SMALL)
    assert ArchiveNote.load(store.fs, store.layout, "s") is None
    other = ArchiveNote("another", "../lake", 0, holds=True)
    ArchiveNote.change(store.fs, store.layout, "s", lambda _: other)
    for number in numbers(40):
        stream.publish(number)
    assert stream.vacuum().segments > 0


def test_figures_tell(store: Store) -> None:
    stream = store.stream("s")
    stream.publish(b"x")
    assert queue_stats(look_through(store), stream.settings).archive == ""
    hold(store, "s", 1)
    found = queue_stats(look_through(store), stream.settings)
    assert (found.archive_verified, found.archive_holds) == (1, True)
    assert os.path.basename(found.archive) == "lake"


def test_a_note_is_the_old_one_or_the_new_at_every_call() -> None:
    disk = SimulatedDisk()
    layout = Layout(disk, "/data/queue")
    old, new = ArchiveNote("i", "/lake", 3, holds=True), ArchiveNote("i", "/lake", 9, holds=True)
    disk.make_dirs("/data/queue/queues/s")
    ArchiveNote.change(disk, layout, "s", lambda _: old)

    def work(fs: FaultyFileSystem, acked: list[Any]) -> None:
        ArchiveNote.change(fs, layout, "s", lambda _: new)
        acked.append(new)

    for run in every_call(work, Crash(after=True), disk.clone):
        after = run.disk
        assert isinstance(after, SimulatedDisk)
        after.crash(run.call.n)
        found = ArchiveNote.load(after, layout, "s")
        assert found in ([new] if run.acked else [old, new])
