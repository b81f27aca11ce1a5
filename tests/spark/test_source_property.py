"""What Spark reads is what the log holds: for any log, range, columns and size of splits each row
comes once, in its order, and only the files that are needed are opened."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import Message
from tailrace.kernel import Record, read_header
from tailrace.log.fs import OsFileSystem
from tailrace.queue.addresses import address_of
from tests.spark.support import (
    T0,
    as_row,
    collect,
    column,
    fill,
    open_store,
    read,
    rows,
    schema,
    segments,
    splits,
)

NAMES = schema().names

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
headers = st.lists(st.tuples(names.map(lambda name: f"h{name}"), st.binary(max_size=5)), max_size=3)
times = st.integers(0, 100).map(lambda second: T0 + second * 1000) | st.sampled_from(
    [0, -5, 10**16, -(10**16), 2**62, 2**63 - 1, -(2**63)]
)
values = st.none() | st.binary(max_size=20) | st.integers(0, 600).map(bytes)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """As a message has them, or as others may."""
    own: list[tuple[str, Any]] = []
    if draw(st.integers(0, 9)):
        own.append(("_topic", address_of("q", draw(st.sampled_from(["", "eu", "eu/de", "ü"])))))
    if draw(st.booleans()):
        own.append(("_expires_at", str(T0 + draw(st.integers(0, 10**6)))))
    return Record(
        timestamp=draw(times),
        key=draw(st.sampled_from([b"", b"a", b"b", b"\xff"])),
        value=draw(values),
        headers=own + draw(headers),
    )


@dataclass
class Case:
    """A log, and what is asked of it."""

    batches: list[list[Record]]
    options: dict[str, Any]
    truncated: float
    removed: list[bool]  # which batches, again and again
    range: tuple[float, float]
    columns: list[str]
    split_bytes: int

    def bounds(self, start: int, end: int) -> tuple[int, int]:
        first, last = sorted(start + round(part * (end - start)) for part in self.range)
        return first, last


cases = st.builds(
    Case,
    batches=st.lists(st.lists(records(), min_size=1, max_size=8), max_size=25),
    options=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "s2", "zstd"]),
            "segment_bytes": st.sampled_from([300, 1_000, 5_000, 1 << 20]),
            "index_interval": st.sampled_from([1, 100, 4_096]),
        }
    ),
    truncated=st.sampled_from([0.0, 0.0, 0.3]),
    removed=st.just([False]) | st.lists(st.booleans(), min_size=1, max_size=5),
    range=st.tuples(st.floats(0, 1), st.floats(0, 1)) | st.just((0.0, 1.0)),
    columns=st.lists(st.sampled_from(NAMES), unique=True),
    split_bytes=st.sampled_from([1, 100, 500, 2_000, 1 << 20]),
)


@contextlib.contextmanager
def made(case: Case) -> Iterator[tuple[str, list[Message], int, int]]:
    """The store, the messages of the range by the log's own reader, and the range."""
    with tempfile.TemporaryDirectory() as folder:
        with open_store(folder) as store:
            stream = store.stream("q", **case.options)
            log = stream.log
            for batch in case.batches:
                log.append(batch)
            log.truncate_before(round(case.truncated * log.end_offset))
        if any(case.removed):
            remove_batches(segments(folder, "q"), case.removed)
        with open_store(folder) as store:
            stream = store.stream("q", **case.options)
            log = stream.log
            first, last = case.bounds(log.start_offset, log.end_offset)
            messages = list(stream.read(first, last))
        yield folder, messages, first, last


def remove_batches(files: list[Path], removed: list[bool]) -> None:
    """As other programs do who compact a log: jumps in the offsets are left, in segments and behind
    them, and nothing that we have noted of it. A segment keeps the batch that it is named after,
    and the last one is as it is."""
    shutil.rmtree(files[0].parent / ".tailrace")
    pattern = itertools.cycle(removed)
    for file in files[:-1]:
        data, kept, position = file.read_bytes(), b"", 0
        while position < len(data):
            size = read_header(data, position).size
            if not position or not next(pattern):
                kept += data[position : position + size]
            position += size
        file.write_bytes(kept)
        for suffix in (".idx", ".tix"):
            file.with_suffix(suffix).unlink(missing_ok=True)


def test_jumps_are_made(tmp_path: Path) -> None:
    """By what the properties below use."""
    fill(tmp_path, "s", 60)
    files = segments(tmp_path, "s")
    remove_batches(files, [True, False])
    with open_store(tmp_path) as store:
        found = [message.offset for message in store.stream("s").read()]
    assert {int(file.stem) for file in files} < set(found)
    assert len(found) < 45
    assert found[-1] == 59
    for size in ("300", "64MiB"):
        assert column(read(tmp_path, "offset", queue="s", splitBytes=size), "offset") == found


