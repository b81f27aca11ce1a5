"""Dead letters of a store: where they are, to look at, and to bring back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from tailrace.errors import ConfigError, Full, InvalidName, LeaseLost
from tailrace.kernel import Record
from tailrace.log.commit import Receipt
from tailrace.log.inputs import check_whole
from tailrace.log.producers import Once
from tailrace.queue import dead_letters
from tailrace.queue.clock import Clock
from tailrace.queue.consumer import Consumer
from tailrace.queue.dead_letters import AT_ONCE, some_of
from tailrace.queue.inputs import as_text, check_limit
from tailrace.queue.message import Message
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.registry import Registry
from tailrace.queue.settings import QueueSettings

__all__ = ["Redriving"]


class Redriving:
    """A part of `Store`."""

    clock: Clock
    registry: Registry

    def get(self, name: str) -> Queue | Stream:
        raise NotImplementedError

    def _create(self, name: str, kind: str, options: Mapping[str, Any]) -> QueueSettings:
        raise NotImplementedError

    def _handle(self, settings: QueueSettings) -> Queue | Stream:
        raise NotImplementedError

    def _make_as_durable(self, queue: Queue | Stream, source: QueueSettings) -> None:
        raise NotImplementedError

    # --- where they are ---------------------------------------------------------------------

    def prepare_letters(self, name: str) -> None:
        """Have a queue of this name for dead letters."""
        self._dead_letter_queue(dead_letters.usual_place(name)).hold_letters()

    def _dead_letter_queue(self, place: dead_letters.Place) -> Queue:
        """As it is, if somebody has asked for it; else one that keeps what it gets."""
        name = place.queue
        settings = self.registry.current().get(name)
        if settings is None or settings.implied:
            options = {
                "ephemeral": False,  # whatever the store's own queues are
                "topics": [place.binding],
                "dlq": {"enabled": False},
                "retry": {"max_retries": "unlimited"},
                "limits": {"max_message_size": 0, "message_ttl": 0, "max_depth": 0},
                "retention": {"max_age": 0, "max_length_bytes": 0, "max_length_messages": 0},
            }
            settings = self._create(name, "classic", options)
        found = self._handle(settings)
        if not isinstance(found, Queue):
            raise ConfigError(f"dlq.topic: {name} is a stream; dead letters need a classic queue")
        return found

    def _letters(self, name: str, others: Iterable[str] = ()) -> list[Queue]:
        """Where the dead letters of a queue are, if there ever were any; the oldest place first,
        and `others` last."""
        queues, settings = self.registry.current(), self.get(name).settings
        current = dead_letters.queue_of(settings)
        return [
            self._dead_letter_queue(place)
            for place in dead_letters.all_places(settings, others)
            if place.queue in queues
            and (place.queue == current or queues[place.queue].type == "classic")
        ]

    # --- to look at, and to bring back ------------------------------------------------------

    def dead(
        self, name: str, limit: int | None = None, *, places: Iterable[str] = ()
    ) -> list[Message]:
        """The dead letters of a queue that nobody has dealt with, oldest first; also those of one
        of the same name that was deleted, and those that are in `$dlq/<name>` from before it was
        given another `dlq.topic`. `places` are queues that have some beside: the `dead_letters` of
        pipelines."""
        if limit is not None:
            limit = check_limit(limit)
        each = (_letters_of(name, letters) for letters in self._letters(name, places))
        return list(islice(chain.from_iterable(each), limit))

    def redrive(
        self,
        name: str,
        *,
        group: str | None = None,
        offsets: Iterable[int] | None = None,
        limit: int | None = None,
        places: Iterable[str] = (),
    ) -> int:
        """Bring dead letters back to the queue, each for the group that had it, as if nobody had
        tried it: all of them, those of one group, or those at `offsets` among the dead letters
        (`ValueError` if one is a letter in each of two places, see `dead`). How many that were.
        Each comes back once, whatever happens meanwhile; what pipelines have refused, once for all
        who read the queue, however many they are. `places` are as for `dead`. Letters that somebody
        else has at the moment are left to them, and those of a group that is gone stay where they
        are: nobody would get them. They come back when there is a consumer of that group again; to
        ask for a group that neither is there nor has any is `InvalidName`. If the queue has no
        room, also where it drops the oldest for what is published, or the disk, the others stay,
        too: `Full`, whose note tells how many came back."""
        told: list[int] = []
        try:
            self._redrive(name, group, offsets, limit, lambda _, back: told.append(back), places)
        except Full as error:
            error.add_note(f"{sum(told)} dead letters were brought back before")
            raise
        return sum(told)

    def _redrive(
        self,
        name: str,
        group: str | None,
        offsets: Iterable[int] | None,
        limit: int | None,
        tell: Callable[[list[int], int], object],
        others: Iterable[str] = (),
    ) -> None:
        """The same. Whenever some are dealt with, it tells which ones, and how many messages that
        are in the queue: also before an error."""
        if limit is not None:
            limit = check_limit(limit)
        if group is not None:
            as_text("group", group)
        offsets = None if offsets is None else list(offsets)
        for offset in offsets or ():
            check_whole("offsets", offset, "offsets among the dead letters")
        places, target, done = self._letters(name, others), self.get(name), 0
        chosen = None if offsets is None else set(offsets)
        if chosen and len(places) > 1:
            _refuse_ambiguous(name, places, chosen)
        there = {"", *target.group_ids()}  # "": a letter of another system, which is for all
        if group is not None and group not in there:
            each = (letter for letters in places for letter in _letters_of(name, letters))
            if all(dead_letters.origin(letter)[1] != group for letter in each):
                raise InvalidName(f"{name!r} has no group {group!r}, and no dead letters of one")
        for letters in places:
            wanted = (
                letter
                for letter in _letters_of(name, letters)
                if group in (None, dead_letters.origin(letter)[1])
                and dead_letters.origin(letter)[1] in there
                and (chosen is None or letter.offset in chosen)
            )
            with letters.consumer(dead_letters.GROUP) as consumer:
                while limit is None or done < limit:
                    most = AT_ONCE if limit is None else min(limit - done, AT_ONCE)
                    portion = [each.offset for each in some_of(wanted, _record_of, most)]
                    if not portion:
                        break
                    claimed = consumer.claim_at(portion)
                    fresh: list[Message] = []
                    try:
                        self._bring_back(claimed, consumer, letters, target, fresh)
                    finally:
                        back = sum(each.settled == "acked" for each in fresh)
                        done += back
                        tell([each.offset for each in claimed if each.settled == "acked"], back)

    def _bring_back(
        self,
        claimed: list[Message],
        consumer: Consumer,
        letters: Queue,
        target: Queue | Stream,
        fresh: list[Message],
    ) -> None:
        """Some letters, with one wait for the disk: first they are in the queue, and durable there,
        and only then they are settled here. Who dies on the way leaves letters that are back, and
        whose turn comes again: each is appended once. `fresh` gets those that were not met."""
        reader = letters.group(dead_letters.GROUP).account()
        receipts: list[Receipt] = []
        try:
            try:
                for message in claimed:
                    origin = letters.incarnation
                    step = dead_letters.redriving_of(message, origin, target.name, reader)
                    is_met = _is_met(message, step, target)
                    receipts.append(self._revive(message, step, target))
                    if not is_met:
                        fresh.append(message)
            finally:  # also those before one that cannot come back, or before an interrupt
                self._settle_revived(claimed[: len(receipts)], receipts, consumer, letters, target)
        finally:
            if left := [message for message in claimed if message.settled is None]:
                with contextlib.suppress(LeaseLost):
                    consumer.release(left)

    def _revive(self, message: Message, step: Once, target: Queue | Stream) -> Receipt:
        """Append it, unless that was done before; it is durable when the receipt says so."""
        ttl_ms = target.settings.limits.message_ttl_ms
        expires_at = self.clock.wall_ms() + ttl_ms if ttl_ms else None
        record = dead_letters.revived(message, expires_at)
        if not target.has_done(step):  # else it is there, and needs no room
            target.admit(_dropping_none(target.settings), 1, block=False)
        return target.append_accepted([record], step)

    def _settle_revived(
        self,
        revived: list[Message],
        receipts: list[Receipt],
        consumer: Consumer,
        letters: Queue,
        target: Queue | Stream,
    ) -> None:
        if not revived:
            return
        for receipt in receipts:
            receipt.wait()
        self._make_as_durable(target, letters.settings)
        with contextlib.suppress(LeaseLost):  # it took long, and somebody else does it, too
            consumer.ack(revived)


def _dropping_none(settings: QueueSettings) -> QueueSettings:
    """What is brought back is not worth more than what is there, of which some may be letters that
    came back a moment ago."""
    if settings.limits.on_full != "drop_oldest":
        return settings
    return replace(settings, limits=replace(settings.limits, on_full="raise"))


def _is_met(message: Message, step: Once, target: Queue | Stream) -> bool:
    """Has the letter of another pipeline brought the same message back?"""
    return dead_letters.refused_by(message) is not None and target.has_done(step)


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


def _record_of(letter: Message) -> Record:
    return letter.record
