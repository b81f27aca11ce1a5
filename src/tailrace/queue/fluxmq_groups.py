"""Groups as FluxMQ keeps them: read where they are more than what we know, and left for it.

FluxMQ has two records of a group, and each is written without a sync, one after the other:

    queues/<queue>/consumers/<group>/   state.json, pel_0.json to pel_7.json, ops.log behind them
    groups/<queue>/<group>.json         the same once more; of a stream's group, the only one

The files of the first have the names of ours, and ours are readable for FluxMQ (`snapshots.py`). In
the second, what we export ends in the key `tailrace` with the CRC-32C of the rest. FluxMQ does not
keep it, so whether it is there says who wrote the file.

**A record is believed in two things: everything below its cursor was settled, except for what it
has pending.** Not in what FluxMQ calls committed: it may be too high or too low. So of two records
the one with the greater cursor is right about what was settled, and what either has pending is
delivered again. A stream has nothing pending, and goes on from what was committed: what lies
between that and the cursor was delivered, and perhaps never processed.

FluxMQ makes paths of names as they are: a slash in one is a folder more. We read these as long as
no part of a path leads elsewhere. We don't write them, and FluxMQ would not find its own again
either (such a group of its restarts at 0). So a group whose name has to be escaped is taken over
once, and its files here are not looked at again, except where our folder is in the same place.

Not thread-safe: the group's lock guards it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from tailrace.errors import InvalidName
from tailrace.kernel import MAX_OFFSET, crc32c
from tailrace.log.fs import FileSystem, read_exactly, replace_file
from tailrace.log.sidefiles import FOLDER
from tailrace.queue import journal
from tailrace.queue.clock import Clock
from tailrace.queue.group_files import plain_name
from tailrace.queue.journal import Op
from tailrace.queue.layout import Layout
from tailrace.queue.lease import CLAIMED, FREE, LEASED
from tailrace.queue.names import check_name, to_component
from tailrace.queue.snapshots import SHARDS, STATE, Snapshot, parse_checked, pel_name

__all__ = ["VERSION", "FluxGroup", "Mode", "find_groups"]

logger = logging.getLogger("tailrace")

Mode = Literal["queue", "stream"]

VERSION: Final = 2

_SEAL: Final = b',\n  "tailrace": {\n    "crc32c": '
_SEAL_END: Final = b"\n  }\n}"
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_DELIVER, _ACK, _ACK_MANY, _NACK, _CLAIM, _CLAIM_MANY, _FLOOR, _CURSOR = range(1, 9)
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = re.compile(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EXOTIC: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")  # what Go escapes inside strings

_decode = json.JSONDecoder().raw_decode


class _Pending(NamedTuple):
    consumer: str
    times: int  # that it was delivered


class _Record(NamedTuple):
    """Everything below the cursor was settled, except for what is pending."""

    cursor: int
    pending: dict[int, _Pending]
    delivered: int = 0
    created_ms: int = 0


class _State(NamedTuple):
    """`state.json`; as it is here if it is missing, or damaged."""

    group_id: str | None = None
    version: int | None = None
    cursor: int = 0
    floor: int = 0
    delivered: int = 0
    created_ms: int = 0


class _Op(NamedTuple):
    kind: int
    offsets: list[int]
    consumer: str


class _Saved(NamedTuple):
    """A file in `groups`. `is_ours`: FluxMQ has not written it since we did."""

    queue: str
    id: str
    mode: Mode
    auto_commit: bool
    record: _Record
    created_at: str
    is_ours: bool


class FluxGroup:
    """A group of a queue in FluxMQ's files below `root`, the folder with `config`, `groups` and
    `queues`; a `Foreign` of `group.py`."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        queue: str,
        group_id: str,
        *,
        mode: Mode,
        pattern: str,
        clock: Clock,
    ) -> None:
        self._fs = fs
        self._root = root
        self._queue = queue
        self._group_id = group_id
        self._mode = mode
        self._pattern = pattern
        self._clock = clock
        # Names that are their own paths: FluxMQ's files and ours are the same then.
        self._is_shared = to_component(queue) == queue and to_component(group_id) == group_id
        self._path = _group_path(root, queue, group_id)  # None: it has no files that we would read
        self._folder = ""
        if self._path is not None:
            self._folder = os.path.join(
                root, "queues", *queue.split("/"), "consumers", *group_id.split("/")
            )

    # --- reading ----------------------------------------------------------------------------

    def load(self, exported: Snapshot | None) -> Snapshot | None:
        """What FluxMQ knows of the group, together with what we have `exported`; `None` if there
        is nothing, or nothing new."""
        if self._path is None:
            return None
        # What we never write in its place is older than what we have exported.
        saved = self._saved() if exported is None or self._is_shared else None
        ops = self._ops() if exported is None or self._is_in_place() else b""
        if exported is not None and not ops and (saved is None or saved.is_ours):
            return None
        records = []
        if exported is not None and self._mode == "queue":
            # What was pending stays so even if FluxMQ says that it was acknowledged: with each
            # acknowledgement it drops the next pending message too.
            pending = {o: _Pending(e["c"], e["n"]) for o, e in exported.entries.items()}
            records.append(_Record(exported.state["cursor"], pending))
        if saved is not None:
            records.append(saved.record)
        # The record beside the log does not know what a stream has committed.
        if (saved.mode if saved is not None else self._mode) == "queue":
            known = max((record.cursor for record in records), default=0)
            beside = self._beside_the_log(ops, known)
            records += [beside] if beside is not None else []
        return self._united(records, exported) if records else None

    def _united(self, records: list[_Record], exported: Snapshot | None) -> Snapshot:
        cursor = max(record.cursor for record in records)
        entries: dict[int, Op] = {}
        for record in records:
            for offset, found in record.pending.items():
                # At or above the cursor it is delivered anyway.
                if offset < cursor and found.times >= entries.get(offset, {"n": 0})["n"]:
                    entries[offset] = {"c": found.consumer, "n": found.times, "s": FREE}
        entries = dict(sorted(entries.items()))
        committed = min(entries, default=cursor)
        if self._mode == "stream":
            cursor, entries = committed, {}
        state: dict[str, Any] = {
            "cursor": cursor,
            "committed": committed,
            "delivered": max(record.delivered for record in records),
        }
        created = [record.created_ms for record in records if record.created_ms]
        if created:
            state["created_ms"] = min(created)
        if exported is None:
            return Snapshot(state, entries)
        return self._on_top_of(exported, Snapshot(state, entries))

    def _on_top_of(self, ours: Snapshot, found: Snapshot) -> Snapshot:
        """What FluxMQ has no place for stays as we had it. Who had a lease is gone, though."""
        old = ours.state
        state: dict[str, Any] = {**old, **found.state, "epoch": old.get("epoch", 0) + 1}
        state["delivered"] = max(old.get("delivered", 0), found.state["delivered"])
        state.update({name: type(old[name])() for name in ("taken", "back") if name in old})
        if ours.damaged:  # whoever fills in what is missing has to begin where we were
            state["committed"] = min(old["committed"], state["committed"])
        for offset, entry in found.entries.items():
            known = dict(ours.entries.get(offset, {}))
            if known.get("s") in (CLAIMED, LEASED):
                known["s"] = FREE
                known.pop("u", None)
            found.entries[offset] = {**entry, **known, "c": entry["c"], "n": entry["n"]}
        return Snapshot(state, found.entries, ours.damaged)

    def _is_in_place(self) -> bool:
        """Is FluxMQ's folder of the group also ours?"""
        ours = Layout(self._fs, self._root).group(self._queue, self._group_id)
        return ours == self._folder

    # --- groups/<queue>/<group>.json ----------------------------------------------------------

    def _saved(self) -> _Saved | None:
        """What is in the file of the group, if it is this group's: two may have the same path."""
        assert self._path is not None
        data = _read(self._fs, self._path)
        if data is None:
            return None
        try:
            saved = _parse_saved(data)
        except ValueError as error:
            self._warn(self._path, error)
            return None
        return saved if (saved.queue, saved.id) == (self._queue, self._group_id) else None

    # --- queues/<queue>/consumers/<group>/ ----------------------------------------------------

    def _ops(self) -> bytes:
        data = _read(self._fs, os.path.join(self._folder, journal.NAME)) or b""
        first = journal.parse_line(data.partition(b"\n")[0])
        return b"" if first is not None and first.get("t") == "begin" else data  # a journal of ours

    def _beside_the_log(self, ops: bytes, known: int) -> _Record | None:
        """The record in the queue's folder. Of messages below `known` another record tells."""
        state = self._read_state()
        if state.group_id not in (None, self._group_id):
            return None  # our folder of a group whose escaped name is this one
        cursor, delivered = state.cursor, state.delivered
        pending: dict[int, _Pending] = {}
        versions, is_damaged = set(), False
        for shard in range(SHARDS):
            try:
                found, version = self._read_shard(shard, state.version)
                versions.add(version)
            except ValueError as error:
                self._warn(os.path.join(self._folder, pel_name(shard)), error)
                is_damaged = True
                # Any of them may have been pending: better twice than never.
                first = max(state.floor and state.floor + 1, known)
                first += (shard - first) % SHARDS
                found = dict.fromkeys(range(first, cursor, SHARDS), _Pending("", 0))
            pending.update(found)
        if state.version is None and versions == {None} and not ops:
            return None
        # If a snapshot is not whole, the operations begin before it, and tell where the cursor was;
        # but not if something was pending of which nobody knows.
        is_whole = versions <= {state.version}
        if not is_whole:
            cursor = 0
        for op in self._parse_ops(ops):
            cursor = _replay(op, cursor, pending)
            delivered += op.kind == _DELIVER
        if is_damaged and (state.version is None or not is_whole):
            cursor = 0
        return _Record(cursor, pending, delivered, state.created_ms)

    def _read_state(self) -> _State:
        try:
            document = _parse_file(_read(self._fs, os.path.join(self._folder, STATE)))
            if document is None:
                return _State()
            state = _expect(document.get("state"), dict) or {}
            created_ms = state.get("CreatedAt")
            return _State(
                _expect(document.get("group_id"), str),
                _number(document.get("version")),
                _number(state.get("Cursor")),
                _number(state.get("AckFloor")),
                _number(state.get("Delivered")),
                created_ms if type(created_ms) is int else 0,
            )
        except ValueError as error:
            self._warn(os.path.join(self._folder, STATE), error)
            return _State()

    def _read_shard(
        self, shard: int, version: int | None
    ) -> tuple[dict[int, _Pending], int | None]:
        """What is pending, by the snapshot of which version. Before the first there are none."""
        document = _parse_file(_read(self._fs, os.path.join(self._folder, pel_name(shard))))
        if document is None:
            if version is not None and version > 1:
                raise ValueError("it is missing")
            return {}, None
        pending = {}
        for key, entry in (_expect(document.get("entries"), dict) or {}).items():
            offset = _number(int(key))
            if offset % SHARDS != shard or not isinstance(entry, dict):
                raise ValueError(f"it has an entry {key}")
            pending[offset] = _Pending(_text(entry.get("c")), _number(entry.get("n")))
        return pending, _number(document.get("version"))

    def _parse_ops(self, data: bytes) -> Iterator[_Op]:
        """Operations up to the first that cannot be read. FluxMQ goes on writing behind one that
        was torn, and reads no further either."""
        position = 0
        for line in data.split(b"\n"):
            try:
                yield from map(_parse_op, _objects(line.decode()))
            except (ValueError, RecursionError) as error:
                path = os.path.join(self._folder, journal.NAME)
                text = "%s: the line at %d cannot be read, and nothing from there on counts: %s"
                logger.warning(text, path, position, error, extra=self._extra(path))
                return
            position += len(line) + 1

    def _warn(self, path: str, error: ValueError) -> None:
        text = "%s: damaged, and not taken into account: %s"
        logger.warning(text, path, error, extra=self._extra(path))

    def _extra(self, path: str) -> dict[str, str]:
        return {"queue": self._queue, "group": self._group_id, "path": path}

    # --- writing ----------------------------------------------------------------------------

    def export(self, snapshot: Snapshot) -> None:
        """Leave the group for FluxMQ, durably, if its name and the queue's are their own paths."""
        if self._path is None or not self._is_shared:
            return
        now_ms = self._clock.wall_ms()
        now = _rfc3339(now_ms)
        state = snapshot.state
        pending: dict[str, list[dict[str, Any]]] = {}
        for offset, entry in sorted(snapshot.entries.items()):
            consumer = plain_name(entry["c"])
            pending.setdefault(consumer, []).append(
                {
                    "Offset": offset,
                    "ConsumerID": consumer,
                    "ClaimedAt": now,
                    "DeliveryCount": entry["n"],
                }
            )
        # FluxMQ reads a stream on from the cursor: that would lose what is not committed.
        cursor = state["cursor"] if self._mode == "queue" else state["committed"]
        old = self._saved()
        created_at = old.created_at if old is not None and _is_time(old.created_at) else now
        document = {
            "version": VERSION,
            "state": {
                "ID": self._group_id,
                "QueueName": self._queue,
                "Pattern": self._pattern,
                "Mode": self._mode,
                "AutoCommit": old.auto_commit if old is not None else True,
                "Cursor": {"Cursor": cursor, "Committed": state["committed"]},
                "PEL": dict(sorted(pending.items())),
                "Consumers": {},
                "CreatedAt": created_at,
                "UpdatedAt": now,
            },
            "saved_at": now_ms,
        }
        self._fs.make_dirs(os.path.dirname(self._path))
        replace_file(self._fs, self._path, _sealed(document))

    def forget(self) -> None:
        """The group is deleted: FluxMQ is not to find it either, nor we by its files. Durable. What
        is in a folder that is also ours is left to whoever removes the folder."""
        if self._path is None:
            return
        if self._saved() is not None:
            self._fs.unlink(self._path)
            self._fs.sync_dir(os.path.dirname(self._path))
        if self._is_shared or self._beside_the_log(self._ops(), 0) is None:
            return
        for name in (journal.NAME, STATE, *map(pel_name, range(SHARDS))):
            path = os.path.join(self._folder, name)
            if _read(self._fs, path) is not None:
                self._fs.unlink(path)
        self._fs.sync_dir(self._folder)


