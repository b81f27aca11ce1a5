"""Settings of queues: what people write, what is refused, and what may change later."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigError, InvalidName
from tailrace.log.options import FlushMode, LogOptions, Retention
from tailrace.queue.settings import (
    LOG_OPTIONS,
    DeadLetters,
    Limits,
    QueueSettings,
    Retry,
)

create = QueueSettings.create


# --- creation -------------------------------------------------------------------------------


def test_defaults() -> None:
    settings = create("orders")
    assert settings == QueueSettings(
        "orders", topics=("$queue/orders/#",), incarnation=settings.incarnation
    )
    assert len(bytes.fromhex(settings.incarnation)) == 16
    assert settings.limits == Limits(10 * 2**20, 0, 0, "raise")
    assert settings.retry == Retry(10, 5_000, 300_000, 2.0)
    assert settings.dlq == DeadLetters(True, "", False)
    assert not settings.retention
    assert settings.log_arguments() == {"flush": None, "compression": "s2"}


def test_everything_as_people_write_it() -> None:
    settings = create(
        "events",
        "stream",
        topics=["$queue/events/#", "m/+/temp", "$queue/events/#"],
        flush="async",
        limits={
            "max_message_size": "1MiB",
            "max_depth": 100_000,
            "message_ttl": "168h",
            "on_full": "block",
        },
        visibility_timeout="1m",
        retry={"max_retries": 3, "initial_backoff": 1, "max_backoff": "1m", "multiplier": 3},
        dlq={"enabled": False, "topic": "dead/events", "expired": True},
        retention={"max_age": "7d", "max_length_bytes": "1GiB", "max_length_messages": 0},
        primary_group="workers",
        expires_after="10s",
        reserved=True,
        compression="zstd",
        segment_bytes="1MiB",
        segment_age="1h",
        compact_after=500,
        auto_commit_interval="250ms",
    )
    assert settings == QueueSettings(
        "events",
        "stream",
        ("$queue/events/#", "m/+/temp"),
        FlushMode.ASYNC,
        Limits(2**20, 100_000, 604_800_000, "block"),
        60_000,
        Retry(3, 1_000, 60_000, 3.0),
        DeadLetters(False, "dead/events", True),
        Retention(604_800_000, 2**30, None),
        "workers",
        expires_after_ms=10_000,
        reserved=True,
        compression="zstd",
        log_options=(("segment_age", "3600000ms"), ("segment_bytes", 2**20)),
        compact_after=500,
        auto_commit_interval_ms=250,
        incarnation=settings.incarnation,
    )
    log = LogOptions.parse(**settings.log_arguments())
    assert (log.segment_bytes, log.segment_age_ms) == (2**20, 3_600_000)


def test_the_example_of_fluxmqs_manual() -> None:
    settings = create(
        "orders",
        topics=["$queue/orders/#"],
        primary_group="",
        replication={
            "enabled": False,
            "group": "",
            "mode": "sync",
            "ack_timeout": "5s",
            "replication_factor": 3,
            "min_in_sync_replicas": 2,
        },
        limits={"max_message_size": 10485760, "max_depth": 100000, "message_ttl": "168h"},
        retry={"max_retries": 10, "initial_backoff": "5s", "max_backoff": "5m", "multiplier": 2.0},
        dlq={"enabled": True, "topic": ""},
        retention={"max_age": "168h", "max_length_bytes": 0, "max_length_messages": 0},
    )
    assert settings.limits == Limits(max_depth=100_000, message_ttl_ms=604_800_000)
    assert settings.retry == Retry()
    assert settings.retention == Retention(max_age_ms=604_800_000)


def test_defaults_of_a_store_come_second() -> None:
    defaults = {
        "flush": "async",
        "compression": "zstd",
        "limits": {"max_depth": 5, "on_full": "block"},
        "segment_bytes": "1MiB",
        "retry": None,
    }
    settings = create("orders", "classic", defaults, limits={"max_depth": 7}, compression=None)
    assert settings.flush is FlushMode.ASYNC
    assert settings.compression == "zstd"
    assert settings.limits == Limits(max_depth=7, on_full="block")
    assert settings.log_options == (("segment_bytes", 2**20),)
    assert create("orders", "classic", defaults, flush="sync").flush is FlushMode.SYNC


@pytest.mark.parametrize(
    ("topic", "topics"),
    [
        ("orders", None),
        ("$queue/orders", None),
        ("$queue/orders/dead", None),
        ("$queue/orders/dead", ["shop/#"]),
        ("shop/dead", ["shop/#"]),
        ("dead", ["#"]),
    ],
)
def test_dead_letters_do_not_come_back(topic: str, topics: list[str] | None) -> None:
    with pytest.raises(ConfigError, match=f"dlq.topic: '{re.escape(topic)}' leads back to orders"):
        create("orders", topics=topics, dlq={"topic": topic})
    settings = create("orders", topics=topics)
    with pytest.raises(ConfigError, match=r"dlq\.topic: .* leads back to orders"):
        settings.changed(dlq={"topic": topic})
    off = settings.changed(dlq={"topic": topic, "enabled": False})
    with pytest.raises(ConfigError, match=r"dlq\.topic: .* leads back to orders"):
        off.changed(dlq={"enabled": True})
    # Those of an older version can be opened, and mended.
    old = replace(settings, dlq=DeadLetters(topic=topic))
    assert old.changed() is old
    assert old.changed(dlq={"topic": "$dlq/all"}).dlq.topic == "$dlq/all"


def test_dead_letters_of_many_queues_may_go_to_one() -> None:
    defaults = {"dlq": {"topic": "dead"}}
    assert create("orders", "classic", defaults).dlq.topic == "dead"
    assert not create("dead", "classic", defaults, dlq={"enabled": False}).dlq.enabled
    assert create("monitor", topics=["$dlq/#"]).dlq == DeadLetters()  # by topic it gets them all


def test_a_message_has_to_fit_into_a_batch() -> None:
    said = r"^limits\.max_message_size: 52,428,800 bytes .* max_batch_bytes is 16,777,216; raise"
    large: dict[str, Any] = {"limits": {"max_message_size": "50MiB"}}
    with pytest.raises(ConfigError, match=said):
        create("q", **large)
    with pytest.raises(ConfigError, match=said):
        create("q", "classic", large)
    with pytest.raises(ConfigError, match=said):
        create("q").changed(**large)
    both = create("q", **large, max_batch_bytes="64MiB")
    with pytest.raises(ConfigError, match=r"^limits\.max_message_size: .* is 1,048,576; "):
        both.changed(max_batch_bytes="1MiB")
    assert create("q", max_batch_bytes="1MiB").limits == Limits()  # which nobody has chosen
    with pytest.raises(ConfigError, match=r"^limits\.max_message_size: 10,485,760 bytes .* 1,048"):
        create("q", max_batch_bytes="1MiB", limits={"max_message_size": "10MiB"})
    assert create("q", limits={"max_message_size": 0}).limits.max_message_size == 0
    assert create("q", limits={"max_message_size": "16MiB"}).max_batch_bytes == 16 * 2**20
    # FluxMQ's file may say anything; that is no reason to refuse something else.
    theirs = replace(create("q"), limits=Limits(max_message_size=2**30))
    assert theirs.changed(visibility_timeout=1).visibility_timeout_ms == 1000


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    said = r"^retry\.max_backoff: 1s is less than retry\.initial_backoff, which is 5s; "
    short: dict[str, Any] = {"retry": {"max_backoff": "1s"}}
    uses: list[Callable[[], object]] = [
        lambda: create("q", **short),
        lambda: create("q", retry=Retry(max_backoff_ms=1_000)),
        lambda: create("q", "classic", short),
        lambda: create("q").changed(**short),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=said):
            use()
    with pytest.raises(ConfigError, match=r"^retry\.max_backoff: 5m .* is 301s; "):
        create("q", retry={"initial_backoff": 301})
    same = {"initial_backoff": "1s", "max_backoff": "1s"}
    assert create("q", retry=same).retry == Retry(10, 1_000, 1_000)
    assert create("q", retry={"initial_backoff": 0, "max_backoff": 0}).retry.backoff_ms(9) == 0
    theirs = replace(create("q"), retry=Retry(max_backoff_ms=1_000))
    assert theirs.changed(retry={"max_retries": 5}).retry == Retry(5, max_backoff_ms=1_000)
    with pytest.raises(ConfigError, match=r"^retry\.max_backoff: 1s .* is 6s; "):
        theirs.changed(retry={"initial_backoff": "6s"})


def test_only_a_stream_has_a_primary_group() -> None:
    said = r"^primary_group: q is a classic queue, and only a stream can have one$"
    with pytest.raises(ConfigError, match=said):
        create("q", primary_group="w")
    with pytest.raises(ConfigError, match=said):
        create("q").changed(primary_group="w")
    defaults = {"primary_group": "w"}
    assert create("q", "stream", defaults).primary_group == "w"
    assert create("q", "classic", defaults).primary_group == ""  # it is for the others
    theirs = replace(create("q"), primary_group="w")
    assert theirs.changed(visibility_timeout=1).primary_group == "w"
    assert theirs.changed(primary_group="").primary_group == ""


@pytest.mark.parametrize("short", [0.0004, "0.4ms", 1e-9])
def test_a_short_time_is_not_none(short: float | str) -> None:
    settings = create(
        "q",
        limits={"message_ttl": short},
        expire_groups=short,
        retention={"max_age": short},
        auto_commit_interval=short,
        retry={"initial_backoff": short},
        visibility_timeout=short,
    )
    assert settings.limits.message_ttl_ms == settings.expire_groups_ms == 1
    assert settings.retention.max_age_ms == settings.auto_commit_interval_ms == 1
    assert settings.retry.initial_backoff_ms == settings.visibility_timeout_ms == 1


def test_an_ephemeral_queue_is_never_flushed() -> None:
    settings = create("tmp", "classic", {"flush": "sync"}, ephemeral=True)
    assert settings.flush is FlushMode.NONE
    assert settings.log_arguments()["flush"] is FlushMode.NONE
    assert settings.changed(flush="none") is settings
    with pytest.raises(ConfigError, match=r"^flush: tmp is ephemeral"):
        create("tmp", ephemeral=True, flush="sync")
    with pytest.raises(ConfigError, match=r"^flush: tmp is none, and cannot become sync"):
        settings.changed(flush="sync")


def test_two_queues_of_one_name_are_told_apart() -> None:
    assert create("orders").incarnation != create("orders").incarnation


def test_a_queue_may_be_bound_to_nothing() -> None:
    assert create("orders", topics=[]).topics == ()


def test_settings_can_be_shared_and_sent() -> None:
    settings = create("orders", segment_bytes="1MiB")
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(
        settings.changed(limits={"max_depth": 1}).changed(limits=Limits())
    )


@pytest.mark.parametrize("key", LOG_OPTIONS)
def test_every_further_option_of_a_log(key: str) -> None:
    options: dict[str, Any] = {key: 64 if hasattr(LogOptions, key) else "1m"}
    settings = create("orders", **options)
    LogOptions.parse(**settings.log_arguments())
    assert [name for name, _value in settings.log_options] == [key]


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "fifo"}, r"^type: 'fifo' is not one of classic, stream$"),
        ({"type": None}, r"^type: None is not one of"),
        ({"topic": ["a"]}, r"^topic: unknown option \(did you mean topics\?\); a queue takes "),
        ({"incarnation": "x"}, r"^incarnation: unknown option"),
        ({"topics": "a/b"}, r"^topics: expected a list"),
        ({"topics": [1]}, r"^topics: expected a list"),
        ({"flush": "fsync"}, r"^flush: 'fsync' is not one of sync, async, none"),
        ({"limits": 5}, r"^limits: expected a mapping of max_message_size, "),
        ({"limits": {"max_dept": 5}}, r"^limits.max_dept: .*\(did you mean limits.max_depth\?\)"),
        ({"limits": {"max_depth": -1}}, r"^limits.max_depth: -1 is outside 0\.\."),
        ({"limits": {"max_depth": True}}, r"^limits.max_depth: expected a whole number"),
        ({"limits": {"max_depth": 2**63}}, r"^limits.max_depth: "),
        ({"limits": {"max_message_size": "big"}}, r"^limits.max_message_size: 'big' is not a size"),
        ({"limits": {"max_message_size": 2**63}}, r"^limits.max_message_size: "),
        ({"limits": {"message_ttl": "soon"}}, r"^limits.message_ttl: 'soon' is not a duration"),
        ({"limits": {"message_ttl": None}}, r"^limits.message_ttl: expected a duration"),
        ({"limits": {"message_ttl": "999999w 999999w"}}, r"^limits.message_ttl: .* is too long"),
        ({"limits": {"on_full": "drop"}}, r"^limits.on_full: 'drop' is not one of raise, "),
        ({"limits": {"on_full": ["raise"]}}, r"^limits.on_full: "),
        ({"retry": {"max_retries": "many"}}, r"^retry.max_retries: expected a whole number"),
        ({"retry": {"max_retries": 2**31}}, r"^retry.max_retries: "),
        ({"retry": {"multiplier": 0.5}}, r"^retry.multiplier: 0.5 is outside 1\.\.1000"),
        ({"retry": {"multiplier": float("nan")}}, r"^retry.multiplier: nan"),
        ({"retry": {"multiplier": "2"}}, r"^retry.multiplier: expected a number"),
        ({"retry": {1: 2}}, r"^retry.1: unknown option"),
        ({"dlq": {"enabled": "yes"}}, r"^dlq.enabled: expected true or false"),
        ({"dlq": {"topic": 1}}, r"^dlq.topic: expected a topic"),
        ({"dlq": Limits()}, r"^dlq: expected a mapping"),
        ({"retention": {"max_agee": 1}}, r"^retention.max_agee: .*did you mean retention.max_age"),
        ({"retention": {"max_bytes": -1}}, r"^retention.max_bytes: "),
        ({"visibility_timeout": 0}, r"^visibility_timeout: 0 is no time at all"),
        ({"expires_after": "0s"}, r"^expires_after: "),
        ({"ephemeral": 1}, r"^ephemeral: expected true or false"),
        ({"reserved": "no"}, r"^reserved: "),
        ({"primary_group": 1}, r"^primary_group: "),
        ({"compression": "gzip"}, r"^compression: 'gzip' is not one of none, s2, zstd"),
        ({"compact_after": 0}, r"^compact_after: 0 is outside 1\.\."),
        ({"segment_bytes": 0}, r"^segment_bytes: 0 is outside"),
        ({"segment_age": "999999w 999999w"}, r"^segment_age: .* is too long"),
        ({"open_files": "many"}, r"^open_files: "),
        ({"replication": {"enabled": True}}, r"^replication.enabled: a queue is on one machine"),
        ({"replication": {"factor": 1}}, r"^replication.factor: unknown option"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create("orders", **options)
    if options.get("type") is not None or "type" not in options:
        with pytest.raises(ConfigError, match=message):
            create("orders").changed(**options)
    if "type" not in options:
        with pytest.raises(ConfigError, match=message):
            create("orders", "classic", options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        ("a\nb", {}),
        ("x" * 201, {}),
        ("orders", {"topics": ["a/#/b"]}),
        ("orders", {"topics": [""]}),
        ("orders", {"primary_group": "a\0"}),
        ("orders", {"dlq": {"topic": "dead/#"}}),
    ],
)
def test_names_that_are_none(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidName):
        create(name, **options)


def test_a_name_that_would_be_a_wildcard_needs_topics() -> None:
    for name in ("+", "a/#", "a+b"):
        with pytest.raises(ConfigError, match=r"^topics: .* cannot be a level of a filter"):
            create(name)
        assert create(name, topics=["a"]).name == name
    with pytest.raises(InvalidName, match="the name of a queue is text, not 5"):
        create(5)  # type: ignore[arg-type]


# --- changes --------------------------------------------------------------------------------


def test_nothing_given_changes_nothing() -> None:
    settings = create("orders", flush="sync", segment_bytes="1MiB", limits={"max_depth": 5})
    assert settings.changed() is settings
    same = settings.changed(
        type="classic",
        flush="sync",
        ephemeral=False,
        topics=["$queue/orders/#"],
        limits={"max_depth": 5},
        retry={"multiplier": 2},
        retention=None,
        segment_bytes=2**20,
        visibility_timeout="30s",
    )
    assert same is settings


def test_only_what_is_given_changes() -> None:
    settings = create("orders", limits={"max_depth": 5, "on_full": "block"}, segment_bytes="1MiB")
    changed = settings.changed(
        topics=["a", "b"],
        limits={"max_depth": 6},
        retry={"max_retries": None},
        retention={"max_age": "1h"},
        compression="none",
        segment_age="1h",
    )
    assert changed.limits == Limits(max_depth=6, on_full="block")
    assert changed.retry == Retry(max_retries=None)
    assert changed.topics == ("a", "b")
    assert changed.log_options == (("segment_age", "3600000ms"), ("segment_bytes", 2**20))
    assert changed.incarnation == settings.incarnation
    assert settings.limits.max_depth == 5
    again = changed.changed(
        limits=Limits(),
        retry={"max_retries": "unlimited"},
        retention={"max_records": 5, "max_age": None},
    )
    assert again.limits == Limits()
    assert again.retry == changed.retry
    assert again.retention == Retention(max_records=5)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (
            {},
            {"type": "stream"},
            (
                "type: orders is a classic queue, and cannot become a stream; delete it first, or "
                "use another name"
            ),
        ),
        ({"type": "stream"}, {"type": "classic"}, "is a stream, and cannot become a classic queue"),
        ({}, {"ephemeral": True}, "ephemeral: orders is durable, and cannot become ephemeral"),
        ({"ephemeral": True}, {"ephemeral": False}, "is ephemeral, and cannot become durable"),
        ({"flush": "sync"}, {"flush": "async"}, "flush: orders is sync, and cannot become async"),
        ({"flush": "async"}, {"flush": "sync"}, "flush: orders is async, and cannot become sync"),
        ({}, {"flush": "none"}, "flush: orders is sync, and cannot become none"),
    ],
)
def test_what_is_fixed(options: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("orders", **options).changed(limits={"max_depth": 1}, **change)
    assert message in str(caught.value)


def test_a_promise_that_nobody_gave_can_be_given() -> None:
    settings = create("orders")
    assert settings.flush is None
    assert settings.changed(flush="sync", limits={"max_depth": 1}).flush is FlushMode.SYNC


# --- backing off ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deliveries", "milliseconds"),
    [(0, 5_000), (1, 5_000), (2, 10_000), (3, 20_000), (6, 160_000), (7, 300_000), (8, 300_000)],
)
def test_backing_off(deliveries: int, milliseconds: int) -> None:
    assert Retry().backoff_ms(deliveries) == milliseconds


@given(
    st.builds(
        Retry,
        max_retries=st.none(),
        initial_backoff_ms=st.integers(0, 2**60),
        max_backoff_ms=st.integers(0, 2**60),
        multiplier=st.floats(1, 1000),
    ),
    st.integers(-1, 10**400),
)
def test_a_later_time_is_never_sooner(retry: Retry, deliveries: int) -> None:
    wait = retry.backoff_ms(deliveries)
    assert 0 <= wait <= retry.max_backoff_ms or wait == 0 == retry.initial_backoff_ms
    assert wait <= retry.backoff_ms(deliveries + 1)
    if retry.multiplier == 1:
        assert wait == int(min(float(retry.initial_backoff_ms), retry.max_backoff_ms))