@settings(max_examples=25)
@given(case=cases)
def test_a_plan_has_each_row_once(case: Case) -> None:
    from tailrace.spark.columns import Projection, RowFilter
    from tailrace.spark.planning import Place, cut, pack
    from tailrace.spark.planning import read as read_split

    with made(case) as (folder, messages, first, last):
        expected = [as_row(message) for message in messages]
        place = Place(folder)
        queue = place.queues()["q"]
        with place.log("q", queue.incarnation) as log:
            assert log is not None
            ranges = list(cut(log, queue, first, last, case.split_bytes))
        bounds = [first, *(part.last for part in ranges)]
        assert [part.first for part in ranges] == bounds[:-1]
        assert bounds[-1] == last or first == last
        packed = pack(iter(ranges), case.split_bytes)
        assert sum(split.size for split in packed) == sum(part.size for part in ranges)
        projection = Projection.of(schema(*case.columns))
        found = []
        for split in packed:
            found += list(read_split(folder, split, projection, RowFilter(), fail_on_loss=True))
        schemas = {batch.schema for batch in found}  # type: ignore[attr-defined]
        assert schemas <= {projection.schema}
        wanted = case.columns or NAMES
        assert rows(found) == [{name: row[name] for name in wanted} for row in expected]


@settings(max_examples=25)
@given(
    case=cases,
    since=st.none() | st.integers(-1, 101),
    until=st.none() | st.integers(-1, 101),
    keys=st.none() | st.lists(st.sampled_from(["", "a", "b", "c"])),
    pattern=st.none() | st.sampled_from(["#", "eu", "eu/+", "+", "eu/#"]),
)
def test_rows_can_be_chosen(
    case: Case, since: int | None, until: int | None, keys: list[str] | None, pattern: str | None
) -> None:
    from tailrace.queue.topics import matches

    options = {"queue": "q", "splitBytes": str(case.split_bytes), "exactTimestamps": "true"}
    for name, second in (("startingTimestamp", since), ("endingTimestamp", until)):
        if second is not None:
            options[name] = str(T0 + second * 1000)
    if keys is not None:
        options["keys"] = json.dumps(keys)
    if pattern is not None:
        options["filter"] = pattern

    def is_wanted(message: Message) -> bool:
        if since is not None and message.timestamp < T0 + since * 1000:
            return False
        if keys is not None and (
            message.key is None or message.key not in [k.encode() for k in keys]
        ):
            return False
        topic = f"/{message.routing_key}" if message.routing_key else ""
        return pattern is None or matches(f"/{pattern}", topic)

    case.range = (0.0, 1.0)
    with made(case) as (folder, messages, _, _):
        if until is not None:  # it ends before the first that is not older
            late = [n for n, each in enumerate(messages) if each.timestamp >= T0 + until * 1000]
            messages = messages[: late[0]] if late else messages
        assert read(folder, **options) == [as_row(each) for each in messages if is_wanted(each)]


@settings(max_examples=4)
@given(case=cases)
def test_spark_reads_what_the_log_holds(spark: Any, case: Case) -> None:
    with made(case) as (folder, messages, first, last):
        expected = [as_row(message) for message in messages]
        reader = spark.read.format("tailrace").option("path", folder).option("queue", "q")
        reader = reader.option("splitBytes", case.split_bytes)
        reader = reader.option("startingOffsets", json.dumps({"q": first}))
        reader = reader.option("endingOffsets", json.dumps({"q": last}))
        wanted = case.columns or NAMES
        df = reader.schema(schema(*case.columns)).load()
        assert collect(df) == [{name: row[name] for name in wanted} for row in expected]


# --- which files are opened -----------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files of segments and indexes that are opened."""
    found: list[str] = []
    original = OsFileSystem.open

    def open_it(self: OsFileSystem, path: str, **how: bool) -> Any:
        if path.endswith((".seg", ".idx", ".tix")):
            found.append(Path(path).name)
        return original(self, path, **how)

    monkeypatch.setattr(OsFileSystem, "open", open_it)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"s": 101}', "endingOffsets": '{"s": 104}'},
        {"startingTimestamp": str(T0 + 101_000), "endingTimestamp": str(T0 + 104_000)},
    ],
)
@pytest.mark.parametrize("size", [300, 1 << 20])
def test_a_range_opens_only_the_files_it_needs(
    tmp_path: Path, opened: list[str], options: dict[str, str], size: int
) -> None:
    fill(tmp_path, "s", 200)
    stems = [file.stem for file in segments(tmp_path, "s")]
    assert len(stems) > 5
    opened.clear()
    found = read(tmp_path, "offset", queue="s", splitBytes=str(size), **options)
    assert column(found, "offset") == [101, 102, 103]
    ends = [int(stem) for stem in stems[1:]] + [200]
    holding = {stem for stem, end in zip(stems, ends, strict=True) if int(stem) < 104 and end > 101}
    # The last one is looked at, too: it is where the log ends.
    assert {Path(name).stem for name in opened} <= {*holding, stems[-1]}


def test_whole_segments_are_planned_without_their_indexes(
    tmp_path: Path, opened: list[str]
) -> None:
    fill(tmp_path, "s", 200)
    stems = [file.stem for file in segments(tmp_path, "s")]
    opened.clear()
    splits(tmp_path, "offset", queue="s")
    assert {Path(name).stem for name in opened} <= {stems[-1]}
