"""To look at a store without being seen.

Nothing is written, made or waited for: logs are read read-only, and the files of a group are read
as they are, without its lock, and done once more in memory as opening the group does. So looking
joins nothing, keeps nobody from deleting anything, and works for a store that one may only read.
What it tells is one moment's truth of each group and of each log, though not of all at the same
moment; a group is read before the log, so that it is never ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

from tailrace.errors import Corrupt, InvalidName, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.log import Log
from tailrace.log.sidefiles import side_path
from tailrace.queue import dead_letters
from tailrace.queue.classic import Pending, pending_of
from tailrace.queue.clock import Clock
from tailrace.queue.feed import Feed
from tailrace.queue.fluxmq_groups import FluxGroup, find_groups
from tailrace.queue.group_files import ALIVE, Member, process_of
from tailrace.queue.layout import Layout
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import Message
from tailrace.queue.offline.group_survey import GroupSurvey, survey_group
from tailrace.queue.registry import Queues
from tailrace.queue.scanning import Scanner, Selection
from tailrace.queue.settings import QueueSettings
from tailrace.queue.snapshots import Snapshot
from tailrace.queue.stream_ledger import StreamLedger

__all__ = ["GroupLook", "Look", "records", "unsettled"]

_TRIES: Final = 20  # its files are being replaced, which takes a moment


class GroupLook:
    """A group as its next consumer would find it. The leases of those who died are over in it."""

    def __init__(
        self,
        group_id: str,
        state: Ledger | StreamLedger,
        members: list[Member],
        selection: Selection,
    ) -> None:
        self.id = group_id
        self.state = state
        self.members = members
        self.selection = selection

    def pending(self, now_ms: int) -> Iterator[Pending]:
        """What is not settled, oldest first; nothing of a stream."""
        return pending_of(self.state, now_ms) if isinstance(self.state, Ledger) else iter(())


class Look:
    """A look at a store; `queues` gives those of its registry, and `open_log` the log of a queue if
    it is open anyway. Thread-safe: it keeps nothing."""

    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        queues: Callable[[], Queues],
        clock: Clock,
        open_log: Callable[[str], Log | None] = lambda name: None,
    ) -> None:
        self.fs = fs
        self.layout = layout
        self.queues = queues
        self.clock = clock
        self._open_log = open_log

    def settings(self, name: str) -> QueueSettings:
        """Of a queue; `InvalidName` if there is none."""
        found = self.queues().get(name)
        if found is None:
            raise InvalidName(f"there is no queue {name!r} in {self.layout.root}")
        return found

    def log(self, name: str) -> AbstractContextManager[Log | None]:
        """The log of a queue, for a `with`; `None` if nobody has used the queue yet."""
        log = self._open_log(name)
        if log is not None:
            return nullcontext(log)
        fs = None if isinstance(self.fs, OsFileSystem) else self.fs
        try:
            return Log(self.layout.segments(name), read_only=True, fs=fs)
        except (FileNotFoundError, NotADirectoryError):
            return nullcontext(None)

    # --- groups -----------------------------------------------------------------------------

    def group_ids(self, name: str) -> list[str]:
        ours = self.layout.groups(name)
        return sorted({*ours, *find_groups(self.fs, self.layout.root, name)})

    def group(self, name: str, group_id: str) -> GroupLook:
        """A group; `InvalidName` if there is none, `Corrupt` if nobody could open it."""
        settings = self.settings(name)
        self.check_group(name, group_id)
        return self.look_at(settings, group_id)

    def check_group(self, name: str, group_id: str) -> None:
        """`InvalidName` if the queue has no such group."""
        known = self.group_ids(name)
        if group_id not in known:
            there = f"it has {', '.join(map(repr, known))}" if known else "it has none"
            raise InvalidName(f"the queue {name!r} has no group {group_id!r}; {there}")

    def look_at(self, settings: QueueSettings, group_id: str) -> GroupLook:
        """A group that is there; as new as can be if it is not, or has no name."""
        is_stream = settings.type == "stream"
        new = StreamLedger() if is_stream else Ledger()
        state = self._state(settings, group_id) if group_id else new
        boot = self.fs.boot_id().hex()
        if state.boot != boot:
            now = {"u": self.clock.boot_ms(), "w": self.clock.wall_ms()}
            state.apply({"t": "boot", "b": boot, **now})
        members = []
        for name, info in list(state.members.items()):
            is_alive = self._is_alive(settings.name, group_id, info["handle"])
            members.append(Member.of(name, info, is_alive=is_alive))
            if not is_alive:
                state.apply({"t": "leave", "c": name, "died": True})
        for name in sorted(state.look_over_departed()) if isinstance(state, Ledger) else ():
            if not self._is_alive(settings.name, group_id, process_of(name)):
                state.apply({"t": "leave", "c": name, "died": True})
        return GroupLook(group_id, state, members, self.selection(settings.name, group_id))

    def selection(self, name: str, group_id: str) -> Selection:
        base, _, own = group_id.partition("@")
        return Selection(name, group_id, own if base else "", self.clock)

    def _state(self, settings: QueueSettings, group_id: str) -> Ledger | StreamLedger:
        kind: Literal["classic", "stream"] = "stream" if settings.type == "stream" else "classic"
        folder = self.layout.group(settings.name, group_id)
        survey = GroupSurvey(folder, group_id, kind)
        for _ in range(_TRIES):
            survey = survey_group(self.fs, folder, folder, group_id, kind, held=True)
            if survey.state is not None or not survey.journal.is_ours:
                break
        if survey.state is None and survey.journal.is_ours:
            why = "; ".join(each.message for each in survey.findings if each.severity == "problem")
            raise Corrupt(
                f"the group {group_id!r} of the queue {settings.name!r} cannot be read: {why}. "
                f"'tailrace verify {self.layout.root}' shows more; to begin anew, delete the group",
                path=folder,
            )
        if survey.is_deleted:
            return StreamLedger() if kind == "stream" else Ledger()
        if survey.journal.is_ours and survey.state is not None:
            return survey.state
        return self._closed_state(settings, group_id, survey.state)

    def _closed_state(
        self, settings: QueueSettings, group_id: str, state: Ledger | StreamLedger | None
    ) -> Ledger | StreamLedger:
        """Of a group that has no journal: what we left, and what FluxMQ has done since."""
        is_stream = settings.type == "stream"
        foreign = FluxGroup(
            self.fs,
            self.layout.root,
            settings.name,
            group_id,
            mode="stream" if is_stream else "queue",
            pattern=group_id.partition("@")[2],
            clock=self.clock,
        )
        other = foreign.load(None if state is None else Snapshot(*state.dump()))
        if other is None:
            return state or (StreamLedger() if is_stream else Ledger())
        if is_stream:
            return StreamLedger.load(other.state)
        return Ledger.load(other.state, other.entries)

    def _is_alive(self, name: str, group_id: str, handle: str) -> bool:
        """Has somebody its lock? To share it for a moment disturbs nobody."""
        path = side_path(self.layout.group(name, group_id), ALIVE + handle)
        try:
            self.fs.stat(path)
            lock = self.fs.lock(path)
        except FileNotFoundError:
            return False
        except OSError:  # we may not ask
            return True
        try:
            return not lock.acquire(shared=True, wait=False)
        finally:
            lock.close()

    # --- messages ---------------------------------------------------------------------------

    def peek(self, group: GroupLook, queue: str, log: Log, limit: int) -> list[Message]:
        """What would be delivered next: to a group, or, if that is as new as can be, to any."""
        state = group.state
        if isinstance(state, StreamLedger):
            first = state.back[0][0] if state.back else state.cursor
            taken = filter(group.selection.takes, records(log, first))
            return [_message(queue, record) for record, _ in zip(taken, range(limit), strict=False)]
        max_retries = self.settings(queue).retry.max_retries
        feed = Feed(log)
        try:
            scanner = Scanner(feed, group.selection, group.id)
            return scanner.peek(state, limit, self.clock.boot_ms(), max_retries)
        finally:
            feed.close()

    def dead(self, name: str, places: Iterable[str] = ()) -> Iterator[Message]:
        """The dead letters of a queue that nobody has dealt with, oldest first; `places` are as for
        `Store.dead`."""
        return self.dead_of(self.settings(name), places)

    def dead_of(self, settings: QueueSettings, places: Iterable[str] = ()) -> Iterator[Message]:
        """The same, whatever has become of the queue since its settings were read."""
        for letters in self.letters(settings, places):
            for message in self.dead_in(letters):
                if dead_letters.origin(message)[0] == settings.name:
                    yield message

    def dead_in(self, letters: QueueSettings) -> Iterator[Message]:
        """The dead letters in a queue for them, of whichever queues."""
        group = self.look_at(letters, dead_letters.GROUP)
        with self.log(letters.name) as log:
            if log is not None:
                for record in unsettled(group, log):
                    yield _message(letters.name, record)

    def letters(self, settings: QueueSettings, places: Iterable[str] = ()) -> list[QueueSettings]:
        """The queues in which there may be dead letters of a queue."""
        queues = self.queues()
        found = (queues.get(place.queue) for place in dead_letters.all_places(settings, places))
        return [each for each in found if each is not None and each.type == "classic"]


def _message(queue: str, record: Record) -> Message:
    return Message(queue, record, None, 0, 0, 0)


def unsettled(group: GroupLook, log: Log) -> Iterator[Record]:
    """All that a group of a classic queue has not settled, leased or not, oldest first."""
    assert isinstance(group.state, Ledger)
    for offset in list(group.state.pending):
        yield from records(log, offset, offset + 1)
    yield from filter(group.selection.takes, records(log, group.state.cursor))


def records(log: Log, first: int, end: int | None = None) -> Iterator[Record]:
    """Those from an offset on, past what was deleted or cannot be read."""
    while end is None or first < end:
        try:
            for record in log.read(first, end):
                yield record
                first = record.offset + 1  # type: ignore[operator]
            return
        except Corrupt as error:
            if error.next_offset is None or error.next_offset <= first:
                raise
            first = error.next_offset
        except OffsetOutOfRange as error:
            if error.low <= first:  # there is nothing yet
                return
            first = error.low
