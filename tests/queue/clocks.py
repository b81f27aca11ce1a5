"""Time that a test makes pass, and a machine that it switches off.

Leases and delays are tested by telling a clock to go on, never by waiting. A `Machine` is a disk
and a clock that belong together: what ends a boot on the one ends it on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any
from unittest import mock

from tailrace import Store
from tailrace.log.watch import Watch
from tailrace.testing import FaultyFileSystem, SimulatedDisk

__all__ = ["TICK_MS", "Machine", "ManualClock"]

TICK_MS = 16  # times are rounded up to these, so those that are multiples of it are kept exactly
_WALL_MS = 1_700_000_000_000
_BOOT_MS = 1_000 * TICK_MS


class ManualClock:
    """Both clocks of a queue, which stand still until they are told otherwise."""

    def __init__(self) -> None:
        self._boot_ms = _BOOT_MS
        self._wall_ms = _WALL_MS

    def boot_ms(self) -> int:
        return self._boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        milliseconds = round(seconds * 1000)
        self._boot_ms += milliseconds
        self._wall_ms += milliseconds

    def set_wall(self, wall_ms: int) -> None:
        """Somebody sets the time of day; the boot clock knows nothing of it."""
        self._wall_ms = wall_ms

    def reboot(self, seconds_off: float = 0.0) -> None:
        """The boot clock starts anew; the other has gone on meanwhile."""
        self._boot_ms = _BOOT_MS
        self._wall_ms += round(seconds_off * 1000)


class _Unwatched:
    """The watch of a file that is on no real disk: whoever waits is told at once to look."""

    is_looking = False

    def __init__(self) -> None:
        self.closed = False

    def wait(self, timeout: float | None = None) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


def _watch(*paths: str, names_in: Sequence[str] = ()) -> Watch | _Unwatched:
    try:
        return Watch(*paths, names_in=names_in)
    except FileNotFoundError:
        return _Unwatched()


class Machine:
    """A simulated disk with a clock. Stores that are open when it dies are of no use any more.

    As long as it is on (`with`), watches of files that are nowhere else are let pass: the kernel
    knows nothing of a simulated disk, so consumers look without waiting there.
    """

    def __init__(self, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(seed, clock=self.clock.wall_ms)
        self._unwatched = mock.patch("tailrace.log.follow.Watch", _watch)

    def __enter__(self) -> Machine:
        self._unwatched.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unwatched.stop()

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
