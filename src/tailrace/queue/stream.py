"""Groups of a stream: read on, commit, seek."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from time import perf_counter
from typing import Any, NamedTuple

from tailrace import hooks
from tailrace.errors import Closed
from tailrace.kernel import Record
from tailrace.queue.feed import Feed
from tailrace.queue.group import Group
from tailrace.queue.group_files import GroupFiles
from tailrace.queue.handles import QueueLog
from tailrace.queue.journal import Op
from tailrace.queue.message import Message
from tailrace.queue.observing import delivered, settled
from tailrace.queue.scanning import SCAN_MOST, Selection, excess, report_lost
from tailrace.queue.snapshots import Snapshot
from tailrace.queue.stream_ledger import StreamLedger, pairs, without

__all__ = ["StreamGroup", "StreamSettler", "WorkGroup"]


# The name and the committed offset of a stream's primary group, if it has one.
WorkGroup = Callable[[], tuple[str, int] | None]


class Taken(NamedTuple):
    """Messages, and the range that they are from. `more`: there is more to look at."""

    messages: list[Message]
    first: int
    behind: int
    more: bool
    epoch: int


class StreamGroup(Group[StreamLedger]):
    """Reads and commits for all consumers of this process."""

    def __init__(
        self, files: GroupFiles, queue: str, log: QueueLog, work: WorkGroup, *, pattern: str = ""
    ) -> None:
        self.queue = queue
        self.pattern = pattern
        self._log = log
        self._work = work
        self._selection = Selection(queue, files.group_id, pattern, files.clock)
        self._lapsed: deque[int] = deque()  # how many have expired, to be told
        super().__init__(files)

    def _open(self) -> None:
        super()._open()
        self._feed = Feed(self._log)

    def _check_state(self) -> None:
        self._feed.reset()
        op = excess(self.state, self._log, self.id)
        if op is not None:
            self.commit(op)

    def _make(self) -> StreamLedger:
        return StreamLedger()

    def _load(self, snapshot: Snapshot) -> StreamLedger:
        return StreamLedger.load(snapshot.state)

    def _bury_members(self) -> list[str]:
        ghosts = self.state.ghosts
        for name in ghosts:
            self._commit_leave(name, died=True)
        return ghosts + super()._bury_members()

    # --- reading ----------------------------------------------------------------------------

    def take(
        self, consumer: str, limit: int, *, done: list[int], epoch: int, settler: Any
    ) -> Taken:
        """Up to `limit` messages that nobody of the group has. What this consumer has `done` in the
        `epoch` is committed."""
        if self._dropped:
            self.tidy()
        with self._turn:
            state = self.state
            ops: list[Op] = []
            before = state.committed if done and hooks.listeners else None
            if done and epoch == state.epoch:
                ops.append({"t": "done", "c": consumer, "r": done})
            if state.has_others(consumer):
                self.look_for_the_dead()
            is_back = bool(state.back)
            first, end = state.back[0] if is_back else (state.cursor, None)
            records, behind, more = self._read(first, end, limit)
            if behind > first:
                op: Op = {"t": "take", "c": consumer, "f": first, "x": behind, "n": len(records)}
                if is_back:
                    op["b"] = 1
                ops.append(op)
            if ops:
                self.commit(*ops)
            epoch = state.epoch
            acked = 0 if before is None else state.committed - before
        queue = self.queue
        messages = [Message(queue, record, settler, 0, epoch) for record in records]
        if hooks.listeners:
            self._tell(messages, acked)
        return Taken(messages, first, behind, more, epoch)

    def _tell(self, messages: list[Message], acked: int) -> None:
        while self._lapsed:
            hooks.count("expired", self._lapsed.popleft(), self.queue, self.id)
        hooks.count("acked", acked, self.queue, self.id)
        delivered(self.queue, self.id, messages, self.files.clock.wall_ms())

    def _read(self, first: int, end: int | None, limit: int) -> tuple[list[Record], int, bool]:
        chosen: list[Record] = []
        position, looked_at = first, 0
        takes = self._selection.takes
        while len(chosen) < limit and looked_at < max(limit, SCAN_MOST):
            want = limit - len(chosen)
            records, position = self._feed.take(position, want)
            if end is not None and position > end:
                records = [r for r in records if r.offset < end]  # type: ignore[operator]
                position = end
            wanted = [record for record in records if takes(record)]
            if len(wanted) < len(records) and hooks.listeners:
                self._note_lapsed(records, wanted)
            chosen += wanted
            looked_at += len(records)
            if len(records) < want or position == end:
                break
        if self._feed.lost:
            report_lost(self._feed, self.id)
        more = len(chosen) < limit and (position == end or looked_at >= max(limit, SCAN_MOST))
        return chosen, position, more

    def _note_lapsed(self, records: list[Record], wanted: list[Record]) -> None:
        taken = {record.offset for record in wanted}
        passed = (record for record in records if record.offset not in taken)
        self._lapsed.append(sum(map(self._selection.has_lapsed, passed)))

    @property
    def has_others(self) -> bool:
        """Is anybody else at something? Then it may die, and leave it to us."""
        return any(name not in self._mine for name in self.state.taken)

    # --- committing -------------------------------------------------------------------------

    def done(
        self, consumer: str, epoch: int, *, below: int | None = None, ranges: Sequence[int] = ()
    ) -> None:
        """The consumer has processed what it got: below an offset, or in some ranges. Not if the
        group was reset since. `Closed` if the consumer has left, since others get what it had not
        committed; unless they have processed that by now."""
        op: Op = {"t": "done", "c": consumer}
        op |= {"r": list(ranges)} if below is None else {"x": below}
        begun = perf_counter() if hooks.listeners else 0.0
        with self._turn:
            if consumer not in self.state.members:
                asked = pairs(ranges) if below is None else [(0, below)]
                if not self.state.is_processed(asked):
                    raise Closed(
                        f"the consumer of group {self.id!r} is closed: what it has not committed "
                        "goes to others of the group"
                    )
                return
            if epoch != self.state.epoch:
                return
            before = self.state.committed if begun else 0
            self.commit(op)
            acked = self.state.committed - before if begun else 0
            mark = self._journal.mark
        self.wait_durable(mark)
        if begun:
            settled(self.queue, self.id, "acked", acked, begun)

    def check_reached(self, epoch: int, offset: int) -> None:
        """`ValueError` if no consumer has got so far, so that it is a mistake. Before the group was
        sent elsewhere (`epoch`; -1 is of who has got nothing) one may have."""
        with self._turn:
            cursor = self.state.cursor
            if offset > cursor and epoch in (-1, self.state.epoch):
                raise ValueError(
                    f"upto: {offset} is beyond what the group {self.id!r} has received; its "
                    f"messages are below {cursor}"
                )

    def keep_only(self, consumer: str, epoch: int, ranges: Sequence[int]) -> None:
        """What else the consumer has its caller never got: it was interrupted. What it had before
        the group was reset counts no more."""
        with self._turn:
            lost = self.state.taken.get(consumer, [])
            if epoch == self.state.epoch:
                for first, behind in pairs(ranges):
                    lost = without(lost, first, behind)
            if lost:
                self.commit({"t": "return", "c": consumer, "r": list(chain.from_iterable(lost))})
        if lost:
            self.ring()

    def has_taken(self, consumer: str, epoch: int, ranges: Sequence[int]) -> bool:
        """Has the consumer anything in these ranges that is not committed?"""
        with self._turn:
            left = taken = self.state.taken.get(consumer, [])
            if epoch == self.state.epoch:
                for first, behind in pairs(ranges):
                    left = without(left, first, behind)
            return left != taken

    def forget_below(self, offset: int) -> None:
        """What is below an offset was deleted."""
        with self._turn:
            if self.state.committed < offset:
                self.commit({"t": "skip", "x": offset})

    def seek(self, offset: int) -> None:
        """Have the whole group go on from an offset."""
        with self._turn:
            self.commit({"t": "reset", "x": offset, "w": self.files.clock.wall_ms()})
            mark = self._journal.mark
        self.wait_durable(mark)
        self.ring()

    def progress(self) -> tuple[int, int]:
        """Cursor and committed offset, as of now."""
        with self._turn:
            return self.state.cursor, self.state.committed

    # --- for messages -----------------------------------------------------------------------

    def properties(self, message: Message) -> dict[str, Any]:
        properties: dict[str, Any] = {
            "group-id": self.id,
            "x-stream-offset": message.offset,
            "x-stream-timestamp": message.timestamp,
        }
        work = self._work()
        if work is not None:
            name, committed = work
            properties["x-work-committed-offset"] = committed
            properties["x-work-acked"] = message.offset < committed
            properties["x-work-group"] = name
        return properties

    def _let_go(self) -> None:
        super()._let_go()
        self._feed.close()
        vars(self).pop("_log", None)  # nobody is to think that it is in use


class StreamSettler:
    """What ack, nack and reject mean in a stream, for one consumer."""

    def __init__(self, group: StreamGroup, consumer: str, auto_commit: bool) -> None:
        self.id = group.id
        self.group = group
        self._consumer = consumer
        self._auto_commit = auto_commit

    def ack(self, messages: list[Message], publish: Iterable[Any] = ()) -> None:
        """Checkpoint: everything up to the message is processed. With manual commits it is left to
        `commit`."""
        if list(publish):
            raise ValueError("publish= needs a message that is settled; a stream has none")
        if self._auto_commit and messages:
            last = max(messages, key=lambda message: message.offset)
            self.group.done(self._consumer, last.epoch, below=last.offset + 1)

    def nack(self, messages: list[Message], delay: Any = None, error: str = "") -> None:
        """Nothing: to read again, seek."""

    def reject(self, messages: list[Message], reason: str = "") -> None:
        """The group goes on behind it: what this consumer had up to there is done with, whoever
        commits."""
        if messages:
            last = max(messages, key=lambda message: message.offset)
            self.group.done(self._consumer, last.epoch, below=last.offset + 1)

    def release(self, messages: list[Message]) -> None:
        """Nothing: nobody holds a message of a stream."""

    def extend(self, messages: list[Message], seconds: Any = None) -> None:
        """Nothing, for the same reason."""

    def auto_extend(self, message: Message) -> AbstractContextManager[object]:
        return nullcontext()

    def properties(self, message: Message) -> dict[str, Any]:
        return self.group.properties(message)
