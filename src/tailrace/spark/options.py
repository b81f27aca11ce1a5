"""What may be said with `.option(…)`, read once and refused by name.

Names are those of Spark's Kafka source where it has one. They come in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from tailrace.errors import ConfigError
from tailrace.queue.names import check_name
from tailrace.queue.topics import check_filter
from tailrace.spark.columns import HEADERS_AS, RowFilter
from tailrace.spark.times import parse_time
from tailrace.units import parse_size

__all__ = ["SinkOptions", "SourceOptions", "Start"]

_SOURCE: Final = (
    "path",
    "queue",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "exactTimestamps",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "headers",
    "keys",
    "filter",
    "splitBytes",
    "group",
    "includeArchive",
    "archive",
)
_SINK: Final = ("path", "queue", "topic", "txnId", "txnVersion", "checkpointLocation", "queryName")
_SPLIT_BYTES: Final = 64 << 20
_OFFSETS_PER_TRIGGER: Final = 5_000_000

Start = str | dict[str, int]


@dataclass(frozen=True)
class SourceOptions:
    """Of a table that is read. Picklable."""

    path: str
    queues: tuple[str, ...] = ()
    pattern: str | None = None  # of the names of queues, instead
    start: Start = "earliest"
    end: Start = "latest"
    starting_ms: int | None = None
    ending_ms: int | None = None
    max_offsets: int | None = None  # in one trigger
    min_partitions: int | None = None
    fail_on_loss: bool = True
    has_headers: bool = False
    headers_as: str = "array"
    split_bytes: int = _SPLIT_BYTES
    has_split_bytes: bool = False  # somebody has said so
    group: str | None = None
    rows: RowFilter = field(default_factory=RowFilter)
    has_archive: bool = False  # what was archived belongs to the table
    archive: str | dict[str, str] | None = None  # its folder, or those of some queues

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> SourceOptions:
        """`is_stream`: it goes on, so it has no end, and begins with what comes."""
        options = _known(given, _SOURCE, "reading")
        queues, pattern = _queues(options)
        for name in ("endingOffsets", "endingTimestamp") if is_stream else ():
            if name in options:
                raise ConfigError(f"{name}: a stream has no end; leave it out")
        has_archive, archive = _archive(options, queues, is_stream=is_stream)
        starting, ending = (
            parse_time(options[name], name) if name in options else None
            for name in ("startingTimestamp", "endingTimestamp")
        )
        is_exact = _truth(options, "exactTimestamps", False)
        begin = "latest" if is_stream and starting is None else "earliest"
        keys, routing = options.get("keys"), options.get("filter")
        if routing is not None:
            check_filter(routing)
        if "group" in options:
            check_name("group", options["group"])
        start = _offsets(options, "startingOffsets", begin)
        end = _offsets(options, "endingOffsets", "latest")
        _check_order(start, end)
        most = _whole(options, "maxOffsetsPerTrigger")
        return cls(
            path=options["path"],
            queues=queues,
            pattern=pattern,
            start=start,
            end=end,
            starting_ms=starting,
            ending_ms=ending,
            max_offsets=(_OFFSETS_PER_TRIGGER if is_stream else None) if most is None else most,
            min_partitions=_whole(options, "minPartitions"),
            fail_on_loss=_truth(options, "failOnDataLoss", True),
            has_headers=_has_headers(options),
            headers_as=_word(options, "headers", tuple(HEADERS_AS), "array"),
            split_bytes=_size(options, "splitBytes", _SPLIT_BYTES),
            has_split_bytes="splitBytes" in options,
            group=options.get("group"),
            rows=RowFilter(
                None if keys is None else _keys(keys),
                routing,
                starting if is_exact else None,
                ending if is_exact else None,
            ),
            has_archive=has_archive,
            archive=archive,
        )

    def check_offsets(self, chosen: Collection[str]) -> None:
        """Refuse offsets of a queue that is not read: its name may be misspelt."""
        for option, given in ("startingOffsets", self.start), ("endingOffsets", self.end):
            for name in given if isinstance(given, dict) else ():
                if name not in chosen:
                    raise ConfigError(
                        f"{option}: {name!r} is not read; it may name {', '.join(sorted(chosen))}"
                    )

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Which of the queues that there are."""
        there = set(names)
        if self.pattern is not None:
            return sorted(filter(self.reads, there))
        for name in self.queues:
            if name not in there:
                known = f"there are {', '.join(sorted(there))}" if there else "it has none"
                raise ConfigError(f"queue: the store in {self.path} has no {name!r}; {known}")
        return list(self.queues)

    def reads(self, name: str) -> bool:
        """Is it one of those that were asked for, whether it is there or not?"""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, name) is not None
        return name in self.queues


@dataclass(frozen=True)
class SinkOptions:
    """Of a table that is written to. Picklable."""

    path: str
    queue: str | None = None  # else the column of that name, or `topic`, tells
    topic: str | None = None
    txn: str | None = None
    version: int = 0  # of the transaction: each is taken once, and none below one that was

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        options = _known(given, _SINK, "writing")
        if "queue" in options and "topic" in options:
            raise ConfigError("queue, topic: name the queue or the topic, not both")
        version = options.get("txnVersion", "0")
        if not re.fullmatch("[0-9]{1,18}", version):
            raise ConfigError(f"txnVersion: expected a whole number from 0 on, got {version!r}")
        if options.get("txnId") == "":
            raise ConfigError("txnId: must not be empty")
        if "txnVersion" in options and "txnId" not in options:
            raise ConfigError("txnVersion: it counts the writes of a txnId; give that, too")
        return cls(
            options["path"],
            options.get("queue"),
            options.get("topic"),
            options.get("txnId"),
            int(version),
        )


