"""Groups of a classic queue: claim, settle, redeliver, bury."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from time import perf_counter
from typing import Any

from tailrace import hooks
from tailrace.errors import ConfigError, LeaseLost
from tailrace.kernel import Record
from tailrace.queue.burying import LAPSED, Shed
from tailrace.queue.extending import AutoExtend
from tailrace.queue.feed import Feed
from tailrace.queue.group_files import UNIQUE, GroupFiles
from tailrace.queue.handles import QueueLog
from tailrace.queue.journal import Op
from tailrace.queue.lease import DYING, Lease
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import Message
from tailrace.queue.observing import delivered, settled
from tailrace.queue.office import Letter, Office
from tailrace.queue.pending import Pending, pending_of
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import SCAN_MOST, SPECIAL, Scanner, Selection, excess
from tailrace.queue.settings import QueueSettings
from tailrace.queue.settling import ack_ops, are_one_claim, dead_ops, runs_in
from tailrace.queue.shedding import Shedding
from tailrace.queue.snapshots import Snapshot
from tailrace.units import parse_duration

__all__ = ["ClassicGroup", "Pending", "pending_of"]

_MANY = 16  # messages in a claim: of fewer, it is better to decode some more than to look twice


class ClassicGroup(Shedding):
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
        has_changed = False
        try:
            with self._turn:
                ledger, now_ms = self.state, self.files.clock.boot_ms()
                until_ms, epoch = now_ms + lease_ms, ledger.epoch
                if ledger.has_ready(now_ms):
                    again, spent, is_suspect = ledger.take_ready(
                        now_ms, limit, settings.retry.max_retries
                    )
                    if len(spent) > SCAN_MOST:  # the next one who claims goes on
                        ledger.put_back(spent[SCAN_MOST:])
                        del spent[SCAN_MOST:]
                    try:
                        count = self._claim_again(
                            into, again, spent, consumer, until_ms, handed, shed
                        )
                    except BaseException:
                        ledger.put_back(again + spent)
                        raise
                    limit = 0 if is_suspect and count else limit - count
                    has_changed = bool(again)
                more = limit > 0 and self._claim_new(new, consumer, limit, until_ms, handed, shed)
                if not into and not new and ledger.weight:
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
            self._tell(into if handed else [])
        return more or has_changed or buried > 0, due_ms

    def _claim_again(
        self,
        into: list[Message],
        again: list[int],
        spent: list[int],
        consumer: str,
        until_ms: int,
        handed: bool,
        shed: Shed,
    ) -> int:
        """With the turn: claim pending messages that are ready again, as far as they exist, and
        have not expired meanwhile."""
        ledger, takes = self.state, self._selection.takes
        found = self._feed.read_at(again)
        records = [record for record in found if takes(record)]
        offsets: list[int] = [record.offset for record in records]  # type: ignore[misc]
        ops = self._ops_of_spent(spent)
        if len(offsets) < len(again):
            gone = set(again).difference(offsets)
            ops += self._gone(gone, [record for record in found if record.offset in gone], shed)
        if offsets:
            op: Op = {"t": "claim", "c": consumer, "u": ledger.tick(until_ms), "h": int(handed)}
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
        until_ms: int,
        handed: bool,
        shed: Shed,
    ) -> bool:
        """With the turn: claim messages at the cursor; is there more to look at?"""
        ledger, takes = self.state, self._selection.takes
        cursor = behind = ledger.cursor
        op: Op = {"t": "claim", "c": consumer, "u": ledger.tick(until_ms), "h": int(handed)}
        records: list[Record] = []
        is_read = False
        if limit >= _MANY and self._selection.is_all and not ledger.by_key:
            promises, behind, is_read = self._feed.promise(cursor, limit)
            if behind - cursor == limit:
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

    def _tell(self, messages: list[Message]) -> None:
        while self._lapsed:
            hooks.count("expired", self._lapsed.popleft(), self.queue, self.id)
        delivered(self.queue, self.id, messages, self.files.clock.wall_ms())

    @property
    def has_others(self) -> bool:
        """Has anybody else a lease? Then it may die, and leave us what it had."""
        return self.state.weight > 0 and len(self.state.members) > len(self._mine)

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
        if lapsed and self.state.by_key:
            self.ring()
        if hooks.listeners:
            self._tell(held)
        return held

    # --- settling ---------------------------------------------------------------------------

    def _lease(self, message: Message) -> Lease | None:
        return self.state.lease_of(message.offset, message.attempt, message.epoch)

    def _held(self, messages: list[Message]) -> list[Message]:
        """With the turn: those whose lease we have. Mostly they are all that one claim gave."""
        ledger, first, count = self.state, messages[0], len(messages)
        if count == 1:
            is_held = ledger.lease_of(first.offset, first.attempt, first.epoch) is not None
            return messages if is_held else []
        if ledger.holds_whole(first.offset, count) and are_one_claim(messages, ledger.epoch):
            return messages
        lease_of = ledger.lease_of
        return [m for m in messages if lease_of(m.offset, m.attempt, m.epoch) is not None]

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
            mark = self._journal.mark
        for message in held:
            message.settled = word
        if held and self.files.is_sync:
            self.wait_durable(mark)
        if begun:
            settled(self.queue, self.id, word, len(held), begun)
        if len(held) < len(messages):
            self._refuse(messages, held, word)

    def _refuse(self, messages: list[Message], held: list[Message], word: str) -> None:
        there = {id(message) for message in held}
        lost = [message for message in messages if id(message) not in there]
        first = lost[0]
        why = "its lease has ended, and it was delivered again"
        if not self.state.is_pending(first.offset):
            why = "its lease has ended, and somebody else has settled it"
        if first.settled is not None:
            why = f"it was {first.settled} before"
        elif not self.closed and first.offset < self._log.start_offset:
            why = "it was deleted from the queue"
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise LeaseLost(
            f"{first.message_id}{more} cannot be {word}: {why}",
            lost=[message.message_id for message in lost],
        )

    def ack(self, messages: list[Message], publish: Iterable[Any] = ()) -> None:
        if publish:
            publish = list(publish)
            if len(messages) != 1:
                raise ValueError("publish= goes with one message: what is published comes of it")
            self._check_held(messages[0])
            self._office.publish_once(messages[0], self._account, publish)
        self._settle(messages, "acked", ack_ops)
        if self.state.by_key:
            self.ring()

    def _check_held(self, message: Message) -> None:
        with self._turn:
            is_held = self._lease(message) is not None
        if not is_held:
            self._refuse([message], [], "acked")

    def nack(self, messages: list[Message], delay: Any = None, error: str = "") -> None:
        retry = self._office.settings.retry
        delay_ms = None if delay is None else parse_duration(delay, "delay")
        limit = retry.max_retries
        spent = [m for m in messages if limit is not None and m.delivery_count > limit]
        failed = [m for m in messages if limit is None or m.delivery_count <= limit]

        def ops_of(held: list[Message]) -> list[Op]:
            now_ms, ops = self.files.clock.boot_ms(), []
            for message in held:
                wait_ms = retry.backoff_ms(message.delivery_count) if delay_ms is None else delay_ms
                until = self.state.tick(now_ms + wait_ms)
                ops.append({"t": "nack", "r": [message.offset, 1], "u": until, "e": error})
            return ops

        lost: list[LeaseLost] = []
        try:
            self._settle(failed, "nacked", ops_of)
        except LeaseLost as caught:
            lost.append(caught)
        finally:
            self.ring()
        for message in spent:
            times = f"delivered {message.delivery_count} times"
            try:
                self._bury([message], "nacked", f"{times}: {error}" if error else times)
            except LeaseLost as caught:
                lost.append(caught)
        if lost:
            raise LeaseLost(str(lost[0]), lost=[name for each in lost for name in each.lost])

    def reject(self, messages: list[Message], reason: str = "") -> None:
        self._bury(messages, "rejected", reason or "rejected")

    def release(self, messages: list[Message]) -> None:
        try:
            self._settle(messages, "released", lambda held: [{"t": "release", "r": runs_in(held)}])
        finally:
            self.ring()

    def extend(self, messages: list[Message], seconds: Any = None) -> None:
        given_ms = None if seconds is None else parse_duration(seconds, "seconds")
        usual_ms = self._office.settings.visibility_timeout_ms if given_ms is None else 0
        with self._turn:
            held = [message for message in messages if self._lease(message) is not None]
            now_ms, ops = self.files.clock.boot_ms(), []
            for message in held:
                lease_ms = (message.lease_ms or usual_ms) if given_ms is None else given_ms
                until = self.state.tick(now_ms + lease_ms)
                ops.append({"t": "extend", "r": [message.offset, 1], "u": until})
            if ops:
                self.commit(*ops)
        if len(held) < len(messages):
            self._refuse(messages, held, "extended")

    def auto_extend(self, message: Message) -> AbstractContextManager[object]:
        return AutoExtend(message, self.lease_ms(message) / 1000)

    def lease_ms(self, message: Message) -> int:
        """How long its consumer wants to have it; may have to look at files."""
        return message.lease_ms or self._office.settings.visibility_timeout_ms

    def properties(self, message: Message) -> dict[str, Any]:
        return {"group-id": self.id}

    # --- dead letters -----------------------------------------------------------------------

    def _bury(self, messages: list[Message], word: str, reason: str) -> None:
        """To the dead letters. First the messages are taken from everybody, so that nobody works on
        one that is dead; then they are written there; and only then they are settled here."""
        settings, dying = self._office.settings, list[Message]()
        if not settings.dlq.enabled:
            try:
                self._settle(messages, word, lambda held: dead_ops(held, dying))
            finally:
                hooks.count("dead", sum(m.settled is not None for m in dying), self.queue, self.id)
            return

        def ops_of(held: list[Message]) -> list[Op]:
            dying.extend(held)
            return [self._dying(sorted({message.offset for message in held}), reason)]

        try:
            self._settle(messages, word, ops_of)
        finally:  # also if others were lost; but not if nothing was written
            written = [m for m in dying if m.settled is not None]
            self._write_dead_letters(written, reason, settings)

    def _write_dead_letters(
        self, messages: list[Message], reason: str, settings: QueueSettings
    ) -> None:
        """If one cannot be written, it is given back, and the next delivery leads here again."""
        done: list[Message] = []
        try:
            for message in messages:
                self._bury_one(message, reason, settings)
                done.append(message)
        except BaseException:
            self._give_back(messages[len(done) :], reason)
            raise
        finally:
            self._settle_dead(sorted({message.offset for message in done}))

    def _give_back(self, messages: list[Message], reason: str) -> None:
        with self._turn:
            until, pending = self.state.tick(self.files.clock.boot_ms()), self.state.pending
            dying = [
                m for m in messages if m.offset in pending and pending[m.offset].state == DYING
            ]
            if dying:
                self.commit({"t": "nack", "r": runs_in(dying), "u": until, "e": reason})
        for message in messages:
            message.settled = None
        self.ring()

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
        for offset in offsets:
            with self._turn:
                found = self._feed.read_at([offset])
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
        self.ring()

    def _part_with(self, fetched: list[Any]) -> None:
        if fetched:
            with contextlib.suppress(LeaseLost):
                self.release(fetched)

    @property
    def is_in_use(self) -> bool:
        return bool(self._mine or self.state.held_by(f"{UNIQUE}{self._handle}."))

    def _give_up_leases(self) -> None:
        held = self.state.held_by(f"{UNIQUE}{self._handle}.")
        if held:
            self.commit({"t": "free", "r": runs_of(held)})
            self.ring()

    def _let_go(self) -> None:
        super()._let_go()
        self._feed.close()
        vars(self).pop("_log", None)  # nobody is to think that it is in use
