"""Commands in processes of their own that need not start an interpreter and import everything.

That is nine tenths of what a small command costs. A server has done it once and forks for each:
what runs then has its own streams, folder and environment, writes and exits as any other process,
and ends as an interpreter does. test_every_command.py starts each command as people do.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PIPE_BYTES = 1 << 16  # as much as a pipe takes while nobody reads
MODULES = ("tailrace.cli", "tailrace.config", "tailrace.log", "tailrace.queue")
WITH_PYARROW = ("tailrace.spark.jobs", "tailrace.spark.lake")  # starts no thread until it is used
CODE = """\
from tests.cli.forking import serve
serve({descriptor})
from tailrace.cli import main
main()
"""


class Server:
    """Forks commands, one after the other or several at a time. It starts when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment = dict(os.environ)

    def can_run(self, given: bytes, environment: Mapping[str, str]) -> bool:
        """Whether it would be as in a new process: what is read at its start is as it was here."""
        return len(given) <= PIPE_BYTES and _at_start(environment) == _at_start(self._environment)

    def run(
        self,
        arguments: Sequence[str],
        given: bytes = b"",
        *,
        folder: Path,
        environment: Mapping[str, str],
        timeout: float,
    ) -> tuple[int, bytes, bytes]:
        """The exit code, and what it wrote on its two streams."""
        request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
        stdin, given_end = os.pipe()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        mine, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        written = {out: bytearray(), err: bytearray()}
        try:
            os.write(given_end, given)
            os.close(given_end)
            theirs = [stdin, out_end, err_end, report.detach()]
            try:
                socket.send_fds(self._connection(), [request], theirs)
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            pid = int(mine.recv(100))
            if not _collect(written, time.monotonic() + timeout):
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["tailrace", *arguments], timeout)
            return int(mine.recv(100)), bytes(written[out]), bytes(written[err])
        finally:
            mine.close()
            os.close(out)
            os.close(err)

    def close(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(60)
            self._process = self._socket = None

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", CODE.format(descriptor=theirs.fileno())],
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
        return self._socket


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter and our kernel read once."""
    once = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "TAILRACE_KERNEL", "COVERAGE")
    return {name: value for name, value in environment.items() if name.startswith(once)}


def _collect(written: Mapping[int, bytearray], deadline: float) -> bool:
    """Read until the other ends are closed; whether they were in time."""
    open_ends = set(written)
    while open_ends:
        ready, _, _ = select.select(list(open_ends), [], [], max(0, deadline - time.monotonic()))
        if not ready:
            return False
        for descriptor in ready:
            data = os.read(descriptor, PIPE_BYTES)
            written[descriptor].extend(data)
            if not data:
                open_ends.discard(descriptor)
    return True


# --- in the server --------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Returns in each process that is to be a command, with its arguments in `sys.argv`."""
    has_pyarrow = importlib.util.find_spec("pyarrow") is not None
    for name in (*MODULES, *WITH_PYARROW) if has_pyarrow else MODULES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end the server
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who mind the commands
    requests = socket.socket(fileno=descriptor)
    while True:
        request, theirs, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for each in theirs:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, reported = theirs
    pid = os.fork()
    if pid != 0:
        _mind(pid, streams, reported)
    os.close(reported)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, folder, environment = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = ["tailrace", *arguments]


def _mind(pid: int, streams: Sequence[int], reported: int) -> None:
    """Say who it is and how it ended. Does not return."""
    for stream in streams:
        os.close(stream)
    with socket.socket(fileno=reported) as report:
        report.send(b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        report.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)
