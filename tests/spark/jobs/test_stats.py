"""The job that counts, beside a model that does it in plain Python."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace.cli.stores import StorePlace, look_at_store
from tailrace.errors import InvalidName
from tests.spark.jobs.stores import T0, files_of, flip, log_of, make_store

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

import pyarrow as pa

from tailrace.spark.jobs import figures as module
from tailrace.spark.jobs.figures import Distribution, Figures, Keys, Timeline
from tailrace.spark.jobs.running import Means, Running
from tailrace.spark.jobs.stats import QueueFigures, count_queue

HERE = Means(spark=False)


class Sent(NamedTuple):
    timestamp: int
    key: str | None
    value: bytes


messages = st.lists(
    st.builds(
        Sent,
        st.integers(T0 - 5_000, T0 + 40_000_000),
        st.sampled_from([None, "a", "b", "c", "ключ"]),
        st.binary(max_size=30),
    ),
    max_size=60,
)


def counted(path: Path | str, queue: str, means: Means = HERE, **options: Any) -> QueueFigures:
    return counted_by(path, queue, means, **options)[0]


def counted_by(
    path: Path | str, queue: str, means: Means, **options: Any
) -> tuple[QueueFigures, Running]:
    with look_at_store(StorePlace(str(path))) as look:
        return count_queue(look, str(path), queue, means, **options)


def fill(path: str, sent: list[Sent], **options: Any) -> None:
    with tailrace.open(path, upkeep=False, flush="none") as store:
        stream = store.stream("q", segment_bytes=800, index_interval=100, **options)
        for each in sent:
            stream.publish(each.value, key=each.key, timestamp=each.timestamp)


# --- the model ------------------------------------------------------------------------------


def quantile(values: list[int], share: float) -> int | None:
    return sorted(values)[max(math.ceil(len(values) * share), 1) - 1] if values else None


def check_quantiles(found: Any, values: list[int]) -> None:
    assert found.count == len(values)
    assert found.exact
    assert (found.min, found.max) == (min(values, default=None), max(values, default=None))
    assert [found.median, found.p95, found.p99] == [
        quantile(values, share) for share in (0.5, 0.95, 0.99)
    ]


def check(found: QueueFigures, sent: list[Sent]) -> None:
    sizes = [len(each.value) + len((each.key or "").encode()) for each in sent]
    times = [each.timestamp for each in sent]
    assert (found.messages, found.bytes) == (len(sent), sum(sizes))
    assert (found.oldest_ms, found.newest_ms) == (
        min(times, default=None),
        max(times, default=None),
    )
    check_quantiles(found.sizes, sizes)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    check_quantiles(found.gaps, gaps)
    assert found.backwards == sum(gap < 0 for gap in gaps)
    own = []
    last: dict[str, int] = {}
    for each in sent:
        if each.key is not None:
            if each.key in last:
                own.append(each.timestamp - last[each.key])
            last[each.key] = each.timestamp
    check_quantiles(found.key_gaps, own)
    keys = Counter(each.key.encode() for each in sent if each.key is not None)
    ordered = sorted(keys.items(), key=lambda item: (-item[1], item[0]))
    assert [(each.key, each.count) for each in found.top_keys] == ordered[:3]
    assert (found.distinct_keys, found.keys_missed) == (len(keys), 0)
    assert found.without_key == sum(each.key is None for each in sent)
    step = found.step_ms
    steps: Counter[int] = Counter()
    amounts: Counter[int] = Counter()
    for each, size in zip(sent, sizes, strict=True):
        steps[each.timestamp // step * step] += 1
        amounts[each.timestamp // step * step] += size
    assert {p.at_ms: (p.messages, p.bytes) for p in found.points if p.messages} == {
        at: (count, amounts[at]) for at, count in steps.items()
    }
    starts = [point.at_ms for point in found.points]
    assert starts == list(range(starts[0], starts[-1] + 1, step)) if starts else not sent
    assert len(starts) <= 240
    for point in found.points:
        assert point.messages_per_second == pytest.approx(point.messages * 1_000 / step)


@settings(max_examples=40, deadline=None)
@given(
    messages,
    st.sampled_from([1, 300, 1 << 30]),
    st.none() | st.integers(T0 - 6_000, T0 + 41_000_000),
    st.none() | st.integers(T0 - 6_000, T0 + 41_000_000),
    st.sampled_from(["none", "s2"]),
)
def test_it_counts_as_the_model_does(
    sent: list[Sent], split_bytes: int, since: int | None, until: int | None, codec: str
) -> None:
    with tempfile.TemporaryDirectory() as path:
        fill(path, sent, compression=codec)
        found = counted(path, "q", top=3, since_ms=since, until_ms=until, split_bytes=split_bytes)
    inside = [
        each
        for each in sent
        if (since is None or each.timestamp >= since) and (until is None or each.timestamp < until)
    ]
    check(found, inside)
    assert found.end_offset == len(sent)
    assert found.missing == (0 if since is None and until is None else None)


def test_how_far_groups_are_behind(tmp_path: Path) -> None:
    sent = [Sent(T0 + 1_000 * number, "k", b"v") for number in range(100)]
    fill(str(tmp_path), sent)
    with tailrace.open(tmp_path, upkeep=False) as store:
        stream = store.stream("q")
        with stream.consumer("half") as consumer:
            for message in consumer.receive(50):
                message.ack()
        stream.group("all").seek(100)
        stream.group("none").seek(0)
    groups = {group.id: group for group in counted(tmp_path, "q").groups}
    assert {name: group.messages for name, group in groups.items()} == {
        "all": 0,
        "half": 50,
        "none": 100,
    }
    half = groups["half"]
    assert half.committed == 50
    assert half.behind_ms == 49_000
    assert half.age_ms is not None
    assert half.age_ms > 49_000
    assert groups["all"].behind_ms is None
    for name, committed in (("all", 100), ("half", 50), ("none", 0)):
        assert groups[name].points
        for at, behind in groups[name].points:
            published = [n for n, each in enumerate(sent) if each.timestamp < at]
            assert behind == sum(number >= committed for number in published)
    late = counted(tmp_path, "q", since_ms=T0 + 80_000)
    assert [group.points[-1][1] for group in late.groups] == [0, 50, 100]


def test_a_queue_that_nobody_has_used(tmp_path: Path) -> None:
    make_store(tmp_path)
    found = counted(tmp_path, "unused")
    assert (found.messages, found.points, found.top_keys) == (0, [], [])
    assert found.per_second(found.messages) is None
    with pytest.raises(InvalidName, match="nothing"):
        counted(tmp_path, "nothing")


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    root = make_store(tmp_path)
    whole = counted(tmp_path, "events")
    flip(files_of(log_of(root, "events"), ".seg")[1], 60)
    found = counted(tmp_path, "events", split_bytes=1)
    assert found.missing
    assert found.messages + found.missing == whole.messages


def test_on_spark(spark: Any, tmp_path: Path) -> None:
    make_store(tmp_path)
    here = counted(tmp_path, "events")
    found, running = counted_by(tmp_path, "events", Means(True, session=spark), split_bytes=1_000)
    assert running.path == "spark"
    assert running.tasks > 1
    for each in (here, found):  # the time goes on
        each.groups = [group.__class__(**{**vars(group), "age_ms": 0}) for group in each.groups]
    assert found == here


# --- figures --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_parts_add_up_to_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POINTS", 20)
    rng = random.Random(seed)
    count = rng.randint(1, 300)
    times = [T0 + rng.randint(0, 10 ** rng.randint(0, 12)) for _ in range(count)]
    names = [rng.choice([None, b"a", b"b", b"%d" % rng.randrange(50)]) for _ in range(count)]
    contents = [rng.randbytes(rng.randrange(50)) for _ in range(count)]
    behind = (("g", count // 2),)

    def take(figures: Figures, first: int, last: int) -> None:
        figures.take(
            pa.array(range(first, last), pa.int64()),
            pa.array(times[first:last], pa.int64()),
            pa.array(names[first:last], pa.binary()),
            pa.array(contents[first:last], pa.binary()),
        )

    whole = Figures(behind)
    take(whole, 0, count)
    added, streamed = Figures(behind), Figures(behind)
    bounds = sorted({0, count, *(rng.randrange(count) for _ in range(4))})
    for first, last in itertools.pairwise(bounds):
        part = Figures(behind)
        take(part, first, last)
        added.add(part)
        take(streamed, first, last)
    for other in (added, streamed):
        for name in ("messages", "bytes", "without_key", "backwards", "oldest_ms", "newest_ms"):
            assert getattr(other, name) == getattr(whole, name)
        for name in ("sizes", "gaps", "key_gaps"):
            assert vars(getattr(other, name)) == vars(getattr(whole, name)), name
        assert other.keys.known == whole.keys.known
        assert other.timeline.points() == whole.timeline.points()


@pytest.mark.parametrize("seed", range(10))
def test_many_values_are_rounded_by_little(seed: int) -> None:
    rng = random.Random(seed)
    values = [int(rng.lognormvariate(12, 4)) * rng.choice([1, 1, 1, -1]) for _ in range(40_000)]
    found, half = Distribution(), Distribution()
    found.take(pa.array(values[:30_000], pa.int64()))
    half.take(pa.array(values[30_000:], pa.int64()))
    found.add(half)
    assert not found.is_exact
    assert len(found.counts) < 20_000
    assert (found.count, found.least, found.most) == (40_000, min(values), max(values))
    for share in (0.05, 0.5, 0.95, 0.99):
        exact, about = quantile(values, share), found.quantile(share)
        assert exact is not None
        assert about is not None
        assert abs(about - exact) <= abs(exact) / 500


def test_rare_keys_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEYS", 100)
    rng = random.Random(1)
    keys, counts = Keys(), Counter[bytes]()
    for number in range(20_000):
        key = b"often %d" % rng.randrange(5) if number % 2 else b"%d" % number
        counts[key] += 1
        keys.follow(key, 1, number, number)
        keys.shrink()
    assert not keys.is_exact
    assert len(keys.known) <= 100
    for key, count in keys.top(5):
        assert key.startswith(b"often")
        assert count <= counts[key] <= count + keys.missed


def test_times_may_be_before_1970() -> None:
    timeline = Timeline(1)
    times = [-1, 0, 1, -86_400_000 * 300, 5]
    timeline.take(pa.array(times, pa.int64()), [pa.array([1] * 5, pa.int64())])
    step = timeline.step_ms
    found = {at: amount for at, [amount] in timeline.points() if amount}
    assert found == dict(Counter(time // step * step for time in times))
