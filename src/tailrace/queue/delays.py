"""Messages that are delivered later: what a queue offers.

A delayed message waits in a log of its own, in `.tailrace/delayed/<incarnation of its queue>`,
until it is due. `delivery.py` has how it gets into the queue then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from tailrace.errors import Corrupt, NotWritten, OffsetOutOfRange, TailraceError
from tailrace.kernel import Draft, Headers, Record, TooLarge, encode
from tailrace.kernel.layout import too_large
from tailrace.log.commit import Receipt
from tailrace.log.fs import FileLock, FileSystem, OsFileSystem, remove_tree
from tailrace.log.log import Log
from tailrace.log.options import FlushMode
from tailrace.queue.alarm import Alarm
from tailrace.queue.delivery import Delivery, Target, records_of
from tailrace.queue.handles import QueueLog, opening, other_references
from tailrace.queue.inputs import no_batch_holds
from tailrace.queue.layout import Layout
from tailrace.queue.message import expires_at, given_id, topic_of
from tailrace.queue.registry import Queues
from tailrace.queue.schedule import Manifest, Schedule, op_record
from tailrace.queue.sorted_runs import MESSAGE, Key
from tailrace.queue.unsorted import Unsorted
from tailrace.queue.weighing import weigh_message
from tailrace.units import is_early, parse_duration

__all__ = [
    "Delayed",
    "Delays",
    "Scheduled",
    "count_scheduled",
    "discard",
    "due_ms",
    "held_still",
    "look_at_scheduled",
    "sweep",
]

logger = logging.getLogger("tailrace")

_ID: Final = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{8})")
_LATEST_MS: Final = 253_402_300_799_999  # the year 9999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_ROOM: Final = 256  # bytes that the headers of a batch take
_OPEN: Final = ".open"  # beside the folder: a lock that those share who have it open
_TRIES: Final = 5  # to look at files that others change
_PAGE_SIZE: Final = 4096
_SKIPPED_AT_ONCE: Final = 4096
_ASLEEP: Final = 0  # on the page: nobody follows what is published, so call


class Delayed(Receipt):
    """What publishing with a delay returns. `wait()` (or `await`) returns when the message is as
    durable as the queue promises; `queue.cancel` of it, or of its `delay_id`, takes it back, as
    long as it is not due. `deliver_at` is in milliseconds since 1970. Its offsets are those of
    where it waits."""

    __slots__ = ("delay_id", "deliver_at")

    def __init__(self, receipt: Receipt, delay_id: str, deliver_at: int) -> None:
        super().__init__(receipt.offset, receipt.end_offset, receipt.count, receipt._committer)
        self.delay_id = delay_id
        self.deliver_at = deliver_at

    def wait(self, timeout: float | None = None) -> Delayed:
        """Block until done. `TimeoutError` leaves the message as it is: wait again."""
        super().wait(timeout)
        return self

    def __await__(self) -> Generator[Any, None, Delayed]:
        yield from super().__await__()
        return self

    def __repr__(self) -> str:
        return f"Delayed({self.delay_id!r}, deliver_at={self.deliver_at})"


class Scheduled(NamedTuple):
    """A message that is to be delivered, at `deliver_at` (milliseconds since 1970). `id` is what
    its publisher called it, and `expires_at` when it expires, if it does."""

    delay_id: str
    deliver_at: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    id: str | None = None
    expires_at: int | None = None


def due_ms(delay: float | str | None, deliver_at: int | datetime | None, now_ms: int) -> int | None:
    """When a message is due, in milliseconds since 1970; `None` if it is not delayed. That is its
    timestamp, by which it is kept, so it is never before now."""
    if delay is None and deliver_at is None:
        return None
    if delay is not None and deliver_at is not None:
        raise ValueError("delay and deliver_at: give one of them, not both")
    if delay is not None:
        due = now_ms + parse_duration(delay, "delay")
    elif isinstance(deliver_at, datetime):
        if deliver_at.utcoffset() is None:
            raise ValueError(
                f"deliver_at: {deliver_at!r} has no time zone, so it may be any of many moments; "
                "give it one, as deliver_at.astimezone() does"
            )
        due = -((_EPOCH - deliver_at) // timedelta(milliseconds=1))  # rounded up: never too early
    elif isinstance(deliver_at, int) and not isinstance(deliver_at, bool):
        due = deliver_at
    else:
        raise TypeError(
            "deliver_at is a whole number of milliseconds since 1970, or a datetime with a time "
            f"zone, not {deliver_at!r}"
        )
    if due < 0:
        raise ValueError(
            f"deliver_at: {deliver_at!r} is before 1970; give a time from then on, or none at all"
        )
    if is_early(due, now_ms):
        raise ValueError(
            f"deliver_at: {deliver_at!r} is long over; give milliseconds since 1970, not seconds"
        )
    if due > _LATEST_MS:
        name = "deliver_at" if delay is None else "delay"
        raise ValueError(
            f"{name}: {due} milliseconds since 1970 are not before the year 10000: too late"
        )
    return max(due, now_ms)


class Delays(Delivery):
    """The delayed messages of a queue, as one process has them. Thread-safe. Nothing is open, and
    nothing is made, before it is needed; what is let go of is opened again."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        queue: Target,
        alarm: Alarm,
        wall_ms: Callable[[], int],
        open_log: Callable[..., QueueLog],
    ) -> None:
        """`open_log` opens a log in another folder, otherwise like the queue's."""
        self._alarm = alarm
        self._open_log = open_log
        self._board = os.path.join(folder, "board")
        super().__init__(fs, folder, queue, wall_ms)

    def _reset(self) -> None:
        super()._reset()
        self._opening = threading.Lock()
        self._incoming: QueueLog | None = None
        self._presence: FileLock | None = None
        self._tag = ""  # which all ids end in, once we know it
        self._has_called = False  # since it was opened

    def disown(self) -> None:
        """In a forked child: what is open is the parent's."""
        self._reset()

    @property
    def exists(self) -> bool:
        """Has anything been scheduled, and not been forgotten since?"""
        return _exists(self._fs, self._folder)

    # --- open and close ---------------------------------------------------------------------

    @property
    def incoming(self) -> QueueLog:
        """The log to which delayed messages are published."""
        incoming = self._incoming
        if incoming is None:
            try:
                with self._opening:
                    if self._incoming is None:
                        with opening(f"the place of what is delayed for {self._queue.name!r}"):
                            self._incoming = self._open()
                    incoming = self._incoming
            except NotWritten:
                self._queue.settings  # noqa: B018  raises if the queue was deleted meanwhile
                raise
            self._queue.note_opened()
        return incoming

    def _open(self) -> QueueLog:
        fs, folder, log = self._fs, self._folder, self._queue.log
        fs.make_dirs(os.path.dirname(folder))
        self._alarm.open()
        if self._presence is None:
            presence = fs.lock(folder + _OPEN)
            presence.acquire(shared=True)
            self._presence = presence
        fs.make_dirs(folder)  # with the lock: from here on nobody removes it
        self._lock = fs.lock(os.path.join(folder, "lock"))
        self._tag = self._begin(self._lock)
        # Offsets, by which batches are numbered, may have begun anew.
        self._producer = f"delays-{self._tag}-{secrets.token_hex(8)}"
        self._page = fs.map(self._board, _PAGE_SIZE, write=True)
        self._has_called = False  # these may be other files than those that somebody follows
        incoming = self._open_log(
            self._queue.settings,
            os.path.join(folder, "incoming"),
            flush=log.flush_mode,
            max_batch_bytes=max(log.options.max_batch_bytes, 4 << 20),
            segment_bytes=min(log.options.segment_bytes, 16 << 20),
        )
        try:
            first = self._step_over_lost(incoming, self._lock)
            if self._page is not None:
                self._unsorted = Unsorted(self._page, first, incoming.end_offset)
        except BaseException:
            incoming.close()
            raise
        return incoming

    def _begin(self, lock: FileLock) -> str:
        """See that there is a manifest; its id."""
        lock.acquire()
        try:
            manifest = Manifest.load(self._fs, self._folder)
            if not manifest.id:
                manifest = Manifest(secrets.token_hex(4))
                manifest.store(self._fs, self._folder)
            return manifest.id
        finally:
            lock.release()

    def _step_over_lost(self, incoming: QueueLog, lock: FileLock) -> int:
        """What is below the offset of the manifest is not looked at. Where nothing is flushed, a
        power cut may have taken the log back behind it: no message may get such an offset. That
        offset."""
        lock.acquire()
        try:
            first = Manifest.load(self._fs, self._folder).incoming
            if incoming.end_offset < first:  # or it is others that know its end
                while (missing := first - incoming.exact_end()) > 0:
                    skip = op_record("skip", {}, self._wall_ms())
                    incoming.append([skip] * min(missing, _SKIPPED_AT_ONCE))
            return first
        finally:
            lock.release()

    def _let_go(self, part: Callable[[QueueLog], None]) -> None:
        """With both locks."""
        merge, self._merge = self._merge, None
        if merge is not None:
            merge.abandon()
        self._forget()
        incoming, self._incoming = self._incoming, None
        try:
            if incoming is not None:
                part(incoming)
        finally:
            for lock in (self._lock, self._presence):
                if lock is not None:
                    lock.close()
            self._lock = self._presence = self._page = self._unsorted = None

    def promise(self, mode: FlushMode | None) -> None:
        """From now on the queue promises more than it did."""
        incoming = self._incoming
        if incoming is not None:
            incoming.promise(mode)

    def rest(self) -> bool:
        """Let go, unless somebody is at it: is nothing open any more?"""
        with self._if_free() as is_free:
            if is_free and not self._is_being_used():
                self._let_go(QueueLog.close)
            return self._incoming is None

    def _is_being_used(self) -> bool:
        """With both locks: is somebody in the middle of publishing? Who is has a reference besides
        ours."""
        incoming, self._incoming = self._incoming, None
        is_used = incoming is not None and other_references(incoming) > 0
        self._incoming = incoming
        return is_used

    def fall_asleep(self, next_due: int | None) -> None:
        """Let go; from now on whoever publishes is to call. But not if there is news: something
        else is due next than one thinks."""
        with self._mutex:
            incoming, page = self.incoming, self._page
            assert page is not None
            page[_ASLEEP] = 1
            try:
                with self._turn() as state:
                    is_as_thought = state.next_due == next_due and incoming is self._incoming
            except BaseException:
                page[_ASLEEP] = 0
                raise
            del incoming  # nobody is to think that it is in use
            if is_as_thought:
                self.rest()
            else:
                page[_ASLEEP] = 0

    def abandon(self) -> None:
        """The queue was deleted: let go, and write nothing. Who is at it finds that out."""
        with self._if_free() as is_free:
            if is_free:
                self._let_go(QueueLog.abandon)

    @contextlib.contextmanager
    def _if_free(self) -> Iterator[bool]:
        """Both locks, if they can be had at once: who has them may be waiting for our caller."""
        if not self._mutex.acquire(blocking=False):
            yield False
            return
        try:
            if not self._opening.acquire(blocking=False):
                yield False
                return
            try:
                yield True
            finally:
                self._opening.release()
        finally:
            self._mutex.release()

    def close(self, trash: str) -> None:
        """Let go. If nothing is scheduled, the last one to do so leaves no files; but who was in
        the middle of something does not begin anew to find that out."""
        with self._opening:
            if self._incoming is None:
                return
        is_over = False
        try:
            is_over = not self._is_broken_off and self._is_over()
        except (TailraceError, OSError) as error:
            extra = {"queue": self._queue.name, "path": self._folder}
            logger.warning("%s: not closed cleanly: %s", self._folder, error, extra=extra)
        finally:
            with self._mutex, self._opening:
                presence, self._presence = self._presence, None
                try:
                    self._let_go(QueueLog.close)
                    if is_over:
                        discard(self._fs, self._folder, trash)
                finally:
                    if presence is not None:
                        presence.close()

    def _is_over(self) -> bool:
        """Are we the last, and is there nothing to be done any more? Nobody comes in then."""
        presence = self._presence
        if presence is None or not presence.acquire(wait=False):
            return False
        with self._turn() as state:
            if not state.is_over:
                presence.acquire(shared=True)
                return False
            if self._queue.log.flush_mode != "none":
                self._queue.log.flush()  # before what it came from is gone
        return True

    # --- publish ----------------------------------------------------------------------------

    def schedule(self, record: Record, due: int) -> Delayed:
        """Have a message delivered when it is due."""
        options = self._queue.log.options
        record = Record(None, due, record.key, record.value, record.headers)
        try:
            draft = encode([record], due, options.codec, (), options.max_batch_bytes)
        except TooLarge as error:
            raise no_batch_holds(self._queue.name, error) from None
        return self.schedule_draft(draft, due, weigh_message(record))

    def schedule_draft(self, draft: Draft, due: int, size: int) -> Delayed:
        """The same, of a message that is encoded, with that time for its timestamp. `size` is what
        it takes in memory, about: it may be compressed."""
        limit = self._queue.log.options.max_batch_bytes
        if draft.size > limit - _ROOM:  # it has to fit into a batch of the queue
            error = too_large(draft.size, limit - _ROOM, draft.count)
            raise no_batch_holds(self._queue.name, error)
        incoming = self.incoming  # as long as we have it, nobody lets go of the page
        page, unsorted = self._page, self._unsorted
        if unsorted is not None and unsorted.is_much:
            self._sort_away(unsorted)  # before: an interrupt leaves nothing half done
        self._call(page)  # before, since we may be killed
        receipt = incoming.append_draft(draft)
        if unsorted is not None:
            unsorted.add(receipt.end_offset, size)
        if due <= self._wall_ms():
            self._queue.note_due()
        self._call(page)  # who delivers may have let go meanwhile
        if due < self._alarm.next_ms:
            self._alarm.ring()
        return Delayed(receipt, _id_of((due, receipt.offset), self._tag), due)

    def _call(self, page: memoryview | None) -> None:
        """Have whoever delivers follow what is published here, unless it is known to do so."""
        if page is None or (self._has_called and not page[_ASLEEP]):
            return
        incarnation = self._queue.incarnation
        self._alarm.call(incarnation)  # for the case that this is all that we get to do
        page[_ASLEEP] = 0
        self._alarm.call(incarnation)  # who had taken the first may have looked before that
        self._has_called = True

    # --- cancel, list, count ----------------------------------------------------------------

    def cancel(self, delay_id: str | Delayed | Scheduled) -> bool:
        """Take a message back: false if it is too late, or there is none."""
        if isinstance(delay_id, Delayed | Scheduled):
            delay_id = delay_id.delay_id
        if not isinstance(delay_id, str):
            raise TypeError(
                f"a delay id is a string, and publish returns one in a Delayed; not {delay_id!r}"
            )
        match = _ID.fullmatch(delay_id)
        if match is None or not self.exists:
            return False
        key = (int(match[1], 16), int(match[2], 16))
        with self._turn() as state:
            found = state.find(key) if match[3] == state.manifest.id else None
            if found is None:
                return False
            incoming = self.incoming
            if found == MESSAGE:
                self._note("cancel", {"k": list(key)})
                self._catch_up(incoming)
        if incoming.flush_mode != "none":
            incoming.flush()  # not in the turn, so that one flush serves many
        return True

    def scheduled(self, limit: int | None) -> list[Scheduled]:
        """What is to be delivered, in that order."""
        if not self.exists:
            return []
        with self._turn(to_look=True) as state:
            return _listed(state, limit)

    def count(self) -> int:
        """How many messages are to be delivered."""
        if not self.exists:
            return 0
        with self._turn(to_look=True) as state:
            return state.count

    def clear(self) -> None:
        """Forget everything that is scheduled."""
        if self.exists:
            with self._turn():
                self._sort(keep=False)

    # --- for the pump -----------------------------------------------------------------------

    def next_due(self) -> int | None:
        """When there is something to do next."""
        with self._turn() as state:
            return state.next_due

    @property
    def is_open(self) -> bool:
        return self._incoming is not None

    def has_news(self) -> bool:
        """May somebody have written something since our last turn? What another process writes may
        show only after a moment; it rings if it matters. Where nothing is open, others may have
        removed the files and made them anew: then nobody is asleep there."""
        incoming = self._incoming
        if incoming is not None:
            return incoming.end_offset != self._seen
        page = self._fs.map(self._board, _PAGE_SIZE, write=False)
        return page is None or not page[_ASLEEP]


