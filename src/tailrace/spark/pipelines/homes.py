"""What a pipeline keeps in the store: `.tailrace/pipelines/<name>/`, beside what the queues have.

    checkpoint/     Spark's, unless it is elsewhere
    dead/<input>/   of the query that takes what does not fit
    files/          rows on their way to a folder of files
    pipeline.json   what the checkpoint was made for
    status.json     how it goes (`status.py`)
    lock            held by who runs it

A checkpoint belongs to one query: Spark would go on with its offsets and its state whatever the
statement says by now. So what it was made for is written down before it is made, and compared
before it is used.

What was written is known by the id of the checkpoint and the number of a batch, and a new
checkpoint counts its batches from 0: with the id of an old one they would pass for what is there
already. So the id is in the checkpoint, too, as the `metadata` that Spark makes if there is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.errors import Locked, TailraceError
from tailrace.log.fs import OsFileSystem
from tailrace.log.locks import ProcessLock
from tailrace.log.sidefiles import load_checked_json, store_checked_json
from tailrace.queue.layout import Layout, find_root
from tailrace.queue.names import to_component
from tailrace.spark.checkpoints import is_local
from tailrace.spark.pipelines.definition import Definition

__all__ = ["Home", "Made"]

_LOOKS, _LOOK_S = 20, 0.005  # before somebody is told that another runs it
_LARGEST = 1 << 22  # of a description: a statement may be long


@dataclass(frozen=True)
class Made:
    """What a checkpoint was made for. `starts` are the offsets that it began with, by the names of
    the inputs; `checkpoint` is its address, if that is not on this machine."""

    id: str
    starts: Mapping[str, int]
    fingerprint: Mapping[str, str]
    checkpoint: str | None = None


class Home:
    """The folder of a pipeline. One process runs it at a time: `held`."""

    def __init__(self, store: str, definition: Definition) -> None:
        self._fs = OsFileSystem()
        self.definition = definition
        layout = Layout(self._fs, find_root(self._fs, os.path.abspath(store)))
        self.folder = layout.pipeline(definition.name)
        self.checkpoint = definition.checkpoint or os.path.join(self.folder, "checkpoint")
        self.status = os.path.join(self.folder, "status.json")
        self.files = os.path.join(self.folder, "files")
        self._made = os.path.join(self.folder, "pipeline.json")
        self._lock = os.path.join(self.folder, "lock")

    def dead(self, name: str) -> str:
        """The checkpoint of the query that takes what does not fit in an input."""
        if self.definition.checkpoint is None:
            return os.path.join(self.folder, "dead", to_component(name))
        return f"{self.checkpoint.rstrip('/')}-dead-{to_component(name)}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else runs it meanwhile."""
        os.makedirs(self.folder, exist_ok=True)
        lock = ProcessLock(self._lock)
        try:
            if not _acquire_soon(lock):
                who = lock.read_note().decode("utf-8", "replace")
                raise Locked(
                    f"pipeline {self.definition.name!r}: {who or 'another process'} runs it; "
                    "stop that first"
                )
            with contextlib.suppress(OSError):  # the disk may be full, which is told later
                lock.write_note(f"process {os.getpid()}".encode())
            yield
        finally:
            lock.close()

    @property
    def is_held(self) -> bool:
        """Does somebody run it?"""
        if not os.path.exists(self._lock):
            return False
        lock = ProcessLock(self._lock)
        try:
            return not lock.acquire(shared=True, wait=False)
        finally:
            lock.close()

    # --- the checkpoint ---------------------------------------------------------------------

    def made(self) -> Made | None:
        """Of the checkpoint that is there; `None` if there is none, or nobody knows of it."""
        found = load_checked_json(self._fs, self._made, _LARGEST)
        if found is None:
            return None
        made = Made(found["id"], found["starts"], found["fingerprint"], found["checkpoint"])
        if not is_local(self.checkpoint):
            return made if made.checkpoint == self.checkpoint else None
        return made if made.id == self._checkpoint_id() else None

    def changed(self) -> list[str]:
        """The keys that say something else than when the checkpoint was made. All of them, if
        nobody knows what it was made for."""
        made, now = self.made(), self.definition.fingerprint
        if made is None:
            return sorted(now) if self._has_checkpoint() else []
        return sorted(key for key in now if made.fingerprint.get(key) != now[key])

    def check(self) -> None:
        """`TailraceError`, with what to do, if the checkpoint is that of another query."""
        changed = self.changed()
        if changed:
            raise TailraceError(
                f"pipeline {self.definition.name!r}: its checkpoint was made for another "
                f"{', '.join(changed)}. Change that back; or begin anew with "
                "--restart-from-scratch, which moves the checkpoint aside, reads from `start` on "
                "and writes what was written before once more; or, if Spark can go on from the old "
                "state, say so with --keep-checkpoint"
            )

    def make(self, starts: Mapping[str, int]) -> Made:
        """Note what the checkpoint is for, and begin it if it is not there."""
        old = self.made()
        made = Made(
            (self._checkpoint_id() or uuid.uuid4().hex) if old is None else old.id,
            dict(starts) if old is None else old.starts,
            self.definition.fingerprint,
            None if is_local(self.checkpoint) else self.checkpoint,
        )
        if made != old:
            document: dict[str, Any] = {
                "id": made.id,
                "starts": dict(made.starts),
                "fingerprint": dict(made.fingerprint),
                "checkpoint": made.checkpoint,
            }
            store_checked_json(self._fs, self._made, document)
        if is_local(self.checkpoint) and self._checkpoint_id() is None:
            self._begin(made.id)
        return made

    def begin_anew(self) -> list[str]:
        """Move the checkpoint aside, and what it was made for; where it is now."""
        aside = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + f"-{uuid.uuid4().hex[:6]}"
        places = [self.checkpoint, *(self.dead(name) for name in self.definition.inputs)]
        for place in places:
            if not is_local(place):
                raise TailraceError(
                    f"pipeline {self.definition.name!r}: its checkpoint is in {place}, and not on "
                    "this machine; move it yourself, or name another under the key checkpoint"
                )
        moved = []
        # What it was made for goes first: nobody goes on with a checkpoint without that.
        for place in [self._made, *places, self.files]:
            path = place.removeprefix("file://")
            if os.path.exists(path):
                os.rename(path, f"{path}.{aside}")
                moved.append(f"{path}.{aside}")
        return moved

    @property
    def _local(self) -> str:
        return self.checkpoint.removeprefix("file://")

    def _has_checkpoint(self) -> bool:
        names = ("metadata", "offsets", "commits")
        return is_local(self.checkpoint) and any(
            os.path.exists(os.path.join(self._local, name)) for name in names
        )

    def _checkpoint_id(self) -> str | None:
        """Of the checkpoint that is there; `None` if there is none that can be read."""
        if not is_local(self.checkpoint):
            return None
        try:
            with open(os.path.join(self._local, "metadata"), encoding="utf-8") as file:
                return uuid.UUID(json.load(file)["id"]).hex
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def _begin(self, made: str) -> None:
        """Make a checkpoint of this id, which Spark takes for the id of the query."""
        os.makedirs(self._local, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._local, ".metadata.crc"))  # of another one
        path = os.path.join(self._local, "metadata")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump({"id": str(uuid.UUID(made))}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        self._fs.sync_dir(self._local)


def _acquire_soon(lock: ProcessLock) -> bool:
    """Who only looks whether a pipeline runs has its lock for a moment."""
    for _ in range(_LOOKS):
        if lock.acquire(wait=False):
            return True
        time.sleep(_LOOK_S)
    return False
