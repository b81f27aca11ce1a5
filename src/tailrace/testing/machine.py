"""A machine that a test switches off: a simulated disk, and a clock.

They belong together: what ends a boot on the one ends it on the other.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tailrace.queue.store import Store
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from tailrace.testing.faults import FaultyFileSystem
from tailrace.testing.timekeeping import looking_often

__all__ = ["Machine"]


class Machine:
    """A simulated disk with a clock. Stores that are open when it dies are of no use any more.

    As long as it is on (`with`), whoever waits for messages looks now and then: the kernel knows
    nothing of a simulated disk, and would wake nobody.
    """

    def __init__(self, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(seed, clock=self.clock.wall_ms)
        self._stack = ExitStack()

    def __enter__(self) -> Machine:
        self._stack.enter_context(looking_often())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def open(self, path: str = "data", **options: Any) -> Store:
        """A store without threads of its own, as one process has it."""
        return Store(path, fs=self.disk, clock=self.clock, upkeep=False, **options)

    def open_faulty(self, path: str = "data", **options: Any) -> tuple[Store, FaultyFileSystem]:
        """The same, with a file system in between that fails by plan."""
        fs = FaultyFileSystem(self.disk)
        return Store(path, fs=fs, clock=self.clock, upkeep=False, **options), fs

    def kill(self) -> None:
        """End every process on it, without a word."""
        self.disk.kill()

    def power_cut(self, seed: int, seconds_off: float = 0.0) -> None:
        """Cut the power, and start it again: what was not synced is up to the seed."""
        self.disk.crash(seed)
        self.clock.reboot(seconds_off)
