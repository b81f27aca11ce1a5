"""What a process holds of a classic queue: leases, and one suspect at most (see `ready`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NoReturn

from tailrace.queue.extending import AutoExtend
from tailrace.queue.group_files import UNIQUE
from tailrace.queue.lease import Lease
from tailrace.queue.message import Message
from tailrace.queue.office import Account
from tailrace.queue.runs import runs_of
from tailrace.queue.settling import are_one_claim, lease_lost, others, timed_ops
from tailrace.queue.shedding import Shedding
from tailrace.units import parse_duration

__all__ = ["Holding"]


class Holding(Shedding):
    """A group of a classic queue, as far as it is about what this process has of it."""

    def _open(self) -> None:
        super()._open()
        # Which lease of a suspect this process was given last: its offset, attempt and epoch.
        self._suspect: tuple[int, int, int] | None = None

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

    def _account_of_holder(self, message: Message) -> Account:
        with self._turn:
            is_held, account = self._lease(message) is not None, self._account()
        if not is_held:
            self._refuse([message], [], "acked")
        return account

    def _refuse(self, messages: list[Message], held: list[Message], word: str) -> NoReturn:
        lost = others(messages, held)
        first, why = lost[0], "its lease has ended, and it was delivered again"
        if not self.state.is_pending(first.offset):
            why = "its lease has ended, and somebody else has settled it"
        if first.settled is not None:
            why = f"it was {first.settled} before"
        elif not self.closed and first.offset < self._log.start_offset:
            why = "it was deleted from the queue"
        raise lease_lost(lost, f"cannot be {word}: {why}")

    # --- suspects ---------------------------------------------------------------------------

    def _has_suspect(self, now_ms: int) -> bool:
        """With the turn: is a suspect with this process, so that another one has to wait?"""
        lease = None if self._suspect is None else self.state.lease_of(*self._suspect)
        return lease is not None and not lease.is_due(now_ms)

    def _parts_with_suspect(self) -> bool:
        """With the turn: have we settled a suspect? Whoever waits is to be told then: what we have
        not settled has a time, until which they sleep."""
        if self._suspect is None or self.state.lease_of(*self._suspect) is not None:
            return False
        self._suspect = None
        return True

    # --- for longer, or not so long ---------------------------------------------------------

    def extend(self, messages: list[Message], seconds: Any = None) -> None:
        given_ms = None if seconds is None else parse_duration(seconds, "seconds")
        usual_ms = self._office.settings.visibility_timeout_ms if given_ms is None else 0
        with self._turn:
            leases = [(m, lease) for m in messages if (lease := self._lease(m)) is not None]
            held = [message for message, _ in leases]
            now_ms, tick = self.files.clock.boot_ms(), self.state.tick
            own = [(m.lease_ms or usual_ms) if given_ms is None else given_ms for m in held]
            untils = [tick(now_ms + lease_ms) for lease_ms in own]
            ops = timed_ops("extend", zip(untils, held, strict=True))
            if ops:
                self.commit(*ops)
        if any(until < lease.until for until, (_, lease) in zip(untils, leases, strict=True)):
            self.ring()  # who waits sleeps until then
        if len(held) < len(messages):
            self._refuse(messages, held, "extended")

    def auto_extend(self, message: Message) -> AbstractContextManager[object]:
        return AutoExtend(message, self.keep)

    def keep(self, message: Message) -> float:
        """Extend its lease, unless it lasts longer anyway; for how many seconds it lasts now."""
        lease_ms = message.lease_ms or self._office.settings.visibility_timeout_ms
        with self._turn:
            lease, now_ms = self._lease(message), self.files.clock.boot_ms()
            until = self.state.tick(now_ms + lease_ms)
            if lease is not None and until > lease.until:
                self.commit(*timed_ops("extend", [(until, message)]))
        if lease is None:
            self._refuse([message], [], "extended")
        return (max(until, lease.until) - now_ms) / 1000

    # --- the end ----------------------------------------------------------------------------

    def is_in_use(self, *, has_messages: bool) -> bool:
        # What is over can still be settled, but only by who has the message.
        at_ms = -1 if has_messages else self.files.clock.boot_ms()
        return bool(self._mine or self._held_here(at_ms))

    def _held_here(self, at_ms: int = -1) -> list[int]:
        """What this process has, beyond that time."""
        return self.state.held_by(f"{UNIQUE}{self._handle}.", at_ms)

    def _give_up_leases(self) -> None:
        held = self._held_here()
        if held:
            self.commit({"t": "free", "r": runs_of(held)})
            self.ring()
