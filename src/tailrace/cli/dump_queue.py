"""What is in the files of a store, item by item, as in `dump_segment`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Final, Protocol

from tailrace.cli import dump_pages
from tailrace.errors import ConfigError, Corrupt
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.fluxmq_config import load
from tailrace.queue.lease import STATES
from tailrace.queue.offline.documents import Document, read_config, read_saved, read_snapshot
from tailrace.queue.offline.lines import FLUXMQ_OPS, Line, read_journal

__all__ = ["KNOWN", "Item", "reader_of"]

Item = dict[str, object]

KNOWN: Final = (
    "ops.log, state.json, pel_<n>.json, groups/<queue>/<group>.json, queues.json, schedule.json, "
    "backup.json, and an archive's _tailrace/manifest.jsonl"
)

_JOURNAL: Final = re.compile(r"ops\.log(\.tmp)?|damaged-\d+|manifest\.jsonl")
_PLACING: Final = re.compile(r"placing(\.\d+\.tmp)?")
_ARCHIVE: Final = re.compile(r"archive(\.\d+\.tmp)?")
_STATE: Final = re.compile(r"state\.json(\.tmp)?")
_SCHEDULE: Final = re.compile(r"schedule\.json(\.\d+\.tmp)?")
_PEL: Final = re.compile(r"pel_[0-7]\.json(\.tmp)?")
_BACKUP: Final = re.compile(r"backup\.json(\.\d+\.tmp)?")
_CONFIG: Final = re.compile(r"queues\.json(\.\d+\.tmp)?")
_SAVED: Final = re.compile(r".+\.json(\.\d+\.tmp)?")
_MARKS: Final = {
    "attended": "who consumes from an ephemeral queue shares its lock; its time says until when",
    "bell": "it is written to when consumers are to look again",
    "deleted": "the queue's incarnation, when it is about to be deleted",
    "lock": "a lock; whoever has it may change something",
    "lock.archive": "a lock; whoever has it changes what the queue knows of its archive",
    "lock.backup": "a lock; whoever makes a backup of the store shares it",
    "lock.dropped": "a lock; whoever has it drops messages that are no group's, and counts them",
    "lock.next": "a lock; whoever has it is the next to get the turn",
    "lock.upkeep": "a lock; whoever has it deletes in the background what queues do without",
    "members": "a lock; whoever has the store open shares it",
    "open": "a lock; whoever has the group open shares it",
    "reserve": "zeros, which are given up when the disk is full",
}
_OF_LOG: Final = {
    "lock.deletion": "a lock; whoever has it deletes segments, or puts some in front",
    "lock": "a lock; whoever has it writes to the log",
    "lock.flush": "a lock; whoever has it makes durable what was written",
    "lock.next": _MARKS["lock.next"],
    "lock.upkeep": "a lock; whoever has it flushes or deletes in the background",
}
_OF_DELAYED: Final = {
    "bell": "it is written to when something is due before whoever delivers looks",
    "pump": "a lock; whoever has it delivers for all queues",
}
_DELIVERS: Final = "a lock; whoever has it may deliver what is delayed for a queue, or cancel it"
_DELAYED_OPEN: Final = "a lock; whoever has open what is delayed for a queue shares it"
_TURNS: Final = "memory that processes share; who waits for the group's turn asks for it there"
_OF_ARCHIVE: Final = {
    "lock": "a lock; whoever has it writes to the archive",
    "ran": "when it was last archived every so often, in milliseconds since 1970",
}
_ALIVE: Final = "a lock; it is held as long as a process has the group open"


class Reader(Protocol):
    def __call__(
        self, fs: FileSystem, path: str, *, start: int, limit: int | None
    ) -> Iterator[Item]: ...


def reader_of(path: str) -> Reader | None:
    """How to read a file of a store, by its name and where it is; `None` if it is another's."""
    name, above = os.path.basename(path), os.path.dirname(os.path.abspath(path))
    reader: Reader | None = None
    if _is_saved(name, above):
        reader = _saved
    elif _JOURNAL.fullmatch(name):
        reader = _journal
    elif _STATE.fullmatch(name) or _SCHEDULE.fullmatch(name):
        reader = _state
    elif _PEL.fullmatch(name):
        reader = _pel
    elif _CONFIG.fullmatch(name):
        reader = _config
    elif _BACKUP.fullmatch(name):
        reader = _backup
    elif os.path.basename(above) == "_tailrace":
        reader = _of_archive(name)
    elif _is_delayed(above):
        reader = _of_delayed(name)
    elif _is_delayed(os.path.dirname(above)):
        reader = _of_schedule(name)
    elif os.path.basename(above) == FOLDER and _is_log(os.path.dirname(above)):
        if name == "board":
            reader = dump_pages.of_log
        elif name in _OF_LOG:
            reader = partial(_mark, _OF_LOG[name])
    elif os.path.basename(above) == FOLDER:
        if name == "board" and _is_group(os.path.dirname(above)):
            reader = partial(_mark, _TURNS)
        elif name == "board":
            reader = _board
        elif _ARCHIVE.fullmatch(name):
            reader = _journal
        elif name in _MARKS or name.startswith("alive-"):
            reader = partial(_mark, _MARKS.get(name, _ALIVE))
    return reader


def _of_archive(name: str) -> Reader | None:
    """Of a file that an archive has beside its manifest."""
    if _PLACING.fullmatch(name):
        return _journal
    return partial(_mark, _OF_ARCHIVE[name]) if name in _OF_ARCHIVE else None


