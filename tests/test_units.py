"""Durations and sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace import ConfigError
from tailrace.units import format_size, parse_duration, parse_milliseconds, parse_size


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        (0, 0),
        (1, 1_000),
        (1.5, 1_500),
        (0.0004, 1),
        (1e-300, 1),
        (0.0, 0),
        (-0.0, 0),
        ("0.4ms", 1),
        ("0.000000001", 1),
        ("0.2ms 0.2ms", 1),
        ("0.0s", 0),
        ("00ms", 0),
        (0.25, 250),
        ("30", 30_000),
        ("1.5", 1_500),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("168h", 168 * 3_600_000),
        ("7d", 7 * 86_400_000),
        ("2w", 14 * 86_400_000),
        ("1h30m", 5_400_000),
        ("1h 30m 5s", 5_405_000),
        ("1.5h", 5_400_000),
        (" 30 S ", 30_000),
        ("0s", 0),
    ],
)
def test_durations(given: str | float, milliseconds: int) -> None:
    assert parse_duration(given, "key") == milliseconds


@pytest.mark.parametrize(
    "given",
    [
        "",
        "s",
        "soon",
        "-5s",
        "5 parsecs",
        "5s later",
        "1e3",
        "5,5s",
        "inf",
        "nan",
        "9" * 400,
        "9" * 400 + "s",
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        2**50,
        True,
        None,
        [5],
        b"5s",
    ],
)
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment_age: "):
        parse_duration(given, "segment_age")


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("64KiB", 65_536),
        ("64k", 65_536),
        ("64KB", 64_000),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("1TiB", 1 << 40),
        ("1tb", 10**12),
        (" 10 mib ", 10 << 20),
        (str(2**53 + 1), 2**53 + 1),
    ],
)
def test_sizes(given: str | int, size: int) -> None:
    assert parse_size(given, "key") == size


@pytest.mark.parametrize(
    "given",
    ["", "MiB", "big", "-1", "5 XB", "1e6", "5MiB more", "9" * 400, -1, 1.5, True, None, [5], b"5"],
)
def test_what_is_no_size(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^segment_bytes: "):
        parse_size(given, "segment_bytes")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (64 << 20, "64.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize("text", ["0", "-2030", "999", "20301", "02030", "1704067200000", "9" * 15])
def test_milliseconds(text: str) -> None:
    assert parse_milliseconds(text, "key") == int(text)


@pytest.mark.parametrize(
    ("text", "meant"), [("2030", "a date"), ("20260131", "a date"), ("1704067200", "seconds")]
)
def test_what_may_be_another_time(text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"^key: '{text}' may be {meant} or milliseconds"):
        parse_milliseconds(text, "key")
