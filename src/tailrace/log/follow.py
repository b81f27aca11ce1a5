"""Following a log: reading on as records come.

`Tailing` reads what there is, from where it was; between two looks the caller waits on its `watch`.
The watch is set before the first look, so whatever comes between a look and the wait ends the wait:
nothing is missed. `Follower` is that loop for a thread; `tailrace.aio` has it for tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple

from tailrace.errors import Closed, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.observer import Observer
from tailrace.log.options import FlushMode
from tailrace.log.reader import Reader, View
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import side_path
from tailrace.log.tip import Tip, Tips
from tailrace.log.watch import Watch

__all__ = ["Follower", "Tailing"]

ReadRange = Callable[[View, int, int], Iterator[Record]]


class Tailing:
    """A position in a log that grows. Used by one thread at a time, but for `close`."""

    def __init__(
        self,
        observer: Observer,
        tips: Tips,
        folder: str,
        read: ReadRange,
        first: int,
        end: int | None,
        *,
        also: Sequence[str] = (),
    ) -> None:
        """Read from the offset `first` on, up to `end`. The watch tells of the files `also`, too:
        they have to be there for as long as this is used."""
        self.position = first
        self._also = tuple(also)
        self._watched = _what_tells(observer, folder, self._also)
        self.watch = self._watched.watch()
        self.closed = False
        self._observer = observer
        self._tips = tips
        self._folder = folder
        self._read = read
        self._end = end
        self._tip: Tip | None = None

    @property
    def is_over(self) -> bool:
        """Has everything been read that was asked for?"""
        return self._end is not None and self.position >= self._end

    def poll(self) -> Iterator[Record]:
        """What there is and was not read before. If the watch has yet to tell of the last of it,
        that may come with the next look."""
        tip, self._tip = self._tip, None  # it is good if we have read all that is before it
        while tip is not None:
            sight = self._tips.look(tip)
            if sight is None:
                break
            for record in sight.records:
                self.position = record.offset + 1  # type: ignore[operator]
                yield record
            tip = sight.next
            if sight.is_all:
                self._tip = tip
                return
        if self._observer.closed:
            raise Closed(f"{self._folder} is closed")
        edition = self._observer.edition()
        view = self._observer.view()
        while self.renew_watch():  # what came before that nobody tells us
            edition = self._observer.edition()
            view = self._observer.view()
        if self.position < view.start:
            raise OffsetOutOfRange(
                f"{self._folder}: offset {self.position} was deleted; the log starts at "
                f"{view.start}",
                offset=self.position,
                low=view.start,
                high=view.end,
            )
        end = view.end if self._end is None else min(view.end, self._end)
        if self.position < end:
            for record in self._read(view, self.position, end):
                self.position = record.offset + 1  # type: ignore[operator]
                yield record
            self.position = end  # what is left of the range is a gap that may be stepped over
        # A segment that is empty is none to stay at: perhaps a roll failed, and it goes again.
        is_at_end = view.extents and view.extents[-1].base == self._observer.catalog.active
        if edition is not None and self._end is None and is_at_end:
            self._tip = Tip(edition, *view.extents[-1], self.position)

    def read_with(self, read: Callable[[Reader, View, int, int], Iterator[Record]]) -> None:
        """Have `read` read what is in a view, instead of reading all of it one by one."""
        reader = self._observer.reader
        self._read = lambda view, first, last: read(reader, view, first, last)

    def look(self) -> tuple[Reader, View]:
        """What there is to read now, wherever this is."""
        if self._observer.closed:
            raise Closed(f"{self._folder} is closed")
        return self._observer.reader, self._observer.view()

    def seek(self, offset: int) -> None:
        """Read on from there instead. Not while a `poll` is under way, which would go on where it
        was."""
        self.position = offset
        self._tip = None

    def renew_watch(self) -> bool:
        """A folder may have become a log since we began, or the segment is another, and then other
        files tell what is new. True if the watch is another one now: what came before that nobody
        tells, so look again."""
        wanted = _what_tells(self._observer, self._folder, self._also, self.watch)
        if wanted == self._watched:
            return False
        try:
            new = wanted.watch()
        except FileNotFoundError:  # it went since; the names in the folder tell of what comes
            return False
        old, self.watch, self._watched = self.watch, new, wanted
        old.close()
        if self.closed:  # meanwhile
            self.watch.close()
        return True

    def poll_tip(self, *, now: bool = False) -> Sequence[Record] | None:
        """What has come since everything was read, and that is all: what comes from here on, the
        watch tells. `None` if it takes a `poll`; with `now` also if it would have to wait for
        anything but memory: then this never blocks."""
        sight = None if self._tip is None else self._tips.look(self._tip, now=now)
        if sight is None or not sight.is_all:
            return None
        self._tip = sight.next
        self.position = sight.next.offset
        return sight.records

    def close(self) -> None:
        self.closed = True
        self.watch.close()
        self._read = _read_nothing  # it is not to hold the log, which may be closed then


def _read_nothing(_view: View, _first: int, _last: int) -> Iterator[Record]:
    return iter(())


class _Watched(NamedTuple):
    """What changes when there is something new to see: a path, what the caller looks at besides,
    and the names in a folder."""

    path: str
    also: tuple[str, ...]
    names_in: tuple[str, ...] = ()

    def watch(self) -> Watch:
        return Watch(self.path, *self.also, names_in=self.names_in)


def _what_tells(
    observer: Observer, folder: str, also: tuple[str, ...], watch: Watch | None = None
) -> _Watched:
    """`watch` is the one that there is."""
    if observer.flush_mode is FlushMode.SYNC:
        watermark = side_path(folder, "watermark")
        if os.path.exists(watermark):
            return _Watched(watermark, also)
        return _Watched(side_path(folder, "").rstrip("/"), also)  # it is about to be made
    active = observer.catalog.active
    if watch is not None and watch.is_looking and active is not None:
        return _Watched(segment_path(folder, active), also, (folder,))  # not all of a large folder
    return _Watched(folder, also)


class Follower:
    """Records as they come: `log.read(follow=True)`.

    Iterate in one thread. `close` may come from any other, and then the iteration ends, as it does
    when the log is closed, or when nothing has come for `timeout` seconds.
    """

    def __init__(self, tailing: Tailing, timeout: float | None) -> None:
        self._tailing = tailing
        self._timeout = timeout
        self._records = self._follow()

    @property
    def position(self) -> int:
        """The offset at which reading goes on."""
        return self._tailing.position

    def _follow(self) -> Generator[Record]:
        tailing = self._tailing
        deadline = None
        try:
            while not tailing.closed:
                position = tailing.position
                yield from tailing.poll()
                if tailing.is_over:
                    return
                left = None
                if self._timeout is not None:
                    # What comes counts, not what wakes us: the time goes on.
                    if deadline is None or tailing.position != position:
                        deadline = time.monotonic() + self._timeout
                    left = max(deadline - time.monotonic(), 0)
                if not tailing.watch.wait(left) and not tailing.closed:
                    return
        except Closed:
            if not tailing.closed:
                raise
        finally:
            tailing.close()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if self._tailing.closed:
            self._records.close()
        return next(self._records)

    def close(self) -> None:
        """End the iteration, wherever it is."""
        self._tailing.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
