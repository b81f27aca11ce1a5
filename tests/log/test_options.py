"""Options: what people may write, and an error that names the key where they may not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tailrace import ConfigError, Log, aio
from tailrace.kernel import S2
from tailrace.log.options import FlushMode, LogOptions, Retention


def test_the_defaults() -> None:
    options = LogOptions.parse()
    assert options == LogOptions()
    assert options.flush is None
    assert options.segment_bytes == 64 << 20
    assert options.segment_age_ms == 168 * 3_600_000
    assert options.index_max_bytes == 10 << 20
    assert options.index_interval == 4096
    assert options.time_index_interval_ms == 1_000
    assert options.flush_interval_ms == 1_000
    assert options.retention_check_interval_ms == 300_000
    assert options.codec == 0
    assert options.max_batch_bytes == 16 << 20
    assert not options.retention


def test_everything_given() -> None:
    options = LogOptions.parse(
        flush="async",
        flush_interval="250ms",
        compression="s2",
        segment_bytes="1MiB",
        segment_age="2d",
        index_max_bytes=4096,
        index_interval="8KiB",
        time_index_interval="500ms",
        max_batch_bytes="1MB",
        retention={"max_age": "7d", "max_bytes": "1GiB", "max_records": 5},
        retention_check_interval=30,
        producer_expiry="1d",
        open_files=3,
    )
    assert options.flush is FlushMode.ASYNC
    assert options.flush_interval_ms == 250
    assert options.codec == S2
    assert options.segment_bytes == 1 << 20
    assert options.segment_age_ms == 2 * 86_400_000
    assert options.index_max_bytes == 4096
    assert options.index_interval == 8192
    assert options.time_index_interval_ms == 500
    assert options.max_batch_bytes == 1_000_000
    assert options.retention == Retention(7 * 86_400_000, 1 << 30, 5)
    assert options.retention_check_interval_ms == 30_000
    assert options.producer_expiry_ms == 86_400_000
    assert options.open_files == 3


def test_none_is_the_default() -> None:
    assert LogOptions.parse(flush=None, segment_bytes=None, retention=None) == LogOptions()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("flush", "fast", "'fast' is not one of sync, async, none"),
        ("flush", True, "True is not one of"),
        ("compression", "gzip", "'gzip' is not one of none, s2, zstd"),
        ("compression", ["s2"], "is not one of"),
        ("segment_bytes", 0, "0 is outside 1..4294967295"),
        ("segment_bytes", "4GiB", "is outside"),
        ("segment_bytes", "big", "'big' is not a size; write it as"),
        ("segment_bytes", -1, "a size cannot be -1"),
        ("segment_age", "soon", "'soon' is not a duration; write it as"),
        ("segment_age", -1, "a duration cannot be -1"),
        ("index_interval", 0, "is outside"),
        ("index_max_bytes", 63, "is outside 64"),
        ("time_index_interval", [1], "expected a duration"),
        ("max_batch_bytes", 0, "is outside"),
        ("max_batch_bytes", "1GiB", "is outside"),
        ("flush_interval", 0, "is outside"),
        ("retention_check_interval", "0s", "is outside"),
        ("producer_expiry", "x", "is not a duration"),
        ("open_files", 0, "is outside"),
        ("open_files", "3", "expected a whole number, got '3'"),
        ("open_files", True, "expected a whole number, got True"),
        ("retention", "7d", "expected a mapping such as"),
    ],
)
def test_an_error_names_the_key(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .*{message}"):
        Log(tmp_path / "log", **{key: value})
    assert not (tmp_path / "log").exists()


def test_an_unknown_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^colour: unknown option; a log takes .*flush"):
        Log(tmp_path / "log", colour="blue")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("exclusiv", "exclusive"),
        ("readonly", "read_only"),
        ("up_keep", "upkeep"),
        ("modes", "mode"),
        ("segment_byte", "segment_bytes"),
        ("flush_intervall", "flush_interval"),
    ],
)
@pytest.mark.parametrize("make", [Log, aio.Log])
def test_an_option_that_was_mistyped(make: Any, key: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: unknown option \(did you mean {meant}\?\); "):
        make(tmp_path / "log", **{key: True})
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("make", [Log, aio.Log])
def test_the_message_names_everything_that_a_log_takes(make: Any) -> None:
    """But for the file system, which is for tests."""
    with pytest.raises(ConfigError) as caught:
        make("log", colour="blue")
    known = str(caught.value).partition("a log takes ")[2].split(", ")
    parameters = inspect.signature(make).parameters.values()
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert named - {"fs"} <= set(known)
    assert known == sorted(set(known))
    for name in set(known) - named:
        LogOptions.parse(**{name: None})


# --- retention ----------------------------------------------------------------------------------


def test_the_names_of_a_queue_are_understood() -> None:
    given = {"max_age": "1h", "max_length_bytes": "1KiB", "max_length_messages": 7}
    assert Retention.parse(given) == Retention(3_600_000, 1024, 7)


def test_zero_and_none_mean_no_limit() -> None:
    for nothing in (0, None):
        given = {"max_age": nothing, "max_bytes": nothing, "max_records": nothing}
        assert Retention.parse(given) == Retention()
    assert not Retention.parse(None)
    assert Retention.parse(Retention(max_bytes=5)) == Retention(max_bytes=5)
    assert LogOptions.parse(retention=Retention(max_bytes=5)).retention.max_bytes == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_age": "old"}, "^retention.max_age: 'old' is not a duration"),
        ({"max_bytes": -1}, "^retention.max_bytes: a size cannot be -1"),
        ({"max_length_bytes": "x"}, "^retention.max_length_bytes: 'x' is not a size"),
        ({"max_records": 1.5}, "^retention.max_records: expected a whole number, got 1.5"),
        ({"max_records": -1}, "^retention.max_records: expected a whole number"),
        ({"max_count": 5}, "^retention.max_count: unknown; retention takes max_age"),
    ],
)
def test_an_error_names_the_key_in_retention(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LogOptions.parse(retention=given)


def test_modes_are_ordered_from_the_strictest() -> None:
    assert sorted(FlushMode, key=lambda mode: mode.rank) == ["sync", "async", "none"]
