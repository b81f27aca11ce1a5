"""Times as people give them to a table, in options and to the builder."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import datetime
from typing import Final

from tailrace.errors import ConfigError
from tailrace.units import parse_duration, parse_milliseconds

__all__ = ["parse_time", "parse_time_or_age"]

_DIGITS: Final = re.compile("-?[0-9]{1,15}")
_EXAMPLE: Final = "2026-01-31T12:00:00Z"


def parse_time(text: str, name: str) -> int:
    """Milliseconds since 1970, of such as digits or of an ISO time. `name` is for the error."""
    found = _parse(text, name)
    if found is None:
        raise ConfigError(
            f"{name}: expected milliseconds since 1970 or a time such as {_EXAMPLE}, got {text!r}"
        )
    return found


def parse_time_or_age(when: str | int | datetime, name: str) -> int:
    """Likewise, also of a number, of a `datetime`, or of how long ago it is ("2h")."""
    if isinstance(when, bool) or not isinstance(when, str | int | datetime):
        raise TypeError(f"{name} takes a time, or how long ago, not {when!r}")
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigError(
                f"{name}: {when} has no time zone; give it one: datetime(…, tzinfo=UTC)"
            )
        return round(when.timestamp() * 1000)
    if isinstance(when, int):
        try:
            return parse_milliseconds(str(when), name)
        except ConfigError as error:
            raise ConfigError(f"{error}, as text: '0{when}'") from None
    found = _parse(when, name)
    if found is not None:
        return found
    if re.search("[A-Za-z]", when):  # without a unit it would be seconds
        with contextlib.suppress(ConfigError):
            found = time.time_ns() // 1_000_000 - parse_duration(when, name)
    if found is not None and _DIGITS.fullmatch(str(found)):  # which the option takes
        return found
    raise ConfigError(
        f"{name}: expected how long ago, such as 2h or 7d, a time such as {_EXAMPLE}, or "
        f"milliseconds since 1970, got {when!r}"
    )


def _parse(text: str, name: str) -> int | None:
    """`None` if it is no time at all."""
    if _DIGITS.fullmatch(text):
        return parse_milliseconds(text, name)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        in_utc = f"{moment.isoformat()}Z"  # "2026-01-31Z" would be taken for a date without a zone
        raise ConfigError(f"{name}: {text!r} has no time zone; write {in_utc} for UTC")
    return round(moment.timestamp() * 1000)
