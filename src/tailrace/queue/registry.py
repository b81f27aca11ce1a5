"""The queues of a store, for all the processes that have it open.

`config/queues.json` is the truth. It is only ever replaced, whole and durably, by one process at a
time: who changes it holds the lock `.tailrace/lock`. So that nobody has to look at the file for
each message, there is a page of memory that all of them share, `.tailrace/board`:

    0   8  generation, little-endian

**As long as the generation is even and the same, so is the file.** Whoever changes the file writes
the new one beside it, makes the generation odd, puts the new file in its place, and makes the
generation even again: then it is one that nobody has seen. An odd generation says that somebody is
changing the file, or died (or failed) while doing so, and perhaps after the new file took its
place; those who read look at the file itself then, each time, until the next change makes the
generation even. So there is no moment at which a process can be killed such that others go on with
what was before. On a full disk it is the new file that cannot be written, and nothing has begun.

Nothing on the board has to survive: after the machine started anew, nobody is left who remembers a
generation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import time_ns
from types import TracebackType
from typing import Final, NamedTuple

from tailrace.errors import Closed, ConfigError, Corrupt, Full, NotWritten, OutcomeUnknown
from tailrace.log.fs import FileSystem, read_exactly, write_all
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.fluxmq_config import entry_of, format_entry, join, load
from tailrace.queue.open_files import advice_on
from tailrace.queue.reserve import is_full
from tailrace.queue.settings import QueueSettings, new_incarnation
from tailrace.queue.topics import Bindings

__all__ = ["Queues", "Registry", "left_behind"]

logger = logging.getLogger("tailrace")

_NAME: Final = "queues.json"
_LEFT_BEHIND: Final = re.compile(r"queues\.json\.\d+\.tmp")  # by a writer that was killed
_BOARD_SIZE: Final = 4096
_NUMBER: Final = struct.Struct("<Q")

# A file that was changed a moment ago may be changed again without its time telling.
_SETTLED_AFTER_MS: Final = 1_000

_registries: weakref.WeakSet[Registry] = weakref.WeakSet()


def _disown_all() -> None:
    for registry in list(_registries):
        registry._disown()


os.register_at_fork(after_in_child=_disown_all)


class Queues(Mapping[str, QueueSettings]):
    """The queues of a store at one moment, by name. They never change, so threads may share them.

    A queue whose settings are the same as a moment before has the same object for them, so that
    `is` tells whether to look closer.

    With the queues of `before`, only bindings that have changed since are taken out and put in.
    """

    __slots__ = ("_bindings", "_known", "_queues")

    def __init__(self, queues: Mapping[str, QueueSettings], before: Queues | None = None) -> None:
        self._queues = dict(queues)
        self._bindings: Bindings[str] | None = None  # made when a topic is first matched
        # The last ones that were made, and of which queues; so there is no chain of all that were.
        self._known: tuple[Bindings[str], dict[str, QueueSettings]] = (Bindings(), {})
        if before is not None:
            bindings = before._bindings
            self._known = before._known if bindings is None else (bindings, before._queues)

    def match(self, topic: str) -> frozenset[str]:
        """The names of the queues that a topic is bound for."""
        bindings = self._bindings
        if bindings is None:  # two threads may both do it; it is the same
            bindings = self._bindings = self._bind()
            self._known = (Bindings(), {})
        return frozenset(bindings.match(topic))

    def _bind(self) -> Bindings[str]:
        known, before = self._known
        bindings, after = known.copy(), self._queues
        for name, settings in before.items():
            now = after.get(name)
            if now is not settings and (now is None or now.topics != settings.topics):
                for pattern in settings.topics:
                    bindings.remove(pattern, name)
        for name, settings in after.items():
            was = before.get(name)
            if was is not settings and (was is None or was.topics != settings.topics):
                for pattern in settings.topics:
                    bindings.add(pattern, name)
        return bindings

    def __getitem__(self, name: str) -> QueueSettings:
        return self._queues[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def __repr__(self) -> str:
        return f"Queues({', '.join(self._queues)})"


class _Reading(NamedTuple):
    """What was in the file, and by what to know that it still is: a generation that is even, or
    where there is no board, the file's size and time. `None` is never still so."""

    generation: int | None
    stamp: tuple[int, int] | None
    data: bytes | None
    queues: Queues


_NOTHING: Final = _Reading(None, None, None, Queues({}))


