"""Time that a test makes pass.

Leases and delays are tested by telling a clock to go on, never by waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tailrace.queue.timers import TICK_MS
from tailrace.units import parse_duration

__all__ = ["ManualClock"]

_WALL_MS: Final = 1_700_000_000_000
_BOOT_MS: Final = 1_000 * TICK_MS
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ManualClock:
    """Both clocks of a store, which stand still until they are told otherwise.

    Leases, retries, delays, times to live, timestamps and retention by age go by it in each store
    that was opened with `clock=…`. `on_change` is called when it was moved. Times are whole
    milliseconds, and those of leases and retries are rounded up to the next 16.
    """

    def __init__(
        self, wall_ms: int = _WALL_MS, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """`wall_ms`: the time of day that it begins with, in milliseconds since 1970."""
        self.on_change = on_change
        self._boot_ms = _BOOT_MS
        self._wall_ms = wall_ms

    def boot_ms(self) -> int:
        """Milliseconds since the machine was started."""
        return self._boot_ms

    def wall_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        return self._wall_ms

    def now(self) -> datetime:
        """The time of day, as a datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self._wall_ms)

    def advance(self, seconds: float | str) -> None:
        """Let so much time pass: seconds, or a duration such as `"5m"`. It never runs backwards;
        `set_wall` is for a clock that somebody sets back."""
        if isinstance(seconds, str):
            milliseconds = parse_duration(seconds, "advance")
        else:
            milliseconds = round(seconds * 1000)
        if milliseconds < 0:
            raise ValueError(
                f"advance: {seconds} seconds, but time does not run backwards; set_wall sets the "
                "time of day back"
            )
        self._boot_ms += milliseconds
        self._wall_ms += milliseconds
        self.on_change()

    def set_wall(self, when: int | datetime) -> None:
        """Somebody sets the time of day (milliseconds since 1970, or a datetime with a time zone),
        forwards or back; the boot clock, by which leases go, knows nothing of it."""
        if isinstance(when, datetime):
            if when.utcoffset() is None:
                raise ValueError(
                    f"{when!r} has no time zone, so it may be any of many moments; give it one, as "
                    "when.astimezone() does"
                )
            when = (when - _EPOCH) // timedelta(milliseconds=1)
        self._wall_ms = when
        self.on_change()

    def reboot(self, seconds_off: float = 0.0) -> None:
        """The boot clock starts anew; the other has gone on meanwhile."""
        self._boot_ms = _BOOT_MS
        self._wall_ms += round(seconds_off * 1000)

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"