# --- which groups there are -----------------------------------------------------------------


def find_groups(fs: FileSystem, root: str, queue: str) -> dict[str, Mode]:
    """The groups of a queue that `groups/` knows, and their modes. Files that are damaged, or whose
    group cannot have files here, are reported and skipped."""
    parts = _parts(queue)
    found: dict[str, Mode] = {}
    if parts is None:
        return found
    for path in _walk(fs, os.path.join(root, "groups", *parts)):
        try:
            saved = _parse_saved(_read(fs, path) or b"")
            if saved.queue != queue:
                continue  # of a queue whose name is longer by a slash and more
            check_name("group", saved.id)
            if path != _group_path(root, queue, saved.id):
                raise ValueError(f"it is of the group {saved.id!r}, whose file is another")
        except (ValueError, InvalidName) as error:
            logger.warning("%s: skipped: %s", path, error, extra={"queue": queue, "path": path})
            continue
        found[saved.id] = saved.mode
    return found


def _walk(fs: FileSystem, folder: str) -> Iterator[str]:
    try:
        entries = fs.list(folder)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return
    for entry in sorted(entries):
        path = os.path.join(folder, entry.name)
        if entry.is_dir and entry.name != FOLDER:
            yield from _walk(fs, path)
        elif not entry.is_dir and entry.name.endswith(".json"):
            yield path