class Registry:
    """The queues of the store in `root`. Thread-safe; a forked child may go on with it.

    With `read_only=True` it writes nothing. Where there is no board then, because nobody has had
    the store open for writing, it goes by the time of the file.
    """

    def __init__(self, fs: FileSystem, root: str, *, read_only: bool = False) -> None:
        self.path = os.path.join(root, "config", _NAME)
        self.read_only = read_only
        self._fs = fs
        self._side = os.path.join(root, FOLDER)
        self._board: memoryview | None = None
        self._last: _Reading | None = None  # None: closed
        self._texts: dict[str, tuple[QueueSettings, str]] = {}  # entries, by those who change
        self._looking = threading.Lock()
        self._changing = threading.Lock()
        _registries.add(self)

    def open(self) -> Registry:
        """Look at the file for the first time. A queue without an incarnation gets one, and what
        somebody left behind who was killed is put in order."""
        if not self.read_only:
            self._fs.make_dirs(os.path.dirname(self.path))
            self._fs.make_dirs(self._side)
        try:
            self._map()
            self._last = _NOTHING
            queues = self.current()
            if not self.read_only:
                self._put_in_order(queues)
        except BaseException:
            self.close()
            raise
        return self

    def _put_in_order(self, queues: Queues) -> None:
        """What can wait does, as long as the disk is full: whoever opens the store may be about to
        make room."""
        has_all = all(settings.incarnation for settings in queues.values())
        if has_all and self._generation() is not None and not left_behind(self._fs, self.path):
            return
        try:
            self.change(lambda queues: None)
        except (NotWritten, OutcomeUnknown) as error:
            if not (has_all and is_full(error)):
                raise
            logger.warning("%s", error, extra={"path": self.path})

    def current(self) -> Queues:
        """The queues as of now. Costs a look at memory if they are those of the last time."""
        last, board = self._last, self._board
        if (
            last is not None
            and board is not None
            and _NUMBER.unpack_from(board)[0] == last.generation
        ):
            return last.queues
        with self._looking:
            return self._look().queues

    def match(self, topic: str) -> frozenset[str]:
        """The names of the queues that a topic is bound for, as of now."""
        return self.current().match(topic)

    def change(
        self,
        edit: Callable[[dict[str, QueueSettings]], None],
        then: Callable[[], object] = lambda: None,
    ) -> Queues:
        """Let `edit` change the queues, and return them. It gets them as they are now, and nobody
        else changes them meanwhile; it must not call `change` itself. What is to be done before
        anybody else changes them again, `then` does.

        If it raises, nothing is changed. When this returns, the change is durable and everybody
        sees it; after `OutcomeUnknown` it may have happened or not, as after a crash. `then` may
        raise what it wants.
        """
        self._check_open()
        if self.read_only:
            raise NotWritten(f"{self.path} is open read-only; open it without read_only to write")
        with self._changing:
            with self._unless_it_fails():
                lock = self._fs.lock(os.path.join(self._side, "lock"))
            try:
                with self._unless_it_fails():
                    lock.acquire()
                queues = self._change(edit)
                then()
                return queues
            finally:
                lock.close()

    @contextlib.contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        """What is done before the file has changed."""
        try:
            yield
        except OSError as error:
            kind = Full if is_full(error) else NotWritten
            raise kind(
                f"{self.path} cannot be changed ({error}); it is as it was{advice_on(error)}"
            ) from error

    def close(self) -> None:
        """Forget everything; a second close does nothing. There is nothing to write."""
        with self._looking:
            self._last = self._board = None

    def __enter__(self) -> Registry:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- reading ----------------------------------------------------------------------------

    def _check_open(self) -> _Reading:
        last = self._last
        if last is None:
            raise Closed(f"the store in {os.path.dirname(self._side)} is closed")
        return last

    def _map(self) -> None:
        path = os.path.join(self._side, "board")
        self._board = self._fs.map(path, _BOARD_SIZE, write=not self.read_only)

    def _generation(self) -> int | None:
        """The generation, if one can go by it."""
        if self._board is None:
            return None
        generation: int = _NUMBER.unpack_from(self._board)[0]
        return None if generation & 1 else generation

    def _look(self, *, closely: bool = False) -> _Reading:
        """What is in the file, which is read if it may be another, or `closely` in any case. One
        thread at a time."""
        last = self._check_open()
        if self._board is None:
            self._map()  # somebody may have made it
        # Before the file: if that is replaced meanwhile, it is read once more.
        generation = self._generation()
        stamp = self._stamp() if self._board is None else None
        if not closely and (
            (generation is not None and generation == last.generation)
            or (stamp is not None and stamp == last.stamp)
        ):
            return last
        data = self._read()
        queues = last.queues if data == last.data else self._parse(data, last)
        self._last = last = _Reading(generation, stamp, data, queues)
        return last

    def _stamp(self) -> tuple[int, int] | None:
        try:
            entry = self._fs.stat(self.path)
        except FileNotFoundError:
            return (0, 0)
        if time_ns() // 1_000_000 - entry.modified_ms < _SETTLED_AFTER_MS:
            return None
        return (entry.size, entry.modified_ms)

    def _read(self) -> bytes | None:
        try:
            file = self._fs.open(self.path)
        except FileNotFoundError:
            return None
        try:
            return read_exactly(file, file.size(), 0)
        except OSError as error:  # such as that it is a folder; of an open file it names none
            error.filename = error.filename or self.path
            raise
        finally:
            file.close()

    def _parse(self, data: bytes | None, last: _Reading) -> Queues:
        if data is None:
            return Queues({})
        known = last.queues
        try:
            found = load(data, known, b"" if last.data is None else last.data)
            return Queues({settings.name: settings for settings in found}, known)
        except Corrupt as error:
            raise Corrupt(
                f"{self.path}: {error}", path=self.path, position=error.position
            ) from None
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    # --- changing ---------------------------------------------------------------------------

    def _change(self, edit: Callable[[dict[str, QueueSettings]], None]) -> Queues:
        """With the lock of all processes."""
        with self._unless_it_fails():
            with self._looking:
                # The file, and not the board: somebody may have been at it who knows no board.
                before = self._look(closely=True).queues
                board = self._board
            assert board is not None
            after = dict(before)
            edit(after)
            for name, settings in after.items():
                if settings.name != name:
                    raise ValueError(f"the settings of the queue {settings.name!r} are at {name!r}")
                if not settings.incarnation:
                    # FluxMQ's: what it calls ephemeral outlives a restart, so it must not go with
                    # one.
                    incarnation, survives = new_incarnation(), settings.ephemeral
                    after[name] = replace(settings, incarnation=incarnation, survives=survives)
            for path in left_behind(self._fs, self.path):
                self._fs.unlink(path)
            generation: int = _NUMBER.unpack_from(board)[0]
            if after == before and not generation & 1:
                return before
            # If it was odd, what is there may not be durable, and so it is written in any case.
            data, queues = self._dump(after, before)
            temporary = self._write_beside(data)
        generation |= 1
        _NUMBER.pack_into(board, 0, generation)
        try:
            self._fs.rename(temporary, self.path)
            self._fs.sync_dir(os.path.dirname(self.path))
        except OSError as error:
            raise OutcomeUnknown(
                f"{self.path} may be as it was or as it was to be ({error}); look, and repeat the "
                "change if need be"
            ) from error
        generation += 1
        _NUMBER.pack_into(board, 0, generation)
        with self._looking:
            if self._last is not None:
                self._last = _Reading(generation, None, data, queues)
        return queues

    def _write_beside(self, data: bytes) -> str:
        """Nothing is left of it if it fails: whoever comes next need not tidy up."""
        path = f"{self.path}.{os.getpid()}.tmp"
        file = self._fs.open(path, write=True, create=True)
        try:
            try:
                file.truncate(0)
                write_all(file, data, 0)
                file.sync()
            finally:
                file.close()
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(path)
            raise
        return path

    def _dump(self, queues: Mapping[str, QueueSettings], before: Queues) -> tuple[bytes, Queues]:
        """The file, and the queues as they are when it is read. Only what has changed is put into
        words: there may be thousands."""
        texts = {}
        for name, settings in queues.items():
            known = self._texts.get(name)
            if known is None or known[0] is not settings:
                entry = entry_of(settings)
                known = replace(settings, fluxmq=entry), format_entry(entry)
            texts[name] = known
        self._texts = texts
        data = join(text for _settings, text in texts.values())
        after = {name: settings for name, (settings, _text) in texts.items()}
        return data, Queues(after, before)

    def _disown(self) -> None:
        """In a forked child: other threads of the parent, which may have had the locks, are not
        here. The board is shared with the parent, as with any process; the lock is not kept."""
        self._looking = threading.Lock()
        self._changing = threading.Lock()


def left_behind(fs: FileSystem, path: str) -> list[str]:
    """What those who were killed while they changed the file of a registry were writing."""
    folder = os.path.dirname(path)
    return [
        os.path.join(folder, entry.name)
        for entry in fs.list(folder)
        if _LEFT_BEHIND.fullmatch(entry.name)
    ]
