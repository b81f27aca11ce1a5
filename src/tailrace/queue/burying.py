"""How a group's messages become dead letters: marked in a turn, and written after it.

With a turn nobody asks for the queue's settings (who finds that it was deleted lets go of it, see
`LogQueue._notice`), makes a queue, or waits for the disk of another. So settings are read before a
turn; in it messages are only noted as dying, from when on nobody gets them; after it, and without
any lock, their letters are written, many with one wait for the disk; and when those are durable
the messages are settled. Whoever fails or dies on the way leaves them dying, and the next one who
comes when their time is over does it: each letter is written once, however often that is begun.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence

from tailrace import hooks
from tailrace.errors import Full, NotWritten
from tailrace.kernel import Record
from tailrace.queue.feed import Feed
from tailrace.queue.group import Group
from tailrace.queue.handles import QueueLog
from tailrace.queue.journal import Op
from tailrace.queue.lease import DYING
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import Message
from tailrace.queue.office import Letter, Office
from tailrace.queue.reserve import is_full
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import Selection
from tailrace.queue.settings import QueueSettings

__all__ = ["AT_ONCE", "LAPSED", "Burying", "Shed"]

logger = logging.getLogger("tailrace")

LAPSED = "expired"  # why there is a dead letter of a message whose time was over
AT_ONCE = 512  # messages whose time to die has come that are read, and buried, together
_BURIAL_MS = 30_000  # how long somebody may take to write a dead letter before another tries


# What a turn goes by, and what it leaves to be buried after it.
Shed = tuple[QueueSettings, list[Letter]]


class Burying(Group[Ledger]):
    """A group of a classic queue, as far as it is about dead letters."""

    _log: QueueLog
    _feed: Feed
    _office: Office
    _selection: Selection
    _lapsed: deque[int]  # how many have expired, to be told

    # --- with the turn ----------------------------------------------------------------------

    def _dying(self, offsets: list[int], reason: str) -> Op:
        """They go to the dead letters; if that is not done in time, somebody else sees to it."""
        until = self.state.tick(self.files.clock.boot_ms() + _BURIAL_MS)
        return {"t": "dying", "r": runs_of(offsets), "u": until, "e": reason}

    def _ops_of_spent(self, spent: list[int]) -> list[Op]:
        """From here on they belong to the dead letters, and to us until that is done."""
        reasons: dict[str, list[int]] = {}
        for offset in spent:
            lease = self.state.pending[offset]
            reason = lease.error or f"delivered {lease.count} times, and never settled"
            reasons.setdefault(reason, []).append(offset)
        return [self._dying(offsets, reason) for reason, offsets in reasons.items()]

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

    # --- without the turn, and without any lock ---------------------------------------------

    @property
    def _account(self) -> str:
        """What is done once for a message, is done once for this; a group that was deleted or reset
        does it all again."""
        return f"{self.id}\0{self._uid}\0{self.state.resets}"

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
        self, letters: list[Letter], settings: QueueSettings, bare: Iterable[int] = ()
    ) -> int:
        """Write these letters, and settle their messages, and some of which there is nothing to
        write; how many. The others stay as they are, and are told of."""
        try:
            failed = self._bury_letters(letters, settings)
            done = [m.offset for m, _ in letters if m.offset not in failed]
            settled = self._settle_dead(sorted([*done, *bare]))
        except Exception as error:  # noqa: BLE001  whoever receives has nothing to do with it
            failed = {message.offset: error for message, _ in letters}
            failed.update(dict.fromkeys(bare, error))
            settled = 0
        if failed:
            self._report_unburied(failed, len(failed))
        return settled

    def _bury_letters(
        self, letters: Sequence[Letter], settings: QueueSettings
    ) -> dict[int, Exception]:
        """By offset, why some of them could not be written."""
        return self._office.bury(settings, letters, self.id, self._account) if letters else {}

    def _bury_one(self, message: Message, reason: str, settings: QueueSettings) -> None:
        """For whoever asked for it: the error is theirs."""
        try:
            failed = self._bury_letters([Letter(message, reason)], settings)
            for error in failed.values():
                raise error
        except OSError as error:
            kind = Full if is_full(error) else NotWritten
            raise kind(f"no dead letter of {message.message_id} can be written: {error}") from error

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
