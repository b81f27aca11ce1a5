"""A Watch tells of every change to its paths, by inotify or by looking, and costs next to nothing.

`test_watch_races.py` has what happens at awkward moments, `test_watch_asyncio.py` the tasks.
"""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace.log import changes, hub, inotify
from tailrace.log.watch import Watch
from tests.log.helpers import WAIT, eventually, run_python
from tests.log.watching import (
    Waiting,
    asleep,
    by_looking,
    drain,
    either_way,
    file,
    fresh_hub,
    inotify_fds,
    kernel_watches,
    touch,
)

__all__ = ["by_looking", "either_way", "file", "fresh_hub"]


# --- what is told -------------------------------------------------------------------------


@pytest.mark.usefixtures("either_way")
def test_a_change_is_told_once(file: Path) -> None:
    watch = Watch(str(file))
    drain(watch)
    assert not watch.wait(0)
    touch(file)
    assert watch.wait(WAIT)
    drain(watch)
    assert not watch.wait(0)
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_a_change_before_the_wait_is_told_at_once(file: Path) -> None:
    watch = Watch(str(file))
    drain(watch)
    touch(file)
    assert watch.wait(0)
    watch.close()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "change", ["write", "truncate", "create", "unlink", "rename", "move in", "make a directory"]
)
def test_what_happens_in_a_directory(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"old")
    (tmp_path / "outside").touch()
    watch = Watch(str(folder))
    drain(watch)
    waiting = Waiting(watch.wait)
    asleep(1)
    if change == "write":
        with (folder / "a").open("r+b") as f:
            f.write(b"new")  # in place
    elif change == "truncate":
        os.truncate(folder / "a", 1)
    elif change == "create":
        (folder / "b").touch()
    elif change == "unlink":
        (folder / "a").unlink()
    elif change == "rename":
        (folder / "a").rename(folder / "b")
    elif change == "move in":
        (tmp_path / "outside").rename(folder / "b")
    else:
        (folder / "b").mkdir()
    assert waiting.result() is True
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_any_of_several_paths(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    watch = Watch(str(file), str(other))
    for path in (file, other, file):
        drain(watch)
        touch(path)
        assert watch.wait(WAIT)
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_each_thread_that_waits_on_a_watch_is_told(file: Path) -> None:
    watch = Watch(str(file))
    drain(watch)
    waiting = [Waiting(watch.wait) for _ in range(5)]
    asleep(5)
    touch(file)
    assert [w.result() for w in waiting] == [True] * 5
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_nothing_at_the_path(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        Watch(str(file), str(tmp_path / "missing"))
    assert not kernel_watches()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_that_is_removed_and_made_anew(file: Path, is_open: bool) -> None:
    watch = Watch(str(file))
    with file.open("rb") if is_open else open(os.devnull, "rb"):
        drain(watch)
        file.unlink()
        assert watch.wait(WAIT)
        drain(watch)
        file.write_bytes(b"")
        assert watch.wait(WAIT)
        for _ in range(3):
            drain(watch)
            touch(file)
            assert watch.wait(WAIT)
    assert kernel_watches() == len(inotify_fds())  # it is heard again, where that can be
    watch.close()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_that_is_replaced(file: Path, tmp_path: Path, is_open: bool) -> None:
    watch = Watch(str(file))
    with file.open("rb") if is_open else open(os.devnull, "rb"):
        for _ in range(3):
            drain(watch)
            (tmp_path / "new").touch()
            (tmp_path / "new").replace(file)
            assert watch.wait(WAIT)
            drain(watch)
            touch(file)
            assert watch.wait(WAIT)
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_a_directory_that_is_removed_and_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watch = Watch(str(folder))
    drain(watch)
    folder.rmdir()
    assert watch.wait(WAIT)
    folder.mkdir()
    assert watch.wait(WAIT)
    drain(watch)
    touch(folder / "a")
    assert watch.wait(WAIT)
    watch.close()


def test_a_lost_file_is_looked_for_although_the_leader_waits_for_something_else(
    file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch()
    quiet, watch = Watch(str(other)), Watch(str(file))
    leader = Waiting(quiet.wait)
    asleep(1)
    file.unlink()
    waiting = Waiting(watch.wait)
    assert waiting.result() is True
    drain(watch)
    waiting = Waiting(watch.wait)
    asleep(2)
    file.touch()
    assert waiting.result() is True
    quiet.close()
    assert leader.result() is False
    watch.close()


# --- waiting ------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_timeout(file: Path, tmp_path: Path, is_leader: bool) -> None:
    (tmp_path / "other").touch()
    other, watch = Watch(str(tmp_path / "other")), Watch(str(file))
    drain(watch)
    drain(other)
    if not is_leader:
        leader = Waiting(other.wait)
        asleep(1)
    begin = time.monotonic()
    assert not watch.wait(0.02)
    assert time.monotonic() - begin >= 0.02
    assert not watch.wait(-1)
    touch(file)
    assert watch.wait(0)
    other.close()
    if not is_leader:
        assert leader.result() is False
    watch.close()


def test_a_timeout_that_is_longer_than_the_kernel_can_count(file: Path) -> None:
    watch = Watch(str(file))
    waiting = [Waiting(partial(watch.wait, 1e12)) for _ in range(2)]
    asleep(2)
    touch(file)
    assert [w.result() for w in waiting] == [True, True]
    watch.close()


@pytest.mark.usefixtures("either_way")
def test_close_ends_the_waits_of_other_threads(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    other, watch = Watch(str(tmp_path / "other")), Watch(str(file))
    drain(watch)
    drain(other)
    waiting = [Waiting(watch.wait)]  # leads
    asleep(1)
    waiting += [Waiting(other.wait), Waiting(watch.wait)]
    asleep(3)
    watch.close()
    assert waiting[0].result() is False
    assert waiting[2].result() is False
    assert watch.closed
    assert not other.closed
    assert not watch.wait()
    watch.close()  # again
    touch(tmp_path / "other")
    assert waiting[1].result() is True  # leads now
    other.close()


def test_who_waits_aside_never_leads_for_others(file: Path, tmp_path: Path) -> None:
    (tmp_path / "bell").touch()
    bell, watch = Watch(str(tmp_path / "bell"), aside=True), Watch(str(file))
    background = Waiting(bell.wait)
    eventually(lambda: hub.aside.leader is not None)
    assert hub.current.leader is None
    waiting = Waiting(watch.wait)
    asleep(1)
    touch(file)
    assert waiting.result() is True
    assert hub.aside.leader is not None  # it was not woken
    touch(tmp_path / "bell")
    assert background.result() is True
    for each in (bell, watch):
        each.close()


def test_without_a_second_instance_who_waits_aside_shares_the_first(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(str(file))

    def refuse(_self: inotify.Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(inotify.Inotify, "__init__", refuse)
    bell = Watch(str(file), aside=True)
    assert not bell.is_looking
    touch(file)
    assert bell.wait(WAIT)
    assert watch.wait(WAIT)
    for each in (bell, watch):
        each.close()


def test_whoever_waits_uses_no_processor(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    other, watch = Watch(str(tmp_path / "other")), Watch(str(file))
    waiting = [Waiting(watch.wait), Waiting(watch.wait), Waiting(other.wait)]
    asleep(3)

    def switches() -> list[str]:
        return [
            line
            for w in waiting
            for line in Path(f"/proc/self/task/{w.tid}/status").read_text().splitlines()
            if "ctxt_switches" in line
        ]

    def is_quiet(seconds: float) -> bool:
        before = switches()
        time.sleep(seconds)
        return switches() == before

    eventually(partial(is_quiet, 0.02))  # they have gone to sleep
    assert is_quiet(0.3)
    touch(file)
    touch(tmp_path / "other")
    assert [w.result() for w in waiting] == [True] * 3
    watch.close()
    other.close()


# --- what the kernel keeps ----------------------------------------------------------------


def test_100_watches_share_one_instance_and_one_kernel_watch(tmp_path: Path) -> None:
    assert not inotify_fds()  # made when first needed
    watches = [Watch(str(tmp_path)) for _ in range(100)]
    assert len(inotify_fds()) == 1
    assert kernel_watches() == 1
    for watch in watches[:99]:
        watch.close()
    assert kernel_watches() == 1
    touch(tmp_path / "new")
    assert watches[99].wait(WAIT)
    watches[99].close()
    assert kernel_watches() == 0
    assert len(inotify_fds()) == 1


def test_paths_that_lead_to_the_same_file_share_its_kernel_watch(file: Path) -> None:
    hard, soft = file.with_name("hard"), file.with_name("soft")
    os.link(file, hard)
    soft.symlink_to(file)
    watches = [Watch(str(path)) for path in (file, hard, soft)]
    assert kernel_watches() == 1
    watches[0].close()
    touch(file)
    assert all(watch.wait(WAIT) for watch in watches[1:])
    watches[1].close()
    assert kernel_watches() == 1
    watches[2].close()


def test_a_forgotten_watch_goes(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    other = Watch(str(tmp_path / "other"))
    leader = Waiting(other.wait)
    asleep(1)
    watch = Watch(str(file))
    circle: list[object] = [watch]
    circle.append(circle)
    assert kernel_watches() == 2
    del watch, circle
    gc.collect()
    assert kernel_watches() == 1
    other.close()
    assert leader.result() is False


def test_a_watch_that_goes_while_this_thread_is_inside_the_hub(file: Path, tmp_path: Path) -> None:
    """By the garbage collector, or a signal handler: it must not wait for the lock."""
    watch, closed, other = Watch(str(file)), Watch(str(file)), Watch(str(tmp_path))
    waiting = Waiting(closed.wait)
    asleep(1)
    with hub.current._lock:
        del watch
        gc.collect()
        closed.close()
        assert kernel_watches() == 2
    assert waiting.result() is False  # and tidies up
    assert kernel_watches() == 1
    other.close()


def test_events_that_the_kernel_dropped(file: Path, tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "quiet").touch()
    busy, quiet, replaced = Watch(str(folder)), Watch(str(tmp_path / "quiet")), Watch(str(file))
    files = [os.open(folder / name, os.O_CREAT | os.O_WRONLY) for name in "ab"]
    for number in range(limit + 10):  # two files in turn, for like events in a row become one
        os.write(files[number % 2], b"x")
    for fd in files:
        os.close(fd)
    file.unlink()
    file.touch()
    assert quiet.wait(WAIT)
    assert busy.wait(WAIT)
    assert replaced.wait(WAIT)
    drain(replaced)
    touch(file)
    assert replaced.wait(WAIT)
    for watch in (busy, quiet, replaced):
        watch.close()


# --- forks and the end --------------------------------------------------------------------

FORK = """
import json, os, sys, threading, time
from tailrace.log import hub
from tailrace.log.watch import Watch

def kernel_watches():
    links = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    fds = [fd for fd, path in links.items() if path.endswith("anon_inode:inotify")]
    return [open(f"/proc/self/fdinfo/{fd}").read().count("inotify wd:") for fd in fds]

path = sys.argv[1]
kept, closed, quiet = Watch(path), Watch(path), Watch(sys.argv[2])
for _ in range(2):
    threading.Thread(target=quiet.wait, daemon=True).start()
while len(hub.current._queue) < 2:  # one leads, and one waits for it
    time.sleep(0.001)
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if not child:
    closed.close()
    told = [kept.wait(), kept.wait(0), kernel_watches()]
    os.write(to_parent[1], b"x")
    told += [kept.wait(), quiet.wait()]
    kept.close()
    quiet.close()
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    os._exit(told != [True, False, [1], True, True])
told = [kept.wait(0)]
os.read(to_parent[0], 1)
with open(path, "ab") as f:
    f.write(b"x")
os.read(to_parent[0], 1)  # the child has heard it, and closed its Watches
told += [kept.wait(), closed.wait(), kernel_watches()]
os.write(to_child[1], b"x")
told.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
quiet.close()
print(json.dumps(told))
"""


def test_a_forked_child_takes_nothing_from_its_parent(file: Path, tmp_path: Path) -> None:
    (tmp_path / "quiet").touch()
    assert run_python(FORK, file, tmp_path / "quiet") == [False, True, True, [2], 0]


FORK_AND_LOOK = """
import json, os, sys
from tailrace.log.watch import Watch

watch = Watch(sys.argv[1])
while watch.wait(0.025):
    continue
child = os.fork()
if not child:
    assert watch.wait()
    while watch.wait(0.025):
        continue
os.truncate(sys.argv[1], 100 if child else 200)
assert watch.wait()
if not child:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("by_looking")
def test_a_forked_child_looks_by_itself(file: Path) -> None:
    assert run_python(FORK_AND_LOOK, file) == 0


AT_EXIT = """
import atexit, sys, threading, time
from tailrace.log import hub
from tailrace.log.watch import Watch

def wait():
    watch = Watch(sys.argv[1])
    while watch.wait():  # by looking, a file that is new is told of more than once
        continue

watch = Watch(sys.argv[1])  # never closed
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
while len(hub.current._queue) < 3:
    time.sleep(0.001)
atexit.register(Watch(sys.argv[1]).close)
"""


@pytest.mark.usefixtures("either_way")
def test_a_process_ends_with_watches_open(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", AT_EXIT, str(file)],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    )
    assert not done.stderr


# --- looking ------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_looking")
def test_looking_uses_no_inotify(file: Path) -> None:
    watch = Watch(str(file))
    assert not inotify_fds()
    waiting = [Waiting(watch.wait) for _ in range(3)]
    touch(file)
    assert [w.result() for w in waiting] == [True] * 3
    watch.close()


@pytest.mark.usefixtures("by_looking")
def test_looking_slows_down_and_speeds_up() -> None:
    watch = Watch(os.curdir)
    seen = hub.current._changes
    drain(watch)
    while seen.look_every_s < changes.LOOK_LAST_S:
        watch.wait(0)
    watch.wait(0)
    assert seen.look_every_s == changes.LOOK_LAST_S
    other = Watch(os.curdir)
    assert seen.look_every_s == changes.LOOK_FIRST_S
    other.close()
    watch.close()


@pytest.mark.usefixtures("by_looking")
def test_a_change_within_one_tick_of_the_file_systems_clock(file: Path) -> None:
    watch = Watch(str(file))
    drain(watch)
    for content in (b"one", b"two"):
        file.write_bytes(content)
        os.utime(file, (1, 1))
        assert watch.wait(WAIT)  # nothing that `stat` tells differs the second time
    watch.close()


@pytest.mark.usefixtures("by_looking")
def test_a_directory_that_may_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str) -> Iterator[os.DirEntry[str]]:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr("os.scandir", refuse)
    watch = Watch(str(tmp_path))
    drain(watch)
    (tmp_path / "new").touch()
    assert watch.wait(WAIT)
    watch.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSYS])
def test_no_inotify_instance_to_be_had(
    file: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(inotify, "Inotify", refuse)
    watches = [Watch(str(file)) for _ in range(2)]
    for watch in watches:
        drain(watch)
    touch(file)
    assert all(watch.wait(WAIT) for watch in watches)
    for watch in watches:
        watch.close()
    complaints = [r.message for r in caplog.records if r.name == "tailrace"]
    if number == errno.ENOSYS:
        assert not complaints  # nobody can help it
    else:
        assert len(complaints) == 1
        assert "every 1 to 10 ms" in complaints[0]


FEW_FILES = """
import json, logging, os, resource, sys
from tailrace.log.watch import Watch
from tailrace.log import hub, inotify

logging.basicConfig(stream=sys.stderr)
before = os.listdir("/proc/self/fd")
highest = max(map(int, before))
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) + highest, 4096))
watch = Watch(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
while watch.wait(0.025):
    continue
os.truncate(sys.argv[1], 100)
told = watch.wait(30)
after = os.listdir("/proc/self/fd")
print(json.dumps([told, hub.current._changes.inotify is None, before == after]))
"""


@pytest.mark.parametrize("spare", [0, 1])
def test_no_descriptor_left_for_inotify_or_its_bell(file: Path, spare: int) -> None:
    assert run_python(FEW_FILES, file, spare) == [True, True, True]


def test_no_kernel_watch_left_for_one_path(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add, full = inotify.Inotify.add, True

    def refuse(self: inotify.Inotify, path: str) -> int:
        if full and path == str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return add(self, path)

    monkeypatch.setattr(inotify.Inotify, "add", refuse)
    (tmp_path / "other").touch()
    other = Watch(str(tmp_path / "other"))
    leader = Waiting(other.wait)
    asleep(1)
    watch = Watch(str(file))
    assert kernel_watches() == 1
    drain(watch)
    waiting = Waiting(watch.wait)
    asleep(2)
    touch(file)
    assert waiting.result() is True
    full = False
    touch(file)
    assert watch.wait(WAIT)
    assert kernel_watches() == 2  # there was room again
    touch(tmp_path / "other")
    assert leader.result() is True
    assert len([r for r in caplog.records if "No space" in r.message]) == 1
    watch.close()
    other.close()


def test_what_takes_long_to_import_is_imported_by_those_who_need_it(file: Path) -> None:
    code = """
import json, sys
from tailrace.log.watch import Watch
before = [name in sys.modules for name in ("asyncio", "tailrace.log.inotify")]
Watch(sys.argv[1]).wait(0)
print(json.dumps([*before, "asyncio" in sys.modules]))
"""
    assert run_python(code, file) == [False, False, False]
