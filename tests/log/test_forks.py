"""Forks, and other ways to get a child: each process opens the log for itself.

What is forked runs in a process of its own, for a fork copies one thread only, and the test runner
has more. Each of these programs prints its findings last, as JSON.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Locked, Log
from tests.log.conftest import OpenLog
from tests.log.helpers import WAIT, run_python, values

# What the programs share: children that answer with JSON, and a look at what they have open.
COMMON = """
import json, os, signal, sys, threading, time
from tailrace import *
from builtins import open

path = sys.argv[1]
signal.alarm(100)  # rather than hang

def fork(work):  # returns what waits for its answer
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            os.write(theirs, json.dumps(work()).encode())
        except BaseException as error:
            os.write(2, repr(error).encode())
        os._exit(0)
    os.close(theirs)
    def wait():
        with open(ours, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return json.loads(answer)
    return wait

def open_here():  # what this process has open of the log
    found = []
    for name in os.listdir("/proc/self/fd"):
        if os.path.islink(link := f"/proc/self/fd/{name}"):
            found.append(os.readlink(link))
    return [target for target in found if target.startswith(path)]

def failure(call):
    try:
        call()
    except TailraceError as error:
        return f"{type(error).__name__}: {error}"

def texts(log, *start):
    return [record.value.decode() for record in log.read(*start)]
"""


Run = Callable[[str], Any]


@pytest.fixture
def run(path: Path) -> Run:
    """Runs a program on the test's log."""
    return lambda code: run_python(COMMON + textwrap.dedent(code), path)


def was_closed(path: Path) -> bool:
    """Did everybody who wrote to the log close it?"""
    with Log(path) as log:
        found = log._writer.diagnosis if log._writer is not None else None
        return found is not None and found.clean


# --- os.fork ----------------------------------------------------------------------------------


def test_a_child_goes_on_with_a_log_of_its_own(run: Run, path: Path) -> None:
    answer = run("""
        log = Log(path)
        log.append_one(b"parent 0").wait()
        def work():
            log.append_one(b"child 0").wait()
            log.append([b"child 1", b"child 2"]).wait()
            seen = texts(log)
            log.close()
            return seen
        seen = fork(work)()
        log.append_one(b"parent 1").wait()
        print(json.dumps([seen, texts(log)]))
        log.close()
        """)
    before = ["parent 0", "child 0", "child 1", "child 2"]
    assert answer == [before, [*before, "parent 1"]]
    assert was_closed(path)


def test_a_receipt_from_before_the_fork_is_the_parents(run: Run) -> None:
    (told, offset, done), done_here = run("""
        log = Log(path)
        pending = log.append_one(b"parent")
        answer = fork(lambda: [failure(pending.wait), pending.offset, pending.done])()
        pending.wait()
        print(json.dumps([answer, pending.done]))
        """)
    assert told.startswith("OutcomeUnknown: ")
    assert "fork" in told
    assert (offset, done, done_here) == (0, False, True)


def test_a_child_that_does_not_use_the_log_has_nothing_of_it(run: Run) -> None:
    answer = run("""
        log = Log(path, flush="async")
        log.append_one(b"x")
        list(log.read())
        reader = Log(path, read_only=True)
        list(reader.read())
        print(json.dumps([len(open_here()) > 8, fork(open_here)()]))
        """)
    assert answer == [True, []]


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "log.close(); os._exit(0)"])
def test_a_turn_that_is_kept_outlasts_a_child(run: Run, path: Path, end: str) -> None:
    """By any end of the child; its clean-up touches nothing of the parent's."""
    answer = run(f"""
        from tailrace.log.locks import ProcessLock
        log = Log(path, flush="async")
        lock = ProcessLock(path + "/.tailrace/lock")
        writer = log._writer
        while not writer.turn.held:
            log.append_one(b"x")
            writer.lock.acquire()  # as if we appended: nobody takes the turn back for idleness
            if not writer.turn.held:
                writer.lock.release()
        free = [lock.acquire(wait=False)]
        child = os.fork()
        if not child:
            {end}
        assert not os.waitpid(child, 0)[1]
        free += [lock.acquire(wait=False)]
        held, end = writer.turn.held, log.end_offset
        writer.lock.release()
        offset = log.append_one(b"next").offset
        log.close()
        free += [lock.acquire(wait=False)]
        print(json.dumps([free, held, offset == end]))
        lock.close()
        """)
    assert answer == [[False, False, True], True, True]
    assert was_closed(path)