def _parts(name: str) -> list[str] | None:
    """A name as the path that FluxMQ makes of it; `None` if it might lead elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..", FOLDER) or "\0" in part for part in parts):
        return None
    return parts


def _group_path(root: str, queue: str, group_id: str) -> str | None:
    folders, names = _parts(queue), _parts(group_id)
    if folders is None or names is None:
        return None
    return os.path.join(root, "groups", *folders, *names) + ".json"


def _read(fs: FileSystem, path: str) -> bytes | None:
    """A whole file; `None` if there is none. That it cannot be read is no damage, and raised."""
    try:
        file = fs.open(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return None
    try:
        return read_exactly(file, file.size(), 0)
    except IsADirectoryError:
        return None
    finally:
        file.close()


# --- parsing --------------------------------------------------------------------------------


def _parse_saved(data: bytes) -> _Saved:
    """`ValueError` if it is damaged, or of a format that is newer than ours."""
    is_ours = False
    body, found, checksum = data.rpartition(_SEAL)
    if found:
        data = body + b"\n}"
        is_ours = checksum == b"%d" % crc32c(data) + _SEAL_END
    document = _parse(data)
    if "tailrace" in document or (found and not is_ours):
        raise ValueError("its checksum is wrong")
    version = _number(document.get("version"))
    if version > VERSION:
        raise ValueError(f"it is of version {version}, and not of {VERSION} or below")
    state = document.get("state")
    if not isinstance(state, dict):
        raise ValueError("it has no state")
    mode = state.get("Mode") or "queue"
    if mode not in ("queue", "stream"):
        raise ValueError(f"its mode is {mode!r}")
    position = _expect(state.get("Cursor"), dict) or {}
    pending: dict[int, _Pending] = {}
    for consumer, entries in (_expect(state.get("PEL"), dict) or {}).items():
        for entry in _expect(entries, list) or ():
            if not isinstance(entry, dict):
                raise ValueError(f"a pending message is {str(entry)[:60]!r}")
            times = _number(entry.get("DeliveryCount"))
            pending[_number(entry.get("Offset"))] = _Pending(consumer, times)
    cursor, committed = _number(position.get("Cursor")), _number(position.get("Committed"))
    return _Saved(
        queue=_text(state.get("QueueName")),
        id=_text(state.get("ID")),
        mode="stream" if mode == "stream" else "queue",
        auto_commit=state.get("AutoCommit") is not False,
        record=_Record(committed, {}) if mode == "stream" else _Record(cursor, pending),
        created_at=_text(state.get("CreatedAt")),
        is_ours=is_ours,
    )


def _sealed(document: dict[str, Any]) -> bytes:
    """JSON as Go writes it, with a last key that says that it is ours."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    body = _EXOTIC.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()
    return body[:-2] + _SEAL + b"%d" % crc32c(body) + _SEAL_END


