"""A close look at the files of one group: what the next open would make of them.

The journal names a snapshot by its generation; on that its operations are done once more, as
opening the group does, and everything that does not fit is a finding. Nothing is changed. Somebody
may be using the group meanwhile: the files are read again if the journal was replaced in between.
"""

from __future__ import annotations

import os
from typing import Any, Final, Literal

from tailrace.errors import Corrupt
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.offline.findings import Finding, Severity
from tailrace.log.offline.words import counted
from tailrace.queue.journal import FORMAT, NAME, Op
from tailrace.queue.ledger import Ledger
from tailrace.queue.offline.documents import Document, read_snapshot
from tailrace.queue.offline.fluxmq_check import check_fluxmq
from tailrace.queue.offline.lines import Journal, Line, read_journal
from tailrace.queue.snapshots import SHARDS, STATE, Snapshot, pel_name
from tailrace.queue.stream_ledger import StreamLedger

__all__ = ["GroupSurvey", "survey_group"]

Kind = Literal["classic", "stream"]

_TRIES: Final = 5
_SNAPSHOT: Final = (STATE, *map(pel_name, range(SHARDS)))
_NAMES: Final = (NAME, *_SNAPSHOT)
_OF_STREAMS: Final = {"take", "done", "return", "skip"}
_WRONG: Final = (Corrupt, KeyError, TypeError, ValueError, IndexError, AttributeError)
_AGAIN: Final = "messages may be delivered again"