def test_a_fork_while_another_thread_appends(run: Run) -> None:
    """Wherever that thread is, the child has its own locks, and its own log."""
    sent, answers, there = run("""
        log = Log(path, segment_bytes=4096)
        stopped, sent = threading.Event(), []
        def append():
            while not stopped.is_set():
                text = f"parent {len(sent)}"
                log.append_one(text).wait()
                sent.append(text)
        thread = threading.Thread(target=append)
        thread.start()
        children = []
        for number in range(12):
            def work():
                receipts = [log.append_one(f"child {number} {k}") for k in range(3)]
                found = [next(log.read(r.wait().offset)).value.decode() for r in receipts]
                log.close()
                return found
            children.append(fork(work))
            time.sleep(0.003)
        answers = [wait() for wait in children]
        stopped.set()
        thread.join()
        print(json.dumps([sent, answers, texts(log)]))
        """)
    assert answers == [[f"child {n} {k}" for k in range(3)] for n in range(12)]
    assert sorted(there) == sorted([*sent, *(text for texts in answers for text in texts)])
    assert [text for text in there if text.startswith("parent")] == sent


def test_a_fork_in_the_middle_of_an_append(run: Run) -> None:
    """The parent's thread has the turn, and has written half of it: the child waits."""
    answer = run("""
        from tailrace.log.fs import OsFileSystem
        from tailrace.testing import FaultyFileSystem, ShortWrite
        reached, goes_on = threading.Event(), threading.Event()
        faults = [lambda: ShortWrite(), lambda: reached.set() or goes_on.wait(60) and None]
        fs = FaultyFileSystem(OsFileSystem())
        log = Log(path, flush="async", fs=fs, upkeep=False)
        log.append_one(b"first")
        parent = os.getpid()
        is_due = lambda call: os.getpid() == parent and call.op == "pwrite" and faults
        fs.plan = lambda call: faults.pop(0)() if is_due(call) else None
        thread = threading.Thread(target=log.append_one, args=(b"parent",))
        thread.start()
        assert reached.wait(60)
        started, start = os.pipe()
        def work():
            os.write(start, b".")
            return log.append_one(b"child").offset
        wait = fork(work)
        os.read(started, 1)
        time.sleep(0.02)  # for it to come as far as it can
        before = texts(log)
        goes_on.set()
        thread.join()
        offset = wait()
        print(json.dumps([before, offset, texts(log)]))
        """)
    assert answer == [["first"], 2, ["first", "parent", "child"]]


def test_a_child_of_a_child(run: Run) -> None:
    answer = run("""
        log = Log(path)
        log.append_one(b"parent").wait()
        def grandchild():
            log.append_one(b"grandchild").wait()
            return texts(log)
        def used():
            log.append_one(b"child").wait()
            seen = fork(grandchild)()
            log.append_one(b"child again").wait()
            return seen
        seen = [fork(used)(), fork(lambda: fork(grandchild)())()]
        print(json.dumps([seen, texts(log)]))
        """)
    first = ["parent", "child", "grandchild"]
    every = [*first, "child again", "grandchild"]
    assert answer == [[first, every], every]


