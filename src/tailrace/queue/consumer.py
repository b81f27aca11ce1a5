"""Consumers: what waits for messages, and hands them to a caller."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from tailrace.errors import Closed, Locked
from tailrace.log.follow import Tailing
from tailrace.log.inputs import check_whole
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.group import LOOK_AFTER_S
from tailrace.queue.inputs import as_reason, check_count, in_seconds, refuse_messages
from tailrace.queue.message import Message
from tailrace.queue.stream import StreamGroup, StreamSettler
from tailrace.queue.stream_ledger import pairs, without

__all__ = ["Consumer", "StreamConsumer", "new_consumer_id", "shorter"]

_numbers = itertools.count(1)
_forks = 0  # how many lie between the first process and this one: a child's consumers are others

# Why a consumer that closes cannot say goodbye: somebody has deleted the group, or its queue; or
# this is a signal handler amid a call of the group, and the next who comes does it.
_LEFT_TO_OTHERS = (Closed, Locked)

C = TypeVar("C", bound="_Receiver")


def new_consumer_id() -> str:
    """A name for a consumer that was given none."""
    return f"{os.uname().nodename}-{os.getpid()}-{next(_numbers)}"


class _Receiver:
    """Waiting, for consumers of both kinds.

    Any thread may call `close`: whoever waits returns then. The watch is set before the first look,
    and exchanged only before a look, so that nothing comes unnoticed.
    """

    def __init__(
        self, group: ClassicGroup | StreamGroup, tail: Tailing, bring_due: Callable[[], bool]
    ) -> None:
        """`bring_due` has the queue take in delayed messages that are due; were there any?"""
        self.group = group.id
        self._membership = group
        self._tail = tail
        self._bring_due = bring_due
        self._closed = False
        self._forks = _forks
        self._lock = threading.RLock()  # a signal handler may close it, too

    def _look(self, into: list[Message], limit: int) -> tuple[bool, float | None]:
        """Fetch up to `limit`; is there more to look at, and for how long may one sleep?"""
        raise NotImplementedError

    def receive(self, max: int = 1, wait: float | str | None = 0.0) -> list[Message]:
        """Up to `max` messages: as many as there are, as soon as there is one. An empty list if
        none comes for `wait` (seconds, or such as "5m"; `None`: for ever), or the consumer is
        closed meanwhile. If the queue or the group is deleted, that is `Closed`."""
        if type(max) is not int or max < 1:
            check_count(max)
        self.check_open()
        return self._receive(max, wait)

    def _receive(self, max: int, wait: float | str | None) -> list[Message]:
        """Nothing, if it is closed by now: by a signal handler or a thread, between two lines."""
        try:
            deadline = None if wait is None else time.monotonic() + wait  # type: ignore[operator]
        except (TypeError, OverflowError):
            deadline = time.monotonic() + in_seconds(wait)
        taken: list[Message] = []
        try:
            while not self._closed:
                more, sleep_s = self._look(taken, max)
                if taken:
                    return taken
                if more or self._may_have_come():
                    continue
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and not left > 0:
                    break
                self._tail.watch.wait(shorter(left, sleep_s))
        except BaseException:  # an interrupt: nobody gets what was fetched
            self._give_back(taken)
            raise
        self._give_back(taken)
        if self._membership._is_deleted:
            self._membership.files.check()  # perhaps its queue was, which has closed us
        return []

    def look_now(self, max: int) -> tuple[list[Message], float | None]:
        """Receive without waiting; and for how long one may wait on the `watch` before the next
        look. For those who wait in their own way."""
        taken: list[Message] = []
        more = True
        sleep_s: float | None = None
        while more and not taken and not self._closed:
            more, sleep_s = self._look(taken, max)
            more = more or (not taken and self._may_have_come())
        return taken, sleep_s

    def _may_have_come(self) -> bool:
        """Nothing was found; is there something since then?"""
        return self._bring_due() or self._tail.renew_watch()

    @property
    def tail(self) -> Tailing:
        """What tells that it is worth looking."""
        return self._tail

    def _give_back(self, messages: list[Message]) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if not self._closed:
            for message in self._receive(1, None):
                return message
        raise StopIteration

    def check_open(self) -> None:
        if self._closed:
            self._membership.files.check()  # perhaps its queue was deleted, which has closed it
            raise Closed(f"the consumer of group {self.group!r} is closed")

    @property
    def closed(self) -> bool:
        """It was closed, by whomever: it gets no more messages."""
        return self._closed

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Consumer(_Receiver):
    """A consumer of a classic queue: an iterator of messages, each of which is to be settled.

    Threads may share it. Messages that were received stay leased when the consumer is closed, and
    may be settled then; those that it only fetched ahead are given back.
    """

    def __init__(
        self,
        group: ClassicGroup,
        tail: Tailing,
        visibility_timeout_ms: int | None = None,
        *,
        prefetch: int = 1,
        id: str | None = None,
        bring_due: Callable[[], bool] = lambda: False,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(group, tail, bring_due)
        self._group = group
        self._lease_ms = visibility_timeout_ms
        self._prefetch = prefetch
        self._ahead: deque[Message] = deque()
        self._on_close = on_close
        self.id = id or new_consumer_id()
        self._join()

    def _join(self) -> None:
        self._member = self._group.join(self.id)
        self._finalizer = weakref.finalize(
            self, _drop, self._group, self._member, self._ahead, self._tail
        )

    def _look(self, into: list[Message], limit: int) -> tuple[bool, float | None]:
        if self._forks != _forks:
            self._rejoin()
        group, ahead = self._group, self._ahead
        more, due_ms = True, None
        if not ahead and limit < self._prefetch:
            fetched: list[Message] = []
            try:
                more, due_ms = group.claim(
                    fetched, self._member, self._prefetch, self._lease_ms, handed=False
                )
            finally:
                ahead.extend(fetched)
                self._leave_nothing()
        elif not ahead:
            more, due_ms = group.claim(into, self._member, limit, self._lease_ms)
        if ahead:
            chosen = _take(ahead, limit)
            try:
                into += group.hand(chosen, self._lease_ms)
            except BaseException:  # we still have them
                ahead.extendleft(reversed(chosen))
                self._leave_nothing()
                raise
            return True, None
        if into or more:
            return more, None
        sleep_s = LOOK_AFTER_S if group.has_others else None
        if due_ms is not None:
            due_s = max(due_ms - group.files.clock.boot_ms(), 0) / 1000
            sleep_s = due_s if sleep_s is None else min(due_s, sleep_s)
        return False, sleep_s

    def claim_at(self, offsets: list[int]) -> list[Message]:
        """Receive the messages at these offsets, which rise, as far as nobody has them. For those
        who know which ones they want."""
        self.check_open()
        return self._group.claim_at(offsets, self._member)

    def _leave_nothing(self) -> None:
        """After something was put ahead: if somebody has closed us meanwhile, nobody else gives it
        back. Who closes says so before it takes what is there, so one of the two finds it."""
        if self._closed and self._ahead:
            self._give_back(_take(self._ahead, len(self._ahead)))

    def _rejoin(self) -> None:
        """In a forked child this is another consumer; what was fetched ahead is the parent's."""
        self._forks = _forks
        self._ahead.clear()
        self._finalizer.detach()
        self._join()

    # --- many at once -----------------------------------------------------------------------

    def _ours(self, messages: Iterable[Message]) -> list[Message]:
        try:
            ours = list(messages)
            for message in ours:
                if message.settler is not self._group:
                    raise ValueError(f"{message!r} is not of the group {self.group!r}")
        except (AttributeError, TypeError) as error:
            refuse_messages(messages, error)
        return ours

    def ack(self, messages: Iterable[Message]) -> None:
        """Ack messages of this group, in one step. `LeaseLost` names those that were lost; the
        others are acked all the same."""
        self._group.ack(self._ours(messages))

    def nack(
        self, messages: Iterable[Message], delay: float | str | None = None, error: str = ""
    ) -> None:
        """Each of them failed: `Message.nack`, in one step. `LeaseLost` names those that were lost,
        and the note of another error those that could not become dead letters, and are delivered
        again; the others are nacked all the same."""
        self._group.nack(self._ours(messages), delay, as_reason("error", error))

    def reject(self, messages: Iterable[Message], reason: str = "") -> None:
        """None of them can ever succeed: `Message.reject`, in one step. Errors are those of
        `nack`."""
        self._group.reject(self._ours(messages), as_reason("reason", reason))

    def release(self, messages: Iterable[Message]) -> None:
        """Give them back at once, as if they had not been delivered, in one step."""
        self._group.release(self._ours(messages))

    def extend(self, messages: Iterable[Message], seconds: float | str | None = None) -> None:
        """Keep them for so long from now on; by default for the visibility timeout."""
        self._group.extend(self._ours(messages), seconds)

    # --- the end ----------------------------------------------------------------------------

    def _give_back(self, messages: list[Message]) -> None:
        if messages:
            self._group.release(messages)

    def close(self) -> None:
        """Stop: whoever waits gets no more. A second close does nothing. A signal handler may call
        it, too."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._finalizer()
        try:
            with contextlib.suppress(*_LEFT_TO_OTHERS):
                self._group.tidy()
        finally:
            self._on_close()


def _drop(group: ClassicGroup, consumer: str, ahead: deque[Message], tail: Tailing) -> None:
    tail.close()
    group.drop(consumer, _take(ahead, len(ahead)))


def _take(ahead: deque[Message], most: int) -> list[Message]:
    """Up to so many of them. Threads share a consumer, and its collector may come at any moment:
    each message is taken once, without a lock."""
    taken: list[Message] = []
    while len(taken) < most:
        try:
            taken.append(ahead.popleft())
        except IndexError:  # another thread was faster
            break
    return taken


class StreamConsumer(_Receiver):
    """A consumer of a stream: an iterator of messages, with `commit` and `seek`.

    With `auto_commit` (the default) what the caller has moved past is committed now and then: it
    has moved past a message when it asks for the next one. What the group's other consumers have
    got it does not get, unless they leave without committing it.

    It belongs to one thread at a time, or to ask for more would say that another thread is done
    with what it has. A thread that asks while another one does, or is at messages that were not
    committed, gets `Locked`: open a consumer for each thread. A consumer may be handed over once
    everything was committed, or its thread has ended. What such a thread has not moved past counts
    as not processed unless somebody commits it; it goes to the group's others when this one leaves.
    """

    def __init__(
        self,
        group: StreamGroup,
        tail: Tailing,
        resolve: Callable[[Any, int | None], int],
        *,
        auto_commit: bool = True,
        interval_ms: Callable[[], int] = lambda: 5_000,
        id: str | None = None,
        bring_due: Callable[[], bool] = lambda: False,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(group, tail, bring_due)
        self._using = threading.RLock()  # who has it may wait for the group's turn
        self._group = group
        self._resolve = resolve
        self.auto_commit = auto_commit
        self._interval_ms = interval_ms  # as of now: somebody may have changed it
        self._committed_s = time.monotonic()
        self._on_close = on_close
        self.id = id or new_consumer_id()
        self._begin()

    # First and last messages of what others got who share this consumer, and are still at: for
    # those who wait in their own way.
    _held: Sequence[tuple[Message, Message]] = ()

    def _begin(self) -> None:
        self._got: list[int] = []  # first, behind, …: what the caller has, and has not moved past
        self._past: list[int] = []  # what it has moved past, and we have not committed
        self._orphaned: list[int] = []  # what threads had that have ended
        self._user: threading.Thread | None = None  # who has received last
        self._is_receiving = False
        # The two as they were, and their epoch, as long as the caller has not got what is new.
        self._had: tuple[list[int], list[int], int] | None = None
        self._epoch = -1
        self._member = self._group.join(self.id)
        self._settler = StreamSettler(self._group, self._member, self.auto_commit)
        self._finalizer = weakref.finalize(
            self, _drop_stream, self._group, self._member, self._tail
        )

    def _receive(self, max: int, wait: float | str | None) -> list[Message]:
        self._enter()
        try:
            self._move_on()
            found = super()._receive(max, wait)
            self._had = None
            return found
        finally:
            self._is_receiving = False

    def _enter(self) -> None:
        """This thread is the one that receives, or else `Locked`."""
        me = threading.current_thread()
        if self._forks != _forks:
            self._rejoin()
        with self._using:
            if self._user is not me and self._user is not None and not self._closed:
                self._take_over(self._user)
            self._user, self._is_receiving = me, True

    def _take_over(self, user: threading.Thread) -> None:
        if self._is_receiving and user.is_alive():
            raise _locked(self.group, user, "receives from it")
        self._return_lost()
        if not self._group.has_taken(self._member, self._epoch, self._got):
            return
        if user.is_alive():
            raise _locked(self.group, user, "has not committed what it got from it")
        self._orphaned += self._got
        self._got = []

    def _rejoin(self) -> None:
        """In a forked child this is another consumer, and another thread may have had the lock."""
        self._forks = _forks
        self._using = threading.RLock()
        self._finalizer.detach()
        self._begin()

    def look_now(self, max: int) -> tuple[list[Message], float | None]:
        """As `Consumer.look_now`: whoever waits in their own way sees to it that there is one look
        at a time, and tells in `_held` what others are at. So any thread may do it."""
        if self._forks != _forks:
            self._rejoin()
        self._move_on()
        found = super().look_now(max)
        self._had = None
        return found

    def _move_on(self) -> None:
        """To ask for more says that one is done with what one has."""
        self._return_lost()
        past, self._got = pairs(self._got), []
        for first, last in self._held:
            if first.epoch == self._epoch:
                past = without(past, first.offset, last.offset + 1)
                self._got += (first.offset, last.offset + 1)
        for low, high in past:
            _extend(self._past, low, high)
        self._had = [*self._past], [*self._got], self._epoch

    def _return_lost(self) -> None:
        """If the last look was broken off, by Ctrl-C say, others get what it took."""
        if self._had is not None:
            past, got, epoch = self._had
            self._group.keep_only(self._member, epoch, [*past, *got, *self._orphaned])
            self._past, self._got, self._epoch = past, got, epoch
            self._had = None

    def _look(self, into: list[Message], limit: int) -> tuple[bool, float | None]:
        group = self._group
        done: list[int] = []
        if self.auto_commit and self._past:
            now_s = time.monotonic()
            if now_s - self._committed_s >= self._interval_ms() / 1000:
                done, self._committed_s = self._past, now_s
        taken = group.take(self._member, limit, done=done, epoch=self._epoch, settler=self._settler)
        if taken.epoch != self._epoch:  # somebody has the group go on from somewhere else
            self._got, self._past, self._orphaned, self._epoch = [], [], [], taken.epoch
        elif done:
            self._past = []
        if taken.behind > taken.first:
            # Of what it skipped the caller knows nothing, and so is not at it.
            ranges = self._got if taken.messages else self._past
            _extend(ranges, taken.first, taken.behind)
        into += taken.messages
        sleep_s = LOOK_AFTER_S if group.has_others else None
        if self.auto_commit and self._past:
            left_s = self._committed_s + self._interval_ms() / 1000 - time.monotonic()
            sleep_s = shorter(sleep_s, min(max(left_s, 0.001), LOOK_AFTER_S))
        return taken.more, sleep_s

    def commit(self, upto: Message | int | None = None) -> None:
        """What was received is processed: all of it, or up to a message (itself included), or below
        an offset. Returns when that is as durable as the queue's flush mode promises. Nothing
        counts that was received before somebody had the group go on from elsewhere. An offset that
        the group has not come to is a `ValueError`. While another thread receives, name what is
        meant. After `close` it is `Closed`, unless all of it has been processed: others get it."""
        with self._using:
            user = self._user
            is_elsewhere = self._is_receiving and user is not threading.current_thread()
            if not is_elsewhere:
                self._return_lost()
            if isinstance(upto, Message):
                self._check_ours(upto)
                self._commit_below(upto.offset + 1, upto.epoch)
            elif upto is not None:
                check_whole("upto", upto, "a message or an offset")
                if upto < 0:
                    raise ValueError(f"upto is a message or an offset, from 0 on, not {upto!r}")
                self._group.check_reached(self._epoch, upto)
                self._commit_below(upto, self._epoch)
            elif is_elsewhere and user is not None:
                raise _locked(
                    self.group, user, "receives from it; name the message to commit up to"
                )
            else:
                self._commit_all()

    def _check_ours(self, message: Message) -> None:
        """It may be another consumer's of the group; elsewhere its offset says nothing."""
        settler = message.settler
        if not isinstance(settler, StreamSettler) or settler.group is not self._group:
            raise ValueError(f"{message!r} is not of the group {self.group!r}")

    def _commit_below(self, offset: int, epoch: int) -> None:
        if not self._closed:
            self._group.done(self._member, epoch, below=offset)
            return
        # The group knows no more what was ours.
        had = pairs([*self._past, *self._got, *self._orphaned])
        ranges = [each for low, high in had if low < offset for each in (low, min(high, offset))]
        self._group.done(self._member, epoch, ranges=ranges)

    def _commit_all(self) -> None:
        ranges = [*self._past, *self._got, *self._orphaned]
        if ranges:
            self._group.done(self._member, self._epoch, ranges=ranges)
        self._past, self._got, self._orphaned = [], [], []

    def commit_but(self, kept: Sequence[Message]) -> None:
        """`commit()`, where these are messages of the last look that the caller has not got yet.
        For those who wait in their own way."""
        self._return_lost()
        done, left = [*self._past], []
        for first, behind in pairs(self._got):
            middle = kept[0].offset if kept else behind
            if not first <= middle < behind:
                middle = behind
            if first < middle:
                done += (first, middle)
            if middle < behind:
                left += [middle, behind]
        if done:
            self._group.done(self._member, self._epoch, ranges=done)
        self._past, self._got = [], left

    def seek(self, start: Any, *, timestamp: int | None = None) -> None:
        """Have the whole group go on from somewhere else: an offset, "first", "last", "next",
        "offset=…", "timestamp=…", or the first message at or after `timestamp`."""
        self._group.seek(self._resolve(start, timestamp))
        self._past, self._got, self._orphaned = [], [], []

    @property
    def committed(self) -> int:
        """Everything below was processed, by whichever consumer of the group."""
        return self._group.progress()[1]

    def _give_back(self, messages: list[Message]) -> None:
        """They are read again by whoever comes when we leave: nothing of them was committed."""

    def close(self) -> None:
        """Stop, and commit what the caller has moved past if that is what `auto_commit` asks; not
        in a signal handler that has interrupted a call: then that is delivered again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self.auto_commit and self._past and not self._group.closed:
                with contextlib.suppress(Locked):
                    self._group.done(self._member, self._epoch, ranges=self._past)
        finally:
            self._finalizer()
            try:
                with contextlib.suppress(*_LEFT_TO_OTHERS):
                    self._group.tidy()
                    self._group.ring()
            finally:
                self._on_close()


def _drop_stream(group: StreamGroup, consumer: str, tail: Tailing) -> None:
    tail.close()
    group.drop(consumer, [])


def _locked(group: str, user: threading.Thread, does: str) -> Locked:
    return Locked(
        f"the stream consumer of group {group!r} is in use: the thread {user.name!r} {does}. Open "
        "a consumer for each thread, which share the group; or commit before another thread goes "
        "on. Tasks may share one of tailrace.aio",
        holder=user.name,
    )


def _extend(ranges: list[int], first: int, behind: int) -> None:
    if ranges and ranges[-1] == first:
        ranges[-1] = behind
    else:
        ranges += (first, behind)


def shorter(one: float | None, other: float | None) -> float | None:
    """The shorter of two times, of which `None` is for ever."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
