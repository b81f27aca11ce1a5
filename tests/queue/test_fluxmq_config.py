"""FluxMQ's file of queues: its bytes, what they mean, and what is kept that means nothing to us."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigError, Corrupt, InvalidName
from tailrace.log.options import FlushMode, Retention
from tailrace.queue.fluxmq_config import dump, load
from tailrace.queue.settings import (
    CODECS,
    ON_FULL,
    TYPES,
    DeadLetters,
    Limits,
    QueueSettings,
    Retry,
)
from tailrace.queue.topics import check_filter
from tests.project import ROOT

pytestmark = pytest.mark.no_cover

FIXTURES = ROOT.parent / "shared" / "fixtures" / "fluxmq"

# What FluxMQ writes of a queue with its defaults.
ENTRY = r"""    {
      "Name": "orders",
      "Topics": [
        "$queue/orders/#",
        "a \u003c\u0026\u003e \u2028 ü"
      ],
      "Reserved": false,
      "Type": "classic",
      "PrimaryGroup": "",
      "Durable": true,
      "AckDurability": "",
      "ExpiresAfter": 0,
      "LastConsumerDisconnect": "0001-01-01T00:00:00Z",
      "RetryPolicy": {
        "MaxRetries": 10,
        "InitialBackoff": 5000000000,
        "MaxBackoff": 300000000000,
        "BackoffMultiplier": 2,
        "TotalTimeout": 86400000000000
      },
      "DLQConfig": {
        "Enabled": true,
        "Topic": "",
        "AlertWebhook": ""
      },
      "Replication": {
        "Enabled": false,
        "Group": "",
        "ReplicationFactor": 3,
        "Mode": "sync",
        "MinInSyncReplicas": 2,
        "AckTimeout": 5000000000,
        "HeartbeatTimeout": 0,
        "ElectionTimeout": 0,
        "SnapshotInterval": 0,
        "SnapshotThreshold": 0
      },
      "Retention": {
        "RetentionTime": 0,
        "TimeCheckInterval": 0,
        "RetentionBytes": 0,
        "RetentionMessages": 0,
        "SizeCheckEvery": 0,
        "CompactionEnabled": false,
        "CompactionKey": "",
        "CompactionLag": 0,
        "CompactionInterval": 0
      },
      "MaxMessageSize": 10485760,
      "MaxDepth": 100000,
      "MessageTTL": 604800000000000,
      "DeliveryTimeout": 30000000000,
      "BatchSize": 100,
      "HeartbeatTimeout": 120000000000
    }"""


def file_of(*entries: str) -> bytes:
    text = '{\n  "version": 2,\n  "configs": [\n' + ",\n".join(entries)
    return (text + '\n  ],\n  "saved_at": 0\n}').encode()


def entry(**changes: Any) -> dict[str, Any]:
    """FluxMQ's entry, with other values for some keys; `A__B` is B in A."""
    found: dict[str, Any] = json.loads(ENTRY)
    for path, value in changes.items():
        *group, name = path.split("__")
        (found[group[0]] if group else found)[name] = value
    return found


def load_one(found: object) -> QueueSettings:
    (settings,) = load(json.dumps({"version": 2, "configs": [found]}).encode())
    return settings


def stored(settings: QueueSettings) -> dict[str, Any]:
    """The entry that is written for settings."""
    document = json.loads(dump([settings]))
    assert list(document) == ["version", "configs", "saved_at"]
    found: dict[str, Any]
    (found,) = document["configs"]
    return found


# --- FluxMQ's own ---------------------------------------------------------------------------


def test_what_fluxmq_wrote_keeps_its_bytes() -> None:
    data = file_of(ENTRY, ENTRY.replace('"orders"', '"other"'))
    queues = load(data)
    assert [queue.name for queue in queues] == ["orders", "other"]
    assert dump(queues) == data
    assert dump(reversed(queues)) == file_of(ENTRY.replace('"orders"', '"other"'), ENTRY)


def test_what_it_means() -> None:
    assert load_one(entry()) == QueueSettings(
        "orders",
        topics=("$queue/orders/#", "a <&> \u2028 ü"),
        limits=Limits(max_depth=100_000, message_ttl_ms=604_800_000),
    )


@pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")
@pytest.mark.parametrize("kind", ["none", "s2"])
def test_files_of_fluxmq_keep_their_bytes(kind: str) -> None:
    data = (FIXTURES / kind / "config" / "queues.json").read_bytes()
    queues = {queue.name: queue for queue in load(data)}
    assert dump(queues.values()) == data
    assert queues["events"].type == "stream"
    assert queues["events"].topics == ("$queue/events/#", "m/+/temp")
    assert queues["events"].primary_group == "workers"
    assert queues["events"].retention == Retention(max_age_ms=3_600_000)
    assert queues["eph"].ephemeral
    assert queues["eph"].expires_after_ms == 300_000
    assert not queues["orders"].ephemeral


def test_our_entry_is_fluxmqs_with_an_object_behind_it() -> None:
    settings = QueueSettings.create(
        "orders",
        topics=["$queue/orders/#", "a <&> \u2028 ü"],
        limits={"max_depth": 100_000, "message_ttl": "168h"},
    )
    ours = f""",
      "Tailrace": {{
        "incarnation": "{settings.incarnation}"
      }}
    }}"""
    assert dump([settings]) == file_of(ENTRY.removesuffix("\n    }") + ours)


def test_nothing_of_ours_is_needed() -> None:
    settings = replace(QueueSettings.create("orders"), incarnation="")
    assert "Tailrace" not in stored(settings)
    assert load_one({"Name": "orders"}) == settings
    assert stored(load_one({"Name": "orders"})) == {"Name": "orders"}


def test_no_queues() -> None:
    assert dump([]) == b'{\n  "version": 2,\n  "configs": [],\n  "saved_at": 0\n}'
    assert load(dump([])) == []
    assert load(b'{"version": 2, "configs": null}') == load(b'{"version": 1}') == []


def test_a_new_ephemeral_entry_has_its_grace() -> None:
    found = stored(QueueSettings.create("tmp", ephemeral=True))
    assert (found["Durable"], found["ExpiresAfter"]) == (False, 300_000_000_000)
    assert stored(QueueSettings.create("orders"))["ExpiresAfter"] == 0


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"Type": "stream"}, {"type": "stream"}),
        ({"Type": ""}, {}),
        ({"Topics": None}, {"topics": ()}),
        ({"Reserved": True}, {"reserved": True}),
        ({"PrimaryGroup": "w"}, {"primary_group": "w"}),
        ({"Durable": False}, {"ephemeral": True}),
        ({"AckDurability": "fsync"}, {"flush": FlushMode.SYNC}),
        ({"AckDurability": "buffered"}, {"flush": FlushMode.ASYNC}),
        ({"ExpiresAfter": 1_500_000_000}, {"expires_after_ms": 1_500}),
        ({"RetryPolicy__MaxRetries": 0}, {"retry": Retry(max_retries=0)}),
        ({"RetryPolicy__MaxRetries": 2**31 - 1}, {"retry": Retry(max_retries=None)}),
        ({"RetryPolicy__MaxRetries": -1}, {"retry": Retry(max_retries=0)}),
        ({"RetryPolicy__InitialBackoff": 1}, {"retry": Retry(initial_backoff_ms=1)}),
        ({"RetryPolicy__BackoffMultiplier": 1.25}, {"retry": Retry(multiplier=1.25)}),
        ({"RetryPolicy__BackoffMultiplier": 0}, {"retry": Retry(multiplier=1.0)}),
        ({"RetryPolicy": None}, {}),
        ({"DLQConfig__Topic": "d"}, {"dlq": DeadLetters(topic="d")}),
        ({"DLQConfig__AlertWebhook": "http://x/?a=1&b=2"}, {}),
        ({"Retention__RetentionBytes": 5}, {"retention": Retention(max_bytes=5)}),
        ({"Retention__RetentionMessages": 5}, {"retention": Retention(max_records=5)}),
        ({"DeliveryTimeout": 0}, {}),
        ({"DeliveryTimeout": 1_234_567}, {"visibility_timeout_ms": 2}),
        ({"Replication__Enabled": True}, {}),
        ({"Brand": {"new": [1, 2.5, None, {"deep": "<"}]}}, {}),
        ({"Tailrace": {"incarnation": "ab", "later": [1]}}, {"incarnation": "ab"}),
        ({"Tailrace": {"flush": "none"}}, {}),
        ({"Tailrace": {"flush": "none"}, "AckDurability": "fsync"}, {"flush": FlushMode.SYNC}),
        ({"Tailrace": {"flush": "none"}, "AckDurability": "buffered"}, {"flush": FlushMode.NONE}),
        ({"Tailrace": {"log": {"later": 5}}}, {}),
        ({"Tailrace": None}, {}),
    ],
)
def test_each_key(changes: dict[str, Any], option: dict[str, Any]) -> None:
    found = entry(**changes)
    settings = load_one(found)
    assert settings == replace(load_one(entry()), **option)
    assert stored(settings) == found
    assert list(stored(settings)) == list(found)