def _parse_file(data: bytes | None) -> dict[str, Any] | None:
    """A snapshot, FluxMQ's or ours; only ours can tell that it was damaged."""
    if data is None:
        return None
    document = _parse(data)
    if "crc32c" in document and parse_checked(data) is None:
        raise ValueError("its checksum is wrong")
    return document


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data.decode())
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _objects(line: str) -> Iterator[Any]:
    """Mostly one; more where FluxMQ went on behind an object whose end of line was lost."""
    line = line.strip(" \t\r")
    position = 0
    while position < len(line):
        found, position = _decode(line, position)
        yield found


def _parse_op(op: Any) -> _Op:
    kind = op.get("t") if isinstance(op, dict) else None
    if type(kind) is not int or not _DELIVER <= kind <= _CURSOR:
        raise ValueError("it is no operation")
    if kind in (_ACK_MANY, _CLAIM_MANY):
        offsets = [_number(offset) for offset in _expect(op.get("os"), list) or ()]
    else:
        offsets = [_number(op.get("o"))]
    return _Op(kind, offsets, _text(op.get("c")))


def _replay(op: _Op, cursor: int, pending: dict[int, _Pending]) -> int:
    """Do to what is pending what FluxMQ did; the cursor is then what is returned."""
    for offset in op.offsets:
        known = pending.get(offset)
        if op.kind == _DELIVER:
            pending[offset] = _Pending(op.consumer, 1)
            cursor = max(cursor, offset + 1)
        elif op.kind == _CURSOR:
            cursor = offset
        elif known is not None and op.kind in (_ACK, _ACK_MANY):
            del pending[offset]
        elif known is not None and op.kind == _NACK:
            pending[offset] = _Pending(known.consumer, known.times + 1)
        elif known is not None and op.kind in (_CLAIM, _CLAIM_MANY):
            pending[offset] = _Pending(op.consumer, known.times + 1)
    return cursor


def _expect(value: Any, kind: type) -> Any:
    """It, if it is of this kind, or missing: Go leaves out what is empty, or writes `null`."""
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"it has {str(value)[:60]!r} where a {kind.__name__} should be")
    return value


def _text(value: Any) -> str:
    return _expect(value, str) or ""


def _number(value: Any) -> int:
    """A number that can be an offset; missing is 0."""
    number = 0 if value is None else value
    if type(number) is not int or not 0 <= number <= MAX_OFFSET:
        raise ValueError(f"it has {str(value)[:60]!r} where a number should be")
    return number


# --- times ----------------------------------------------------------------------------------


def _rfc3339(ms: int) -> str:
    """As Go writes a time: the zeros at the end of a fraction are left out."""
    seconds = (_UNIX + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{seconds}{fraction}Z"


def _is_time(text: str) -> bool:
    """Is it a time that Go reads? It would refuse the whole file otherwise."""
    try:
        return _TIME.fullmatch(text) is not None and datetime.fromisoformat(text) > _UNIX
    except ValueError:
        return False
