"""Figures of queues and their groups: how much there is, how old it is, what holds it.

They come from a look (`looking.py`), so whoever asks for them disturbs nobody, and what is opened
for one queue is closed before the next. A log that the store has open is asked itself: it knows its
segments, however many there are. What is ahead of a group's cursor is only known by reading it:
a filter, a lifetime, or a group that a message is meant for may pass it by; so it is with the
ranges that a group of a stream has. Up to `CHEAP` records of a queue are read for that. If there
are more, the number of offsets stands for the number of messages, which is never too low, and the
figure is marked as an estimate; `exact` reads them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace.errors import Closed, ConfigError, Corrupt, InvalidName
from tailrace.kernel import Record
from tailrace.log.extents import Extents
from tailrace.log.log import Log
from tailrace.queue import dead_letters
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.delays import count_scheduled
from tailrace.queue.disk_stats import DiskStats
from tailrace.queue.dropped import count_dropped
from tailrace.queue.handles import look_at
from tailrace.queue.lease import CLAIMED, DYING, LEASED
from tailrace.queue.ledger import Ledger
from tailrace.queue.looking import GroupLook, Look, records
from tailrace.queue.settings import QueueSettings
from tailrace.queue.stream_ledger import StreamLedger

if TYPE_CHECKING:
    from tailrace.queue.store import Store

__all__ = [
    "CHEAP",
    "GroupStats",
    "QueueStats",
    "Rates",
    "StoreStats",
    "look_through",
    "queue_stats",
    "store_stats",
]

CHEAP: Final = 1_000  # records of a queue that are read to count them, without being asked to
_TELL_EVERY: Final = 1_000

T = TypeVar("T")
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group. Each message that is not settled is one of `ready`, `leased` (with a consumer),
    `waiting` (for a delay, or behind another of its key) and `dying` (on its way to the dead
    letters).

    `lag` counts offsets from `committed` to the end. `oldest_age_ms` is the age of the oldest
    message that is not settled. `settled` only ever rises: of a work queue what was acked, or
    became a dead letter; of a stream what was committed. `dropped` counts what a full queue, or a
    full disk, has taken from it. `estimated`: `ready` may be too high, and of a stream `leased`.
    `error` says why nothing is known of a group that cannot be read.
    """

    id: str
    cursor: int = 0
    committed: int = 0
    ready: int = 0
    leased: int = 0
    waiting: int = 0
    dying: int = 0
    lag: int = 0
    oldest_age_ms: int | None = None
    settled: int = 0
    members: int = 0
    estimated: bool = False
    error: str = ""
    dropped: int = 0