def test_a_change_leaves_all_else_alone() -> None:
    found = entry(DeliveryTimeout=1_234_567, Brand="new", Replication__Enabled=True)
    changed = load_one(found).changed(
        limits={"max_depth": 7, "on_full": "drop_oldest"},
        retry={"max_retries": None, "multiplier": 1.5},
        retention={"max_age": "1h"},
    )
    expected = entry(
        DeliveryTimeout=1_234_567,
        Brand="new",
        Replication__Enabled=True,
        MaxDepth=7,
        RetryPolicy__MaxRetries=2**31 - 1,
        RetryPolicy__BackoffMultiplier=1.5,
        Retention__RetentionTime=3_600_000_000_000,
        Tailrace={"on_full": "drop_oldest"},
    )
    assert stored(changed) == expected
    assert list(stored(changed)) == list(expected)
    assert "Tailrace" not in found
    assert found["MaxDepth"] == 100_000


def test_what_fluxmq_has_no_key_for() -> None:
    settings = QueueSettings.create(
        "orders",
        flush="none",
        limits={"on_full": "block"},
        dlq={"expired": True},
        compression="none",
        segment_bytes="1MiB",
        flush_interval="2s",
        compact_after=7,
        auto_commit_interval="1s",
    )
    found = stored(settings)
    assert list(found)[-1] == "Tailrace"
    assert found["AckDurability"] == "buffered"
    assert found["Tailrace"] == {
        "incarnation": settings.incarnation,
        "on_full": "block",
        "dlq_expired": True,
        "compression": "none",
        "log": {"flush_interval": "2000ms", "segment_bytes": 2**20},
        "compact_after": 7,
        "auto_commit_interval_ms": 1_000,
        "flush": "none",
    }
    assert load_one(found) == settings


# --- any settings ---------------------------------------------------------------------------


def is_filter(text: str) -> bool:
    try:
        check_filter(text)
    except InvalidName:
        return False
    return True


COUNTS = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, (2**63 - 1) // 10**6)
ANY_TIME = st.integers(0, (2**63 - 1) // 10**6)
SOME_TIME = st.integers(1, (2**63 - 1) // 10**6)
TEXTS = st.text(max_size=20)
NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
SETTINGS = st.builds(
    QueueSettings,
    name=NAMES,
    type=st.sampled_from(TYPES),
    topics=st.lists((TEXTS | st.just("a/+/#")).filter(is_filter), max_size=3).map(tuple),
    flush=st.none() | st.sampled_from(FlushMode),
    limits=st.builds(Limits, COUNTS, COUNTS, TIMES, st.sampled_from(ON_FULL)),
    visibility_timeout_ms=SOME_TIME,
    retry=st.builds(Retry, st.none() | st.integers(0, 2**31 - 2), TIMES, TIMES, st.floats(1, 1000)),
    dlq=st.builds(DeadLetters, st.booleans(), TEXTS, st.booleans()),
    retention=st.builds(
        Retention,
        st.none() | SOME_TIME,
        st.none() | st.integers(1, 2**63 - 1),
        st.none() | st.integers(1, 2**63 - 1),
    ),
    primary_group=TEXTS,
    ephemeral=st.booleans(),
    expires_after_ms=SOME_TIME,
    reserved=st.booleans(),
    compression=st.sampled_from(CODECS),
    log_options=st.dictionaries(
        st.sampled_from(["segment_bytes", "open_files", "segment_age"]),
        st.integers(1, 9) | st.just("5ms"),
    ).map(lambda options: tuple(sorted(options.items()))),
    compact_after=st.integers(1, 2**63 - 1),
    auto_commit_interval_ms=ANY_TIME,
    incarnation=st.just("") | st.binary(min_size=16, max_size=16).map(bytes.hex),
)


@given(st.lists(SETTINGS, max_size=4, unique_by=lambda settings: settings.name))
def test_settings_there_and_back(queues: list[QueueSettings]) -> None:
    data = dump(queues)
    found = load(data)
    assert found == queues
    assert dump(found) == data


@given(SETTINGS, SETTINGS)
def test_any_change_there_and_back(one: QueueSettings, other: QueueSettings) -> None:
    """Settings that take the place of others, in the entry of those."""
    (found,) = load(dump([one]))
    changed = replace(other, name=one.name, fluxmq=found.fluxmq)
    assert load(dump([changed])) == [changed]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1), JSON, max_size=5))
