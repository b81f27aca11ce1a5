"""The files of a group that FluxMQ wrote, or of ours that look like it because they are damaged.

FluxMQ's have no checksum, and a crash may leave any part of them. So only what cannot be read, or
contradicts itself, is a problem here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tailrace.log.offline.findings import Severity
from tailrace.queue.journal import NAME
from tailrace.queue.offline.documents import read_snapshot
from tailrace.queue.offline.lines import Journal
from tailrace.queue.snapshots import SHARDS, STATE, pel_name

__all__ = ["check_fluxmq"]


class Report(Protocol):
    def __call__(
        self, severity: Severity, name: str, message: str, position: int | None = None
    ) -> None: ...


def check_fluxmq(report: Report, files: Mapping[str, bytes], journal: Journal) -> int | None:
    """The cursor, if the files tell."""
    documents: dict[str, dict[str, Any]] = {}
    for name in (STATE, *map(pel_name, range(SHARDS))):
        data = files.get(name)
        if data is None:
            continue
        document = read_snapshot(data)
        if document.fault is not None or document.contents is None:
            consequence = "what was pending in it is not known"
            if name == STATE:
                consequence = "what the group has consumed is not known"
            why = document.fault or "it is empty"
            message = f"is damaged ({why}): {consequence}, and messages may be delivered again"
            report("problem", name, message, document.position)
        else:
            documents[name] = document.contents
    if not documents and journal.is_empty:
        return None
    if STATE not in files and documents:
        report("problem", STATE, "is missing: what the group has consumed is not known")
    versions = {document.get("version") for document in documents.values()}
    if len(versions) > 1:
        message = "its files are of several snapshots; the next open makes the best of it"
        report("note", "", message)
    for shard in range(SHARDS):
        _check_shard(report, shard, documents.get(pel_name(shard), {}))
    cursor = _number((documents.get(STATE, {}).get("state") or {}).get("Cursor"))
    if journal.is_ours:
        return cursor
    return _check_lines(report, journal, cursor)


def _check_shard(report: Report, shard: int, document: Mapping[str, Any]) -> None:
    entries = document.get("entries") or {}
    for key in entries if isinstance(entries, dict) else ():
        if not key.isdecimal() or int(key) % SHARDS != shard:
            message = f"has an entry for offset {key}, which is another file's"
            report("problem", pel_name(shard), message)
            return


def _check_lines(report: Report, journal: Journal, cursor: int | None) -> int | None:
    for line in journal.all_lines:
        if line.ops and not line.zeros:
            for op in line.ops:
                offset = _number(op.get("o"))
                if offset is not None and op["t"] == 8:
                    cursor = offset
                elif offset is not None and op["t"] == 1:
                    cursor = max(cursor or 0, offset + 1)
        elif line is journal.all_lines[-1] and not line.has_end:
            report("note", NAME, "a crash tore its last line", line.position)
        else:
            message = "the line cannot be read, and nothing from there on counts"
            report("problem", NAME, message, line.position)
            break
    return cursor


def _number(value: Any) -> int | None:
    """FluxMQ leaves out what is 0."""
    number = 0 if value is None else value
    return number if type(number) is int else None