class GroupSurvey:
    """What was found of a group. `path` is its folder's, from the store's; `state` is what the next
    open would go on from, if that is known."""

    def __init__(self, path: str, group_id: str, kind: Kind | None) -> None:
        self.path = path
        self.id = group_id
        self.kind = kind
        self.findings: list[Finding] = []
        self.files: dict[str, bytes] = {}
        self._used: set[str] = set()
        self.journal: Journal = read_journal(b"")
        self.state: Ledger | StreamLedger | None = None
        self.is_deleted = False
        self._is_in_doubt = False
        self.cursor: int | None = None
        self.committed: int | None = None

    @property
    def is_closed(self) -> bool:
        """Was it closed by the last one who used it?"""
        return self.journal.is_empty and self.state is not None

    @property
    def pending(self) -> int:
        return self.state.weight if isinstance(self.state, Ledger) else 0

    def add(self, severity: Severity, name: str, message: str, position: int | None = None) -> None:
        path = os.path.join(self.path, name) if name else self.path
        self.findings.append(Finding(severity, path, position, None, message))

    # --- which files count ------------------------------------------------------------------

    def run(self, *, held: bool) -> None:
        journal = self.journal = read_journal(self.files.get(NAME, b""))
        if journal.is_ours:
            self._go_on(held)
        elif journal.is_empty and self._is_exported():
            self._load(self._version(read_snapshot(self.files[STATE])))
        else:
            self.cursor = check_fluxmq(self.add, self.files, journal)
        if self.state is not None:
            if self._is_in_doubt:
                self.state.apply({"t": "doubt"})
            self.cursor, self.committed = self.state.cursor, self.state.committed

    def _is_exported(self) -> bool:
        data = self.files.get(STATE)
        document = None if data is None else read_snapshot(data)
        if document is None or document.checksum != "ok":
            return False
        return "tailrace" in (document.contents or {})

    @staticmethod
    def _version(document: Document) -> int:
        version = (document.contents or {}).get("version")
        return version if type(version) is int else -1

    def _go_on(self, held: bool) -> None:
        """The journal is ours, and not empty."""
        journal = self.journal
        if not journal.has_begin:
            message = "its first line is damaged, and so nothing in it counts: the next open goes "
            self.add("problem", NAME, f"{message}back to the last snapshot, and {_AGAIN}", 0)
            return
        begin = journal.lines[0].ops[0]
        number, generation = begin.get("format"), begin.get("generation")
        if type(number) is not int or type(generation) is not int:
            self.add("problem", NAME, "its first line does not say which snapshot it follows", 0)
        elif number > FORMAT:
            message = f"is of format {number}; this tailrace knows {FORMAT}"
            self.add("problem", NAME, message, 0)
        else:
            self._load(generation)
            self._replay(journal.lines[1:])
            self._judge_tail(journal.tail, held)

    # --- the snapshot -----------------------------------------------------------------------

    def _load(self, generation: int) -> None:
        """The state that the snapshot of this generation has; the first one is empty."""
        if generation:
            self._load_files(generation)
        else:
            self.state = StreamLedger() if self._is_stream({}) else Ledger()
        for name in sorted(self.files):
            if name.endswith(".tmp") and name not in self._used:
                self.add("note", name, "is left over; the next snapshot takes its place")

    def _load_files(self, generation: int) -> None:
        head = self._pick(STATE, generation)
        if head is None:
            return
        if head.get("group_id") != self.id:
            self.add("problem", STATE, f"is of the group {head.get('group_id')!r}")
        state: Any = head.get("tailrace")
        try:
            entries: dict[int, dict[str, Any]] = {}
            damaged = []
            for shard in state["shards"]:
                document = self._pick(pel_name(shard), generation)
                if document is not None:
                    entries |= self._entries(shard, document, state)
                else:
                    damaged.append(shard)
            Snapshot(state, entries, tuple(damaged)).fill()
            self._is_in_doubt = bool(damaged)
            if self._is_stream(state):
                self.state = StreamLedger.load(state)
            else:
                self.state = Ledger.load(state, entries)
            self._compare(head, self.state)
        except _WRONG as error:
            self.add("problem", STATE, f"does not describe a group: {error!r}")

    def _pick(self, name: str, generation: int) -> dict[str, Any] | None:
        """The file's contents, under one name or the other."""
        temporary = self.files.get(name + ".tmp")
        if temporary is not None:
            document = read_snapshot(temporary)
            if document.checksum == "ok" and self._version(document) == generation:
                self._used.add(name + ".tmp")
                message = "is the file that counts; the next open gives it its name"
                self.add("note", name + ".tmp", message)
                return document.contents
        consequence = f"what was pending in it is not known, and {_AGAIN}"
        if name == STATE:
            consequence = "what the group has consumed is not known, and it cannot be opened"
        data = self.files.get(name)
        if data is None:
            self.add("problem", name, f"is missing: {consequence}")
            return None
        document = read_snapshot(data)
        if document.checksum != "ok":
            why = document.fault or "it has no checksum"
            self.add("problem", name, f"is damaged ({why}): {consequence}", document.position)
            return None
        if self._version(document) != generation:
            message = f"is of generation {self._version(document)}, the journal of {generation}"
            self.add("problem", name, f"{message}: {consequence}")
            return None
        return document.contents

    def _entries(
        self, shard: int, document: dict[str, Any], state: dict[str, Any]
    ) -> dict[int, dict[str, Any]]:
        found, wrong = {}, []
        cursor, committed = state["cursor"], state["committed"]
        if document.get("shard_id") != shard:
            wrong.append(f"says that it is pel_{document.get('shard_id')}.json")
        for key, entry in document["entries"].items():
            offset = entry["o"]
            found[offset] = {**entry, "n": entry.get("count", entry["n"])}
            if key != str(offset):
                wrong.append(f"has the entry of {offset} at {key}")
            elif offset % SHARDS != shard:
                wrong.append(f"has an entry for offset {offset}, which is another file's")
            elif not committed <= offset < cursor:
                message = f"has offset {offset} pending; the cursor is {cursor}"
                wrong.append(f"{message}, and everything below {committed} is settled")
        if wrong:
            more = f", and {counted(len(wrong) - 1, 'more fault')}" if len(wrong) > 1 else ""
            self.add("problem", pel_name(shard), wrong[0] + more)
        return found

    def _compare(self, head: dict[str, Any], state: Ledger | StreamLedger) -> None:
        """What FluxMQ would read is what we would."""
        told, cursor = head["state"]["Cursor"], state.cursor
        if told != cursor:
            self.add("problem", STATE, f"says that the cursor is {told}, and that it is {cursor}")

    def _is_stream(self, state: dict[str, Any]) -> bool:
        if self.kind is None:  # the store does not say
            kinds = {op.get("t") for line in self.journal.lines for op in line.ops}
            self.kind = "stream" if "taken" in state or kinds & _OF_STREAMS else "classic"
        return self.kind == "stream"

    # --- the journal ------------------------------------------------------------------------

    def _replay(self, lines: list[Line]) -> None:
        is_known = True  # what happened up to here
        for number, line in enumerate(lines):
            if line.zeros:
                message = f"{counted(line.zeros, 'byte')} did not survive a power cut: {_AGAIN}"
                self.add("problem", NAME, message, line.position)
                is_known, self._is_in_doubt = False, True
            if not line.ops:
                message = f"the line is damaged, and what it said is lost: {_AGAIN}"
                self.add("problem", NAME, message, line.position)
                is_known, self._is_in_doubt = False, True
                continue
            op = line.ops[0]
            if op["t"] in ("moved", "deleted"):
                self._end(op["t"], line, lines[number + 1 :])
                return
            if self.state is not None:
                is_known = self._apply(self.state, op, line.position, is_known)

    def _apply(self, state: Ledger | StreamLedger, op: Op, position: int, is_known: bool) -> bool:
        """Is it known, after this operation, what happened?"""
        try:
            if op["t"] in ("claim", "take") and not op.get("b"):
                if op["f"] > state.cursor and is_known:
                    message = f"goes on from offset {op['f']}, and the cursor is {state.cursor}"
                    self.add("problem", NAME, f"{message}: something is missing", position)
                is_known = True
            state.apply(op)
        except _WRONG as error:
            message = f"the operation {op['t']!r} does not fit: {error!r}"
            self.add("problem", NAME, message, position)
            self._is_in_doubt = True
        return is_known

    def _end(self, word: str, line: Line, behind: list[Line]) -> None:
        if word == "deleted":
            self.is_deleted = True
            message = "the group was deleted, by somebody who ended before its folder was gone"
            self.add("problem", NAME, f"{message}: remove the folder", line.position)
        elif behind:
            message = f"it ends here; {counted(len(behind), 'line')} after that count for nobody"
            self.add("problem", NAME, message, line.position)
        else:
            message = "it was about to be replaced; the next open does that"
            self.add("note", NAME, message, line.position)

    def _judge_tail(self, tail: list[Line], held: bool) -> None:
        """What is behind the last whole line is cut off by the next open, which takes it for the
        work of one who was killed."""
        if not tail:
            return
        position = tail[0].position
        size = tail[-1].position + tail[-1].zeros + len(tail[-1].text) + tail[-1].has_end - position
        end = f"its end ({counted(size, 'byte')})"
        if not all(line.is_torn for line in tail):
            message = f"{end} is damaged, and will be cut off by the next open: {_AGAIN}"
            self.add("problem", NAME, message, position)
        elif held:
            self.add("note", NAME, f"{end} is not whole; it is being written", position)
        else:
            message = f"{end} will be cut off by the next open: it is not whole"
            self.add("note", NAME, message, position)


def survey_group(
    fs: FileSystem, folder: str, path: str, group_id: str, kind: Kind | None, *, held: bool
) -> GroupSurvey:
    """Look at the group in `folder`. `held`: somebody may be using it."""
    survey = GroupSurvey(path, group_id, kind)
    for _ in range(_TRIES):
        before = _read(fs, folder, NAME)
        survey.files = {}
        for name in (*_SNAPSHOT, *(f"{name}.tmp" for name in _NAMES)):
            data = _read(fs, folder, name)
            if data is not None:
                survey.files[name] = data
        after = _read(fs, folder, NAME)
        if after is not None:
            survey.files[NAME] = after
        if _begin(before) == _begin(after):
            break
    survey.run(held=held)
    return survey


def _begin(data: bytes | None) -> bytes | None:
    return None if data is None else data.partition(b"\n")[0]


def _read(fs: FileSystem, folder: str, name: str) -> bytes | None:
    path = os.path.join(folder, name)
    try:
        return read_file(fs, path, fs.stat(path).size)
    except FileNotFoundError:
        return None
