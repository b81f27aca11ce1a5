"""The simulated disk keeps what was synced, and is free with the rest, but not freer than POSIX."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.log.fs import File, FileSystem, replace_file
from tailrace.testing import Damage, SimulatedDisk
from tailrace.testing.contents import SECTOR

SEEDS = range(300)
GENTLE = Damage(torn=0.0, garbage=0.0, in_order=0.0)


def new_file(disk: SimulatedDisk, path: str = "d/f", *, synced: bytes = b"") -> File:
    """An open file whose name and first contents are durable."""
    disk.put(path, synced)
    return disk.open(path, write=True)


def fates(disk: SimulatedDisk, seeds: Iterable[int] = SEEDS) -> list[SimulatedDisk]:
    """What the disk may be after a power cut."""
    clones = []
    for seed in seeds:
        clone = disk.clone()
        clone.crash(seed)
        clones.append(clone)
    return clones


def image(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files()}


def as_file_system(disk: SimulatedDisk) -> FileSystem:
    return disk  # mypy checks here that it is one


# -- plain file behaviour ---------------------------------------------------------------------


def test_reads_what_was_written() -> None:
    disk = SimulatedDisk()
    file = new_file(disk)
    assert file.pwrite(b"hello world", 0) == 11
    assert file.pwrite(memoryview(b"WORLD"), 6) == 5
    assert file.pread(100, 0) == b"hello WORLD"
    assert file.pread(100, 11) == b""
    assert file.pread(5, 100) == b""
    buffer = bytearray(8)
    assert file.pread_into(buffer, 6) == 5
    assert bytes(buffer) == b"WORLD\0\0\0"
    assert file.size() == 11


def test_gaps_and_extensions_are_zeros() -> None:
    disk = SimulatedDisk()
    file = new_file(disk)
    file.pwrite(b"x", 1000)
    assert file.pread(2000, 0) == bytes(1000) + b"x"
    file.truncate(4)
    file.truncate(1001)
    assert file.pread(2000, 0) == bytes(1001)
    assert file.pwrite(b"", 5000) == 0
    assert file.size() == 1001


def test_errors_are_those_of_the_system() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, "d/f")
    reader = disk.open("d/f")
    for call, number in (
        (lambda: disk.open("d/g"), errno.ENOENT),
        (lambda: disk.open("x/g", create=True), errno.ENOENT),
        (lambda: disk.open("d/f/g", create=True), errno.ENOTDIR),
        (lambda: disk.open("d", write=True), errno.EISDIR),
        (lambda: disk.stat("d/g"), errno.ENOENT),
        (lambda: disk.list("d/f"), errno.ENOTDIR),
        (lambda: disk.unlink("d"), errno.EISDIR),
        (lambda: disk.unlink("d/g"), errno.ENOENT),
        (lambda: disk.rename("d/g", "d/h"), errno.ENOENT),
        (lambda: disk.rename("d/f", "d"), errno.EISDIR),
        (lambda: disk.rename("d", "d/f"), errno.ENOTDIR),
        (lambda: disk.make_dirs("d/f"), errno.ENOTDIR),
        (lambda: disk.remove_dir("d"), errno.ENOTEMPTY),
        (lambda: disk.remove_dir("d/f"), errno.ENOTDIR),
        (lambda: disk.remove_dir("d/g"), errno.ENOENT),
        (lambda: disk.remove_dir("/"), errno.EBUSY),
        (lambda: reader.pwrite(b"x", 0), errno.EBADF),
        (lambda: disk.read("d"), errno.EISDIR),
    ):
        with pytest.raises(OSError) as raised:  # noqa: PT011
            call()
        assert raised.value.errno == number
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size()


def test_list_stat_and_clock() -> None:
    now = 5
    disk = SimulatedDisk(clock=lambda: now)
    disk.make_dirs("/a/b")
    file = disk.open("/a/f", write=True, create=True)
    now = 7
    file.pwrite(b"abc", 0)
    entries = {entry.name: entry for entry in disk.list("a")}
    assert set(entries) == {"b", "f"}
    assert entries["f"] == disk.stat("a/f") == ("f", 3, 7, False)
    assert entries["b"].is_dir
    assert disk.stat("/a").is_dir
    assert disk.list("a/b") == []
    assert disk.files() == ["a/f"]


def test_times_rise_without_a_clock() -> None:
    disk = SimulatedDisk()
    file = new_file(disk)
    before = disk.stat("d/f").modified_ms
    file.pwrite(b"x", 0)
    assert disk.stat("d/f").modified_ms > before


def test_an_unlinked_or_replaced_file_stays_readable() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, "d/f", synced=b"old")
    disk.put("d/g", b"new")
    disk.rename("d/g", "d/f")
    assert disk.read("d/f") == b"new"
    assert file.pread(9, 0) == b"old"
    disk.unlink("d/f")
    assert disk.files() == []
    assert file.pwrite(b"!", 3) == 1
    assert file.pread(9, 0) == b"old!"


def test_open_files_and_unsynced_are_listed() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, "d/f")
    assert disk.open_files() == ["d/f"]
    assert disk.unsynced() == []
    file.pwrite(b"x", 0)
    assert disk.unsynced() == ["d/f"]
    file.sync()
    file.close()
    assert disk.unsynced() == []
    assert disk.open_files() == []
    disk.rename("d/f", "d/g")
    assert disk.unsynced() == ["d/g"]


# -- contents after a power cut ---------------------------------------------------------------


def test_synced_bytes_always_survive() -> None:
    data = random.Random(1).randbytes(5000)
    disk = SimulatedDisk()
    file = new_file(disk)
    file.pwrite(data, 0)
    file.sync()
    file.pwrite(b"tail" * 500, 5000)
    for after in fates(disk):
        assert after.read("d/f")[:5000] == data


def test_unsynced_bytes_may_survive_or_not() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, synced=b"a" * 100)
    file.pwrite(b"b" * 5000, 100)
    sizes = {len(after.read("d/f")) for after in fates(disk)}
    assert {100, 5100} < sizes
    wholes = [after.read("d/f")[100:] == b"b" * 5000 for after in fates(disk)]
    assert any(wholes)
    assert not all(wholes)
    # Kept in size, with holes where data did not make it.
    assert any(
        len(after.read("d/f")) == 5100 and bytes(SECTOR) in after.read("d/f")
        for after in fates(disk)
    )


def test_writes_survive_out_of_order() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, synced=bytes(20 * SECTOR))
    for sector in range(20):
        file.pwrite(b"n" * SECTOR, sector * SECTOR)
    patterns = set()
    for after in fates(disk):
        data = after.read("d/f")
        patterns.add(tuple(data[s * SECTOR] != 0 for s in range(20)))
    assert any(not kept[0] and kept[-1] for kept in patterns)
    assert (True,) * 20 in patterns
    assert (False,) * 20 in patterns
    assert any(sum(kept) == 19 for kept in patterns)


def test_a_sector_is_any_version_it_went_through() -> None:
    disk = SimulatedDisk(damage=GENTLE)
    file = new_file(disk, synced=b"0" * SECTOR)
    for version in b"123":
        file.pwrite(bytes([version]) * SECTOR, 0)
    seen = {after.read("d/f") for after in fates(disk)}
    assert seen == {bytes([version]) * SECTOR for version in b"0123"}


def test_a_torn_sector_mixes_two_versions() -> None:
    disk = SimulatedDisk(damage=Damage(torn=1.0, garbage=0.0, in_order=0.0))
    file = new_file(disk, synced=b"o" * SECTOR)
    file.pwrite(b"n" * SECTOR, 0)
    seen = {after.read("d/f") for after in fates(disk)}
    torn = {data for data in seen if len(set(data)) == 2}
    assert len(torn) > 20
    assert all(
        data.rstrip(b"o").strip(b"n") == b"" or data.rstrip(b"n").strip(b"o") == b""
        for data in torn
    )
    assert any(data.startswith(b"n") for data in torn)
    assert any(data.startswith(b"o") for data in torn)


def test_a_torn_sector_may_hold_garbage_but_only_where_it_was_written() -> None:
    disk = SimulatedDisk(damage=Damage(torn=1.0, garbage=1.0, in_order=0.0))
    file = new_file(disk, synced=b"o" * SECTOR)
    file.pwrite(b"n" * 100, 200)
    seen = {after.read("d/f") for after in fates(disk)}
    for data in seen:
        assert data[:200] == b"o" * 200
        assert data[300:] == b"o" * (SECTOR - 300)
    written = {data[200:300] for data in seen}
    assert any(set(part) - set(b"on\0") for part in written)
    assert any(b"\0\0" in part for part in written)


def test_changes_in_order_leave_a_prefix() -> None:
    disk = SimulatedDisk(damage=Damage(in_order=1.0))
    file = new_file(disk)
    whole = random.Random(2).randbytes(3000)
    for start in range(0, 3000, 300):
        file.pwrite(whole[start : start + 300], start)
    seen = {after.read("d/f") for after in fates(disk)}
    assert all(whole.startswith(data) for data in seen)
    assert any(len(data) % 300 for data in seen)
    assert whole in seen


def test_an_unsynced_truncation_may_be_lost() -> None:
    disk = SimulatedDisk(damage=GENTLE)
    file = new_file(disk, synced=b"a" * 3000)
    file.truncate(1000)
    seen = {after.read("d/f") for after in fates(disk)}
    assert b"a" * 1000 in seen
    assert b"a" * 3000 in seen
    file.sync()
    assert {after.read("d/f") for after in fates(disk)} == {b"a" * 1000}


def test_a_lost_truncation_shows_old_bytes_behind_new_ones() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, synced=b"a" * 3000)
    file.truncate(1000)
    file.pwrite(b"b" * 100, 1000)
    assert any(
        len(data) == 3000 and data[1000:1100] == b"b" * 100 and data[2000:] == b"a" * 1000
        for data in (after.read("d/f") for after in fates(disk, range(1000)))
    )


def test_a_file_is_settled_after_a_power_cut() -> None:
    disk = SimulatedDisk()
    file = new_file(disk)
    file.pwrite(b"x" * 3000, 0)
    disk.crash(3)
    before = image(disk)
    assert disk.unsynced() == []
    for seed in range(20):
        disk.crash(seed)
        assert image(disk) == before


@st.composite
def _operations(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    operation = st.tuples(
        st.sampled_from(["write", "write", "truncate", "sync"]),
        st.integers(0, 3000),
        st.integers(1, 1500),
    )
    return draw(st.lists(operation, max_size=15))


@settings(max_examples=150, deadline=None)
@given(operations=_operations(), seed=st.integers(0, 2**32))
def test_every_byte_has_a_history(operations: list[tuple[str, int, int]], seed: int) -> None:
    """After a power cut each byte is one that was there since the last sync, and the size lies
    between the smallest and the largest since then."""
    disk = SimulatedDisk(damage=Damage(torn=0.5, garbage=0.0))
    file = new_file(disk)
    states = [b""]
    for value, (kind, position, size) in enumerate(operations, 1):
        if kind == "write":
            file.pwrite(bytes([value]) * size, position)
        elif kind == "truncate":
            file.truncate(position)
        else:
            file.sync()
            states.clear()
        states.append(disk.read("d/f"))
    disk.crash(seed)
    data = disk.read("d/f")
    sizes = [len(state) for state in states]
    assert min(sizes) <= len(data) <= max(sizes)
    padded = [state.ljust(len(data), b"\0") for state in states]
    for at, byte in enumerate(data):
        assert any(state[at] == byte for state in padded)


# -- names after a power cut ------------------------------------------------------------------


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    file = disk.open("d/f", write=True, create=True)
    file.pwrite(b"data", 0)
    file.sync()
    seen = {tuple(image(after).items()) for after in fates(disk)}
    assert seen == {(), (("d/f", b"data"),)}
    disk.sync_dir("d")
    assert all(after.read("d/f") == b"data" for after in fates(disk))


def test_names_are_lost_independently() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    for name in "abc":
        disk.open(f"d/{name}", create=True).close()
    assert len({tuple(after.files()) for after in fates(disk)}) == 8


def test_syncing_another_directory_does_not_help() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d/e")
    disk.open("d/e/f", create=True).close()
    disk.sync_dir("d")
    disk.sync_dir("")
    assert {tuple(after.files()) for after in fates(disk)} == {(), ("d/e/f",)}


def test_directories_are_durable_at_once() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("a/b/c")
    disk.make_dirs("a/b/c")
    for after in fates(disk, range(20)):
        assert after.stat("a/b/c").is_dir


def test_an_unlink_may_be_lost() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"data")
    disk.unlink("d/f")
    seen = {tuple(image(after).items()) for after in fates(disk)}
    assert seen == {(), (("d/f", b"data"),)}
    disk.sync_dir("d")
    assert all(after.files() == [] for after in fates(disk))


def test_a_rename_is_atomic() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"old")
    disk.put("d/f.tmp", b"new")
    disk.rename("d/f.tmp", "d/f")
    seen = {tuple(image(after).items()) for after in fates(disk)}
    assert seen == {(("d/f", b"new"),), (("d/f", b"old"), ("d/f.tmp", b"new"))}


def test_a_rename_across_directories_is_durable_with_its_target() -> None:
    disk = SimulatedDisk()
    disk.put("from/f", b"data")
    disk.make_dirs("to")
    disk.rename("from/f", "to/f")
    either = {("from/f",), ("to/f",)}
    assert {tuple(after.files()) for after in fates(disk)} == either
    disk.sync_dir("from")
    assert {tuple(after.files()) for after in fates(disk)} == either
    disk.sync_dir("to")
    assert {tuple(after.files()) for after in fates(disk)} == {("to/f",)}


def test_a_file_that_moved_on_does_not_come_back() -> None:
    disk = SimulatedDisk()
    disk.put("a/f", b"data")
    disk.make_dirs("b")
    disk.rename("a/f", "b/f")
    disk.rename("b/f", "a/g")
    disk.sync_dir("a")
    assert {tuple(after.files()) for after in fates(disk)} == {("a/g",)}


def test_a_renamed_directory_takes_its_files_along() -> None:
    disk = SimulatedDisk()
    disk.put("a/f", b"data")
    disk.rename("a", "b")
    assert disk.read("b/f") == b"data"
    assert {tuple(after.files()) for after in fates(disk)} == {("a/f",), ("b/f",)}
    disk.sync_dir("")
    assert {tuple(after.files()) for after in fates(disk)} == {("b/f",)}


def test_a_directory_renamed_into_another_is_durable_with_its_target() -> None:
    disk = SimulatedDisk()
    disk.put("from/a/f", b"data")
    disk.make_dirs("to")
    disk.rename("from/a", "to/b")
    assert disk.list("from") == []
    either = {("from/a/f",), ("to/b/f",)}
    assert {tuple(after.files()) for after in fates(disk)} == either
    disk.sync_dir("to")
    assert {tuple(after.files()) for after in fates(disk)} == {("to/b/f",)}


def test_a_removed_directory_may_come_back() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d/e")

    def outcomes() -> set[tuple[str, ...]]:
        return {tuple(entry.name for entry in after.list("d")) for after in fates(disk)}

    disk.remove_dir("d/e")
    assert disk.list("d") == []
    assert outcomes() == {(), ("e",)}
    disk.sync_dir("")
    assert outcomes() == {(), ("e",)}
    disk.sync_dir("d")
    assert outcomes() == {()}


def test_a_removed_directory_comes_back_with_what_was_in_it_or_without() -> None:
    disk = SimulatedDisk()
    disk.put("d/e/f", b"data")
    disk.unlink("d/e/f")
    disk.remove_dir("d/e")
    there = {(bool(after.list("d")), *after.files()) for after in fates(disk)}
    assert there == {(False,), (True,), (True, "d/e/f")}
    disk.sync_dir("d")
    assert all(after.list("d") == [] for after in fates(disk))


def test_a_directory_that_is_made_anew_is_another() -> None:
    disk = SimulatedDisk()
    disk.put("d/e/f", b"data")
    disk.unlink("d/e/f")
    disk.remove_dir("d/e")
    disk.make_dirs("d/e")
    assert all(after.list("d/e") == [] for after in fates(disk))
    disk.sync_dir("d")
    disk.remove_dir("d/e")
    disk.sync_dir("d")
    assert all(after.list("d") == [] for after in fates(disk))


def test_replacing_a_file_properly_is_safe_at_every_step() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    replace_file(disk, "d/f", b"one" * 1000)
    assert {after.read("d/f") for after in fates(disk)} == {b"one" * 1000}
    disk.rename("d/f", "d/f")
    replace_file(disk, "d/f", b"two" * 1000)
    assert {after.read("d/f") for after in fates(disk)} == {b"two" * 1000}


def test_replacing_a_file_without_a_sync_is_found_out() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"old")
    file = disk.open("d/f.tmp", write=True, create=True)
    file.pwrite(b"new", 0)
    disk.rename("d/f.tmp", "d/f")
    disk.sync_dir("d")
    assert b"" in {after.read("d/f") for after in fates(disk)}


def test_ext4_manners() -> None:
    disk = SimulatedDisk(strict_names=False)
    disk.make_dirs("d")
    disk.open("d/other", create=True).close()
    file = disk.open("d/f", write=True, create=True)
    assert {tuple(after.files()) for after in fates(disk)} == {
        (),
        ("d/other",),
        ("d/f", "d/other"),
    }
    file.sync()
    assert {tuple(after.files()) for after in fates(disk)} == {("d/f", "d/other")}


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["create", "rename", "rename", "unlink", "sync_dir"]),
            st.sampled_from(["a/x", "a/y", "b/x", "b/y"]),
            st.sampled_from(["a/x", "a/y", "b/x", "b/y"]),
        ),
        max_size=20,
    ),
    seed=st.integers(0, 2**32),
)
def test_a_name_means_what_it_meant_since_its_directory_was_synced(
    steps: list[tuple[str, str, str]], seed: int
) -> None:
    disk = SimulatedDisk()
    disk.make_dirs("a")
    disk.make_dirs("b")
    meanings: dict[str, set[bytes | None]] = {f"{d}/{n}": {None} for d in "ab" for n in "xy"}

    def now(path: str) -> bytes | None:
        return disk.read(path) if path in disk.files() else None

    for number, (kind, path, other) in enumerate(steps):
        if kind == "create" and path not in disk.files():
            file = disk.open(path, write=True, create=True)
            file.pwrite(b"%d" % number, 0)
            file.sync()
        elif kind == "rename" and path in disk.files():
            disk.rename(path, other)
        elif kind == "unlink" and path in disk.files():
            disk.unlink(path)
        elif kind == "sync_dir":
            disk.sync_dir(path[0])
            for name, values in meanings.items():
                # A name that moved to another directory is settled by a sync of that one.
                if name[0] == path[0] and now(name) is not None:
                    values.clear()
        for name, values in meanings.items():
            values.add(now(name))
    disk.crash(seed)
    for name, values in meanings.items():
        assert now(name) in values
    contents = list(image(disk).values())
    assert len(contents) == len(set(contents))


# -- processes and machines -------------------------------------------------------------------


def test_the_same_seed_leaves_the_same_bytes() -> None:
    def run(crash_seed: int) -> dict[str, bytes]:
        disk = SimulatedDisk(seed=4)
        rng = random.Random(9)
        disk.make_dirs("d")
        for name in range(5):
            file = disk.open(f"d/{name}", write=True, create=True)
            for _ in range(10):
                file.pwrite(rng.randbytes(700), rng.randrange(3000))
        disk.crash(crash_seed)
        return image(disk)

    assert run(1) == run(1)
    assert len({tuple(run(seed).items()) for seed in range(20)}) > 15


def test_a_kill_keeps_everything_but_makes_nothing_durable() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    file = disk.open("d/f", write=True, create=True)
    file.pwrite(b"data", 0)
    boot = disk.boot_id()
    disk.kill()
    assert disk.boot_id() == boot
    assert image(disk) == {"d/f": b"data"}
    assert disk.unsynced() == ["d/f"]
    assert {tuple(after.files()) for after in fates(disk)} == {(), ("d/f",)}


@pytest.mark.parametrize("end", [SimulatedDisk.kill, lambda disk: disk.crash(0)])
def test_open_files_and_locks_end_with_the_process(end: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk()
    file = new_file(disk)
    lock = disk.lock("d/lock")
    assert lock.acquire()
    end(disk)
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pread_into(bytearray(1), 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        lock.acquire,
        lambda: lock.acquire(shared=True, wait=False),
        lock.acquire_now,
    ):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()
    file.close()
    next_one = disk.lock("d/lock")
    assert next_one.acquire(wait=False)
    lock.release()
    lock.close()
    assert not disk.lock("d/lock").acquire(wait=False)


def test_a_lock_is_exclusive_until_released() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    lock, same = disk.lock("d/lock"), disk.lock("/d/lock")
    assert same.acquire(wait=False)  # free at first
    same.release()
    assert lock.acquire(wait=False)
    assert not same.acquire(wait=False)
    assert not same.acquire_now()
    assert not same.acquire(shared=True, wait=False)
    assert disk.lock("d/other").acquire(wait=False)
    lock.release()
    lock.release()
    assert same.acquire_now()
    assert not lock.acquire(wait=False)
    same.close()
    assert disk.lock("d/lock").acquire(wait=False)
    assert "d/lock" in disk.files()
    assert disk.open_files() == []


def test_a_lock_may_be_shared() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    first, second, third = (disk.lock("d/lock") for _ in range(3))
    assert first.acquire(shared=True)
    assert second.acquire(shared=True, wait=False)
    assert not third.acquire(wait=False)
    assert not second.acquire(wait=False)  # by way of none: it has no part in it any more
    assert first.acquire(wait=False)
    assert not second.acquire(shared=True, wait=False)
    assert first.acquire(shared=True)
    assert second.acquire(shared=True, wait=False)


def test_who_waits_for_a_lock_gets_it() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    lock, taken = disk.lock("d/lock"), threading.Event()

    def wait() -> None:
        other = disk.lock("d/lock")
        other.acquire()
        taken.set()
        other.release()

    assert lock.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    assert not taken.wait(0.02)
    lock.release()
    assert taken.wait(30)
    thread.join()


def test_who_waits_for_a_lock_may_be_killed() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    held = disk.lock("d/lock")
    errors: list[int | None] = []

    def wait() -> None:
        lock = disk.lock("d/lock")
        started.set()
        try:
            lock.acquire()
        except OSError as error:
            errors.append(error.errno)

    started = threading.Event()
    assert held.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(30)
    disk.kill()
    thread.join(30)
    assert errors == [errno.EBADF]
    assert disk.lock("d/lock").acquire(wait=False)


def test_the_note_of_a_lock() -> None:
    """It is a file like any other, and anybody may read it."""
    disk = SimulatedDisk()
    disk.make_dirs("d")
    lock = disk.lock("d/lock")
    assert lock.read_note() == b""
    lock.write_note(b"a long note")
    lock.write_note(b"a note")
    assert disk.lock("d/lock").read_note() == disk.read("d/lock") == b"a note"


def test_memory_is_shared_by_those_who_map_it() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    assert disk.map("d/map", 64, write=False) is None
    memory = disk.map("d/map", 64, write=True)
    assert memory is not None
    assert bytes(memory) == bytes(64)
    memory[5] = 1
    for other in (disk.map("/d/map", 64, write=True), disk.map("d/map", 64, write=False)):
        assert other is not None
        assert other[5] == 1
        memory[6] += 1
        assert other[6] == memory[6]
    assert "d/map" in disk.files()
    assert disk.open_files() == []


def test_memory_outlives_processes_and_no_power_cut() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d")
    memory = disk.map("d/map", 4, write=True)
    assert memory is not None
    memory[0] = 1
    twin = disk.clone()
    disk.kill()
    memory[1] = 2  # by the dead: nobody sees it
    for after in (disk, twin):
        assert bytes(after.map("d/map", 4, write=False) or b"") == b"\1\0\0\0"
    disk.crash(0)
    assert disk.map("d/map", 4, write=False) is None
    assert bytes(disk.map("d/map", 4, write=True) or b"") == bytes(4)
    assert bytes(twin.map("d/map", 4, write=True) or b"") == b"\1\0\0\0"


def test_locks_and_memory_are_those_of_the_file_and_not_of_the_name() -> None:
    disk = SimulatedDisk()
    disk.make_dirs("d/e")
    lock = disk.lock("d/e/lock")
    assert lock.acquire()
    memory = disk.map("d/e/map", 4, write=True)
    assert memory is not None
    memory[0] = 1
    disk.rename("d", "g")
    assert not disk.lock("g/e/lock").acquire(wait=False)
    lock.write_note(b"a note")
    assert disk.read("g/e/lock") == b"a note"
    assert bytes(disk.map("g/e/map", 4, write=True) or b"") == b"\1\0\0\0"
    assert disk.files() == ["g/e/lock", "g/e/map"]
    disk.make_dirs("d/e")
    assert disk.lock("d/e/lock").acquire(wait=False)
    assert disk.map("d/e/map", 4, write=False) is None
    disk.unlink("g/e/map")
    assert bytes(disk.map("g/e/map", 4, write=True) or b"") == bytes(4)
    memory[1] = 2  # of the file that is gone
    assert bytes(disk.map("g/e/map", 4, write=False) or b"") == bytes(4)


def test_the_boot_changes_with_the_power() -> None:
    disk = SimulatedDisk()
    boots = {disk.boot_id()}
    for seed in range(5):
        disk.crash(seed)
        boots.add(disk.boot_id())
    assert len(boots) == 6
    assert all(len(boot) == 16 for boot in boots)
    assert SimulatedDisk(seed=1).boot_id() != SimulatedDisk(seed=2).boot_id()


def test_a_clone_is_independent() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, synced=b"synced")
    disk.open("d/new", create=True).close()
    assert disk.lock("d/lock").acquire()
    file.pwrite(b"x" * 2000, 6)
    before = image(disk)
    twin = disk.clone()
    assert image(twin) == before
    assert twin.boot_id() == disk.boot_id()
    assert twin.unsynced() == disk.unsynced()
    assert twin.open_files() == []
    assert twin.lock("d/lock").acquire(wait=False)
    twin.crash(1)
    twin.put("d/f", b"other")
    assert image(disk) == before
    file.pwrite(b"y", 0)
    assert twin.read("d/f") == b"other"
    first, second = disk.clone(), disk.clone()
    first.crash(5)
    second.crash(5)
    assert image(first) == image(second)


def test_rot_is_durable() -> None:
    disk = SimulatedDisk()
    file = new_file(disk, synced=b"a" * 2000)
    file.pwrite(b"b" * 100, 2000)
    modified = disk.stat("d/f").modified_ms
    disk.corrupt("d/f", 1999, b"??")
    expected = b"a" * 1999 + b"??" + b"b" * 99
    assert file.pread(3000, 0) == expected
    assert disk.stat("d/f").modified_ms == modified
    assert {after.read("d/f") for after in fates(disk)} == {expected}
    with pytest.raises(ValueError, match="no bytes 2099 to 2101"):
        disk.corrupt("d/f", 2099, b"??")


def test_a_failed_sync_loses_what_was_dirty() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"a" * 1000)
    file = disk.open("d/f", write=True)
    file.pwrite(b"b" * 2000, 500)
    file.lose_dirty()
    assert file.pread(3000, 0) == b"a" * 500 + b"b" * 2000
    file.sync()  # succeeds, and means nothing
    lost = b"a" * 1000 + bytes(1500)
    assert {after.read("d/f") for after in fates(disk)} == {lost}
    disk.evict()
    assert file.pread(3000, 0) == lost
    file.pwrite(b"c", 0)
    disk.evict()
    assert file.pread(2, 0) == b"ca"


def test_a_lost_write_does_not_undo_a_truncation() -> None:
    disk = SimulatedDisk()
    disk.put("d/f", b"a" * 2000)
    file = disk.open("d/f", write=True)
    file.truncate(1000)
    file.pwrite(b"b" * 500, 1000)
    file.lose_dirty()
    file.sync()
    assert {after.read("d/f") for after in fates(disk)} == {b"a" * 1000 + bytes(500)}


def test_threads_may_share_a_file() -> None:
    disk = SimulatedDisk()
    file = new_file(disk)

    def write(number: int) -> None:
        for at in range(200):
            file.pwrite(bytes([number]), number * 200 + at)
            file.sync()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.read("d/f") == b"".join(bytes([n]) * 200 for n in range(4))
    assert disk.unsynced() == []


def test_it_is_fast_enough_for_thousands_of_runs() -> None:
    """A run of 300 writes with a power cut takes a few milliseconds; the bound is a loose one,
    because the machine may be busy."""
    started = time.process_time()
    for seed in range(100):
        disk = SimulatedDisk()
        file = new_file(disk)
        for at in range(300):
            file.pwrite(b"x" * 900, at * 900)
            if at % 50 == 0:
                file.sync()
        disk.crash(seed)
    assert time.process_time() - started < 5
