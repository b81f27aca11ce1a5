"""How a group's messages become dead letters: marked in a turn, and written after it.

With a turn nobody asks for the queue's settings (who finds that it was deleted lets go of it, see
`LogQueue._notice`), makes a queue, or waits for the disk of another. So settings are read before a
turn; in it messages are only noted as dying, from when on nobody gets them; after it, and without
any lock, their letters are written, many with one wait for the disk; and when those are durable
the messages are settled. Whoever dies on the way leaves them dying, and the next one who comes when
their time is over does it: each letter is written once, however often that is begun. A letter that
cannot be written leaves its message dying, too, or if somebody has asked for it, gives it back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from tailrace import hooks
from tailrace.errors import Full, NotWritten
from tailrace.kernel import Record
from tailrace.queue.dead_letters import AT_ONCE, some_of
from tailrace.queue.feed import Feed
from tailrace.queue.group import Group
from tailrace.queue.handles import QueueLog
from tailrace.queue.journal import Op
from tailrace.queue.lease import DYING
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import Message
from tailrace.queue.office import Account, Letter, Office
from tailrace.queue.reserve import is_full
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import Selection
from tailrace.queue.settings import QueueSettings

__all__ = ["LAPSED", "Burying", "Shed", "by_reason"]

logger = logging.getLogger("tailrace")

LAPSED = "expired"  # why there is a dead letter of a message whose time was over
_BURIAL_MS = 30_000  # how long somebody may take to write a dead letter before another tries
_NAMED = 10  # messages in an error


# What a turn goes by, and what it leaves to be buried after it.
Shed = tuple[QueueSettings, list[Letter]]


class Burying(Group[Ledger]):
    """A group of a classic queue, as far as it is about dead letters."""

    _log: QueueLog
    _feed: Feed
    _office: Office
    _selection: Selection
    _lapsed: deque[int]  # how many have expired, to be told

    def _open(self) -> None:
        super()._open()
        self._noted = self._for_good = Account("", 0)
        self._noted_at = (0, 0)  # which is a mark of the journal

    # --- with the turn ----------------------------------------------------------------------

    def _dying(self, offsets: list[int], reason: str) -> Op:
        """They go to the dead letters; if that is not done in time, somebody else sees to it."""
        until = self.state.tick(self.files.clock.boot_ms() + _BURIAL_MS)
        return {"t": "dying", "r": runs_of(offsets), "u": until, "e": reason}

    def _ops_of_spent(self, spent: list[int]) -> list[Op]:
        """From here on they belong to the dead letters, and to us until that is done."""
        reasons: dict[int, str] = {}
        for offset in spent:
            lease = self.state.pending[offset]
            reasons[offset] = lease.error or f"delivered {lease.count} times, and never settled"
        return [self._dying(offsets, reason) for reason, offsets in by_reason(reasons).items()]

    def _note_lapsed(self, records: list[Record], shed: Shed) -> list[int]:
        """These have expired. The offsets of those that are not to be passed, because there are to
        be letters of them: they are dying."""
        if records and hooks.listeners:
            self._lapsed.append(len(records))
        settings, letters = shed
        dlq = settings.dlq
        if not (records and dlq.enabled and dlq.expired):
            return []
        pending, offsets = self.state.pending, list[int]()
        for record in records:
            offset: int = record.offset  # type: ignore[assignment]
            count = pending[offset].count if offset in pending else 0
            message = Message(self.queue, record, None, delivery_count=count)
            letters.append(Letter(message, LAPSED))
            offsets.append(offset)
        return offsets

    def _gone(self, offsets: Iterable[int], records: Iterable[Record], shed: Shed) -> list[Op]:
        """These are not pending any more, of which there are still these records; but for those
        that have expired, and of which there are to be letters."""
        left = self._note_lapsed(list(filter(self._selection.has_lapsed, records)), shed)
        gone = sorted(set(offsets).difference(left))
        ops: list[Op] = [{"t": "gone", "r": runs_of(gone), "lost": 0}] if gone else []
        return [*ops, self._dying(sorted(left), LAPSED)] if left else ops

    def _account(self) -> Account:
        """What is settled counts when that is durable: the journal is written before the state
        changes, so what the state says was durable when that place of the journal was. To look
        there once, when one comes by, is enough.

        While a backup is under way nothing more counts as settled: it copies the group before the
        logs, and what the copy of the group does again, those have to know. What was told before
        the backup began, the group's copy has."""
        name = f"{self.id}\0{self._uid}\0{self.state.resets}"
        if name != self._for_good.name:
            self._noted = self._for_good = Account(name, 0)
        now = Account(name, self.state.committed)
        if not self.files.is_durable:
            self._noted = now
        elif not self._journal.is_durable(self._noted_at):
            return self._for_good
        if self._noted.settled <= self._for_good.settled or self.files.may_forget():
            self._for_good = self._noted
            self._noted, self._noted_at = now, self._journal.mark
        return self._for_good

    # --- without the turn, and without any lock ---------------------------------------------

    def account(self) -> Account:
        """What is done once for a message, is done once for this; a group that was deleted or reset
        does it all again."""
        with self._turn:
            return self._account()

    def _finish(self, offsets: list[int], settings: QueueSettings) -> int:
        """Bury messages that are dying, and that nobody holds; how many. If that fails, it is tried
        again in a while; and it is no reason to look again at once."""
        done = 0
        for first in range(0, len(offsets), AT_ONCE):
            portion = offsets[first : first + AT_ONCE]
            try:
                with self._turn:
                    pending = self.state.pending
                    leases = {o: pending[o] for o in portion if o in pending}
                    dying = [o for o, lease in leases.items() if lease.state == DYING]
                    found = self._feed.read_at(dying) if settings.dlq.enabled else []
            except Exception as error:  # noqa: BLE001  whoever receives has nothing to do with it
                self._report_unburied({portion[0]: error}, len(portion))
                continue
            letters = []
            for record in found:
                lease = leases[record.offset]  # type: ignore[index]
                told = lease.attempt, 0, lease.count
                letters.append(Letter(Message(self.queue, record, None, *told), lease.error))
            bare = set(dying).difference(record.offset for record in found)
            done += self._bury_all(letters, settings, bare) + len(portion) - len(dying)
        return done

    def _bury_all(
        self, letters: list[Letter], settings: QueueSettings, bare: Collection[int] = ()
    ) -> int:
        """Write these letters, and settle their messages, and some of which there is nothing to
        write; how many. The others stay as they are, and are told of."""
        settled, failed = 0, dict[int, Exception]()
        left = iter(letters)
        while (portion := some_of(left, _record_of)) or bare:
            offsets = {*bare, *(message.offset for message, _ in portion)}
            bare = ()
            try:
                unwritten = self._bury_letters(portion, settings)
                settled += self._settle_dead(sorted(offsets.difference(unwritten)))
            except Exception as error:  # noqa: BLE001  whoever receives has nothing to do with it
                unwritten = dict.fromkeys(sorted(offsets), error)
            failed |= unwritten
        if failed:
            self._report_unburied(failed, len(failed))
        return settled

    def _write_dead_letters(self, letters: list[Letter], settings: QueueSettings) -> None:
        """For whoever asked for it, of messages that are dying, each once: the error is theirs.
        What could not be written is given back, and the next delivery leads here again; the others
        are settled. Who is interrupted leaves the rest dying, for the next one who comes: nobody
        knows which letters are there."""
        failed: dict[int, Exception] = {}
        left = iter(letters)
        try:
            while portion := some_of(left, _record_of):
                try:
                    unwritten = self._bury_letters(portion, settings)
                except Exception as error:  # noqa: BLE001  it is told below
                    unwritten = {message.offset: error for message, _ in portion}
                failed |= unwritten
                self._settle_dead(sorted(m.offset for m, _ in portion if m.offset not in unwritten))
        finally:
            if failed:
                self._give_back([letter for letter in letters if letter.message.offset in failed])
        if failed:
            self._raise_unburied(failed, len(letters))

    def _give_back(self, letters: list[Letter]) -> None:
        """They are not dying any more, unless somebody has had the group begin again meanwhile."""
        with self._turn:
            until, pending = self.state.tick(self.files.clock.boot_ms()), self.state.pending
            reasons = {message.offset: reason for message, reason in letters}
            dying = {
                offset: reason
                for offset, reason in sorted(reasons.items())
                if offset in pending and pending[offset].state == DYING
            }
            if dying:
                self.commit(
                    *(
                        {"t": "nack", "r": runs_of(offsets), "u": until, "e": reason}
                        for reason, offsets in by_reason(dying).items()
                    )
                )
        for message, _ in letters:
            message.settled = None
        self.ring()

    def _raise_unburied(self, failed: dict[int, Exception], count: int) -> NoReturn:
        """Of so many messages. The first error stands for all; its note names those it concerns."""
        names = [f"{self.queue}:{offset}" for offset in sorted(failed)]
        error = next(iter(failed.values()))
        if isinstance(error, OSError):
            kind = Full if is_full(error) else NotWritten
            cause, error = error, kind(f"no dead letter of {names[0]} can be written: {error}")
            error.__cause__ = cause
        if count > 1:
            more = ", …" if len(names) > _NAMED else ""
            error.add_note(
                f"{len(names)} of {count} messages did not become dead letters, and are given back "
                f"to the group: {', '.join(names[:_NAMED])}{more}"
            )
        raise error

    def _bury_letters(
        self, letters: Sequence[Letter], settings: QueueSettings
    ) -> dict[int, Exception]:
        """By offset, why some of them could not be written."""
        return self._office.bury(settings, letters, self.id, self.account()) if letters else {}

    def _settle_dead(self, offsets: list[int]) -> int:
        """Unless somebody has had the group begin again meanwhile."""
        if not offsets:
            return 0
        with self._turn:
            pending = self.state.pending
            dying = [o for o in offsets if o in pending and pending[o].state == DYING]
            if dying:
                self.commit({"t": "dead", "r": runs_of(dying)})
            mark = self._journal.mark
        self.wait_durable(mark)
        hooks.count("dead", len(dying), self.queue, self.id)
        if self.state.by_key:
            self.ring()
        return len(dying)

    def _report_unburied(self, failed: dict[int, Exception], count: int) -> None:
        self.files.check()  # of a queue that was deleted there is nothing to tell
        offset, error = next(iter(failed.items()))
        extra = {"queue": self.queue, "group": self.id, "offset": offset}
        more = f" (and {count - 1} more)" if count > 1 else ""
        text = "%s:%d cannot become a dead letter: %s%s"
        logger.error(text, self.queue, offset, error, more, extra=extra)


def by_reason(reasons: Mapping[int, str]) -> dict[str, list[int]]:
    """Offsets, which rise, by the reason that each has: one operation says it of all of them."""
    offsets: dict[str, list[int]] = {}
    for offset, reason in reasons.items():
        offsets.setdefault(reason, []).append(offset)
    return offsets


def _record_of(letter: Letter) -> Record:
    return letter.message.record