def _of_delayed(name: str) -> Reader | None:
    """Of a file of all that is delayed."""
    if name == "board":
        return dump_pages.of_delayed
    if name.endswith(".open"):
        return partial(_mark, _DELAYED_OPEN)
    return partial(_mark, _OF_DELAYED[name]) if name in _OF_DELAYED else None


def _of_schedule(name: str) -> Reader | None:
    """Of a file of what is delayed for a queue."""
    if name == "board":
        return dump_pages.of_schedule
    return partial(_mark, _DELIVERS) if name == "lock" else None


def _is_delayed(folder: str) -> bool:
    return folder.endswith(os.path.join(os.sep, FOLDER, "delayed"))


def _is_group(folder: str) -> bool:
    return os.path.basename(os.path.dirname(folder)) == "consumers"


def _is_saved(name: str, above: str) -> bool:
    """Is it in a store's `groups`? A group may have any name."""
    folder = above
    while _SAVED.fullmatch(name) and os.path.dirname(folder) != folder:
        folder, below = os.path.split(folder)
        if below == "groups" and folder + os.sep + below != above:
            beside = (os.path.join(folder, each) for each in ("queues", "config/queues.json"))
            if any(map(os.path.exists, beside)):
                return True
    return False


def _is_log(folder: str) -> bool:
    """A log's `.tailrace` has names in common with a store's."""
    if os.path.exists(os.path.join(folder, FOLDER, "log.json")):
        return True
    return any(name.endswith(".seg") for name in os.listdir(folder))


def _read(fs: FileSystem, path: str) -> bytes:
    return read_file(fs, path, fs.stat(path).size) or b""


# --- groups ---------------------------------------------------------------------------------


def _journal(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    """Its lines in order, whole or not. Those with nothing but an offset below `start` are shown
    too: they tell what happened."""
    data = _read(fs, path)
    journal = read_journal(data)
    yield {"type": "file", "size": len(data)}
    shown = damages = 0
    for line in journal.all_lines:
        if limit is not None and shown >= limit:
            break
        if line.zeros:
            end = line.position + line.zeros
            yield {"type": "hole", "position": line.position, "end": end}
        position = line.position + line.zeros
        if not line.ops:
            damages += 1
            shown += 1
            yield {"type": "op", "position": position, **_damaged(line)}
        checksum = "ok" if journal.is_ours else "none"
        for op in line.ops:
            shown += 1
            kind = op["t"] if journal.is_ours else FLUXMQ_OPS[op["t"]]
            item: Item = {"type": "op", "position": position, "checksum": checksum}
            yield {**item, "op": kind, "contents": op}
    else:
        if journal.room:
            yield {"type": "space", "position": len(data) - journal.room, "end": len(data)}
    yield {"type": "ops", "ops": shown - damages, "damages": damages}


def _damaged(line: Line) -> Item:
    text = line.text.decode("utf-8", "backslashreplace")
    return {"checksum": "bad", "torn": line.is_torn, "text": text}


def _document(document: Document, data: bytes) -> Item:
    item: Item = {"type": "document", "checksum": document.checksum}
    if document.fault is not None:
        item["fault"] = document.fault
    if document.contents is None:
        return {**item, "text": data.decode("utf-8", "backslashreplace")}
    return {**item, "contents": document.contents}


def _without(document: Document, key: str) -> Document:
    contents = {name: value for name, value in (document.contents or {}).items() if name != key}
    return document._replace(contents=contents)


def _state(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    yield _document(read_snapshot(data), data)


def _pel(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    document = read_snapshot(data)
    yield {"type": "file", "size": len(data)}
    entries = (document.contents or {}).get("entries")
    if not isinstance(entries, dict):
        yield _document(document, data)
        return
    yield _document(_without(document, "entries"), data)
    shown = 0
    for key, entry in entries.items():
        if key.isdecimal() and int(key) < start:
            continue
        if limit is not None and shown >= limit:
            return
        shown += 1
        item: Item = {"type": "pending", "offset": int(key) if key.isdecimal() else key}
        state = entry.get("s") if isinstance(entry, dict) else None
        if type(state) is int and state in STATES:
            item["state"] = STATES[state]
        yield {**item, "contents": entry}


def _saved(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    yield _document(read_saved(data), data)


# --- the store ------------------------------------------------------------------------------


def _config(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    document = read_config(data)
    if document.fault is None:
        try:
            load(data)
        except (Corrupt, ConfigError) as error:
            document = document._replace(fault=str(error))
    configs = (document.contents or {}).get("configs")
    if not isinstance(configs, list):
        yield _document(document, data)
        return
    yield _document(_without(document, "configs"), data)
    for entry in configs[:limit]:
        name = entry.get("Name") if isinstance(entry, dict) else None
        yield {"type": "queue", "name": name, "contents": entry}


def _backup(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    document = read_snapshot(data)
    files = (document.contents or {}).get("files")
    if not isinstance(files, list):
        yield _document(document, data)
        return
    yield _document(_without(document, "files"), data)
    for entry in files[:limit]:
        yield {"type": "copied", "contents": entry}


def _board(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    if len(data) < 8:
        yield {"type": "board", "generation": None, "changing": None}
        return
    generation = int.from_bytes(data[:8], "little")
    yield {"type": "board", "generation": generation, "changing": bool(generation & 1)}


def _mark(what: str, fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    item: Item = {"type": "mark", "what": what, "modified": fs.stat(path).modified_ms}
    text = data.rstrip(b"\0").decode("utf-8", "backslashreplace")
    yield {**item, "text": text}
