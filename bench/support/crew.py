"""A crew: processes that work together, started once for a row and told what to do.

They begin at the same moment, which a clock that they share tells them, and work for the same time.
The rate is that of all their records over the time from when the first began to when the last was
done; so one that has to wait too long for its turn makes it worse.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from bench.support.writing import Tool
from tailrace.cli.measure import Sample

__all__ = ["Crew", "CrewError"]

ROOT = Path(__file__).resolve().parent.parent.parent
_LEAD_NS = 5_000_000  # from the order to the beginning: all have to have read it by then
_END_SECONDS = 10.0


class CrewError(Exception):
    """A process could not do what it was told."""


class Crew:
    """So many processes. They do not outlive the `with` block, nor us."""

    def __init__(self, size: int) -> None:
        command = [sys.executable, "-m", "bench.support.worker"]
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for _ in range(size):
                self._processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, member: int, do: str, **order: Any) -> dict[str, Any]:
        """Have one process do something, and wait for the answer."""
        return self.ask_all([member], do, **order)[0]

    def ask_all(self, members: Sequence[int], do: str, **order: Any) -> list[dict[str, Any]]:
        """Have several do the same at the same time."""
        for member in members:
            pipe = self._processes[member].stdin
            assert pipe is not None
            pipe.write(json.dumps({"do": do, **order}) + "\n")
            pipe.flush()
        answers = [self._answer(member) for member in members]  # of all, or the next ones mix up
        for answer in answers:
            if "failure" in answer:
                raise CrewError(answer["failure"])
        return answers

    def _answer(self, member: int) -> dict[str, Any]:
        pipe = self._processes[member].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            return {"failure": "a process has ended before its time"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    @contextlib.contextmanager
    def opened(self, members: Sequence[int], folder: Path, tool: Tool) -> Iterator[None]:
        """With the tool open in each of them, one after the other: the first makes the files."""
        try:
            for member in members:
                self.ask(member, "open", folder=str(folder), **asdict(tool))
            yield
        finally:
            self.ask_all(members, "close")

    def write(self, writers: int, folder: Path, tool: Tool, seconds: float) -> Sample:
        """Have so many write at the same time, in the same place."""
        members = range(writers)
        with self.opened(members, folder, tool):
            start = perf_counter_ns() + _LEAD_NS
            answers = self.ask_all(members, "put", start=start, seconds=seconds)
        return _together(answers)

    def drain(self, workers: int, folder: Path, kind: str, size: int, seconds: float) -> Sample:
        """Have so many claim and settle, in batches of a size, until the queue in the folder has
        no more or the time is over. `kind` is as in `bench.support.queueing`."""
        members = range(workers)
        try:
            for member in members:
                self.ask(member, "join", folder=str(folder), kind=kind, size=size)
            start = perf_counter_ns() + _LEAD_NS
            answers = self.ask_all(members, "drain", start=start, seconds=seconds)
        finally:
            self.ask_all(members, "close")
        return _together(answers)

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()


def _together(answers: list[dict[str, Any]]) -> Sample:
    """One run of all: from when the first began to when the last was done."""
    began = min(answer["began"] for answer in answers)
    ended = max(answer["ended"] for answer in answers)
    parts = [answer["records"] for answer in answers]
    latencies = array("q")
    for answer in answers:
        latencies.extend(answer["latencies"])
    used = {"cpu_seconds": sum(answer["cpu_seconds"] for answer in answers)}
    return Sample(sum(parts), (ended - began) / 1e9, latencies, used, parts)