def test_keys_that_mean_nothing_to_us(keys: dict[str, Any]) -> None:
    found = {**{key: value for key, value in keys.items() if key not in entry()}, **entry()}
    found.pop("Tailrace", None)
    assert stored(load_one(found)) == json.loads(json.dumps(found))


def test_what_is_known_is_used_again() -> None:
    queues = load(file_of(ENTRY, ENTRY.replace('"orders"', '"other"')))
    known = {queue.name: queue for queue in queues}
    data = file_of(ENTRY, ENTRY.replace('"orders"', '"other"').replace("100000,", "7,"))
    orders, other = load(data, known)
    assert orders is known["orders"]
    assert other == replace(known["other"], limits=replace(other.limits, max_depth=7))


# --- damage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"\xef\xbb\xbf{}", "it is not JSON"),
        (file_of(ENTRY)[:-10], "it is not JSON"),
        (file_of(ENTRY)[:500], "it is not JSON"),
        (b'{"version": 2, "configs": [' + b"[" * 100_000, "it is not JSON"),
        (b'{"version": NaN}', "NaN is not a number"),
        (b'{"version": 2, "x": 1e999}', "1e999 is not a number"),
        (b'{"version": 2, "x": ' + b"9" * 10_000 + b"}", "it is not JSON"),
        (b"[]", r"it is no JSON object but \[\]"),
        (b"{}", "its version is null"),
        (b'{"version": true}', "its version is true"),
        (b'{"version": "2"}', 'its version is "2"'),
        (b'{"version": 2, "configs": {}}', r"its configs are \{\}"),
        (b'{"version": 2, "configs": [1]}', "a queue without a Name: 1"),
        (b'{"version": 2, "configs": [{}]}', "a queue without a Name"),
        (file_of(ENTRY, ENTRY), "the queue 'orders' is there twice"),
    ],
)
def test_damaged_files(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        load(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Name": "a\n"}, r"the queue 'a\\n': the name of a queue"),
        ({"Name": "\ud800"}, "the name of a queue"),
        ({"Topics": ["a/#/b"]}, "the queue 'orders': the filter 'a/#/b'"),
        ({"Topics": "#"}, 'Topics is "#"; expected a list of filters'),
        ({"Topics": [1]}, "Topics is"),
        ({"Type": "fifo"}, 'Type is "fifo"; expected one of classic, stream'),
        ({"Type": 5}, "Type is 5"),
        ({"Durable": None}, "Durable is null; expected true or false"),
        ({"AckDurability": "maybe"}, 'AckDurability is "maybe"'),
        ({"AckDurability": None}, "AckDurability is null"),
        ({"ExpiresAfter": "5m"}, 'ExpiresAfter is "5m"; expected a whole number'),
        ({"RetryPolicy": [1]}, r"RetryPolicy is \[1\]"),
        ({"RetryPolicy__MaxRetries": 1.5}, "RetryPolicy.MaxRetries is 1.5"),
        ({"RetryPolicy__BackoffMultiplier": "2"}, "RetryPolicy.BackoffMultiplier is"),
        ({"MaxDepth": True}, "MaxDepth is true"),
        ({"MaxDepth": "x" * 1000}, 'MaxDepth is "x{59}…'),
        ({"PrimaryGroup": 1}, "PrimaryGroup is 1; expected a string"),
        ({"Tailrace": 1}, "Tailrace is 1"),
        ({"Tailrace": {"on_full": "drop"}}, "Tailrace.on_full is"),
        ({"Tailrace": {"log": [1]}}, "Tailrace.log is"),
        ({"Tailrace": {"log": {"segment_bytes": 1.5}}}, "Tailrace.log is"),
    ],
)
def test_damaged_entries(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        load_one(entry(**changes))


@given(st.binary(max_size=60), st.integers(0, 3000))
def test_anything_in_the_place_of_anything(noise: bytes, place: int) -> None:
    data = file_of(ENTRY)
    data = data[:place] + noise + data[place + len(noise) :]
    try:
        queues = load(data)
    except (ConfigError, Corrupt):
        return
    assert load(dump(queues)) == queues


def test_a_newer_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is of version 3; this tailrace knows versions up to"):
        load(file_of(ENTRY).replace(b'"version": 2', b'"version": 3'))
