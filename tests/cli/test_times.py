"""Times as people write them."""

from __future__ import annotations

import time

import click
import pytest

from tailrace.cli.times import parse_moment, parse_time

CONTEXT = click.Context(click.Command("any"))
PARAMETER = click.Option(["--since"])


def parsed(text: str) -> int | None:
    return parse_time(CONTEXT, PARAMETER, text)


def test_times() -> None:
    assert parsed("2023-11-14T22:13:20Z") == parsed("2023-11-14T22:13:20") == 1_700_000_000_000
    assert parsed("1700000000000") == 1_700_000_000_000
    assert parsed("1970-01-02") == 86_400_000
    assert parsed("-5") == -5
    for early in ("0", "999", "020260131", "-20260131", "01704067200"):
        assert parsed(early) == int(early)


@pytest.mark.parametrize(("text", "ago_ms"), [("2h", 7_200_000), ("1h 30m", 5_400_000), ("0s", 0)])
def test_how_long_ago(text: str, ago_ms: int) -> None:
    before = time.time_ns() // 1_000_000
    found = parsed(text)
    assert found is not None
    assert before <= found + ago_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("text", ["soon", "", "1.5", "2 years", "h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="nor how long ago, such as 2h"):
        parsed(text)


@pytest.mark.parametrize("text", ["2030", "20260131", "1704067200"])
def test_digits_that_may_be_a_date(text: str) -> None:
    """They would be a time in 1970, before all that is there."""
    with pytest.raises(click.BadParameter, match=f"'{text}' may be .*date as 2024-01-01T00:00:00Z"):
        parsed(text)


def test_a_time_to_come_is_not_so_long_ago() -> None:
    """Whoever writes 1h may mean in an hour, for which there is --delay."""
    with pytest.raises(click.BadParameter, match="neither a time such as"):
        parse_moment(CONTEXT, PARAMETER, "1h")
    assert parse_moment(CONTEXT, PARAMETER, "1700000000000") == 1_700_000_000_000
