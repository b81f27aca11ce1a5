"""The files in `groups`, by which groups are handed to FluxMQ and back.

Of a group of ours such a file is a copy, made when the group was closed: what is wrong with it
costs nothing here. Of one that only FluxMQ knows, it is all there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tailrace.log.fs import FileSystem
from tailrace.log.offline.findings import Finding, Severity
from tailrace.queue.fluxmq_groups import VERSION
from tailrace.queue.ledger import Ledger
from tailrace.queue.names import to_component
from tailrace.queue.offline.documents import Document, read_saved
from tailrace.queue.offline.group_survey import GroupSurvey
from tailrace.queue.offline.tree import Tree, read_all

__all__ = ["check_saved"]

_MODES: Final = ("queue", "stream", "", None)


def check_saved(
    fs: FileSystem, tree: Tree, surveys: Mapping[tuple[str, str], GroupSurvey]
) -> Iterator[Finding]:
    """`surveys` are the groups that have a folder, by queue and id."""
    top = os.path.join(tree.root, "groups")
    for path in tree.saved():
        data = read_all(fs, path)
        if data is None:
            continue
        name = os.path.relpath(path, top).removesuffix(".json")
        queue, _, group_id = name.partition("/")
        document = read_saved(data)
        state = (document.contents or {}).get("state")
        if isinstance(state, dict) and f"{state.get('QueueName')}/{state.get('ID')}" == name:
            queue, group_id = state["QueueName"], state["ID"]
        survey = surveys.get((queue, group_id))
        for severity, message in _judge(document, name, survey):
            yield Finding(severity, tree.relative(path), document.position, None, message)


def _judge(
    document: Document, name: str, survey: GroupSurvey | None
) -> Iterator[tuple[Severity, str]]:
    is_ours = survey is not None and survey.state is not None
    fault = document.fault or _fault_of(document.contents or {}, name)
    if fault is not None and is_ours:
        yield "note", f"is damaged ({fault}); it is written anew when the group is closed"
    elif fault is not None:
        yield "problem", f"is damaged ({fault}), and what it said of the group is not known"
    elif survey is not None and survey.is_closed and _is_shared(name):
        if document.checksum == "none":
            yield "note", "FluxMQ has written it since; the next open takes in what it says"
        else:
            yield from _compare(document.contents or {}, survey)


def _is_shared(name: str) -> bool:
    """Names that have to be escaped are taken over from FluxMQ once, and not looked at again."""
    return all(to_component(part) == part for part in name.split("/")) and name.count("/") == 1


def _fault_of(contents: dict[str, Any], name: str) -> str | None:
    version, state = contents.get("version", 0), contents.get("state")
    if type(version) is not int or version > VERSION:
        return f"it is of version {version!r}, and not of {VERSION} or below"
    if not isinstance(state, dict):
        return "it has no state"
    if state.get("Mode") not in _MODES:
        return f"its mode is {state.get('Mode')!r}"
    if f"{state.get('QueueName')}/{state.get('ID')}" != name:
        return f"it is of the group {state.get('ID')!r} of the queue {state.get('QueueName')!r}"
    place, pending = state.get("Cursor") or {}, state.get("PEL") or {}
    if not isinstance(place, dict) or not isinstance(pending, dict):
        return "it does not say where the group is"
    for key in ("Cursor", "Committed"):
        number = place.get(key, 0)
        if type(number) is not int or number < 0:
            return f"its {key} is {number!r}"
    for consumer, found in pending.items():
        for entry in found or ():
            if not isinstance(entry, dict) or type(entry.get("Offset", 0)) is not int:
                return f"what is pending for {consumer!r} makes no sense"
    return None


def _compare(contents: dict[str, Any], survey: GroupSurvey) -> Iterator[tuple[Severity, str]]:
    place = contents["state"].get("Cursor") or {}
    is_queue = isinstance(survey.state, Ledger)
    ours = survey.cursor if is_queue else survey.committed
    if place.get("Cursor", 0) != ours:
        message = f"says that the cursor is {place.get('Cursor', 0)}; the group's own files say"
        yield "note", f"{message} {ours}, and count"
