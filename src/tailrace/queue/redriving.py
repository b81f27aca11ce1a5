"""Dead letters of a store: to look at, and to bring back."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice

from tailrace.errors import Full, LeaseLost
from tailrace.kernel import Record
from tailrace.log.inputs import check_whole
from tailrace.queue import dead_letters
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.clock import Clock
from tailrace.queue.consumer import Consumer
from tailrace.queue.inputs import as_text, check_limit
from tailrace.queue.journal import Op
from tailrace.queue.lease import DYING
from tailrace.queue.message import Message
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.registry import Registry
from tailrace.queue.runs import runs_of
from tailrace.queue.scanning import SCAN_MOST
from tailrace.queue.settings import QueueSettings

__all__ = ["Redriving"]

_AT_ONCE = 100  # dead letters


class Redriving:
    """A part of `Store`."""

    clock: Clock
    registry: Registry

    def get(self, name: str) -> Queue | Stream:
        raise NotImplementedError

    def _dead_letter_queue(self, place: dead_letters.Place) -> Queue:
        raise NotImplementedError

    def _append_instead(
        self, queue: Queue | Stream, record: Record, producer: str, source: QueueSettings
    ) -> None:
        raise NotImplementedError

    def _letters(self, name: str) -> list[Queue]:
        """Where the dead letters of a queue are, if there ever were any; the oldest place first."""
        queues, settings = self.registry.current(), self.get(name).settings
        current = dead_letters.queue_of(settings)
        return [
            self._dead_letter_queue(place)
            for place in dead_letters.places_of(settings)
            if place.queue in queues
            and (place.queue == current or queues[place.queue].type == "classic")
        ]

    def dead(self, name: str, limit: int | None = None) -> list[Message]:
        """The dead letters of a queue that nobody has dealt with, oldest first; also those of one
        of the same name that was deleted, and those that are in `$dlq/<name>` from before it was
        given another `dlq.topic`."""
        if limit is not None:
            limit = check_limit(limit)
        each = (_letters_of(name, letters) for letters in self._letters(name))
        return list(islice(chain.from_iterable(each), limit))

    def redrive(
        self,
        name: str,
        *,
        group: str | None = None,
        offsets: Iterable[int] | None = None,
        limit: int | None = None,
    ) -> int:
        """Bring dead letters back to the queue, each for the group that had it, as if nobody had
        tried it: all of them, those of one group, or those at `offsets` among the dead letters
        (`ValueError` if one is a letter in each of two places, see `dead`). How many that were.
        Each comes back once, whatever happens meanwhile; those that somebody else has at the moment
        are left to them, and those of a group that is gone stay where they are: nobody would get
        them. They come back when there is a consumer of that group again. If the queue has no room,
        or the disk, the others stay, too: `Full`, whose note tells how many came back."""
        count = 0
        with contextlib.closing(self._redrive_each(name, group, offsets, limit)) as letters:
            try:
                for _ in letters:
                    count += 1
            except Full as error:
                error.add_note(f"{count} dead letters were brought back before")
                raise
        return count

    def _redrive_each(
        self, name: str, group: str | None, offsets: Iterable[int] | None, limit: int | None
    ) -> Generator[Message, None, None]:
        """The same, one by one, for who wants to know how far it came: each when it is back. To be
        closed, so that nothing is held."""
        if limit is not None:
            limit = check_limit(limit)
        if group is not None:
            as_text("group", group)
        offsets = None if offsets is None else list(offsets)
        for offset in offsets or ():
            check_whole("offsets", offset, "offsets among the dead letters")
        places, target, done = self._letters(name), self.get(name), 0
        chosen = None if offsets is None else set(offsets)
        if chosen and len(places) > 1:
            _refuse_ambiguous(name, places, chosen)
        there = {"", *target.group_ids()}  # "": a letter of another system, which is for all
        for letters in places:
            wanted = (
                letter.offset
                for letter in _letters_of(name, letters)
                if group in (None, dead_letters.origin(letter)[1])
                and dead_letters.origin(letter)[1] in there
                and (chosen is None or letter.offset in chosen)
            )
            left = None if limit is None else limit - done
            with (
                letters.consumer(dead_letters.GROUP) as consumer,
                contextlib.closing(
                    self._redrive_from(letters, wanted, consumer, target, left)
                ) as redriven,
            ):
                for message in redriven:
                    done += 1
                    yield message

    def _redrive_from(
        self,
        letters: Queue,
        wanted: Iterator[int],
        consumer: Consumer,
        target: Queue | Stream,
        limit: int | None,
    ) -> Generator[Message, None, None]:
        """Those at these offsets of one place."""
        done = 0
        while limit is None or done < limit:
            most = _AT_ONCE if limit is None else min(limit - done, _AT_ONCE)
            batch = list(islice(wanted, most))
            if not batch:
                break
            claimed = _claim(consumer, batch)
            with contextlib.closing(self._redrive(claimed, consumer, letters, target)) as redriven:
                for message in redriven:
                    done += 1
                    yield message

    def _redrive(
        self, claimed: list[Message], consumer: Consumer, letters: Queue, target: Queue | Stream
    ) -> Generator[Message, None, None]:
        try:
            for message in claimed:
                self._revive(message, letters, target)
                try:
                    message.ack()
                except LeaseLost:  # it took long, and somebody else does it, too
                    continue
                yield message
        finally:
            if left := [message for message in claimed if message.settled is None]:
                with contextlib.suppress(LeaseLost):
                    consumer.release(left)

    def _revive(self, message: Message, letters: Queue, target: Queue | Stream) -> None:
        producer = dead_letters.step_id("redrive", letters.incarnation, target.name, message.offset)
        ttl_ms = target.settings.limits.message_ttl_ms
        expires_at = self.clock.wall_ms() + ttl_ms if ttl_ms else None
        record = dead_letters.revived(message, expires_at)
        if target.log.find(producer, 0) is None:  # else it is there, and needs no room
            target.admit(target.settings, 1, block=False)
        self._append_instead(target, record, producer, letters.settings)


def _letters_of(name: str, letters: Queue) -> Iterator[Message]:
    found = letters.group(dead_letters.GROUP).unsettled()
    return (letter for letter in found if dead_letters.origin(letter)[0] == name)


def _refuse_ambiguous(name: str, places: list[Queue], chosen: set[int]) -> None:
    """An offset that means two letters might bring back the wrong one."""
    met: set[int] = set()
    for letters in places:
        found = chosen.intersection(letter.offset for letter in _letters_of(name, letters))
        if met & found:
            names = " and in ".join(repr(each.name) for each in places)
            raise ValueError(
                f"offsets: {min(met & found)} is a dead letter of {name!r} both in {names}; bring "
                "all of them back, or those of a group, without naming offsets"
            )
        met |= found


def _claim(consumer: Consumer, offsets: list[int]) -> list[Message]:
    """Claim the messages at these offsets, which rise, as far as nobody has them. No other message
    is held up by that, and none is passed over: what lies between is free."""
    group, wanted = consumer._group, set(offsets)
    lease_ms = group._office.settings.visibility_timeout_ms
    with group._turn:
        ledger, now_ms = group.state, group.files.clock.boot_ms()
        cursor, end = ledger.cursor, offsets[-1] + 1
        claim: Op = {"t": "claim", "c": consumer._member, "u": ledger.tick(now_ms + lease_ms)}
        claim |= {"h": 1, "f": cursor, "x": max(cursor, end)}
        ops, ours = [claim], [offset for offset in offsets if _is_free(group, offset, now_ms)]
        if ours:
            claim["again"] = runs_of(ours)
        if end > cursor:
            ahead = _offsets_ahead(group, cursor, end)
            between = [offset for offset in ahead if offset not in wanted]
            ours += [offset for offset in ahead if offset in wanted]
            if ahead:
                claim["r"] = runs_of(ahead)
            if between:
                ops.append({"t": "release", "r": runs_of(between)})
        if ours or end > cursor:
            group.commit(*ops)
        messages = []
        for record in group._feed.read_at(ours):
            lease = ledger.pending[record.offset]  # type: ignore[index]
            told = lease.attempt, ledger.epoch, lease.count, lease.error
            messages.append(Message(group.queue, record, group, *told))
    return messages


def _offsets_ahead(group: ClassicGroup, first: int, end: int) -> list[int]:
    """With the turn: what concerns the group, from its cursor up to an offset."""
    met: list[int] = []
    found: list[Record] | None = None
    while first < end and found != []:
        found, first = group._feed.take(first, min(end - first, SCAN_MOST))
        met += [r.offset for r in found if group._selection.takes(r)]  # type: ignore[misc]
    return [offset for offset in met if offset < end]


def _is_free(group: ClassicGroup, offset: int, now_ms: int) -> bool:
    lease = group.state.pending.get(offset)
    return lease is not None and lease.state != DYING and group.state.is_due(lease, now_ms)
