"""Snapshots of a group: `state.json`, and the pending messages in `pel_0.json` to `pel_7.json`.

They are FluxMQ's files, with what else we know in keys that it does not look at: `tailrace` in the
state, further letters in an entry, and a CRC-32C at the end. `version` is the generation; the
journal says which one counts (`journal.py`).

A new generation is written under other names (`.tmp`), then the journal changes, and then the files
take their names. So at any moment all files of the journal's generation are there, under one name
or the other; whoever loads them finishes what a crash has left.

Nothing here is thread-safe: the group's lock guards it.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from tailrace.errors import Corrupt
from tailrace.kernel import crc32c
from tailrace.log.fs import FileSystem, read_exactly
from tailrace.queue.journal import write_new

__all__ = ["SHARDS", "STATE", "Snapshot", "Snapshots", "parse_checked", "pel_name"]

STATE = "state.json"
SHARDS = 8

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_CRC = b',"crc32c":'
_COUNT_MOST = 65_535


def pel_name(shard: int) -> str:
    return f"pel_{shard}.json"


class Snapshot(NamedTuple):
    """`state` and `entries` as the group's ledger dumps them. Of the shards in `damaged` nothing is
    known."""

    state: dict[str, Any]
    entries: dict[int, dict[str, Any]]
    damaged: tuple[int, ...] = ()

    def fill(self) -> None:
        """Of what is damaged we know only which messages it may have been about: better twice than
        never."""
        for offset in range(self.state["committed"], self.state["cursor"]):
            if offset % SHARDS in self.damaged:
                self.entries.setdefault(offset, {"c": "", "n": 0})


class Snapshots:
    def __init__(self, fs: FileSystem, folder: str, group_id: str) -> None:
        self._fs = fs
        self._folder = folder
        self._group_id = group_id

    def write(
        self,
        generation: int,
        snapshot: Snapshot,
        now_ms: int,
        *,
        sync: bool,
        all_shards: bool = False,
    ) -> None:
        """Write it under names that do not count yet; shards without entries only if asked for:
        each has to be synced."""
        shards: list[dict[str, Any]] = [{} for _ in range(SHARDS)]
        for offset, entry in snapshot.entries.items():
            shared = {"o": offset, "d": now_ms, "l": now_ms, **entry}
            if entry["n"] > _COUNT_MOST:  # FluxMQ would not read the file
                shared |= {"n": _COUNT_MOST, "count": entry["n"]}
            shards[offset % SHARDS][str(offset)] = shared
        written = [number for number, shard in enumerate(shards) if shard or all_shards]
        for number in written:
            document = {"version": generation, "shard_id": number, "entries": shards[number]}
            self._write_new(pel_name(number), {**document, "saved_at": now_ms}, sync)
        state = snapshot.state
        shown = {
            "AckFloor": max(state["committed"] - 1, 0),
            "Cursor": state["cursor"],
            "Delivered": state.get("delivered", 0),
            "CreatedAt": state.get("created_ms") or now_ms,
            "UpdatedAt": now_ms,
        }
        document = {"version": generation, "group_id": self._group_id, "state": shown}
        ours = {"saved_at": now_ms, "tailrace": {**state, "shards": written}}
        self._write_new(STATE, {**document, **ours}, sync)

    def _write_new(self, name: str, document: dict[str, Any], sync: bool) -> None:
        body = _encode(document).encode()
        data = body[:-1] + _CRC + b"%d}\n" % crc32c(body)
        write_new(self._fs, os.path.join(self._folder, name + ".tmp"), data, sync=sync)

    def install(self, generation: int) -> bool:
        """Give those of this generation their names, as far as they don't have them; did any lack
        its name?"""
        is_new = False
        for name in (STATE, *map(pel_name, range(SHARDS))):
            path = os.path.join(self._folder, name)
            found = self._read(name + ".tmp")
            if found is not None and found["version"] == generation:
                self._fs.rename(path + ".tmp", path)
                is_new = True
        return is_new

    def load(self, generation: int) -> Snapshot:
        self.install(generation)
        state = self._read(STATE)
        if state is None or state["version"] != generation:
            path = os.path.join(self._folder, STATE)
            raise Corrupt(
                f"{path} is missing or damaged, and with it what the group {self._group_id!r} has "
                "consumed. 'tailrace verify' shows more; to begin anew, delete the group",
                path=path,
            )
        entries: dict[int, dict[str, Any]] = {}
        damaged = []
        for number in state["tailrace"].pop("shards"):
            shard = self._read(pel_name(number))
            if shard is None or shard["version"] != generation:
                damaged.append(number)
                continue
            for entry in shard["entries"].values():
                entry["n"] = entry.pop("count", entry["n"])
                entries[entry["o"]] = entry
        ours = state["tailrace"]
        ours["used_ms"] = ours.get("used_ms") or state["saved_at"]  # by who did not know of it
        return Snapshot(ours, entries, tuple(damaged))

    def exported(self) -> int | None:
        """The generation of the files there are, if they are ours as they were written."""
        state = self._read(STATE)
        return state["version"] if state is not None and "tailrace" in state else None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            file = self._fs.open(os.path.join(self._folder, name))
        except FileNotFoundError:
            return None
        try:
            return parse_checked(read_exactly(file, file.size(), 0))
        finally:
            file.close()


def parse_checked(data: bytes) -> dict[str, Any] | None:
    """A document of ours; `None` if it is another's, or damaged."""
    body, found, checksum = data.rpartition(_CRC)
    body += b"}"
    if not found or checksum != b"%d}\n" % crc32c(body):
        return None
    document: dict[str, Any] = json.loads(body)
    return document