def _exists(fs: FileSystem, folder: str) -> bool:
    try:
        fs.stat(os.path.join(folder, "incoming"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def discard(fs: FileSystem, folder: str, trash: str) -> None:
    """Remove the delayed messages of a queue. They go at once: a power cut brings back all or
    nothing."""
    trash = f"{trash}-delayed-{secrets.token_hex(4)}"
    fs.make_dirs(os.path.dirname(trash))
    try:
        fs.rename(folder, trash)
    except FileNotFoundError:
        return
    fs.sync_dir(os.path.dirname(folder))
    fs.sync_dir(os.path.dirname(trash))
    remove_tree(fs, trash)


def sweep(fs: FileSystem, layout: Layout, queues: Callable[[], Queues]) -> None:
    """Remove the delayed messages of queues that are not there any more."""
    try:
        entries = fs.list(layout.delayed())
    except FileNotFoundError:
        return
    # After the list: a queue is there before anything is scheduled for it.
    known = {layout.delayed(settings.incarnation) for settings in queues().values()}
    for entry in entries:
        folder = os.path.join(layout.delayed(), entry.name)
        if entry.is_dir and folder not in known:
            discard(fs, folder, layout.trash(entry.name))
        elif entry.name.endswith(_OPEN) and folder.removesuffix(_OPEN) not in known:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(folder)


def _id_of(key: Key, tag: str) -> str:
    return f"{key[0]:x}-{key[1]:x}-{tag}"


def _listed(state: Schedule, limit: int | None) -> list[Scheduled]:
    tag = state.manifest.id
    return [_scheduled(key, record, tag) for key, record in islice(state.all(), limit)]


def _scheduled(key: Key, record: Record, tag: str) -> Scheduled:
    pairs = tuple(pair for pair in record.headers.pairs if not pair[0].startswith("_"))
    return Scheduled(
        _id_of(key, tag),
        key[0],
        topic_of(record),
        record.key or None,
        record.value,
        Headers.from_pairs(pairs),
        given_id(record),
        expires_at(record),
    )


def count_scheduled(fs: FileSystem, folder: str) -> int:
    """How many messages are to be delivered, without disturbing anybody: nothing is locked, made or
    changed. What is being delivered just now may count or not."""
    return look_at_scheduled(fs, folder, 0)[1]


def look_at_scheduled(
    fs: FileSystem, folder: str, limit: int | None
) -> tuple[list[Scheduled], int]:
    """The first of the messages that are to be delivered, and how many there are; likewise."""
    for is_last in (*[False] * _TRIES, True):
        if not _exists(fs, folder):
            return [], 0
        before = Manifest.read(fs, folder)
        try:
            found = _look_at(fs, folder, limit)
        except (FileNotFoundError, OffsetOutOfRange) as error:
            if is_last and Manifest.read(fs, folder) == before:  # so nobody has changed them
                raise Corrupt(f"{folder}: what is scheduled is missing: {error}") from error
            if is_last:
                raise
        else:
            if is_last or Manifest.read(fs, folder) == before:  # else the files were changed
                return found
    raise AssertionError  # the last try ends it


def _look_at(fs: FileSystem, folder: str, limit: int | None) -> tuple[list[Scheduled], int]:
    state = Schedule(fs, folder, Manifest.load(fs, folder))
    given = None if isinstance(fs, OsFileSystem) else fs
    try:
        with Log(os.path.join(folder, "incoming"), read_only=True, fs=given) as incoming:
            for record in records_of(incoming, state.next_offset, incoming.end_offset):
                state.apply(record)
        return _listed(state, limit) if limit != 0 else [], state.count
    finally:
        state.close()


@contextlib.contextmanager
def held_still(fs: FileSystem, folder: str) -> Iterator[None]:
    """As long as the block runs nothing is delivered or cancelled, for who copies the files and the
    queue's log. Publishing goes on."""
    if not _exists(fs, folder):
        yield
        return
    lock = fs.lock(os.path.join(folder, "lock"))
    try:
        lock.acquire()
        yield
    finally:
        lock.close()