def _known(given: Mapping[str, str], names: tuple[str, ...], what: str) -> dict[str, str]:
    """By the names as they are written here."""
    by_lower = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for name, value in given.items():
        known = by_lower.get(name.lower())
        if known is None:
            close = get_close_matches(name.lower(), by_lower, n=1)
            meant = "".join(f" (did you mean {by_lower[each]}?)" for each in close)
            raise ConfigError(f"{name}: unknown option{meant}; {what} takes {', '.join(names)}")
        options[known] = value
    if not options.get("path"):
        raise ConfigError('path: name the folder of the store: .option("path", "data")')
    return options


def _queues(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("queue", "subscribe", "subscribePattern") if name in options]
    if len(given) != 1:
        raise ConfigError(
            "queue: name one queue (queue), several (subscribe, with commas), or a pattern of "
            f"their names (subscribePattern): {' and '.join(given) or 'none of them'} is given"
        )
    [name] = given
    if name == "queue":
        return (options[name],), None
    if name == "subscribe":
        names = tuple(part.strip() for part in options[name].split(",") if part.strip())
        if not names:
            raise ConfigError("subscribe: it names no queue")
        return names, None
    try:
        re.compile(options[name])
    except re.error as error:
        raise ConfigError(f"subscribePattern: {options[name]!r}: {error}") from None
    return (), options[name]


def _archive(
    options: Mapping[str, str], queues: tuple[str, ...], *, is_stream: bool
) -> tuple[bool, str | dict[str, str] | None]:
    """Whether, and which folder; or as `{"orders": "archive/orders"}`, those of several queues."""
    is_wanted, text = _truth(options, "includeArchive", False), options.get("archive")
    if is_wanted and is_stream:
        raise ConfigError(
            "includeArchive: a stream goes on from what the queue holds. Read what was archived "
            "with spark.read, or bring it back first: tailrace restore"
        )
    if text is None:
        return is_wanted, None
    if not is_wanted:
        raise ConfigError("archive: it is read with includeArchive=true only")
    if not text.lstrip().startswith("{"):
        if len(queues) != 1:
            raise ConfigError(
                'archive: of several queues, name the folder of each: {"orders": "archive/orders"}'
            )
        return True, text
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"archive: no JSON object: {error}") from None
    if not all(isinstance(folder, str) for folder in found.values()):
        raise ConfigError(f"archive: expected the folder of each queue, got {text!r}")
    return True, found


def _offsets(options: Mapping[str, str], name: str, default: str) -> Start:
    """A word, in any case; or offsets by queue, as `{"orders": 5}`, or as Kafka has them,
    `{"orders": {"0": 5}}`. -2 is the earliest and -1 the latest."""
    text = options.get(name, default)
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        given = json.loads(text).items()
    except (AttributeError, ValueError):
        raise ConfigError(
            f"{name}: expected 'earliest', 'latest' or JSON such as {{\"orders\": 5}}, got {text!r}"
        ) from None
    return {queue: _offset(offset, queue, name) for queue, offset in given}


def _offset(given: Any, queue: str, name: str) -> int:
    if isinstance(given, dict) and given.keys() != {"0"}:
        raise ConfigError(f"{name}: {queue!r} has one partition, which is 0; got {given}")
    offset = given["0"] if isinstance(given, dict) else given
    if type(offset) is not int or offset < -2:
        raise ConfigError(
            f"{name}: expected an offset of {queue!r}, from 0 on, or -2 for the earliest, or "
            f"-1 for the latest; got {offset!r}"
        )
    return offset


def _check_order(start: Start, end: Start) -> None:
    """Of offsets, not of words for them: nobody knows what these mean without a look."""
    if isinstance(start, str) or isinstance(end, str):
        return
    for queue in start.keys() & end.keys():
        if 0 <= end[queue] < start[queue]:
            raise ConfigError(
                f"startingOffsets: offset {start[queue]} of {queue!r} is above endingOffsets, "
                f"{end[queue]}"
            )


def _has_headers(options: Mapping[str, str]) -> bool:
    """Whoever says what headers are to be wants them."""
    is_wanted = _truth(options, "includeHeaders", "headers" in options)
    if "headers" in options and not is_wanted:
        raise ConfigError(
            f"headers: {options['headers']!r} says what the column is, and includeHeaders=false "
            "that there is none; leave out one of them"
        )
    return is_wanted


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}: expected true or false, got {text!r}")
    return text == "true"


def _whole(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text) or not int(text):
        raise ConfigError(f"{name}: expected a whole number above 0, got {text!r}")
    return int(text)


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    size = parse_size(options[name], name) if name in options else default
    if size < 1:
        raise ConfigError(f"{name}: expected a size above 0, got {options[name]!r}")
    return size


def _word(options: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    word = options.get(name, default).lower()
    if word not in words:
        raise ConfigError(f"{name}: expected {' or '.join(words)}, got {word!r}")
    return word


def _keys(text: str) -> tuple[bytes, ...]:
    """A JSON list, or names with commas."""
    if text.lstrip().startswith("["):
        try:
            found: Any = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"keys: no JSON list: {error}") from None
        if not all(isinstance(key, str) for key in found):
            raise ConfigError(f"keys: expected a list of strings, got {text!r}")
    else:
        found = [part.strip() for part in text.split(",")]
    try:
        return tuple(key.encode() for key in found)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"keys: {error.object!r} has half a character (a surrogate), which UTF-8 has not"
        ) from None
