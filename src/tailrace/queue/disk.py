"""How full the disk may get, and what then.

Above `max_used_ratio` everything goes at once that retention lets go, whatever the hour; with
`force` the oldest segments go too, as far as nobody has their messages. Above `refuse_ratio`
publishing is refused until there is room again; not before what may go is gone, unless that takes
long. As long as `enough_free` bytes are free, neither counts: a ratio that nobody chose says little
of a large disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from tailrace.errors import ConfigError, Full
from tailrace.log.fs import FileSystem
from tailrace.units import parse_size

__all__ = ["DiskSettings", "DiskWatch", "Level"]

_LOOK_AGAIN_S: Final = 1.0
_WORDS: Final = ("always", "disk_full")
_ENOUGH_FREE: Final = 10 * 2**30  # for ratios that nobody has given


class Level(IntEnum):
    """How full the disk is."""

    FINE = 0
    HIGH = 1  # what may go, goes
    REFUSING = 2  # nothing more is published


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Of a store. `delete_when` is "always", "disk_full", or the hours of the day, by the local
    clock, in which retention may delete, such as "04;16". `enough_free` is 10 GiB if nobody says,
    and nothing if somebody gives a ratio: that is meant."""

    max_used_ratio: float = 0.85
    refuse_ratio: float = 0.90
    enough_free: int = _ENOUGH_FREE
    force: bool = False
    delete_when: str = "always"

    @classmethod
    def parse(cls, given: Any) -> DiskSettings:
        """From what people write: a mapping of some of the keys."""
        if given is None:
            return cls()
        if isinstance(given, DiskSettings):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"disk: expected a mapping, got {given!r}")
        known = [each.name for each in fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigError(f"disk.{key}: unknown option; disk takes {', '.join(known)}")
        new = {k: v for k, v in given.items() if k != "enough_free" or v is not None}
        for key in ("max_used_ratio", "refuse_ratio"):
            if key in new:
                new[key] = _ratio(new[key], f"disk.{key}")
        if "enough_free" in new:
            new["enough_free"] = parse_size(new["enough_free"], "disk.enough_free")
        elif "max_used_ratio" in new or "refuse_ratio" in new:  # it is meant, whatever it is
            new["enough_free"] = 0
        if not isinstance(new.get("force", False), bool):
            raise ConfigError(f"disk.force: expected true or false, got {new['force']!r}")
        if "delete_when" in new:
            new["delete_when"] = str(new["delete_when"]).strip()
            _hours(new["delete_when"])
        settings = cls(**new)
        if settings.refuse_ratio < settings.max_used_ratio:
            raise ConfigError(
                f"disk.refuse_ratio: {settings.refuse_ratio} is below disk.max_used_ratio, "
                f"{settings.max_used_ratio}: publishing would be refused before anything is deleted"
            )
        return settings

    def counts(self, free: int) -> bool:
        """Do the ratios count, when so many bytes are free?"""
        return not self.enough_free or free < self.enough_free

    def may_delete(self, wall_ms: int) -> bool:
        """Is it the time for retention, if the disk is not too full?"""
        if self.delete_when in _WORDS:
            return self.delete_when == "always"
        return time.localtime(wall_ms / 1000).tm_hour in _hours(self.delete_when)


def _ratio(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"{key}: expected a ratio above 0 and up to 1, got {value!r}")
    return float(value)


def _hours(text: str) -> frozenset[int]:
    if text in _WORDS:
        return frozenset()
    parts = [part.strip() for part in text.split(";")]
    if not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        raise ConfigError(
            f"disk.delete_when: expected 'always', 'disk_full' or hours such as '04;16', got "
            f"{text!r}"
        )
    return frozenset(map(int, parts))


class DiskWatch:
    """The disk that a store is on. Thread-safe: two who look at once see the same."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        settings: DiskSettings,
        relieve: Callable[[Level], None] | None = None,
    ) -> None:
        """`relieve` makes room, or has it made, for one who publishes and has found it so full."""
        self.settings = settings
        self._fs = fs
        self._folder = folder
        self._relieve = relieve
        self._looked_s = -_LOOK_AGAIN_S
        self._level = Level.FINE

    def measure(self) -> Level:
        """How full it is now. Who publishes goes by the last `look`."""
        settings, space = self.settings, self._fs.space(self._folder)
        ratio = 1 - space.free / space.total if space.total else 0.0
        if settings.counts(space.free):
            if ratio >= settings.refuse_ratio:
                return Level.REFUSING
            if ratio >= settings.max_used_ratio:
                return Level.HIGH
        return Level.FINE

    def look(self) -> Level:
        """How full it is now, also for those who publish."""
        return self._note(self.measure())

    def _note(self, level: Level) -> Level:
        self._level, self._looked_s = level, time.monotonic()
        return level

    def check(self) -> None:
        """Before each publish: `Full` if nothing is to be published, as of a second ago at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_AGAIN_S:
            self._looked_s = now_s  # the others go by what was known, until we have seen to it
            level = self.measure()
            if level is not Level.FINE and self._relieve is not None:
                self._relieve(level)
                level = self.measure()
            self._note(level)
        if self._level is Level.REFUSING:
            raise Full(
                f"the disk of {self._folder} is fuller than disk.refuse_ratio allows "
                f"({self.settings.refuse_ratio:.0%}): free some space, consume, or raise it"
            )