def test_an_exclusive_log_refuses_the_child(run: Run, path: Path) -> None:
    pid, refused, offset = run("""
        log = Log(path, exclusive=True)
        log.append_one(b"parent").wait()
        closed, close = os.pipe()
        def work():
            refused = [failure(lambda: log.append_one(b"child")), failure(lambda: list(log.read()))]
            os.write(refused_end, b".")
            os.read(closed, 1)
            return [refused, log.append_one(b"child").wait().offset]
        refused_start, refused_end = os.pipe()
        wait = fork(work)
        os.read(refused_start, 1)
        log.append_one(b"parent again").wait()
        log.close()
        os.write(close, b".")
        print(json.dumps([os.getpid(), *wait()]))
        """)
    for told in refused:
        assert told.startswith("Locked: ")
        assert f"pid {pid}" in told
    assert offset == 2
    with Log(path) as log:
        assert values(log.read()) == [b"parent", b"parent again", b"child"]


# --- servers that fork --------------------------------------------------------------------------


def test_a_server_with_workers(run: Run, path: Path) -> None:
    """The parent opens the log and forks four; all of them append, read and follow, and one after
    the other is killed and replaced."""
    there, followed = run("""
        log = Log(path, flush="async", segment_bytes=8192, flush_interval="5ms")
        log.append_one(b"begin")
        def serve(name):  # says what it was promised, in a file that outlives it
            with open(f"{path}.{name}", "w", buffering=1) as promised:
                for number in range(100_000):
                    text = f"{name} {number}"
                    offset = log.append_one(text).wait().offset
                    assert next(log.read(offset)).value.decode() == text
                    promised.write(f"{offset} {text}\\n")
        def follow():
            seen = []
            for record in log.read(0, follow=True, timeout=30):
                seen.append([record.offset, record.value.decode()])
                if record.value == b"end":
                    return seen
        def start(name):
            pid = os.fork()
            if not pid:
                signal.alarm(60)
                try:
                    serve(name)
                finally:
                    os._exit(1)
            return pid
        def kill(pid):
            os.kill(pid, signal.SIGKILL)
            assert os.waitpid(pid, 0)[1] == signal.SIGKILL, "it had died before"
        followers = [fork(follow) for _ in range(2)]
        workers = [start(f"worker {n}") for n in range(4)]
        for generation in range(6):
            for number in range(30):
                log.append_one(f"parent {generation} {number}").wait()
                time.sleep(0.001)
            kill(workers.pop(generation % 3))
            workers.append(start(f"worker {4 + generation}"))
        for pid in workers:
            kill(pid)
        log.append_one(b"end")
        there = [[record.offset, record.value.decode()] for record in log.read()]
        print(json.dumps([there, [wait() for wait in followers]]))
        """)
    assert [offset for offset, _text in there] == list(range(len(there)))
    assert followed == [there, there]
    assert set(Counter(text for _offset, text in there).values()) == {1}
    parents = [text for _offset, text in there if text.startswith("parent")]
    assert parents == [f"parent {generation} {n}" for generation in range(6) for n in range(30)]
    acked = 0
    for file in path.parent.glob("log.worker *"):
        promised = [line.split(" ", 1) for line in file.read_text().split("\n")[:-1]]
        assert all(there[int(offset)][1] == text for offset, text in promised)
        name = file.name.removeprefix("log.")
        own = [text for _offset, text in there if text.startswith(f"{name} ")]
        assert own == [f"{name} {n}" for n in range(len(own))]
        assert len(own) - len(promised) in (0, 1), "one append may have been on its way"
        acked += len(promised)
    assert acked


APPLICATION = """
import os
from tailrace import Log
log = Log(os.environ["LOG"], flush="sync")  # before the workers are forked
def application(environment, start_response):
    text = environment["QUERY_STRING"]
    offset = log.append_one(text).wait().offset
    assert next(log.read(offset)).value.decode() == text
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{offset} {os.getpid()}".encode()]
"""


def ask(port: int, text: str) -> tuple[int, int]:
    """Have a worker append: the offset, and its pid. A worker that was just killed may have taken
    the connection with it, so this is tried again, with what is then another record."""
    until = time.monotonic() + WAIT
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        try:
            connection.request("GET", f"/?{text}")
            offset, pid = connection.getresponse().read().split()
            return int(offset), int(pid)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)
        finally:
            connection.close()