class Rates(NamedTuple):
    """Messages a second, between two looks."""

    published: float
    settled: float


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue. `messages` counts the offsets it holds, settled or not; `bytes` what its log takes
    on the disk: while somebody has it open for writing, with the space (up to 1 MiB, in `sync`) by
    which its last file was made longer ahead of what comes. `ready` are the deliveries that could
    be made now, of all groups together; without a group, those that the first one would get.
    `lag` is that of the group that is furthest behind, and `oldest_age_ms` the age of the oldest
    message that a group has not settled; without a group, of that first one, whom nobody started.
    `delayed` are published and not yet in the queue, `dead` are its dead letters that nobody has
    dealt with.

    `pinned_by` is the group of a work queue that is furthest behind; `pinned_bytes` is what cannot
    be deleted, whatever other groups do, before it goes on. `looked_ms` is the boot clock's time.

    `dropped` counts what a full queue, or a full disk, has taken that was no group's: of a stream,
    or where there was no group yet. Groups count theirs. After a power cut it may be too low.

    `archive` is the folder it was archived to. Where that `archive_holds`, nothing is deleted that
    is not below the offset `archive_verified`.

    `error` says why nothing is known of what is `delayed`, if that cannot be read.
    """

    name: str
    type: str
    start_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    bytes: int = 0
    ready: int = 0
    ready_estimated: bool = False
    delayed: int = 0
    dead: int = 0
    dead_estimated: bool = False
    pinned_by: str | None = None
    pinned_bytes: int = 0
    looked_ms: int = 0
    groups: tuple[GroupStats, ...] = field(default=())
    archive: str = ""
    archive_verified: int = 0
    archive_holds: bool = False
    dropped: int = 0
    lag: int = 0
    oldest_age_ms: int | None = None
    error: str = ""

    @property
    def messages(self) -> int:
        """How many offsets the queue holds, settled or not."""
        return self.end_offset - self.start_offset

    @property
    def leased(self) -> int:
        """Messages that are with a consumer, of all groups together."""
        return sum(group.leased for group in self.groups)

    @property
    def waiting(self) -> int:
        """Messages that wait for a delay, or behind another of their key, of all groups."""
        return sum(group.waiting for group in self.groups)

    @property
    def settled(self) -> int:
        """How much all groups together have settled; it only ever rises."""
        return sum(group.settled for group in self.groups)

    @property
    def estimated(self) -> bool:
        """May any figure be too high?"""
        return self.dead_estimated or self.ready_estimated

    def since(self, earlier: QueueStats) -> Rates:
        """What has happened since an earlier look, a second."""
        seconds = max(self.looked_ms - earlier.looked_ms, 1) / 1000
        known = {group.id: group.settled for group in earlier.groups}
        settled = sum(
            max(group.settled - known.get(group.id, group.settled), 0) for group in self.groups
        )
        published = max(self.end_offset - earlier.end_offset, 0)
        return Rates(published / seconds, settled / seconds)


class StoreStats(dict[str, QueueStats]):
    """Figures of the queues of a store, by name, and of its `disk`."""

    def __init__(self, queues: Iterable[QueueStats], disk: DiskStats) -> None:
        super().__init__((each.name, each) for each in queues)
        self.disk = disk


def look_through(store: Store) -> Look:
    """A look that goes by the logs which a store has open. They know their segments already, and a
    queue may have thousands."""

    def open_log(name: str) -> Log | None:
        try:
            return store.get(name).open_log
        except InvalidName:
            return None  # deleted meanwhile

    return Look(store.fs, store.layout, store.registry.current, store.clock, open_log)


def store_stats(
    look: Look, *, exact: bool = False, progress: Progress | None = None
) -> Iterator[QueueStats]:
    """Of each queue, by name. One that is deleted meanwhile is left out. `progress` is told how
    many records were read, of how many, for each thing that has to be counted."""
    queues, dead = look.queues(), _Dead(look, exact, progress)
    for name in sorted(queues):
        try:
            try:
                found = _queue_stats(look, queues[name], dead, exact=exact, progress=progress)
            except Closed:  # the log was open, and is not any more
                found = _queue_stats(look, queues[name], dead, exact=exact, progress=progress)
            yield found
        except FileNotFoundError:
            if name in look.queues():
                raise


def queue_stats(
    look: Look, settings: QueueSettings, *, exact: bool = False, progress: Progress | None = None
) -> QueueStats:
    dead = _Dead(look, exact, progress)
    return _queue_stats(look, settings, dead, exact=exact, progress=progress)


def _queue_stats(
    look: Look, settings: QueueSettings, dead: _Dead, *, exact: bool, progress: Progress | None
) -> QueueStats:
    found = _messages_of(look, settings, dead.of(settings), exact=exact, progress=progress)
    dropped = count_dropped(look.fs, look.layout, settings.name, settings.incarnation)
    if dropped:
        found = replace(found, dropped=dropped)
    try:
        note = ArchiveNote.load(look.fs, look.layout, settings.name)
    except Corrupt:  # which holds everything
        return replace(found, archive_holds=True)
    if note is None or note.incarnation != settings.incarnation:
        return found
    return replace(
        found,
        archive=note.folder(look.layout),
        archive_verified=note.verified,
        archive_holds=note.holds,
    )


def _messages_of(
    look: Look,
    settings: QueueSettings,
    dead_and_estimated: tuple[int, bool],
    *,
    exact: bool,
    progress: Progress | None,
) -> QueueStats:
    name = settings.name
    looked_ms = look.clock.boot_ms()
    groups, broken = _look_at_groups(look, settings)
    dead, dead_estimated = dead_and_estimated
    # Before the log: what is delivered meanwhile is better seen twice than not at all.
    delayed, error = _count_delayed(look, settings)
    with look.log(name) as log:
        if log is None:
            unused = [GroupStats(group.id, members=_alive(group)) for group in groups]
            return QueueStats(
                name,
                settings.type,
                delayed=delayed,
                dead=dead,
                dead_estimated=dead_estimated,
                looked_ms=looked_ms,
                groups=_ordered(unused, broken),
                error=error,
            )
        start, end, segments = look_at(log)
        found = _Counting(look, log, (start, end), groups, exact, progress).stats()
        asking = found
        if not groups:  # as if one were there: that nobody works is what somebody should know
            new = [look.look_at(settings, "")]
            asking = _Counting(look, log, (start, end), new, exact, progress).stats()
        ages = [each.oldest_age_ms for each in asking if each.oldest_age_ms is not None]
        pinned_by, pinned_bytes = None, 0
        if settings.type == "classic":
            pinned_by, pinned_bytes = _pinned(segments, found, end)
        return QueueStats(
            name=name,
            type=settings.type,
            start_offset=start,
            end_offset=end,
            segments=len(segments),
            bytes=segments.bytes,
            ready=sum(each.ready for each in asking),
            ready_estimated=any(each.estimated for each in asking),
            delayed=delayed,
            dead=dead,
            dead_estimated=dead_estimated,
            pinned_by=pinned_by,
            pinned_bytes=pinned_bytes,
            looked_ms=looked_ms,
            groups=_ordered(found, broken),
            lag=max(each.lag for each in asking),
            oldest_age_ms=max(ages, default=None),
            error=error,
        )


def _count_delayed(look: Look, settings: QueueSettings) -> tuple[int, str]:
    """What is to come later, or why that is not known: it hides nothing else."""
    try:
        return count_scheduled(look.fs, look.layout.delayed(settings.incarnation)), ""
    except (Corrupt, ConfigError) as error:
        return 0, f"what is delayed cannot be read: {error}"


def _ordered(found: list[GroupStats], broken: list[GroupStats]) -> tuple[GroupStats, ...]:
    return tuple(sorted([*found, *broken], key=lambda group: group.id))


def _look_at_groups(
    look: Look, settings: QueueSettings
) -> tuple[list[GroupLook], list[GroupStats]]:
    """Those that can be read, and those that cannot: one damaged group hides nothing else."""
    found, broken = [], []
    for group_id in look.group_ids(settings.name):
        try:
            found.append(look.look_at(settings, group_id))
        except Corrupt as error:
            broken.append(GroupStats(group_id, error=str(error)))
    return found, broken


def _alive(group: GroupLook) -> int:
    return sum(member.alive for member in group.members)


class _Count:
    """What a group has not settled, of its ledger or, of a stream, all: its ranges are of offsets,
    and a filter or a lifetime may pass some by. Records are added as they rise."""

    def __init__(self, group: GroupLook, cursor: int, end: int) -> None:
        self.ready = 0
        self.leased = 0
        self.first_ms: int | None = None  # the time of the first message of these
        self._takes = group.selection.takes
        self._spans = [(cursor, end, False)]
        state = group.state
        if isinstance(state, StreamLedger):
            self._spans += [(*each, False) for each in state.back]
            self._spans += [(*each, True) for ranges in state.taken.values() for each in ranges]
        self._spans.sort(reverse=True)

    @property
    def first(self) -> int:
        """The first offset that matters."""
        return self._spans[-1][0]

    def add(self, record: Record) -> None:
        offset: int = record.offset  # type: ignore[assignment]
        while self._spans and offset >= self._spans[-1][1]:
            self._spans.pop()
        if not self._spans or offset < self._spans[-1][0] or not self._takes(record):
            return
        if self._spans[-1][2]:
            self.leased += 1
        else:
            self.ready += 1
        if self.first_ms is None:
            self.first_ms = record.timestamp


class _Counting:
    """What the groups of a queue have not settled, counted in one reading for all of them."""

    def __init__(
        self,
        look: Look,
        log: Log,
        bounds: tuple[int, int],
        groups: list[GroupLook],
        exact: bool,
        progress: Progress | None,
    ) -> None:
        self._look = look
        self._log = log
        self._groups = groups
        self._start, self._end = bounds
        counts = {each.id: _Count(each, self._cursor(each), self._end) for each in groups}
        cheap = self._end - CHEAP
        self._counts = {
            group_id: count
            for group_id, count in counts.items()
            if exact or max(count.first, self._start) >= cheap
        }
        self._read(list(self._counts.values()), progress)

    def _cursor(self, group: GroupLook) -> int:
        """Inside of what the log holds."""
        return min(max(group.state.cursor, self._start), self._end)

    def _read(self, counts: list[_Count], progress: Progress | None) -> None:
        first = min((count.first for count in counts), default=self._end)
        first = min(max(first, self._start), self._end)
        for record in _told(records(self._log, first, self._end), self._end - first, progress):
            for count in counts:
                count.add(record)

    def stats(self) -> list[GroupStats]:
        return [self._stats_of(group) for group in self._groups]

    def _stats_of(self, group: GroupLook) -> GroupStats:
        state, cursor = group.state, self._cursor(group)
        committed = min(max(state.committed, self._start), cursor)
        count = self._counts.get(group.id)
        ready = count.ready if count is not None else self._end - cursor
        leased = waiting = dying = 0
        if isinstance(state, Ledger):
            now_ms = self._look.clock.boot_ms()
            for lease in state.pending.values():
                if lease.state == DYING:
                    dying += 1
                elif lease.is_due(now_ms):
                    ready += 1
                elif lease.state in (CLAIMED, LEASED):
                    leased += 1
                else:
                    waiting += 1
            settled, dropped = state.acked + state.dead, state.dropped
        else:
            if count is not None:
                leased = count.leased
            else:
                ready += sum(behind - first for first, behind in state.back)
                leased = sum(
                    behind - first for ranges in state.taken.values() for first, behind in ranges
                )
            settled, dropped = committed, 0
        return GroupStats(
            group.id,
            cursor,
            committed,
            ready,
            leased,
            waiting,
            dying,
            self._end - committed,
            self._oldest_age_ms(group, committed, cursor),
            settled,
            _alive(group),
            count is None,
            dropped=dropped,
        )

    def _oldest_age_ms(self, group: GroupLook, committed: int, cursor: int) -> int | None:
        count, at_ms = self._counts.get(group.id), None
        if count is not None and (committed == cursor or isinstance(group.state, StreamLedger)):
            at_ms = count.first_ms
        elif committed < self._end:
            for record in records(self._log, committed):
                at_ms = record.timestamp
                break
        return None if at_ms is None else max(self._look.clock.wall_ms() - at_ms, 0)


class _Dead:
    """The dead letters of the queues in one look. Many queues may share a place for them, which is
    looked at once, and counted once for all of them."""

    def __init__(self, look: Look, exact: bool, progress: Progress | None) -> None:
        self._look = look
        self._exact = exact
        self._progress = progress
        self._most: dict[str, int] = {}  # by place: how many there may be,
        self._counts: dict[str, Counter[str]] = {}  # and how many there are, by queue

    def of(self, settings: QueueSettings) -> tuple[int, bool]:
        """How many a queue has, and whether that is an estimate."""
        if settings.type != "classic":
            return 0, False
        places = self._look.letters(settings)
        most = sum(self._most_in(letters) for letters in places)
        if most > CHEAP and not self._exact:
            return most, True
        return sum(self._counts_of(letters)[settings.name] for letters in places), False

    def _most_in(self, letters: QueueSettings) -> int:
        most = self._most.get(letters.name)
        if most is None:
            with self._look.log(letters.name) as log:
                most = 0
                if log is not None:
                    state = self._look.look_at(letters, dead_letters.GROUP).state
                    assert isinstance(state, Ledger)
                    most = state.weight + log.end_offset - max(state.cursor, log.start_offset)
            self._most[letters.name] = most
        return most

    def _counts_of(self, letters: QueueSettings) -> Counter[str]:
        counts = self._counts.get(letters.name)
        if counts is None:
            there = _told(self._look.dead_in(letters), self._most_in(letters), self._progress)
            counts = Counter(dead_letters.origin(message)[0] for message in there)
            self._counts[letters.name] = counts
        return counts


def _told(items: Iterable[T], total: int, progress: Progress | None) -> Iterable[T]:
    """The same, and whoever wants to know is told now and then."""
    return items if progress is None else _telling(items, total, progress)


def _telling(items: Iterable[T], total: int, progress: Progress) -> Iterator[T]:
    for number, item in enumerate(items):
        if number % _TELL_EVERY == 0:
            progress(number, total)
        yield item
    progress(total, total)


# --- space ----------------------------------------------------------------------------------


def _pinned(segments: Extents, groups: list[GroupStats], end: int) -> tuple[str | None, int]:
    """The group that holds the log back, and how much of it, in whole segments. The last one does
    not count: it is being written."""
    lowest, group_id = min(((group.committed, group.id) for group in groups), default=(end, ""))
    if lowest >= end:
        return None, 0
    return group_id, segments.from_offset(lowest)[:-1].bytes
