"""The space that a queue takes: whom it lets in, and what it lets go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace import hooks
from tailrace.errors import Closed, TailraceError
from tailrace.log.cuts import start_now
from tailrace.log.log import Log
from tailrace.log.number_set import NumberSet
from tailrace.log.options import Retention
from tailrace.log.retention import VacuumReport
from tailrace.queue import retaining
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.depth import Depth
from tailrace.queue.dropped import Dropping, dropping
from tailrace.queue.handles import QueueLog
from tailrace.queue.outlook import Outlook, lifetime_ms
from tailrace.queue.publishing import Publishing
from tailrace.queue.scanning import SCAN_MOST
from tailrace.queue.settings import QueueSettings
from tailrace.queue.shedding import drop_oldest
from tailrace.queue.stream import StreamGroup

if TYPE_CHECKING:
    from tailrace.queue.store import Store

__all__ = ["Roomy"]

logger = logging.getLogger("tailrace")

T = TypeVar("T")


class Roomy(Publishing):
    """A queue with limits. Thread-safe; `_lock` keeps it from resting."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._is_closing = False
        self._lock = threading.RLock()
        self._passing = threading.Lock()  # one at a time: the others find room then
        self._depth = Depth(
            self._count_unsettled, self._pass_by, self._drop_oldest, lambda: self.settings
        )
        # Of a queue without groups, or a stream: what has expired, once it was full.
        self._outlook: Outlook | None = None
        self._lapsed = NumberSet()
        super().__init__(name)

    def check_open(self) -> None:
        """`Closed` if the store is, unless it is what is left to be done."""
        if not self._is_closing:
            self._store.check_open()

    def group_ids(self) -> list[str]:
        raise NotImplementedError

    def find_group(self, group_id: str) -> ClassicGroup | StreamGroup | None:
        raise NotImplementedError

    def _ask_group(
        self, group_id: str, ask: Callable[[Any], T]
    ) -> tuple[ClassicGroup | StreamGroup, T] | None:
        """A group that there was a moment ago, and what it answers. `None` if it is gone; one that
        was made anew since, or rests, is asked anew, in whichever process that was. Who asks
        several things has the lock, so that it does not rest meanwhile."""
        while (group := self.find_group(group_id)) is not None:
            try:
                return group, ask(group)
            except Closed:
                if not group.closed:
                    raise
        return None

    def _ask_groups(self, ask: Callable[[Any], T]) -> dict[ClassicGroup | StreamGroup, T]:
        """The same, of all that there are."""
        asked = (self._ask_group(group_id, ask) for group_id in self.group_ids())
        return dict(each for each in asked if each is not None)

    def _ask_classic(self, ask: Callable[[ClassicGroup], T]) -> dict[ClassicGroup, T]:
        """The same, of those that settle each message."""
        if self.settings.type == "stream":
            return {}
        return self._ask_groups(ask)  # type: ignore[return-value]

    def _drop_in_groups(self, below: int, excess: Callable[[Any], int]) -> dict[str, int] | None:
        """With the lock: `drop_oldest` of all groups that settle each message."""
        while True:
            groups = list(self._ask_classic(methodcaller("progress")))
            try:
                return drop_oldest(groups, below, excess)
            except Closed:
                if not any(group.closed for group in groups):
                    raise

    def purge(self) -> int:
        """Delete every message, for all groups; how many offsets that were. Leases on them are
        lost, and delayed messages are dropped."""
        try:
            return self._purge()
        except (OSError, TailraceError):
            self.settings  # noqa: B018  raises if the queue was deleted meanwhile
            raise

    def _purge(self) -> int:
        in_need = self._store.reserve.in_need
        in_need(self.delays.clear)
        log = self.log
        first, end = log.start_offset, log.exact_end()

        def purge() -> None:
            if log.flush_mode != "none":
                log.flush()
            log.truncate_before(end)
            with self._lock:
                self._ask_groups(lambda group: group.forget_below(end))
            log.vacuum()

        in_need(purge)
        return end - first

    def admit(self, settings: QueueSettings, count: int, *, block: bool = True) -> bool:
        self._store.disk.check()
        if count and settings.limits.max_depth:
            return self._depth.admit(settings, count, block=block)
        return False

    def _count_unsettled(self) -> int:
        """By the slowest group; all that the queue holds, if there is none, or it is a stream."""
        log = self.log
        end = log.end_offset
        with self._lock:
            counts = self._ask_classic(lambda group: group.count_unsettled(end))
            return max(counts.values(), default=self._count_kept(log.start_offset, end))

    def _count_kept(self, start: int, end: int) -> int:
        """With the lock: how many messages there are from an offset on that have not expired, of a
        queue without groups, or a stream."""
        self._lapsed.discard_below(start)
        return end - start - len(self._lapsed)

    def _pass_by(self) -> int:
        """No longer count what nobody will ever get; how many messages that are. Without the lock,
        since dead letters may have to be written."""
        log = self.log
        end = log.end_offset
        with self._passing:
            passed = self._ask_classic(lambda group: group.pass_by(end))
        if passed:
            return sum(passed.values())
        with self._lock:
            if self._outlook is None:
                self._outlook = Outlook(log.start_offset, lifetime_ms)
            while self._outlook.look(log, end, SCAN_MOST):
                pass
            start, over = log.start_offset, self._outlook.take_over(self._wall_ms(), end)
            new = sorted(offset for offset in over if offset >= start)
            for offset in new:
                self._lapsed.add(offset)
            self._outlook.tidy(lambda offset: offset >= start)
            return len(new)

    def _drop_oldest(self, keep: int) -> bool:
        """Drop the oldest messages that nobody has, until no group has more than `keep` that are
        not settled; or nothing, and false, if too few may go."""
        log = self.log
        end = log.end_offset
        with self._lock:
            by_group = self._drop_in_groups(end, methodcaller("excess", end, keep))
        if by_group is None:
            return False
        dropped = max(by_group.values()) if by_group else self._drop_from_front(log, keep)
        if dropped:
            logger.info(
                "%s: too full, so %d of the oldest messages are dropped",
                self,
                dropped,
                extra={"queue": self.name, "count": dropped},
            )
        return dropped is not None

    def _drop_from_front(self, log: QueueLog, keep: int) -> int | None:
        """The same, of a queue without groups, or a stream; how many that were. What has expired
        goes along, and does not count."""
        with self._lock, self._dropping() as counting:
            end = log.exact_end()  # others may have dropped all that we knew of
            start, lapsed = log.start_offset, self._lapsed
            excess = self._count_kept(start, end) - keep
            floor = retaining.archived_floor(self._store.look, self.settings, start_now(log))
            end = end if floor is None else min(end, floor)
            dropped, upto = 0, start
            while dropped < excess and upto < end:
                dropped += upto not in lapsed
                upto += 1
            if dropped < excess:
                return None
            if dropped:
                log.truncate_before(upto)
                counting.add(dropped)
        hooks.count("dropped", dropped, self.name)
        return dropped

    def _dropping(self) -> AbstractContextManager[Dropping]:
        store = self._store
        return dropping(store.fs, store.layout, self.name, self.settings.incarnation)

    def expire_groups(self, idle: float | str) -> list[str]:
        raise NotImplementedError

    def expire_by_rule(self) -> int:
        """Delete the groups that `expire_groups` of the settings says; how many they are."""
        rule_ms = self.settings.expire_groups_ms
        expired = self.expire_groups(rule_ms / 1000) if rule_ms else []
        for group_id in expired:
            extra = {"queue": self.name, "group": group_id}
            text = "%s: the group %r was idle, and is deleted"
            logger.warning(text, self, group_id, extra=extra)
        return len(expired)

    def vacuum(self) -> VacuumReport:
        """Delete what may go: the groups that `expire_groups` says, and then segments. A classic
        queue with groups lets go of what all of them have settled, and keeps of that what
        `retention` says; any other what `retention` lets go."""
        self.expire_by_rule()
        return self.drop_segments()

    def drop_segments(self) -> VacuumReport:
        """Delete the segments that may go."""
        settings, store, log = self.settings, self._store, self.log
        return store.reserve.in_need(lambda: retaining.vacuum(store.look, settings, log))

    def drop_archived(self) -> VacuumReport:
        """Delete the segments that are verified in the queue's archive, whatever `retention` says,
        as far as no group of a classic queue needs them; none of one that has no group yet."""
        settings, store, log = self.settings, self._store, self.log
        return store.reserve.in_need(lambda: retaining.drop_archived(store.look, settings, log))

    def drop_segment(self) -> bool:
        """Delete the oldest segment, settled or not, if nobody has a message of it, and it is not
        the only one; false if it has to stay."""
        log = self.log
        end = log.end_of_first_segment()
        if end is None:
            return False
        with self._passing:  # what is passed by is not dropped, and does not count as such
            self._ask_classic(methodcaller("pass_by", end))
        with self._lock:
            end = log.end_of_first_segment()
            start = start_now(log)
            floor = retaining.archived_floor(self._store.look, self.settings, start)
            if end is None or (floor is not None and end > floor):
                return False
            dropped = self._drop_in_groups(end, methodcaller("all_below", end))
            if dropped is None:
                return False
            for group_id, count in dropped.items():
                if count:
                    extra = {"queue": self.name, "group": group_id, "count": count}
                    logger.warning("%s: %d messages are dropped", self, count, extra=extra)
            unread = 0 if dropped else self._count_living(log, end)
            let_go = partial(log.let_go, Retention(max_bytes=0), end, start)
            if not self._store.reserve.in_need(let_go).segments:
                return False
            if unread:
                with self._dropping() as counting:
                    counting.add(unread)
                hooks.count("dropped", unread, self.name)
                extra = {"queue": self.name, "count": unread}
                logger.warning("%s: %d messages are dropped", self, unread, extra=extra)
            return True

    def _count_living(self, log: Log, end: int) -> int:
        """How many messages below an offset have not expired."""
        outlook, start = Outlook(log.start_offset, lifetime_ms), log.start_offset
        while outlook.look(log, end, SCAN_MOST):
            pass
        return max(end - start, 0) - len(outlook.take_over(self._wall_ms(), end))
