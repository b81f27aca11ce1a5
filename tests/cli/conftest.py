"""What the tests of the command line share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tailrace import Log, Record
from tailrace.cli import main
from tests.cli.forking import Server

SERVER = Server()

T0 = 1_700_000_000_000

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a command in this process."""

    def run_it(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run_it


@pytest.fixture(scope="session", autouse=True)
def _server() -> Iterator[None]:
    yield
    SERVER.close()


def tailrace(
    *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return _run(arguments, b"", folder=Path.cwd(), environment={**os.environ, **(env or {})})


def _run(
    arguments: tuple[object, ...], given: bytes, *, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    words = list(map(str, arguments))
    if SERVER.can_run(given, environment):
        code, out, err = SERVER.run(
            words, given, folder=folder, environment=environment, timeout=60
        )
        return subprocess.CompletedProcess(words, code, out.decode(), err.decode())
    done = subprocess.run(
        command(*words),
        cwd=folder,
        env=environment,
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return subprocess.CompletedProcess(
        words, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def command(*arguments: object) -> list[str]:
    code = "import sys; from tailrace.cli import main; sys.argv[0] = 'tailrace'; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def lines(result: Result) -> list[dict[str, Any]]:
    """The JSON objects that a command wrote; every line is one."""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log of several segments, with an index entry for every other batch."""
    path = tmp_path / "log"
    with Log(path, upkeep=False, segment_bytes=600, index_interval=100) as log:
        for i in range(12):
            record = Record(timestamp=T0 + 2_000 * i, key="k", value=b"value %d" % i)
            log.append([record, b"\xff\x00", ("k", None, {"h": b"\x01", "t": b"text"})]).wait()
    return path


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))


def pid_of_nobody() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


# --- stores ---------------------------------------------------------------------------------


class Shell:
    """A folder in which commands run, each in a process of its own; the store is `data` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "data"
        self.environment = {k: v for k, v in os.environ.items() if k != "TAILRACE_STORE"}

    def __call__(
        self, *arguments: object, stdin: str | bytes | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = stdin.encode() if isinstance(stdin, str) else stdin or b""
        environment = {**self.environment, **environment}
        return _run(arguments, given, folder=self.folder, environment=environment)

    def ok(self, *arguments: object, stdin: str | bytes | None = None) -> str:
        """What a command writes that succeeds."""
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def items(self, *arguments: object, stdin: str | bytes | None = None) -> list[dict[str, Any]]:
        """The JSON objects that it writes."""
        written = self.ok(*arguments, "--json", stdin=stdin)
        return [json.loads(line) for line in written.splitlines()]

    def refused(self, *arguments: object, stdin: str | bytes | None = None) -> str:
        """The one line that a command says which cannot do its work."""
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 2, done.stdout
        assert done.stderr.startswith("tailrace: "), done.stderr
        assert done.stderr.count("\n") == 1
        return done.stderr.removeprefix("tailrace: ").rstrip()

    def started(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def files(self) -> dict[Path, tuple[int, int]]:
        """Everything there is, with its size and time."""
        found = {path: path.stat() for path in self.store.rglob("*")}
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