def test_gunicorn(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "served.py").write_text(APPLICATION)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--preload", "--workers", "3", "--bind", f"127.0.0.1:{port}", "served:application"]
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *words],
        cwd=tmp_path,
        env={**os.environ, "LOG": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.DEVNULL,
    )
    promised: dict[int, str] = {}
    workers = set()
    try:
        for number in range(60):
            offset, worker = ask(port, f"request-{number}")
            assert offset not in promised
            promised[offset] = f"request-{number}"
            workers.add(worker)
            if number % 20 == 19:
                os.kill(worker, signal.SIGKILL)
    finally:
        server.terminate()
        server.wait(WAIT)
    assert len(workers) > 1
    with Log(path) as log:
        there = {record.offset: record.value for record in log.read()}
    assert {offset: text.encode() for offset, text in promised.items()}.items() <= there.items()
    assert len(there) <= len(promised) + 3, "nobody asked for more"


# --- multiprocessing and other programs ---------------------------------------------------------


def test_multiprocessing_by_fork(run: Run, path: Path) -> None:
    answer = run("""
        import multiprocessing
        log = Log(path)
        log.append_one(b"parent").wait()
        def work(number, answers):
            answers.put([number, log.append_one(f"child {number}").wait().offset])
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        children = [context.Process(target=work, args=(n, answers)) for n in range(3)]
        for child in children:
            child.start()
        offsets = dict(answers.get(timeout=60) for _ in children)
        for child in children:
            child.join()
            assert not child.exitcode
        print(json.dumps([sorted(offsets.values()), sorted(texts(log))]))
        """)
    assert answer == [[1, 2, 3], ["child 0", "child 1", "child 2", "parent"]]


SPAWN = """
import json, multiprocessing, sys
from tailrace import Log
def work(path):
    with Log(path) as log:
        log.append_one(b"child").wait()
def never(log):
    raise AssertionError("it was passed")
if __name__ == "__main__":
    path = sys.argv[1]
    context = multiprocessing.get_context("spawn")
    with Log(path) as log:
        child = context.Process(target=work, args=(path,))
        child.start()
        child.join(60)
        try:
            context.Process(target=never, args=(log,)).start()
            told = "nothing"
        except TypeError as error:
            told = str(error)
        there = [record.value.decode() for record in log.read()]
    print(json.dumps([child.exitcode, told, there]))
"""


def test_multiprocessing_by_spawn_takes_the_path(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "spawning.py"
    program.write_text(SPAWN)
    start = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    code, told, there = run_python(start, program, path)
    assert (code, there) == (0, ["child"])
    assert told == "a Log cannot be pickled: pass its path, and open it in the other process"


def test_other_programs_inherit_nothing(path: Path, open_log: OpenLog) -> None:
    """Not even if they are told to inherit what they can."""
    log = open_log(flush="async")
    log.append_one(b"x")
    assert values(log.read()) == [b"x"]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as other:
        opened = []
        for fd in Path(f"/proc/{other.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # what it opened to start is closed again
                opened.append(os.readlink(fd))
        mapped = Path(f"/proc/{other.pid}/maps").read_text()
        other.communicate()
    assert opened
    assert not [target for target in opened if target.startswith(str(path))]
    assert str(path) not in mapped


# --- the log stays with who has it --------------------------------------------------------------


def test_copying_the_folder_does_not_drop_the_lock(run: Run, path: Path, tmp_path: Path) -> None:
    code = "print(json.dumps(failure(lambda: Log(path).close())))"
    with Log(path, exclusive=True) as log:
        log.append_one(b"x").wait()
        shutil.copytree(path, tmp_path / "copy")
        assert run(code).startswith("Locked: ")
        with pytest.raises(Locked, match="in this process"):
            Log(path)
    assert run(code) is None
    with Log(tmp_path / "copy") as copy:
        assert values(copy.read()) == [b"x"]


def test_a_log_that_is_dropped_can_be_opened_again(run: Run, path: Path) -> None:
    log = Log(path, flush="async", exclusive=True)
    log.append_one(b"x")
    del log
    with Log(path, exclusive=True) as log:
        assert values(log.read()) == [b"x"]
