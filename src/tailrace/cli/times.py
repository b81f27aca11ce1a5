"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import click

from tailrace.errors import ConfigError
from tailrace.units import is_early, parse_milliseconds

__all__ = [
    "check_range",
    "describe_early",
    "parse_delay",
    "parse_moment",
    "parse_seconds",
    "parse_time",
]


def parse_time(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Milliseconds since 1970, or a time in ISO 8601, which is in UTC if it does not say, or how
    long ago."""
    if text is None:
        return None
    try:
        return _absolute(text, _count)
    except ValueError:
        ago = _duration(text)
    if ago is None:
        raise click.BadParameter(
            f"{text!r} is neither a time such as 2026-01-31T09:26:53Z, nor milliseconds since "
            "1970, nor how long ago, such as 2h"
        )
    return _now_ms() - ago


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _count(text: str) -> int:
    try:
        return parse_milliseconds(text, "time")
    except ConfigError as error:
        raise _bad(error) from None


def _absolute(text: str, count: Callable[[str], int]) -> int:
    """`ValueError` if it is none. `count` makes milliseconds of digits."""
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        return count(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _duration(text: str) -> int | None:
    """In milliseconds. It has a unit: a bare number may mean too much."""
    from tailrace.units import parse_duration

    try:
        return parse_duration(text, "") if text[-1:].isalpha() else None
    except ConfigError:
        return None


def check_range(since: int | None, until: int | None) -> None:
    """Refuse a range of times in which nothing can be."""
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")


def parse_moment(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """The same for a time that is to come, or may be; so it is not so long ago."""
    if text is None:
        return None
    try:
        moment = _absolute(text, int)  # what is in 1970 is refused below, however it is written
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time such as 2026-01-31T09:26:53Z nor milliseconds since 1970"
        ) from None
    if wrong := describe_early(moment):
        raise click.BadParameter(wrong)
    return moment


def describe_early(milliseconds: int) -> str | None:
    """What is wrong with a time that nobody can mean."""
    if not is_early(milliseconds, _now_ms()):
        return None
    from tailrace.cli.output import as_time

    return (
        f"{milliseconds} milliseconds since 1970 are {as_time(milliseconds)}, which is long over; "
        "write a time such as 2026-01-31T09:26:53Z, or count in milliseconds"
    )


def parse_seconds(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A duration that is waited for or kept, in seconds."""
    from tailrace.units import parse_span

    return None if text is None else _in_seconds(parse_span, text, parameter)


def parse_delay(_: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The same of one whose end is looked at, not how long it is."""
    from tailrace.units import parse_duration

    return None if text is None else _in_seconds(parse_duration, text, parameter)


def _in_seconds(parse: Callable[[str, str], int], text: str, parameter: click.Parameter) -> float:
    try:
        return parse(text, parameter.opts[0]) / 1000
    except ConfigError as error:
        raise _bad(error) from None


def _bad(error: ConfigError) -> click.BadParameter:
    """Click names the option itself."""
    return click.BadParameter(str(error).partition(": ")[2])
