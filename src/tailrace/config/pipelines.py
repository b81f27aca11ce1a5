"""What a pipeline in a file may say, as far as that can be told without Spark.

What its statement means only Spark knows: `tailrace pipeline check` asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tailrace.config.schema import CONF, FILE_FORMATS, MESSAGE_FORMATS, ON_LOSS, OUTPUT_MODES
from tailrace.errors import ConfigError, InvalidName
from tailrace.kernel.layout import MAX_OFFSET
from tailrace.queue.names import check_name
from tailrace.units import parse_duration

__all__ = ["ONCE", "circles", "parse_start", "parse_trigger", "problems_of_pipeline"]

ONCE: Final = "once"
_WORDS: Final = ("first", "next")
_OF_MESSAGES: Final = ("stream", "watermark", "start", "max_offsets_per_trigger")

Found = Iterator[tuple[str, str]]


def parse_start(given: int | str) -> int | str | datetime:
    """An offset, a word, or a time."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0:
            raise ConfigError(f"an offset is 0 or above, not {given}")
        if given > MAX_OFFSET:
            raise ConfigError(f"an offset is {MAX_OFFSET} at most, not {given}")
        return given
    if given in _WORDS:
        return given
    try:
        moment = datetime.fromisoformat(str(given))
    except ValueError:
        raise ConfigError(
            f"{given!r} is not {', '.join(_WORDS)}, an offset, or a time such as "
            "2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        in_utc = f"{moment.isoformat()}Z"  # a date takes no zone by itself
        raise ConfigError(f"{given!r} is a time without a zone; write {in_utc} for UTC")
    return moment


def parse_trigger(given: int | float | str | None) -> int | str | None:
    """Milliseconds; or `once`; or `None`, for as soon as it can."""
    if given is None or given == ONCE:
        return given
    return parse_duration(given, "trigger")


def problems_of_pipeline(entry: Mapping[str, Any]) -> Found:
    """Keys of a pipeline that are wrong, and why. Each value has the right type already."""
    yield from _named("name", "pipeline", entry)
    yield from _named("from", "queue", entry)
    yield from _named("dead_letters", "queue", entry)
    yield from _one_of("format", entry, MESSAGE_FORMATS)
    yield from _one_of("on_loss", entry, ON_LOSS)
    yield from _one_of("output_mode", entry, OUTPUT_MODES)
    yield from _statement(entry)
    yield from _decoding(entry, "")
    yield from _moments(entry, "")
    yield from _tried("trigger", parse_trigger, entry.get("trigger"))
    yield from _target(entry)
    for each in entry.get("conf", ()):
        if not CONF.match(each):
            yield "conf", f"{each!r} is not name=value with a name such as spark.ui.port"
    for name, table in entry.get("tables", {}).items():
        if name.lower() == str(entry.get("from")).lower():  # to Spark they are the same
            yield f"tables.{name}", f"{name!r} is what the pipeline reads; use another name"
        elif isinstance(table, Mapping):
            yield from _table(f"tables.{name}.", table)
    if entry.get("dead_letters") and entry.get("format", "raw") == "raw":
        yield "dead_letters", "every value is as good as another with format raw; remove it"
    elif not entry.get("dead_letters"):
        return
    elif entry["dead_letters"] == entry.get("from"):
        yield "dead_letters", "it would read what it has refused, for ever; name another queue"
    elif entry["dead_letters"] == entry.get("to"):
        yield "dead_letters", "it is where the rows go; name another queue"


def circles(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Pipelines that would read what comes of what they write, for ever: the number of one of each
    circle, and what is wrong with its `to`. One that reads its own target has been told so if that
    is its `from`. What is read as a table is read once, and ends."""
    told: set[frozenset[int]] = set()
    for first in range(len(entries)):
        way = _way_back(entries, first)
        if (
            way
            and frozenset(way) not in told
            and entries[first]["to"] != entries[first].get("from")
        ):
            told.add(frozenset(way))
            names = " to ".join(repr(entries[each]["to"]) for each in [way[-1], *way])
            said = (
                f"pipelines would read what comes of what they write, from {names}, and never come "
                "to an end; name another queue"
            )
            yield first, said


def _way_back(entries: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """The pipelines that a message comes through until it is at the first one again; none if it
    does not. A shortest way."""
    ways = [[first]]
    for way in ways:  # which grows
        for each in _readers(entries, way[-1]):
            if each == first:
                return way
            if all(each != other[-1] for other in ways):
                ways.append([*way, each])
    return []


def _readers(entries: Sequence[Mapping[str, Any]], writer: int) -> list[int]:
    """Those that go on with what a pipeline writes."""
    to = entries[writer].get("to")
    return [n for n, entry in enumerate(entries) if isinstance(to, str) and to in _streams(entry)]


def _streams(entry: Mapping[str, Any]) -> list[Any]:
    tables = [each for each in entry.get("tables", {}).values() if isinstance(each, Mapping)]
    return [entry.get("from"), *(each.get("queue") for each in tables if each.get("stream"))]


def _statement(entry: Mapping[str, Any]) -> Found:
    if "sql" not in entry and "sql_file" not in entry:
        yield "sql", "it is missing"
    elif "sql" in entry and "sql_file" in entry:
        yield "sql_file", "there is sql, too; keep one of them"
    elif not entry.get("sql", "x").strip():
        yield "sql", "it is empty"


def _decoding(entry: Mapping[str, Any], above: str) -> Found:
    kind = entry.get("format", "raw")
    given = [key for key in ("schema", "schema_file") if key in entry]
    if len(given) > 1:
        yield f"{above}schema_file", "there is schema, too; keep one of them"
    if kind == "raw" and given:
        yield f"{above}{given[0]}", "it is for format json, csv or avro"
    elif kind in MESSAGE_FORMATS[1:] and not given:
        yield f"{above}schema", f"format {kind} needs it, or schema_file"
    if "delimiter" in entry and kind != "csv":
        yield f"{above}delimiter", "it is for format csv"


def _moments(entry: Mapping[str, Any], above: str) -> Found:
    if "start" in entry:
        yield from _tried(f"{above}start", parse_start, entry["start"])
    delay = entry.get("watermark", {}).get("delay")
    if delay is not None:
        yield from _tried(f"{above}watermark.delay", parse_duration, delay, "delay")


def _target(entry: Mapping[str, Any]) -> Found:
    to, mode = entry.get("to"), entry.get("output_mode", "append")
    if isinstance(to, Mapping):
        yield from _one_of("to.format", to, FILE_FORMATS)
        if not to.get("path", "x").strip():
            yield "to.path", "it is empty; name a folder for the files"
    if isinstance(to, str):
        yield from _named("to", "queue", entry)
        if to == entry.get("from"):
            yield "to", f"it reads {to!r}, and would read what it writes; name another queue"
    elif isinstance(to, Mapping) and mode in OUTPUT_MODES[1:]:
        yield "output_mode", f"files are only added to; {mode} is for a queue"


def _table(above: str, table: Mapping[str, Any]) -> Found:
    if ("path" in table) is ("queue" in table):
        yield f"{above}path", "name files (path) or a queue (queue), one of them"
        return
    kinds = FILE_FORMATS if "path" in table else MESSAGE_FORMATS
    if table.get("format", kinds[0]) not in kinds:
        what = "files" if "path" in table else "messages"
        yield f"{above}format", f"{what} are {', '.join(kinds)}, not {table['format']}"
    elif "path" in table:
        for key in _OF_MESSAGES:
            if table.get(key):
                yield f"{above}{key}", "it is for a queue"
    else:
        yield from _named(f"{above}queue", "queue", table, "queue")
        yield from _decoding(table, above)
        yield from _moments(table, above)
        for key in _OF_MESSAGES[1:]:
            if key in table and not table.get("stream"):
                yield f"{above}{key}", "it is for a queue that is gone on with: set stream to true"


def _one_of(path: str, entry: Mapping[str, Any], choices: tuple[str, ...]) -> Found:
    given = entry.get(path.rpartition(".")[2], choices[0])
    if given not in choices:
        yield path, f"expected one of {', '.join(choices)}, got {given!r:.60}"


def _named(path: str, what: str, entry: Mapping[str, Any], key: str | None = None) -> Found:
    name = entry.get(key or path)
    if isinstance(name, str):
        yield from _tried(path, lambda given: check_name(what, given), name)


def _tried(path: str, parse: Any, *given: Any) -> Found:
    try:
        parse(*given)
    except (ConfigError, InvalidName) as error:
        key = path.rpartition(".")[2]
        yield path, str(error).removeprefix(f"{key}: ")
