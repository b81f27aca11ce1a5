"""Counters, histograms and the text of Prometheus: what is told is what has happened."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tailrace
from tailrace import Full, LeaseLost, Receipt, hooks, metrics
from tailrace.queue.observing import delivered
from tests.queue.clocks import Machine
from tests.queue.support import drain, numbers, on_machine, one

INF = float("inf")


@pytest.fixture
def registry() -> Iterator[metrics.Registry]:
    found = metrics.Registry()
    metrics.subscribe(found)
    yield found
    metrics.unsubscribe(found)
    assert not hooks.listeners


def totals(registry: metrics.Registry, **which: str) -> dict[str, int]:
    """What was counted, without what was not."""
    found = {name: registry.total(name, **which) for name in metrics.COUNTERS}
    return {name: number for name, number in found.items() if number}


# --- a reader of the text, which forgives nothing --------------------------------------------

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SAMPLE = re.compile(rf"({NAME.pattern})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,(?!$)|$)')
ENDINGS = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


def parse(text: str) -> dict[str, list[Sample]]:
    """The samples of each family. Each has one head, and is in one place; nothing comes twice."""
    families: dict[str, list[Sample]] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n") or not text
    lines = iter(text.splitlines())
    name = ""
    for line in lines:
        if line.startswith("# HELP "):
            _, _, name, explanation = line.split(" ", 3)
            assert explanation
            assert name not in families, f"{name} comes twice"
            mark, word, again, kind = next(lines).split(" ")
            assert (mark, word, again) == ("#", "TYPE", name)
            assert kind in ENDINGS
            assert (kind == "counter") == name.endswith("_total")
            families[name], kinds[name] = [], kind
            continue
        sample = parse_sample(line)
        assert sample.name in {name + ending for ending in ENDINGS[kinds[name]]}, line
        families[name].append(sample)
    for name, samples in families.items():
        assert samples, f"{name} is empty"
        series = [(sample.name, sample.labels) for sample in samples]
        assert len(series) == len(set(series)), f"{name} tells something twice"
        if kinds[name] == "histogram":
            check_histogram(samples)
    return families


def parse_sample(line: str) -> Sample:
    match = SAMPLE.fullmatch(line)
    assert match is not None, line
    labels, position, inside = [], 0, match[2] or ""
    while position < len(inside):
        found = LABEL.match(inside, position)
        assert found is not None, line
        value = re.sub(r"\\.", lambda escape: UNESCAPED[escape[0]], found[2])
        labels.append((found[1], value))
        position = found.end()
    assert len(dict(labels)) == len(labels), line
    return Sample(match[1], tuple(labels), float(match[3]))


def check_histogram(samples: list[Sample]) -> None:
    """Of each series: rising buckets that end with all, then the sum and the count."""
    buckets: list[tuple[float, float]] = []
    for sample in samples:
        labels = dict(sample.labels)
        if sample.name.endswith("_bucket"):
            buckets.append((float(labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            assert buckets == sorted(buckets)
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
            assert buckets[-1] == (INF, sample.value)
            buckets = []
    assert not buckets


def value_of(families: dict[str, list[Sample]], name: str, **labels: str) -> float:
    [found] = [
        sample.value
        for samples in families.values()
        for sample in samples
        if sample.name == name and dict(sample.labels) == labels
    ]
    return found


# --- what is counted --------------------------------------------------------------------------


def test_the_life_of_messages(registry: metrics.Registry) -> None:
    with on_machine() as (_, store, queue):
        queue.publish(b"abc", key=b"k")
        queue.publish_many([b"1", ("key", "ü", {"a": "b"})])
        store.publish("$queue/q/x", b"z", headers={"a": "b"})
        assert totals(registry) == {"published": 4, "published_bytes": 4 + 1 + 5 + 1}
        with queue.consumer("w") as consumer:
            acked, nacked, rejected, released = consumer.receive(10)
            acked.ack()
            nacked.nack()
            rejected.reject("no")
            released.release()
            again = consumer.receive(10)
            consumer.ack(again)
            with pytest.raises(LeaseLost):
                acked.ack()
    assert totals(registry, queue="q", group="w") == {
        "delivered": 6,
        "delivered_bytes": 4 + 1 + 5 + 1 + 1 + 1,
        "redelivered": 1,  # what was released counts as if it had not been delivered
        "acked": 3,
        "nacked": 1,
        "rejected": 1,
        "released": 1,
        "dead": 1,
    }
    assert totals(registry, queue="$dlq/q") == {"published": 1, "published_bytes": 5}
    sizes = registry.histogram("publish_batch_size", queue="q")
    assert (sizes.count, sizes.sum) == (3, 4)
    assert registry.histogram("delivery_batch_size", queue="q", group="w").sum == 6


def test_messages_that_fail_too_often(registry: metrics.Registry) -> None:
    with on_machine() as (machine, store, queue), queue.consumer("w") as consumer:
        queue.publish(b"poison")
        for _ in range(3):
            one(consumer).nack()
        assert totals(registry, group="w")["dead"] == 1
        assert totals(registry, group="w")["nacked"] == 3
        queue.publish(b"forgotten")
        for _ in range(3):
            one(consumer)
            machine.clock.advance(2)
        assert consumer.receive(1) == []
        assert totals(registry, group="w")["dead"] == 2
        assert totals(registry, group="w")["redelivered"] == 4
        assert store.redrive("q") == 2
        assert totals(registry, queue="q", group="")["published"] == 4


def test_without_dead_letters_the_given_up_are_counted(registry: metrics.Registry) -> None:
    with on_machine(dlq={"enabled": False}) as (_, _, queue), queue.consumer("w") as consumer:
        queue.publish_many(numbers(3))
        first, second, third = consumer.receive(3)
        first.reject()
        with pytest.raises(LeaseLost):
            consumer.reject([first, second])
        third.ack()
    assert totals(registry, group="w")["dead"] == 2
    assert totals(registry, group="w")["rejected"] == 2


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_expired_messages(registry: metrics.Registry, kind: str) -> None:
    with Machine() as machine, machine.open() as store:
        queue = getattr(store, kind)("q")
        for number in range(6):
            queue.publish(b"x", ttl="1s" if number % 2 else None, routing_key=f"{number % 3}")
        machine.clock.advance(2)
        for group, expired in (("all", 3), ("some@1", 1)):
            with queue.consumer(group) as consumer:
                drain_any(consumer)
            assert registry.total("expired", group=group) == expired
            assert registry.total("delivered", group=group) == 3 if group == "all" else 1


def drain_any(consumer: tailrace.Consumer | tailrace.StreamConsumer) -> None:
    while messages := consumer.receive(2):
        for message in messages:
            message.ack()


def test_what_expires_while_it_waits_for_a_retry(registry: metrics.Registry) -> None:
    with on_machine() as (machine, _, queue), queue.consumer("w") as consumer:
        queue.publish(b"x", ttl="5s")
        one(consumer).nack(delay=10)
        machine.clock.advance(11)
        assert consumer.receive(1) == []
    assert registry.total("expired", group="w") == 1


def test_dropped_messages(registry: metrics.Registry) -> None:
    limits = {"max_depth": 3, "on_full": "drop_oldest"}
    with on_machine(limits=limits) as (_, _, queue):
        queue.publish_many(numbers(3))
        queue.publish(b"3")
        assert registry.total("dropped", queue="q", group="") == 1
    with on_machine(limits=limits) as (_, _, queue):
        queue.consumer("w").close()
        queue.publish_many(numbers(3))
        queue.publish_many(numbers(2))
        assert registry.total("dropped", queue="q", group="w") == 2
    with on_machine(limits={"max_depth": 1}) as (_, _, queue):
        queue.publish(b"1")
        before = registry.total("published")
        with pytest.raises(Full):
            queue.publish(b"2")
        assert registry.total("published") == before


def test_delayed_messages_are_published_when_they_are_due(registry: metrics.Registry) -> None:
    with on_machine() as (machine, store, queue):
        queue.publish(b"abc", delay=10)
        store.publish("$queue/q", b"def", delay=10)
        assert totals(registry) == {"scheduled": 2}
        machine.clock.advance(11)
        assert store.deliver_due() == 2
        assert totals(registry) == {"scheduled": 2, "published": 2, "published_bytes": 6}


def test_streams(registry: metrics.Registry) -> None:
    with Machine() as machine, machine.open() as store:
        stream = store.stream("s")
        stream.publish_many(numbers(10))
        with stream.consumer("by-hand", auto_commit=False) as consumer:
            consumer.receive(4)
            consumer.commit()
            consumer.receive(2)
            consumer.commit(5)
            consumer.seek("first")
            consumer.receive(3)
            consumer.commit()
        with stream.consumer("auto", auto_commit_interval=0) as consumer:
            while consumer.receive(3):
                continue
    assert totals(registry, group="by-hand") == {
        "delivered": 9,
        "delivered_bytes": 9,
        "acked": 4 + 1 + 3,
    }
    assert totals(registry, group="auto")["delivered"] == 10
    assert totals(registry, group="auto")["acked"] == 10
    assert registry.histogram("ack_seconds", group="by-hand").count == 3


def test_prefetched_messages_count_when_they_are_handed_over(registry: metrics.Registry) -> None:
    with on_machine() as (_, _, queue):
        queue.publish_many(numbers(5))
        with queue.consumer("w", prefetch=5) as consumer:
            one(consumer).ack()
            assert totals(registry, group="w")["delivered"] == 1
    assert totals(registry, group="w") == {
        "delivered": 1,
        "delivered_bytes": 1,
        "acked": 1,
        "released": 4,
    }


# --- what is measured -------------------------------------------------------------------------


def test_time_in_the_queue(registry: metrics.Registry) -> None:
    with on_machine() as (machine, _, queue), queue.consumer("w") as consumer:
        queue.publish(b"x", timestamp=machine.clock.wall_ms())
        machine.clock.advance(4)
        one(consumer).nack()
        machine.clock.advance(40)
        one(consumer).ack()
        machine.clock.set_wall(machine.clock.wall_ms() - 1_000_000)
        queue.publish(b"y", timestamp=machine.clock.wall_ms() + 5_000)
        one(consumer).ack()
    found = registry.histogram("time_in_queue_seconds", queue="q", group="w")
    assert (found.count, found.sum) == (2, 4.0)
    assert found.counts[found.bounds.index(5.0)] == 1
    assert found.counts[0] == 1  # a clock that was set back


@pytest.mark.parametrize(("flush", "is_synced"), [("sync", True), ("async", False)])
def test_latencies(registry: metrics.Registry, flush: str, is_synced: bool) -> None:
    with Machine() as machine, machine.open(flush=flush) as store:
        queue = store.queue("q")
        queue.publish(b"1")
        queue.publish(b"2", headers={"a": "b"})
        queue.publish_many([b"3"])
        store.publish("$queue/q", b"4")
        with queue.consumer("w") as consumer:
            consumer.ack(consumer.receive(2))
            for message in consumer.receive(2):
                message.ack()
        assert registry.histogram("publish_seconds", queue="q").count == 4
        assert registry.histogram("ack_seconds", queue="q", group="w").count == 3
        by_log = registry.histogram("fsync_seconds", queue="q", group="")
        by_group = registry.histogram("fsync_seconds", queue="q", group="w")
        assert (by_log.count >= 4) == is_synced
        assert (by_group.count == 3) == is_synced
        assert 0 <= by_log.sum < 60


def test_who_waits_later_tells_if_it_is_known(registry: metrics.Registry) -> None:
    with Machine() as machine, machine.open() as store:
        queue = store.queue("q")
        receipts = [queue.publish(b"x", wait=False) for _ in range(3)]
        assert registry.histogram("publish_seconds").count == 0
        receipts[2].wait()
        assert registry.histogram("publish_seconds").count == 1
        for receipt in receipts:
            assert receipt.done
            assert receipt.wait() is receipt
        assert registry.histogram("publish_seconds").count == 1  # nobody knows when they were


def test_a_bare_log_has_no_queue(registry: metrics.Registry, tmp_path: Path) -> None:
    with tailrace.Log(tmp_path) as log:
        log.append([b"x"]).wait()
    assert registry.histogram("fsync_seconds", queue="").count >= 1
    assert totals(registry) == {}


def test_a_registry_with_bounds_of_its_own() -> None:
    registry = metrics.Registry(bounds={"ack_seconds": [1, 2]})
    registry.observe("ack_seconds", [0.5, 1, 1.5, 7], "q", "w")
    assert registry.histogram("ack_seconds") == metrics.Histogram((1.0, 2.0), (2, 1, 1), 10.0)
    assert registry.histogram("ack_seconds", queue="other").count == 0
    registry.clear()
    assert registry.histogram("ack_seconds").count == 0


@pytest.mark.parametrize("bounds", [[], [2, 1], [1, 1], [1, INF]])
def test_bounds_rise(bounds: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="ack_seconds: give numbers that rise"):
        metrics.Registry(bounds={"ack_seconds": bounds})


def test_unknown_names_are_refused() -> None:
    registry = metrics.Registry()
    with pytest.raises(ValueError, match="nothing is counted by the name 'akced'"):
        registry.total("akced")
    with pytest.raises(ValueError, match="nothing is counted"):
        registry.count("akced", 1, "q", "")
    with pytest.raises(ValueError, match="nothing is measured"):
        registry.histogram("acked")
    with pytest.raises(ValueError, match="nothing is measured"):
        registry.observe("acked", [1], "q", "")
    with pytest.raises(ValueError, match="nothing is measured"):
        metrics.Registry(bounds={"acked": [1]})
    assert registry.prometheus() == ""


# --- listeners --------------------------------------------------------------------------------


def test_nothing_is_told_when_nobody_listens() -> None:
    registry = metrics.Registry()
    with on_machine() as (_, _, queue):
        assert type(queue.publish(b"x")) is Receipt
        metrics.subscribe(registry)
        metrics.subscribe(registry)
        queue.publish(b"x")
        metrics.unsubscribe(registry)
        metrics.unsubscribe(registry)
        queue.publish(b"x")
    assert totals(registry)["published"] == 1


class Failing:
    def count(self, name: str, number: int, queue: str, group: str) -> None:
        raise OSError("no connection")

    def observe(self, name: str, values: Sequence[float], queue: str, group: str) -> None:
        raise OSError("no connection")


def test_a_listener_that_fails_harms_nobody(
    registry: metrics.Registry, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing()
    metrics.unsubscribe(registry)
    metrics.subscribe(failing)
    metrics.subscribe(registry)
    try:
        with (
            caplog.at_level(logging.ERROR, "tailrace"),
            on_machine() as (_, _, queue),
            queue.consumer("w") as consumer,
        ):
            for number in numbers(3):
                queue.publish(number)
            assert drain(consumer) == numbers(3)
    finally:
        metrics.unsubscribe(failing)
    assert totals(registry, queue="q")["published"] == 3
    [record] = caplog.records
    assert "fails, which is told this once: no connection" in record.getMessage()
    assert record.exc_info is not None


def test_nothing_comes_of_nothing(registry: metrics.Registry) -> None:
    hooks.count("acked", 0, "q")
    hooks.observe("ack_seconds", [], "q")
    delivered("q", "w", [], 0)
    assert registry.prometheus() == ""


def test_threads_lose_no_count(registry: metrics.Registry) -> None:
    def work() -> None:
        for _ in range(2_000):
            hooks.count("acked", 2, "q", "w")
            hooks.observe("ack_seconds", [0.25, 1.0], "q", "w")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        parse(registry.prometheus())
    for thread in threads:
        thread.join()
    assert registry.total("acked") == 16_000
    assert registry.histogram("ack_seconds").count == 16_000
    assert registry.histogram("ack_seconds").sum == 10_000.0


def test_a_forked_child_counts_on_its_own(registry: metrics.Registry) -> None:
    hooks.count("acked", 1, "q")
    with registry._lock, hooks._lock:  # as another thread might have them
        child = os.fork()
        if child == 0:
            status = 1
            try:
                metrics.subscribe(metrics.Registry())
                hooks.count("acked", 2, "q")
                status = 0 if registry.total("acked") == 3 else 2
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert registry.total("acked") == 1


# --- the text ---------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path, registry: metrics.Registry) -> Iterator[tailrace.Store]:
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        orders = store.queue('or"ders\\', flush="async")
        orders.publish_many(numbers(5))
        orders.publish(b"later", delay="1h")
        with orders.consumer("w ö") as consumer:
            messages = consumer.receive(3)
            messages[0].ack()
            messages[1].reject()
        store.stream("events").publish(b"x")
        yield store


def test_the_text_is_right(filled: tailrace.Store, registry: metrics.Registry) -> None:
    text = registry.prometheus(filled.stats())
    families = parse(text)
    orders = {"queue": 'or"ders\\'}
    group = {**orders, "group": "w ö"}
    assert value_of(families, "tailrace_published_total", **orders) == 5
    assert value_of(families, "tailrace_scheduled_total", **orders) == 1
    assert value_of(families, "tailrace_acked_total", **group) == 1
    assert value_of(families, "tailrace_ack_seconds_count", **group) == 1
    assert value_of(families, "tailrace_delivery_batch_size_bucket", **group, le="2.0") == 0
    assert value_of(families, "tailrace_delivery_batch_size_bucket", **group, le="5.0") == 1
    assert value_of(families, "tailrace_delivery_batch_size_sum", **group) == 3
    assert value_of(families, "tailrace_queue_messages", **orders) == 5
    assert value_of(families, "tailrace_queue_delayed", **orders) == 1
    assert value_of(families, "tailrace_queue_dead_letters", **orders) == 1
    assert value_of(families, "tailrace_queue_bytes", queue="events") > 0
    assert value_of(families, "tailrace_queue_estimated", **orders) == 0
    assert value_of(families, "tailrace_group_ready", **group) == 2
    assert value_of(families, "tailrace_group_leased", **group) == 1
    assert value_of(families, "tailrace_group_lag", **group) == 3
    assert value_of(families, "tailrace_group_settled_total", **group) == 2
    assert value_of(families, "tailrace_group_oldest_age_seconds", **group) >= 0


def test_others_read_it_likewise(filled: tailrace.Store, registry: metrics.Registry) -> None:
    text = registry.prometheus(filled.stats())
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ours = {
        (sample.name, tuple(sorted(sample.labels))): sample.value
        for samples in parse(text).values()
        for sample in samples
    }
    assert theirs == ours


def test_whatever_is_in_a_name() -> None:
    registry = metrics.Registry()
    for name in ('a"b', "a\\b", "a\nb", "a\\nb", 'a\\"b', "ü", "a,b", "{}", "\udc80"):
        registry.count("acked", 1, name, "")
    samples = parse(registry.prometheus())["tailrace_acked_total"]
    found = {dict(sample.labels)["queue"] for sample in samples}
    assert found == {'a"b', "a\\b", "a\nb", "a\\nb", 'a\\"b', "ü", "a,b", "{}", "\\udc80"}
    registry.prometheus().encode()


def test_every_name_has_a_family(registry: metrics.Registry) -> None:
    for name in metrics.COUNTERS:
        hooks.count(name, 1, "q", "w")
    for name in metrics.HISTOGRAMS:
        hooks.observe(name, [0.0, 1e9], "q", "w")
    expected = {f"tailrace_{name}_total" for name in metrics.COUNTERS}
    expected |= {f"tailrace_{name}" for name in metrics.HISTOGRAMS}
    assert set(parse(registry.prometheus())) == expected


def test_a_damaged_group_is_told_of(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, upkeep=False) as store:
        queue = store.queue("q", compact_after=1)
        queue.publish_many(numbers(5))
        queue.consumer("fine").close()
        with queue.consumer("broken") as consumer:
            for message in consumer.receive(5):
                message.ack()
        state = tmp_path / "queue/queues/q/consumers/broken/state.json"
        whole = state.read_bytes()
        state.write_bytes(whole.replace(b"cursor", b"cursed"))
        families = parse(metrics.prometheus_text(store.stats()))
        state.write_bytes(whole)
        assert value_of(families, "tailrace_group_damaged", queue="q", group="broken") == 1
        assert value_of(families, "tailrace_group_damaged", queue="q", group="fine") == 0
        [lag] = families["tailrace_group_lag"]
        assert dict(lag.labels)["group"] == "fine"


def test_the_command_line_tells_gauges(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, upkeep=False) as store:
        store.queue("orders").publish_many(numbers(3))
        store.stream("events")
    command = [sys.executable, "-m", "tailrace", "stats", "--store", str(tmp_path)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    families = parse(run("--prometheus").stdout)
    assert value_of(families, "tailrace_queue_messages", queue="orders") == 3
    assert value_of(families, "tailrace_queue_messages", queue="events") == 0
    families = parse(run("orders", "--prometheus", "--exact").stdout)
    assert {dict(each.labels)["queue"] for each in families["tailrace_queue_ready"]} == {"orders"}
    for other in ("--json", "--watch", "--rates"):
        done = run("--prometheus", other)
        assert done.returncode == 2
        assert "--prometheus is one look" in done.stderr


# --- asyncio, and who does not want any of this -----------------------------------------------


def test_asyncio_tells_the_same(registry: metrics.Registry, tmp_path: Path) -> None:
    async def work() -> str:
        async with tailrace.aio.open(tmp_path) as store:
            queue = await store.queue("q", retry={"initial_backoff": 0})
            await queue.publish(b"1")
            await queue.publish_many([b"2", b"3"])
            await store.publish("$queue/q", b"4")
            async with queue.consumer("w") as consumer:
                first, second, third, fourth = await consumer.receive(10)
                await asyncio.gather(first.ack(), second.ack())
                await third.nack()
                await fourth.reject()
                [third] = await consumer.receive(1)
                await third.ack()
            return registry.prometheus(await store.stats())

    families = parse(asyncio.run(work()))
    assert totals(registry, queue="q", group="w") == {
        "delivered": 5,
        "delivered_bytes": 5,
        "redelivered": 1,
        "acked": 3,
        "nacked": 1,
        "rejected": 1,
        "dead": 1,
    }
    assert totals(registry, queue="q", group="") == {"published": 4, "published_bytes": 4}
    assert registry.histogram("publish_seconds", queue="q").count == 3
    assert registry.histogram("ack_seconds", queue="q").count in (2, 3)
    assert value_of(families, "tailrace_group_settled_total", queue="q", group="w") == 4


QUIET = """
import sys
import tailrace
with tailrace.open(sys.argv[1]) as store:
    queue = store.queue("q")
    queue.publish(b"x", headers={"a": "b"})
    with queue.consumer("w") as consumer:
        consumer.receive(1)[0].ack()
wrong = [name for name in sys.modules if name.startswith(
    ("tailrace.metrics", "tailrace.tracing", "tailrace.jsonlog", "opentelemetry", "prometheus"))]
assert not wrong, wrong
"""


def test_nothing_is_imported_that_is_not_asked_for(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", QUIET, str(tmp_path)], check=True, timeout=60)
