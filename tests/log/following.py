"""What the tests of following share: a writer in another process that does as it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.log.helpers import WAIT, eventually

# Does one thing per line of its input, and answers each with a line: the log's next offset. `stop`
# appends until the turn to write is kept from one append to the next, and then stops the process.
_WRITER = """
import json, os, signal, sys
from tailrace import Log

log = Log(sys.argv[1], **json.loads(sys.argv[2]))
print(log.end_offset, flush=True)
for line in sys.stdin:
    verb, *numbers = line.split()
    if verb == "append":
        for _ in range(int(numbers[0])):
            receipt = log.append_one(b"%d" % log.end_offset)
        receipt.wait()
    elif verb == "start":
        log.append_one(b"%d" % log.end_offset)
    elif verb == "batch":
        first = log.end_offset
        log.append([b"%d" % (first + n) for n in range(int(numbers[0]))]).wait()
    elif verb == "truncate":
        log.truncate_before(int(numbers[0]))
        log.vacuum()
    elif verb == "stop":
        was_held = False
        while not was_held:
            log.append_one(b"%d" % log.end_offset)
            with log._writer.lock:  # so that nobody gives it back
                was_held = log._writer.turn.held
                if was_held:
                    os.kill(os.getpid(), signal.SIGSTOP)
    print(log.end_offset, flush=True)
log.close()
"""

# Appends a record, the next only when somebody has confirmed the last.
_PING = """
import json, os, sys
from tailrace import Log

with Log(sys.argv[1], **json.loads(sys.argv[2])) as log:
    for number in range(int(sys.argv[3])):
        log.append_one(b"%d" % number).wait()
        if not os.read(0, 1):
            break
"""


class OtherProcess:
    """A process that has the log open for writing. Every record's value is its offset."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the writer is gone"
        return int(answer)

    def tell(self, verb: str, *numbers: int) -> None:
        """Have it do something, without waiting for it."""
        assert self._process.stdin is not None
        print(verb, *numbers, file=self._process.stdin, flush=True)

    def do(self, verb: str, *numbers: int) -> int:
        """Have it do something. Returns the offset that the next record gets."""
        self.tell(verb, *numbers)
        return self._answer()

    def append(self, count: int = 1) -> int:
        """Records one by one, durable as the flush mode promises."""
        return self.do("append", count)

    def stop_with_the_turn(self) -> None:
        """Stop it while it has the turn to write."""
        self.tell("stop")
        eventually(lambda: _state(self._process.pid) == "T")

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
        self._answer()

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Have it close its log, and end."""
        self._process.communicate(timeout=WAIT)
        assert self._process.returncode == 0

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            if error is None:
                self.close()
            else:
                self.kill()


def _state(pid: int) -> str:
    """Whether a process runs (R), sleeps (S) or is stopped (T)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Ping:
    """A process that appends `count` records, each when the one before was confirmed."""

    def __init__(self, path: Path, count: int, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PING, str(path), json.dumps(options), str(count)],
            stdin=subprocess.PIPE,
        )

    def confirm(self) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), b"x")

    def __enter__(self) -> Ping:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate(timeout=WAIT)
        assert error is not None or self._process.returncode == 0
