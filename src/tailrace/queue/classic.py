"""Groups of a classic queue: claim, settle, redeliver, bury."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import perf_counter
from typing import Any

from tailrace import hooks
from tailrace.errors import ConfigError, LeaseLost
from tailrace.kernel import Record
from tailrace.queue.burying import LAPSED, Shed, by_reason
from tailrace.queue.feed import Feed
from tailrace.queue.group_files import GroupFiles, process_of
from tailrace.queue.handles import QueueLog
from tailrace.queue.holding import Holding
from tailrace.queue.journal import Op
from tailrace.queue.lease import DYING
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import Message
from tailrace.queue.observing import delivered, settled
from tailrace.queue.office import Letter, Office
from tailrace.queue.pending import Pending, pending_of
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import SCAN_MOST, SPECIAL, Scanner, Selection, excess
from tailrace.queue.settings import QueueSettings
from tailrace.queue.settling import ack_ops, runs_in, timed_ops
from tailrace.queue.snapshots import Snapshot
from tailrace.units import parse_duration

__all__ = ["ClassicGroup", "Pending", "pending_of"]

_SOME = 16  # pending messages that somebody who looks reads in one turn: each may be large
_MANY = 16  # messages in a claim: of fewer, it is better to decode some more than to look twice


class ClassicGroup(Holding):
    """Claims and settles for all consumers of this process."""

    def __init__(
        self,
        files: GroupFiles,
        queue: str,
        log: QueueLog,
        office: Office,
        *,
        pattern: str = "",
    ) -> None:
        self.queue = queue
        self.pattern = pattern
        self._log = log
        self._office = office
        self._selection = Selection(queue, files.group_id, pattern, files.clock)
        self._lapsed: deque[int] = deque()  # how many have expired, to be told
        super().__init__(files)

    def _open(self) -> None:
        super()._open()
        self._feed = Feed(self._log, SPECIAL)
        self._scanner = Scanner(self._feed, self._selection, self.id)

    def _check_state(self) -> None:
        self._feed.reset()
        op = excess(self.state, self._log, self.id)
        if op is not None:
            self.commit(op)

    def _make(self) -> Ledger:
        return Ledger()

    def _load(self, snapshot: Snapshot) -> Ledger:
        return Ledger.load(snapshot.state, snapshot.entries)

    def agree(self, key_order: bool | None) -> None:
        """A consumer wants the order of keys kept, or not, or does not care. The first one decides
        for the group: what it has passed or dropped before was nobody's."""
        with self._turn:
            state, mark = self.state, None
            is_new = not (state.delivered or state.weight) and "key_order" not in state.options
            if key_order is not None and is_new:
                self.commit({"t": "options", "o": {**state.options, "key_order": key_order}})
                mark = self._journal.mark
            is_kept = state.by_key
        if mark is not None:
            self.wait_durable(mark)
        if key_order is not None and key_order != is_kept:
            raise ConfigError(
                f"key_order: the group {self.id!r} was made "
                f"{'with' if is_kept else 'without'} it; use another group, or delete this one"
            )

    # --- claiming ---------------------------------------------------------------------------

    def claim(
        self,
        into: list[Message],
        consumer: str,
        limit: int,
        lease_ms: int | None = None,
        *,
        handed: bool = True,
    ) -> tuple[bool, int | None]:
        """Claim up to `limit` messages: those that are ready again first, then new ones. They are
        `handed` to the caller now, or fetched ahead for `hand`. Is there more to look at, and when
        may something be ready by itself?"""
        is_cut, before = True, len(into)
        while is_cut:
            left = limit - (len(into) - before)
            is_cut, more, due_ms = self._claim_in_turn(into, consumer, left, lease_ms, handed)
        return more, due_ms

    def _claim_in_turn(
        self,
        into: list[Message],
        consumer: str,
        limit: int,
        lease_ms: int | None,
        handed: bool,
    ) -> tuple[bool, bool, int | None]:
        """The same in one turn. If there was too much for that, it is to go on in another: others
        may want theirs meanwhile."""
        if self._dropped:
            self.tidy()
        settings, own_ms = self._office.settings, lease_ms
        if lease_ms is None:
            lease_ms = settings.visibility_timeout_ms
        if limit >= _MANY:
            self._turn.foresee(self._feed.prepare)
        letters: list[Letter] = []
        shed: Shed = settings, letters
        spent: list[int] = []
        new: list[Iterable[Record]] = []
        is_cut = has_changed = False
        before = len(into)
        try:
            with self._turn:
                ledger, now_ms = self.state, self.files.clock.boot_ms()
                epoch = ledger.epoch
                # It is to be alone: there may be others of the turn before.
                may_suspect = not into and (self._suspect is None or not self._has_suspect(now_ms))
                if ledger.has_ready(now_ms, with_suspect=may_suspect):
                    again, spent, is_suspect = ledger.take_ready(
                        now_ms,
                        min(limit, SCAN_MOST),
                        settings.retry.max_retries,
                        with_suspect=may_suspect,
                    )
                    is_cut = SCAN_MOST <= len(again) < limit
                    if len(spent) > SCAN_MOST:  # the next one who claims goes on
                        ledger.put_back(spent[SCAN_MOST:])
                        del spent[SCAN_MOST:]
                    try:
                        count = self._claim_again(
                            into, again, spent, consumer, lease_ms, handed, shed
                        )
                    except BaseException:
                        ledger.put_back(again + spent)
                        raise
                    limit = 0 if is_cut or (is_suspect and count) else limit - count
                    if is_suspect and count:
                        suspect = into[-1]
                        self._suspect = suspect.offset, suspect.attempt, suspect.epoch
                    has_changed = bool(again)
                more = limit > 0 and self._claim_new(new, consumer, limit, lease_ms, handed, shed)
                self.look_for_the_dead()
                due_ms = None if into or new else ledger.next_due_ms()
        finally:  # without the turn: others may have it meanwhile
            queue, count = self.queue, int(handed)
            for records in new:
                into += [Message(queue, record, self, 1, epoch, count) for record in records]
        if own_ms is not None:
            for message in into:
                message.lease_ms = own_ms
        buried = self._finish(spent, settings) if spent else 0
        if letters:
            buried += self._bury_all(letters, settings)
        if hooks.listeners:
            self._tell(into[before:] if handed else [])
        return is_cut, more or has_changed or buried > 0, due_ms

    def _claim_again(
        self,
        into: list[Message],
        again: list[int],
        spent: list[int],
        consumer: str,
        lease_ms: int,
        handed: bool,
        shed: Shed,
    ) -> int:
        """With the turn: claim pending messages that are ready again, as far as they exist, and
        have not expired meanwhile. Their leases begin when they have been read."""
        ledger, takes = self.state, self._selection.takes
        found = self._feed.read_at(again)
        records = [record for record in found if takes(record)]
        offsets: list[int] = [record.offset for record in records]  # type: ignore[misc]
        ops = self._ops_of_spent(spent)
        if len(offsets) < len(again):
            gone = set(again).difference(offsets)
            ops += self._gone(gone, [record for record in found if record.offset in gone], shed)
        if offsets:
            op = self._claim_op(consumer, lease_ms, handed=handed)
            at = {"f": ledger.cursor, "x": ledger.cursor}
            ops.append({**op, **at, "again": runs_of(offsets)})
        if ops:
            self.commit(*ops)
        for record in records:
            lease = ledger.pending[record.offset]  # type: ignore[index]
            into.append(
                Message(
                    self.queue, record, self, lease.attempt, ledger.epoch, lease.count, lease.error
                )
            )
        return len(records)

    def _claim_new(
        self,
        into: list[Iterable[Record]],
        consumer: str,
        limit: int,
        lease_ms: int,
        handed: bool,
        shed: Shed,
    ) -> bool:
        """With the turn: claim messages at the cursor; is there more to look at?"""
        ledger, takes = self.state, self._selection.takes
        if self._scanner.is_blocked(ledger):  # else they would be read again and again
            return False
        cursor = behind = ledger.cursor
        records: list[Record] = []
        is_read = False
        if limit >= _MANY and self._selection.is_all and not ledger.by_key:
            promises, behind, is_read = self._feed.promise(cursor, limit)
            if behind - cursor == limit:
                op = self._claim_op(consumer, lease_ms, handed=handed)
                self.commit({**op, "f": cursor, "x": behind, "r": [cursor, limit]})
                into += promises
                return False
            records += chain.from_iterable(promises)
        scan, left = None, list[int]()
        more, behind = self._feed.take(behind, limit - len(records), is_read=is_read)
        records = records + more if records else more
        if self._feed.lost or ledger.by_key or not all(map(takes, records)):
            scan = self._scanner.scan(ledger, records, behind, limit)
            records, behind = scan.records, scan.cursor
            left = self._note_lapsed(scan.lapsed, shed)
        if behind > cursor:
            op = self._claim_op(consumer, lease_ms, handed=handed)
            op["f"], op["x"] = cursor, behind
            if records or left:
                offsets: list[int] = [record.offset for record in records]  # type: ignore[misc]
                op["r"] = runs_of(sorted(offsets + left) if left else offsets)
            if scan is None:
                self.commit(op)
            elif left:  # however much of this a power cut leaves, they come again
                op["h"] = 0
                ops = [*scan.complete(op), self._dying(left, LAPSED)]
                if handed and records:
                    ops.append({"t": "hand", "r": runs_of(offsets), "u": op["u"]})
                self.commit(*ops)
            else:
                self.commit(*scan.complete(op))
            if records:
                into.append(records)
        return scan is not None and scan.more

    def _claim_op(self, consumer: str, lease_ms: int, *, handed: bool) -> Op:
        """A claim of what was read: its leases begin now."""
        until = self.state.tick(self.files.clock.boot_ms() + lease_ms)
        return {"t": "claim", "c": consumer, "u": until, "h": int(handed)}

    def claim_at(self, offsets: list[int], consumer: str) -> list[Message]:
        """Claim the messages at these offsets, which rise, as far as they exist and nobody has
        them. No other message is held up by that, and none is passed over: what lies between is
        free."""
        lease_ms = self._office.settings.visibility_timeout_ms
        with self._turn:
            ledger, now_ms, cursor = self.state, self.files.clock.boot_ms(), self.state.cursor
            end = max(offsets[-1] + 1, cursor)
            records = self._feed.read_at([o for o in offsets if self._is_free(o, now_ms)])
            again: list[int] = [record.offset for record in records]  # type: ignore[misc]
            chosen, ahead = self._look_ahead(end, set(offsets))
            claim = {**self._claim_op(consumer, lease_ms, handed=True), "f": cursor, "x": end}
            ops = [claim]
            if again:
                claim["again"] = runs_of(again)
            if ahead:
                claim["r"] = runs_of(ahead)
            if between := sorted(set(ahead).difference(offsets)):
                ops.append({"t": "release", "r": runs_of(between)})
            if again or end > cursor:
                self.commit(*ops)
            messages = []
            for record in records + chosen:
                lease = ledger.pending[record.offset]  # type: ignore[index]
                told = lease.attempt, ledger.epoch, lease.count, lease.error
                messages.append(Message(self.queue, record, self, *told))
        return messages

    def _is_free(self, offset: int, now_ms: int) -> bool:
        lease = self.state.pending.get(offset)
        return lease is not None and lease.state != DYING and lease.is_due(now_ms)

    def _look_ahead(self, end: int, wanted: set[int]) -> tuple[list[Record], list[int]]:
        """With the turn: of what concerns the group, from its cursor up to an offset, the records
        that are wanted, and the offsets of all."""
        chosen, ahead = list[Record](), list[int]()
        first = self.state.cursor
        found: list[Record] | None = None
        while first < end and found != []:
            found, first = self._feed.take(first, min(end - first, SCAN_MOST))
            for record in filter(self._selection.takes, found):
                offset: int = record.offset  # type: ignore[assignment]
                if offset < end:
                    ahead.append(offset)
                    if offset in wanted:
                        chosen.append(record)
        return chosen, ahead

    def _tell(self, messages: list[Message]) -> None:
        while self._lapsed:
            hooks.count("expired", self._lapsed.popleft(), self.queue, self.id)
        delivered(self.queue, self.id, messages, self.files.clock.wall_ms())

    @property
    def has_others(self) -> bool:
        ledger = self.state
        return ledger.weight > 0 and (
            len(ledger.members) > len(self._mine)
            or any(process_of(name) != self._handle for name in list(ledger.departed))
        )

    def _concerned(self) -> list[str]:
        return [*self.state.members, *self.state.look_over_departed()]

    def hand(self, messages: list[Message], lease_ms: int | None = None) -> list[Message]:
        """Hand over what was fetched ahead: those of which the lease has not been lost meanwhile,
        and which have not expired. From now on their delivery counts."""
        settings, letters = self._office.settings, list[Letter]()
        if lease_ms is None:
            lease_ms = settings.visibility_timeout_ms
        takes, ops = self._selection.takes, []
        with self._turn:
            held = [message for message in messages if self._lease(message) is not None]
            lapsed = [message for message in held if not takes(message.record)]
            if lapsed:
                held = [message for message in held if message not in lapsed]
                ops += self._gone(
                    [m.offset for m in lapsed], [m.record for m in lapsed], (settings, letters)
                )
            if held:
                until = self.state.tick(self.files.clock.boot_ms() + lease_ms)
                ops.append({"t": "hand", "r": runs_in(held), "u": until})
            if ops:
                self.commit(*ops)
            for message in held:
                message.delivery_count += 1
        if letters:
            self._bury_all(letters, settings)
        if lapsed:
            self.ring()  # others of its key may come, or another suspect
        if hooks.listeners:
            self._tell(held)
        return held

    # --- settling ---------------------------------------------------------------------------

    def _settle(
        self, messages: list[Message], word: str, ops_of: Callable[[list[Message]], list[Op]]
    ) -> None:
        """Do something to those whose lease we have; `LeaseLost` tells of the others."""
        if not messages:
            return
        begun = perf_counter() if hooks.listeners else 0.0
        with self._turn:
            held = self._held(messages)
            if held:
                self.commit(*ops_of(held))
            for message in held:
                message.settled = word  # before somebody who keeps it finds that it is gone
            mark = self._journal.mark
            is_suspect = self._suspect is not None and self._parts_with_suspect()
        if is_suspect:
            self.ring()
        if held and self.files.is_sync:
            self.wait_durable(mark)
        if begun:
            settled(self.queue, self.id, word, len(held), begun)
        if len(held) < len(messages):
            self._refuse(messages, held, word)

    def ack(self, messages: list[Message], publish: Iterable[Any] = ()) -> None:
        if publish:
            publish = list(publish)
            if len(messages) != 1:
                raise ValueError("publish= goes with one message: what is published comes of it")
            account = self._account_of_holder(messages[0])
            self._office.publish_once(messages[0], account, publish)
        self._settle(messages, "acked", ack_ops)
        if self.state.by_key:
            self.ring()

    def nack(self, messages: list[Message], delay: Any = None, error: str = "") -> None:
        settings = self._office.settings
        retry, limit = settings.retry, settings.retry.max_retries
        delay_ms = None if delay is None else parse_duration(delay, "delay")

        def reason_of(message: Message) -> str:
            if limit is None or message.delivery_count <= limit:
                return ""
            times = f"delivered {message.delivery_count} times"
            return f"{times}: {error}" if error else times

        def wait_ms(message: Message) -> int:
            return retry.backoff_ms(message.delivery_count) if delay_ms is None else delay_ms

        def try_again(failed: list[Message]) -> list[Op]:
            now_ms, tick = self.files.clock.boot_ms(), self.state.tick
            return timed_ops("nack", ((tick(now_ms + wait_ms(m)), m) for m in failed), e=error)

        self._bury(messages, "nacked", reason_of, settings, try_again)

    def reject(self, messages: list[Message], reason: str = "") -> None:
        self._bury(messages, "rejected", lambda _: reason or "rejected", self._office.settings)

    def release(self, messages: list[Message]) -> None:
        try:
            self._settle(messages, "released", lambda held: [{"t": "release", "r": runs_in(held)}])
        finally:
            self.ring()

    def properties(self, message: Message) -> dict[str, Any]:
        return {"group-id": self.id}

    # --- dead letters -----------------------------------------------------------------------

    def _bury(
        self,
        messages: list[Message],
        word: str,
        reason_of: Callable[[Message], str],
        settings: QueueSettings,
        try_again: Callable[[list[Message]], list[Op]] = lambda _: [],
    ) -> None:
        """To the dead letters, with those for which there is a reason; the others are to be tried
        again. First the messages are taken from everybody, all in one step, so that nobody works on
        one that is dead; then they are written there; and only then they are settled here."""
        dying: dict[int, Letter] = {}

        def ops_of(held: list[Message]) -> list[Op]:
            for message in held:
                if reason := reason_of(message):
                    dying[message.offset] = Letter(message, reason)
            ops = try_again([message for message in held if message.offset not in dying])
            reasons = {offset: dying[offset].reason for offset in sorted(dying)}
            if settings.dlq.enabled:
                return ops + [self._dying(each, why) for why, each in by_reason(reasons).items()]
            return [*ops, {"t": "dead", "r": runs_of(list(reasons))}] if reasons else ops

        def write() -> None:
            letters = [each for each in dying.values() if each.message.settled is not None]
            if settings.dlq.enabled:
                self._write_dead_letters(letters, settings)
            else:
                hooks.count("dead", len(letters), self.queue, self.id)

        try:
            try:
                self._settle(messages, word, ops_of)
            finally:
                if len(dying) < len(messages):
                    self.ring()
        except Exception as lost:  # others were, or nobody knows whether it is durable
            try:
                write()
            except Exception as error:
                error.add_note(str(lost))
                raise
            raise
        write()

    # --- looking ----------------------------------------------------------------------------

    def peek(self, limit: int) -> list[Message]:
        """What would be delivered next, without claiming it."""
        max_retries = self._office.settings.retry.max_retries
        with self._turn:
            now_ms = self.files.clock.boot_ms()
            return self._scanner.peek(self.state, limit, now_ms, max_retries)

    def unsettled(self) -> Iterator[Message]:
        """Everything that is not settled, leased or not, oldest first."""
        with self._turn:
            offsets, cursor = list(self.state.pending), self.state.cursor
        for first in range(0, len(offsets), _SOME):
            with self._turn:
                found = self._feed.read_at(offsets[first : first + _SOME])
            for record in found:
                yield Message(self.queue, record, None, 0, 0, 0)
        for record in self._log.read(max(cursor, self._log.start_offset)):
            if self._selection.takes(record):
                yield Message(self.queue, record, None, 0, 0, 0)

    def pending(self) -> list[Pending]:
        """What is not settled, oldest first."""
        with self._turn:
            return list(pending_of(self.state, self.files.clock.boot_ms()))

    def progress(self) -> tuple[int, int]:
        """Cursor and committed offset, as of now."""
        with self._turn:
            return self.state.cursor, self.state.committed

    def reset(self, offset: int) -> None:
        """Go on from an offset. What is pending is dropped, and every lease is lost."""
        with self._turn:
            self.commit({"t": "reset", "x": offset, "w": self.files.clock.wall_ms()})
            mark = self._journal.mark
        self.wait_durable(mark)
        self.ring()

    def _part_with(self, fetched: list[Any]) -> None:
        if fetched:
            with contextlib.suppress(LeaseLost):
                self.release(fetched)

    def _let_go(self) -> None:
        super()._let_go()
        self._feed.close()
        vars(self).pop("_log", None)  # nobody is to think that it is in use
