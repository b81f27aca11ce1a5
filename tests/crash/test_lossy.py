"""Power cuts on a real kernel: the file system that forgets, and the log on it.

The first half shows that the file system of `lossy` is one, and that it forgets what it may and
nothing else. The second half is about the log: a process appends to it, is killed at some request
or some moment, and the power is cut. Which request and what is lost follow from a seed, so a
failure can be looked at again; a kill at some moment is the exception.

    python -m tests.crash.test_lossy FOLDER FLUSH LIFE BOOT SEGMENT_BYTES

is the process that appends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, NotWritten, OutcomeUnknown
from tests.crash.child import say
from tests.crash.lossy import BootedFileSystem, Lossy
from tests.crash.oracle import Scan, scan
from tests.project import ROOT

PATIENCE_S = 60


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def sync(path: Path) -> None:
    with opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)


@contextlib.contextmanager
def process(*words: object, module: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process, with pipes; it is killed at the end, if it still runs."""
    start = ["-m", module] if module else ["-S", "-c"]
    child = subprocess.Popen(
        [sys.executable, *start, *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def answer(child: subprocess.Popen[bytes], question: str = "") -> str:
    """What the other process says next."""
    assert child.stdin is not None
    assert child.stdout is not None
    if question:
        child.stdin.write(question.encode() + b"\n")
        child.stdin.flush()
    return child.stdout.readline().decode().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def is_mounted(path: Path) -> bool:
    return f" {path} fuse" in Path("/proc/self/mounts").read_text()


# --- it is a file system --------------------------------------------------------------------


def test_bytes_are_read_as_they_were_written(lossy: Lossy) -> None:
    with opened(lossy.path / "a") as fd:
        data = random.Random(1).randbytes(300_000)
        assert os.pwrite(fd, data, 0) == len(data)
        assert os.pread(fd, len(data) + 1, 0) == data
        assert os.pwrite(fd, b"new", 4095) == 3  # over the end of a page
        assert os.pread(fd, 5, 4094) == data[4094:4095] + b"new" + data[4098:4099]
        os.pwrite(fd, b"far", 400_000)
        assert os.pread(fd, 100_000, 300_000) == bytes(100_000)
        os.ftruncate(fd, 10)
        os.ftruncate(fd, 20)
        assert os.pread(fd, 100, 0) == data[:10] + bytes(10)
        assert os.fstat(fd).st_size == 20
    with opened(lossy.path / "a", os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"end")
    assert (lossy.path / "a").read_bytes() == data[:10] + bytes(10) + b"end"
    (lossy.path / "a").write_bytes(b"short")
    assert (lossy.path / "a").read_bytes() == b"short"
    with pytest.raises(FileExistsError):
        os.open(lossy.path / "a", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with pytest.raises(FileNotFoundError):
        os.open(lossy.path / "b", os.O_RDWR)
    os.chmod(lossy.path / "a", 0o600)
    os.utime(lossy.path / "a", (5, 5))
    found = os.stat(lossy.path / "a")
    assert (found.st_mode, found.st_mtime) == (0o100600, 5)


def test_a_file_without_a_name_is_there_until_it_is_closed(lossy: Lossy) -> None:
    path = lossy.path / "a"
    for end in (path.unlink, lambda: (lossy.path / "b").replace(path)):
        path.write_bytes(b"old")
        (lossy.path / "b").write_bytes(b"new")
        with opened(path) as fd:
            number = os.fstat(fd).st_ino
            end()
            os.pwrite(fd, b"er", 3)
            assert os.pread(fd, 10, 0) == b"older"
            assert os.fstat(fd).st_nlink == 0
            path.touch()
            assert path.stat().st_ino != number
            assert path.stat().st_nlink == 1


def test_many_names_are_listed_while_they_go(lossy: Lossy) -> None:
    names = [f"{n:04d}".ljust(4 + n % 100, "-") for n in range(700)]
    for name in names:
        (lossy.path / name).touch()
    assert sorted(os.listdir(lossy.path)) == names
    with os.scandir(lossy.path) as entries:
        listed = []
        for entry in entries:
            assert entry.inode() == entry.stat().st_ino
            listed.append(entry.name)
            os.unlink(entry.path)
    assert sorted(listed) == names
    assert os.listdir(lossy.path) == []


@pytest.mark.parametrize("seed", range(3))
def test_any_calls_do_what_they_do_elsewhere(lossy: Lossy, tmp_path: Path, seed: int) -> None:
    """The same random calls here and on the file system of the machine, one after the other."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    rng = random.Random(seed)
    folders = ["", "d1", "d2", "d1/d3"]
    for step in range(250):
        call, words = random_call(rng, folders)
        here = outcome(call, lossy.path, words)
        assert here == outcome(call, elsewhere, words), (
            f"call {step} of seed {seed}: {call.__name__}{words}"
        )
    assert tree(lossy.path) == tree(elsewhere)


def random_call(rng: random.Random, folders: list[str]) -> tuple[Callable[..., Any], list[Any]]:
    def name() -> str:
        return f"{rng.choice(folders)}/f{rng.randrange(5)}".lstrip("/")

    def write(path: Path, position: int, data: bytes) -> None:
        with opened(path) as fd:
            os.pwrite(fd, data, position)

    directory = rng.choice(folders[1:])
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (write, [name(), rng.randrange(9000), rng.randbytes(rng.randrange(1, 9000))]),
        (write, [name(), rng.randrange(9000), rng.randbytes(rng.randrange(1, 9000))]),
        (Path.read_bytes, [name()]),
        (os.truncate, [name(), rng.randrange(9000)]),
        (os.unlink, [name()]),
        (os.replace, [name(), Path(name())]),
        (os.replace, [name(), Path(directory)]),
        (os.replace, [directory, Path(name())]),
        (os.replace, [directory, Path("d2/d4")]),
        (os.replace, [Path("d2/d4"), Path(directory)]),
        (os.mkdir, [directory]),
        (os.mkdir, [directory]),
        (os.rmdir, [directory]),
        (os.unlink, [directory]),
        (os.rmdir, [name()]),
        (os.listdir, [directory]),
    ]
    return rng.choice(calls)


def outcome(call: Callable[..., Any], root: Path, words: list[Any]) -> object:
    first, *rest = (root / word if isinstance(word, str | Path) else word for word in words)
    target = rest[0] if rest else None
    if call is os.replace and isinstance(target, Path) and target.is_dir() and first.is_dir():
        return "not offered"
    try:
        result = call(first, *rest)
    except OSError as error:
        return error.errno
    return sorted(result) if isinstance(result, list) else result


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


# --- what processes share on it -------------------------------------------------------------

MAPPING = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, 4096) as shared:
    os.close(fd)
    for line in sys.stdin:
        shared[:5] = line.strip().encode()
        print(shared[100:105].decode(), flush=True)
"""


def test_two_processes_share_mapped_memory(lossy: Lossy) -> None:
    folder = lossy.path / ".tailrace"
    folder.mkdir()
    with opened(folder / "map") as fd:
        os.pwrite(fd, bytes(4096), 0)
        with mmap.mmap(fd, 4096) as shared, process(MAPPING, folder / "map") as other:
            for n in range(5):
                shared[100:105] = b"ours%d" % n
                assert answer(other, f"them{n}") == f"ours{n}"
                assert shared[:5] == b"them%d" % n
                assert os.pread(fd, 5, 0) == b"them%d" % n
            os.pwrite(fd, b"plain", 100)
            assert answer(other, "again") == "plain"
            with opened(folder / "map") as fd_again:  # opening it takes nothing from the others
                assert os.pread(fd_again, 5, 0) == b"again"
            assert answer(other, "later") == "plain"
            assert shared[:5] == b"later"


LOCKING = """
import fcntl, os, sys
fds = {}
for line in sys.stdin:
    kind, path = line.split()
    fd = fds[path] = os.open(path, os.O_RDWR)
    try:
        operation = fcntl.LOCK_SH if kind == "share" else fcntl.LOCK_EX
        lock = fcntl.lockf if kind == "lockf" else fcntl.flock
        lock(fd, operation | fcntl.LOCK_NB)
        print("locked", flush=True)
    except BlockingIOError:
        print("busy", flush=True)
"""


def test_two_processes_lock_several_files(lossy: Lossy) -> None:
    folder = lossy.path / ".tailrace"
    folder.mkdir()
    one, two, three = (folder / name for name in ("one", "two", "three"))
    three.touch()
    with opened(one) as fd1, opened(two) as fd2, process(LOCKING) as other:
        fcntl.flock(fd1, fcntl.LOCK_EX)
        fcntl.flock(fd2, fcntl.LOCK_SH)
        assert answer(other, f"flock {one}") == "busy"
        assert answer(other, f"flock {two}") == "busy"
        assert answer(other, f"share {two}") == "locked"
        assert answer(other, f"flock {three}") == "locked"
        fcntl.flock(fd1, fcntl.LOCK_UN)
        assert answer(other, f"flock {one}") == "locked"
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd1, fcntl.LOCK_SH | fcntl.LOCK_NB)
        other.kill()
        fcntl.flock(fd1, fcntl.LOCK_EX)  # a killed process holds nothing
        fcntl.lockf(fd1, fcntl.LOCK_EX)
        with process(LOCKING) as another:
            assert answer(another, f"lockf {one}") == "busy"


WRITING = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    os.pwrite(fd, b"x", 0)
    print("written", flush=True)
"""


def test_a_write_wakes_a_watcher_in_another_process(lossy: Lossy) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    path = lossy.path / "a"
    path.touch()
    fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    assert fd >= 0
    try:
        with process(WRITING, path) as other:
            assert libc.inotify_add_watch(fd, os.fsencode(path), 0x2) >= 0  # IN_MODIFY
            for _ in range(3):
                assert answer(other, "write") == "written"
                assert select.select([fd], [], [], PATIENCE_S)[0]
                assert int.from_bytes(os.read(fd, 4096)[4:8], sys.byteorder) == 0x2
    finally:
        os.close(fd)


# --- what it forgets ------------------------------------------------------------------------


def test_what_was_synced_survives_and_the_rest_may_go(lossy: Lossy) -> None:
    """For many seeds, and over all of them everything that may happen does."""
    seen: set[str] = set()
    for seed in range(60):
        folder = lossy.path / str(seed)
        folder.mkdir()
        sync(lossy.path)
        old, new = b"o" * 10_000, b"n" * 10_000
        for name in ("synced", "changed", "gone", "target"):
            with opened(folder / name) as fd:
                os.pwrite(fd, old, 0)
                os.fdatasync(fd)
        sync(folder)
        for name in ("changed", "source", "nameless"):
            with opened(folder / name) as fd:
                if name == "changed":
                    os.pwrite(fd, new[:8000], 1000)
                else:
                    os.pwrite(fd, new, 0)
                    os.fdatasync(fd)
        (folder / "source").replace(folder / "target")
        (folder / "gone").unlink()
        (folder / "directory").mkdir()
        lossy.crash(seed)

        note = f"seed {seed}"
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert found["synced"] == old, note
        changed = found["changed"][1000:9000]
        assert found["changed"] == old[:1000] + changed + old[:1000], note
        assert found["target"] in (old, new), note
        assert found.get("gone", old) == old, note
        assert found.get("nameless", new) == new, note
        assert found.get("source", new) == new, note
        assert not ("source" in found and found["target"] == new), note
        sectors = {found["changed"][at : at + 512] for at in range(1024, 8704, 512)}
        torn = {sector for sector in sectors if sector not in (old[:512], new[:512])}
        seen.add(f"torn: {bool(torn)}")
        seen.add(f"changed: {sorted({sector[:1] for sector in sectors - torn})}")
        seen.add(f"target: {found['target'][:1]!r}")
        seen.update(f"{name}: {name in found}" for name in ("gone", "nameless", "source"))
        seen.add(f"directory: {(folder / 'directory').exists()}")
    either = ("torn", "gone", "nameless", "source", "directory")
    assert seen == {f"{what}: {it}" for what in either for it in (False, True)} | {
        "changed: [b'n', b'o']",
        "changed: [b'n']",
        "changed: [b'o']",
        "target: b'n'",
        "target: b'o'",
    }


def test_the_same_seed_leaves_the_same(lossy: Lossy, tmp_path: Path) -> None:
    """On another machine too."""
    with Lossy(tmp_path) as other:
        for seed in range(10):
            for mount in (lossy, other):
                for name in "abcdef":
                    with opened(mount.path / name) as fd:
                        os.pwrite(fd, random.Random(f"{seed}{name}").randbytes(9000), 100 * seed)
                        if name in "ab":
                            os.fsync(fd)
                mount.crash(seed)
            assert tree(lossy.path) == tree(other.path)
            assert lossy.boot_id == other.boot_id


@pytest.mark.usefixtures("lossy")  # which skips this where nothing can be mounted
def test_names_that_are_not_strict_come_with_their_file(tmp_path: Path) -> None:
    """As on ext4."""
    with Lossy(tmp_path, strict_names=False) as lenient:
        for seed in range(10):
            with opened(tmp_path / str(seed)) as fd:
                os.fsync(fd)
            lenient.crash(seed)
            assert len(os.listdir(tmp_path)) == seed + 1


def test_mapped_memory_that_was_not_synced_may_go(lossy: Lossy) -> None:
    path = lossy.path / "map"
    left = set()
    for seed in range(20):
        with opened(path) as fd:
            os.pwrite(fd, bytes(8192), 0)
            os.fsync(fd)
            sync(lossy.path)
            with process(MAPPING, path) as other, mmap.mmap(fd, 8192) as shared:
                shared[4096:4100] = b"safe"
                shared.flush()
                assert answer(other, f"{seed:05d}") != ""
                other.kill()
                other.wait()
        lossy.crash(seed)
        data = path.read_bytes()
        assert data[4096:4100] == b"safe", f"seed {seed}"
        assert data[:5] in (bytes(5), b"%05d" % seed), f"seed {seed}"
        left.add(data[:5] == bytes(5))
    assert left == {False, True}


def test_who_is_left_after_a_power_cut_has_files_on_a_dead_mount(lossy: Lossy) -> None:
    with opened(lossy.path / "a") as fd:
        os.pwrite(fd, b"data", 0)
        os.fsync(fd)
        sync(lossy.path)
        boot_id = lossy.boot_id
        lossy.crash(1)
        assert lossy.boot_id != boot_id
        for call in (lambda: os.pwrite(fd, b"more", 0), lambda: os.fsync(fd)):
            with pytest.raises(OSError, match="not connected") as caught:
                call()
            assert caught.value.errno == errno.ENOTCONN
    assert (lossy.path / "a").read_bytes() == b"data"


def test_calls_fail_as_they_are_told_to(lossy: Lossy) -> None:
    with opened(lossy.path / "a") as fd:
        writes = lossy.counts().get("write", 0)
        lossy.fail("write", 2, errno.EIO)
        os.pwrite(fd, b"one", 0)
        with pytest.raises(OSError, match="Input/output"):
            os.pwrite(fd, b"two", 0)
        os.pwrite(fd, b"three", 0)
        assert lossy.counts().get("write", 0) == writes + 3
        lossy.fail("fsyncdir", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            sync(lossy.path)
        sync(lossy.path)
        lossy.fail("fsync", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        os.fsync(fd)
        assert os.pread(fd, 10, 0) == b"three"
    lossy.crash(1)
    assert b"three" not in (lossy.path / "a").read_bytes()  # the failed sync has lost it


def test_a_full_disk_takes_what_fits(lossy: Lossy) -> None:
    lossy.set_full(5 * 4096)
    with opened(lossy.path / "a") as fd, opened(lossy.path / "b") as fd2:
        os.ftruncate(fd, 1 << 20)  # a hole takes nothing
        assert os.pwrite(fd, bytes(3 * 4096), 0) == 3 * 4096
        assert os.pwrite(fd2, b"b" * 10_000, 0) == 2 * 4096
        with pytest.raises(OSError, match="No space"):
            os.pwrite(fd2, b"b", 2 * 4096)
        os.pwrite(fd, b"a" * 3 * 4096, 0)  # over what is there
        assert os.statvfs(lossy.path).f_bavail == 0
        os.unlink(lossy.path / "a")
        with pytest.raises(OSError, match="No space"):
            os.pwrite(fd2, b"b", 2 * 4096)  # somebody has it open
    with opened(lossy.path / "b") as fd2:
        wait_until(lambda: os.statvfs(lossy.path).f_bavail == 3)  # the kernel tells of it later
        os.pwrite(fd2, b"b" * 3 * 4096, 2 * 4096)
        lossy.set_full(None)
        os.pwrite(fd2, b"b" * 9 * 4096, 0)
    assert (lossy.path / "b").read_bytes() == b"b" * 9 * 4096


# --- no mount is left behind ----------------------------------------------------------------


@pytest.mark.usefixtures("lossy")
def test_a_server_that_dies_leaves_no_mount(tmp_path: Path) -> None:
    with Lossy(tmp_path) as lossy:
        assert is_mounted(tmp_path)
        lossy._server.kill()
        lossy._server.wait()
        with pytest.raises(OSError, match="not connected"):
            os.listdir(tmp_path)
    assert not is_mounted(tmp_path)


ABANDONED = """
import sys
from pathlib import Path
from tests.crash.lossy import Lossy
lossy = Lossy(Path(sys.argv[1]))
print("mounted", flush=True)
sys.stdin.readline()
"""


def test_a_test_that_dies_leaves_no_mount(lossy: Lossy, tmp_path: Path) -> None:
    with process("import site; site.main()\n" + ABANDONED, tmp_path) as other:
        assert answer(other) == "mounted"
        assert is_mounted(tmp_path)
        other.kill()
    wait_until(lambda: not is_mounted(tmp_path))
    assert is_mounted(lossy.path)


# --- the log on it --------------------------------------------------------------------------


def content(life: int, offset: int) -> bytes:
    """The value of a record, which tells all of it from who wrote it and where."""
    rng = random.Random(f"{life} {offset}")
    return b"%d %d " % (life, offset) + rng.randbytes(rng.choice((0, 20, 100, 900, 5000)))


def work(folder: str, flush: str, life: int, boot_id: bytes, segment_bytes: str) -> None:
    """Append until somebody kills us, and say what we try and what we are promised."""
    rng = random.Random(f"{flush} {life}")
    options: dict[str, Any] = {
        "flush": flush,
        "segment_bytes": segment_bytes,
        "flush_interval": "20ms",
    }
    log = Log(folder, fs=BootedFileSystem(boot_id), **options)
    say("open")
    for n in range(300):
        end = log.end_offset
        receipts = []
        for k in range(rng.choice((1, 1, 1, 4))):
            count = rng.choice((1, 1, 3, 20))
            once: dict[str, Any] = {"producer": f"life {life}", "sequence": 10 * n + k}
            say("try", end, count)
            batch = [content(life, offset) for offset in range(end, end + count)]
            receipts.append(log.append(batch, **(once if n % 5 == 0 else {})))
            end += count
        for receipt in receipts:
            receipt.wait()
            say("ack", receipt.offset, receipt.count)
        if flush == "async" and n % 7 == 6:
            log.flush()
            say("flushed")
        if n % 40 == 39:
            keep = max(log.start_offset, log.end_offset - 400)
            say("truncate", keep)
            log.truncate_before(keep)
            log.vacuum()
            say("truncated", keep)
    log.close()
    say("closed")


@dataclass
class Lives:
    """What those who appended to a log have said, life after life, and what must be there for it.

    - `tried`: the batches of each life, in order;
    - `taken`: whose an offset is, of those that were acknowledged or seen;
    - `promised`: the offsets that no power cut may take.
    """

    lossy: Lossy
    flush: str
    segment_bytes: str
    tried: dict[int, list[range]] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    promised: set[int] = field(default_factory=set)
    start: int = 0
    start_limit: int = 0

    @property
    def folder(self) -> Path:
        return self.lossy.path / "log"

    @property
    def life(self) -> int:
        return len(self.tried)

    @contextlib.contextmanager
    def spawn(self) -> Iterator[subprocess.Popen[bytes]]:
        """The next life."""
        self.tried[self.life + 1] = []
        words = [self.folder, self.flush, self.life, self.lossy.boot_id.hex(), self.segment_bytes]
        with process(*words, module="tests.crash.test_lossy") as child:
            yield child

    def note(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # the kill came in the middle of it
        word, *rest = line.decode().split()
        numbers = [int(number) for number in rest]
        if word == "try":
            offset, count = numbers
            self.tried[self.life].append(range(offset, offset + count))
        elif word == "ack":
            offset, count = numbers
            for acked in range(offset, offset + count):
                self._take(acked, self.life)
                if self.flush == "sync":
                    self.promised.add(acked)
        elif word == "truncate":
            self.start_limit = max(self.start_limit, *numbers)
        elif word == "truncated":
            self.start = max(self.start, *numbers)
        if word in ("flushed", "closed"):
            own = (offset for offset, life in self.taken.items() if life == self.life)
            self.promised.update(own)

    def try_power_cuts(self, seeds: Iterable[int]) -> None:
        """Look at what each of these would leave, and leave all as it is."""
        self.lossy.save("before")
        for seed in seeds:
            self.lossy.crash(seed)
            try:
                replace(self, taken=dict(self.taken), promised=set(self.promised)).check()
            except BaseException as error:
                error.add_note(f"after power cut {seed}")
                raise
            self.lossy.restore("before")

    def check(self) -> None:
        """Open the log, as the next one would, and look for everything."""
        with Log(self.folder, fs=self.lossy.fs, flush=self.flush, upkeep=False) as log:
            found = scan(log)
            end = log.end_offset
        assert not found.lost
        assert self.start <= found.start
        self._check_records(found)
        there = {seen.offset for seen in found.records}
        gone = [n for n in self.promised - there if n >= self.start_limit]
        assert not gone, f"these were promised: {[(n, self.taken[n]) for n in sorted(gone)]}"
        last = max(self.taken, default=-1)
        assert end > last, f"the next offset is {end}, and {last} has been given out"
        if self.flush == "sync":
            assert not list(found.missing()), "there is a gap"
        self.promised |= there  # it was closed in order, so all of it stays
        self.start = found.start

    def _check_records(self, found: Scan) -> None:
        there: dict[int, set[int]] = {life: set() for life in self.tried}
        for seen in found.records:
            life = int(seen.value.split(b" ", 1)[0])
            assert seen.value == content(life, seen.offset), f"{seen.record} was never appended"
            self._take(seen.offset, life)
            there[life].add(seen.offset)
        for life, batches in self.tried.items():
            missing = None
            for batch in batches:
                expected = set(range(max(batch.start, found.start), batch.stop))
                left = there[life] & expected
                assert left in (set(), expected), f"{batch} of life {life} is there in part"
                assert missing is None or not left, f"{missing} is missing, and {batch} is there"
                if expected and not left:
                    missing = batch
                there[life] -= left
            assert not there[life], f"life {life} never tried to append {there[life]}"

    def _take(self, offset: int, life: int) -> None:
        taken = self.taken.setdefault(offset, life)
        assert taken == life, f"offset {offset} is of life {taken}, and was given to life {life}"


def cut_power_again_and_again(
    lossy: Lossy, flush: str, seed: int, *, rounds: int, cuts: int
) -> Lives:
    """Life after life, each with `cuts` power cuts at its end, of which one may come true."""
    rng = random.Random(seed)
    lives = Lives(lossy, flush, rng.choice(("8KiB", "100KiB", "2MiB")))
    story = []
    try:
        for _ in range(rounds):
            story.append(live(lives, rng))
            seeds = [rng.randrange(1 << 30) for _ in range(cuts)]
            lives.try_power_cuts(seeds)
            if rng.random() < 0.7:
                story.append(f"power cut {seeds[0]}")
                lossy.crash(seeds[0])
            if rng.random() < 0.5:
                lives.check()
                story.append("check")
        lives.check()
    except BaseException as error:
        error.add_note(f"seed {seed}, segments of {lives.segment_bytes}: {', '.join(story)}")
        raise
    return lives


def live(lives: Lives, rng: random.Random) -> str:
    """One life and its end: at a request while it opens, or later, or at some moment."""
    way = rng.choice(("opening", "request", "request", "moment"))
    with lives.spawn() as child:
        assert child.stdout is not None
        n = rng.randrange(1, 60)
        if way == "opening":
            lives.lossy.kill_at(n, child.pid)
        else:
            lives.note(child.stdout.readline())
            n = rng.randrange(1, rng.choice((30, 300, 1000)))
            if way == "request":
                lives.lossy.kill_at(n, child.pid)
            else:
                for _, line in zip(range(n), child.stdout, strict=False):
                    lives.note(line)
                time.sleep(rng.random() * 0.005)
                child.kill()
        for line in child.stdout:
            lives.note(line)
        assert child.wait(PATIENCE_S) in (0, -signal.SIGKILL)
    return f"killed by {way} {n}"


# The first two have small segments; the third's are large enough to be extended ahead of appends.
@pytest.mark.parametrize(
    ("flush", "seed", "rounds"), [("sync", 14, 3), ("async", 14, 3), ("sync", 20, 2)]
)
def test_power_cuts(lossy: Lossy, flush: str, seed: int, rounds: int) -> None:
    lives = cut_power_again_and_again(lossy, flush, seed, rounds=rounds, cuts=5)
    assert lives.promised


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_power_cuts_for_long(lossy: Lossy, flush: str, seed: int) -> None:
    cut_power_again_and_again(lossy, flush, seed, rounds=25, cuts=12)


def test_a_full_disk_refuses_appends_for_as_long_as_it_is_full(lossy: Lossy) -> None:
    folder = lossy.path / "log"
    acked: dict[int, bytes] = {}
    with Log(folder, fs=lossy.fs, segment_bytes="64KiB", upkeep=False) as log:
        lossy.set_full(30 * 4096)
        for full in (True, False):
            refused = 0
            for n in range(40):
                value = b"%d" % n * 3000
                try:
                    receipt = log.append_one(value).wait()
                except NotWritten:
                    refused += 1
                else:
                    acked[receipt.offset] = value
            assert bool(refused) == full
            lossy.set_full(None)
    lossy.crash(1)
    with Log(folder, fs=lossy.fs, upkeep=False) as log:
        assert {seen.offset: seen.value for seen in scan(log).records} == acked


def test_a_sync_that_failed_promises_nothing_and_costs_nothing(lossy: Lossy) -> None:
    folder = lossy.path / "log"
    log = Log(folder, fs=lossy.fs, flush="sync", upkeep=False)
    for n in range(5):
        log.append_one(b"%d" % n).wait()
    lossy.fail("fsync", 1, errno.EIO)
    with pytest.raises(OutcomeUnknown):
        log.append_one(b"5").wait()
    with contextlib.suppress(OutcomeUnknown):
        log.close()
    lossy.save("failed")
    for seed in range(10):
        lossy.crash(seed)
        with Log(folder, fs=lossy.fs, upkeep=False) as log:
            values = [seen.value for seen in scan(log).records]
            assert values[:5] == [b"%d" % n for n in range(5)], f"seed {seed}"
            assert values[5:] in ([], [b"5"]), f"seed {seed}"
            assert log.append_one(b"next").wait().offset >= len(values), f"seed {seed}"
        lossy.restore("failed")


if __name__ == "__main__":
    _folder, _flush, _life, _boot, _segment_bytes = sys.argv[1:]
    work(_folder, _flush, int(_life), bytes.fromhex(_boot), _segment_bytes)
