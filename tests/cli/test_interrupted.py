"""Ctrl-C of commands that take their time: they end quietly, and everything goes on after it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib

import pyarrow.parquet as pq
import pytest

import tailrace
from tests.cli.conftest import Shell
from tests.project import ROOT

LETTERS = 5

# The command gets its signal when it opens a file for the n-th time, or brings the n-th letter
# back: a signal from outside comes at another moment each time.
CODE = """
import os, signal, sys
from tailrace.cli import main
from tailrace.log.fs import OsFileSystem
from tailrace.queue.redriving import Redriving

owner, name = {"open": (OsFileSystem, "open"), "revive": (Redriving, "_revive")}[sys.argv.pop(1)]
inner, left = getattr(owner, name), int(sys.argv.pop(1))

def counted(*arguments, **options):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGINT)
    return inner(*arguments, **options)

setattr(owner, name, counted)
sys.argv[0] = "tailrace"
main()
"""


def interrupted(shell: Shell, call: str, number: int, *arguments: object) -> tuple[str, str]:
    """What a command writes that is interrupted at the n-th call."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, call, str(number), *map(str, arguments)],
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr  # as Python says of errors that nobody can handle
    return done.stdout, done.stderr


@pytest.fixture
def queue(shell: Shell) -> str:
    """One with dead letters, and segments that may go; and another one."""
    with tailrace.open(shell.store, upkeep=False, segment_bytes=200) as store:
        queue = store.queue("q")
        for number in range(3 * LETTERS):
            queue.publish(b"%d" % number)
        consumer = queue.consumer("g")
        for message in consumer.receive(LETTERS):
            message.reject("no")
        consumer.ack(consumer.receive(LETTERS))
        store.queue("other").publish(b"x")
    return "q"


def check_usable(shell: Shell, queue: str, store: str = "data") -> None:
    """Nothing is held or damaged, and all that there was is there."""
    assert shell("verify", store).returncode == 0
    with tailrace.open(shell.folder / store, upkeep=False) as opened:
        opened.get(queue).publish(b"new")
        opened.redrive(queue)
        found = opened.consumer(queue, "g").receive(9 * LETTERS)
    ready = [*range(LETTERS), *range(2 * LETTERS, 3 * LETTERS)]
    assert {message.value for message in found} == {b"new", *(b"%d" % each for each in ready)}
    assert len(found) == len(ready) + 1


def test_redrive_says_what_has_come_back(shell: Shell, queue: str) -> None:
    assert interrupted(shell, "revive", 1, "redrive", queue) == ("", "")
    written = interrupted(shell, "revive", 4, "redrive", queue)
    assert written == ("", f"{queue}: 3 dead letters brought back\n")
    assert len(shell.items("dead", queue)) == LETTERS - 3
    assert shell.ok("redrive", queue, "--limit", 1) == f"{queue}: 1 dead letter brought back\n"
    check_usable(shell, queue)


@pytest.mark.parametrize("number", [1, 7, 20])
@pytest.mark.parametrize("command", [["vacuum"], ["vacuum", "q"], ["verify", "data"]], ids=" ".join)
def test_anywhere(shell: Shell, queue: str, command: list[str], number: int) -> None:
    _, errors = interrupted(shell, "open", number, *command)
    assert errors == ""
    check_usable(shell, queue)


@pytest.mark.parametrize("number", [1, 7, 40])
def test_restore_backup(shell: Shell, queue: str, number: int) -> None:
    """Nothing is left of it, and it can be done again."""
    shell.ok("backup", "b")
    command = ["restore-backup", "b", "--store", "restored"]
    assert interrupted(shell, "open", number, *command) == ("", "")
    folder = shell.folder / "restored"
    assert not folder.exists() or not list(folder.iterdir())
    shell.ok(*command)
    check_usable(shell, queue, "restored")


@pytest.mark.parametrize("number", [1, 20, 45, 70])
def test_archive(shell: Shell, queue: str, number: int) -> None:
    """The next run goes on, and everything is there once."""
    command = ["archive", queue, "--to", "lake", "--delete"]
    _, errors = interrupted(shell, "open", number, *command)
    assert errors == ""
    shell.ok(*command)
    with tailrace.open(shell.store, upkeep=False) as store:
        log = store.get(queue).log
        last = [record.offset for record in log.read(log.start_offset)]
    archived = pq.read_table(shell.folder / "lake").column("offset").to_pylist()
    assert archived == list(range(len(archived)))
    assert set(archived) | set(last) == set(range(3 * LETTERS))
    assert not list((shell.folder / "lake" / "_tailrace" / "staging").iterdir())
    check_usable(shell, queue)


# The command gets its signal while it sees to what is due, which takes long.
SLOW = """
import os, sys, threading, time
from tailrace.cli import main
from tailrace.queue.delays import Delays

def deliver(delays):
    if threading.current_thread() is threading.main_thread():
        with delays._turn():
            os.kill(os.getpid(), signum)
            time.sleep(600)

signum = int(sys.argv.pop(1))
Delays.deliver = deliver
sys.argv[0] = "tailrace"
main()
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_consume_while_it_opens(shell: Shell, queue: str, signum: int) -> None:
    shell.ok("publish", queue, "later", "--delay", "1h")
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(int(signum)), "consume", queue, "-g", "g"],
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signum, "", "")
    check_usable(shell, queue)


@pytest.mark.parametrize("number", [1, 7, 20, 30])
def test_consume_anywhere(shell: Shell, queue: str, number: int) -> None:
    written = interrupted(shell, "open", number, "consume", queue, "-g", "g", "--no-ack")
    assert written == ("", "")
    check_usable(shell, queue)


# --- before it has begun --------------------------------------------------------------------

# The signal comes when this module is looked for.
EARLY = """
import os, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == wanted:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
if sys.argv.pop(1) == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Finder)
sys.argv[0] = "tailrace"
from tailrace.__main__ import main
main()
"""


def early(module: str, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", EARLY, module, how, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [
        "click",
        "click.core",
        "tailrace.cli.lazy",
        "tailrace.kernel",  # which the root command imports while it reads its options
    ],
)
def test_the_first_moments(module: str) -> None:
    done = early(module, "minded")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_in_the_background_it_is_ignored() -> None:
    """As a shell has it for commands that end in `&`."""
    done = early("click", "ignored")
    assert done.returncode == 0
    assert done.stdout.startswith("tailrace ")
    assert done.stderr == ""


def test_the_command_is_what_is_tested_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"tailrace": "tailrace.__main__:main"}
