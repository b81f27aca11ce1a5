"""What a group looks for at its cursor: records that concern it, and may be claimed."""

from __future__ import annotations

import hashlib
import logging
import math
from functools import lru_cache, partial
from itertools import islice
from typing import Protocol

from tailrace.kernel import Record, find_header
from tailrace.queue.addresses import is_selected
from tailrace.queue.clock import Clock
from tailrace.queue.feed import Feed
from tailrace.queue.handles import QueueLog
from tailrace.queue.journal import Op
from tailrace.queue.ledger import Ledger
from tailrace.queue.message import (
    RAW_EXPIRES,
    RAW_FOR_GROUP,
    Message,
    expires_at,
    meant_for,
    topic_of,
)
from tailrace.queue.runs import runs_of

__all__ = [
    "SCAN_MOST",
    "SPECIAL",
    "Scan",
    "Scanner",
    "Selection",
    "excess",
    "first_of_keys",
    "report_lost",
]

logger = logging.getLogger("tailrace")

SCAN_MOST = 4096  # records that are looked at in one turn, if they are not for us
SPECIAL = (RAW_EXPIRES, RAW_FOR_GROUP)  # what does not have these is for all groups, and for ever
_PARKED_MOST = 10_000  # messages that wait behind others of their key, before we look no further


class Selection:
    """Which records concern a group: those that match its filter, are meant for it, and have not
    expired."""

    def __init__(self, queue: str, group_id: str, pattern: str, clock: Clock) -> None:
        self.queue = queue
        self._group_id = group_id
        self._clock = clock
        self.is_all = pattern in ("", "#")
        self._selects = lru_cache(4096)(partial(is_selected, pattern, queue))

    def takes(self, record: Record) -> bool:
        if find_header(record, RAW_EXPIRES) is not None:
            expiry = expires_at(record)
            if expiry is not None and self._clock.wall_ms() > expiry:
                return False
        is_open = self.is_all and find_header(record, RAW_FOR_GROUP) is None  # as it mostly is
        return is_open or self._concerns(record)

    def until_ms(self, record: Record) -> float:
        """Until when the group may get a record: for ever, if it does not expire, and never, if it
        does not concern it."""
        is_open = self.is_all and find_header(record, RAW_FOR_GROUP) is None
        if not is_open and not self._concerns(record):
            return -math.inf
        expiry = None if find_header(record, RAW_EXPIRES) is None else expires_at(record)
        return math.inf if expiry is None else expiry

    def has_lapsed(self, record: Record) -> bool:
        """Of one that was not taken: only because it has expired?"""
        return find_header(record, RAW_EXPIRES) is not None and self._concerns(record)

    def _concerns(self, record: Record) -> bool:
        if find_header(record, RAW_FOR_GROUP) is not None and meant_for(record) != self._group_id:
            return False
        return self.is_all or self._selects(topic_of(record))


class Scan:
    """What was found at the cursor."""

    __slots__ = ("cursor", "keys", "lapsed", "lost", "met", "more", "parked", "records")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.records: list[Record] = []
        self.lapsed: list[Record] = []  # that have expired
        self.parked: list[int] = []
        self.keys: list[int] = []  # offset, key, offset, key, …
        self.met: set[int] = set()  # those keys
        self.lost = 0
        self.more = False

    def complete(self, claim: Op) -> list[Op]:
        """The operations, given that of what is claimed."""
        if self.parked:
            claim["parked"] = runs_of(self.parked)
        if self.keys:
            claim["keys"] = self.keys
        return [{"t": "gone", "r": [], "lost": self.lost}, claim] if self.lost else [claim]


class Scanner:
    """Looks further, where it is not as simple as it is mostly. Not thread-safe, like the feed."""

    def __init__(self, feed: Feed, selection: Selection, group_id: str) -> None:
        self._feed = feed
        self._selection = selection
        self._group_id = group_id

    def is_blocked(self, ledger: Ledger, scan: Scan | None = None) -> bool:
        """Do so many wait behind others of their key that nobody is to look further?"""
        parked = 0 if scan is None else len(scan.parked)
        return ledger.by_key and ledger.parked + parked >= _PARKED_MOST

    def scan(
        self,
        ledger: Ledger,
        records: list[Record],
        behind: int,
        want: int,
        before: Scan | None = None,
    ) -> Scan:
        """Up to `want` records that concern us, of these and those behind them. What was found
        `before` keeps others of its keys waiting, as if it were claimed."""
        scan = Scan(behind)
        if before is not None:
            scan.met, scan.parked = before.met, before.parked
        takes, feed, by_key = self._selection.takes, self._feed, ledger.by_key
        if self.is_blocked(ledger, scan):
            scan.cursor = ledger.cursor  # nobody looks at these yet
            feed.lost.clear()
            return scan
        looked_at = 0
        while True:
            looked_at += len(records)
            chosen = []
            for record in records:
                if takes(record):
                    chosen.append(record)
                elif self._selection.has_lapsed(record):
                    scan.lapsed.append(record)
            if by_key:
                chosen = first_of_keys(ledger, chosen, scan)
            scan.records += chosen
            if feed.lost:
                scan.lost += report_lost(feed, self._group_id)
            if not records or len(scan.records) == want:
                return scan
            if self.is_blocked(ledger, scan):
                return scan
            if looked_at >= SCAN_MOST:
                scan.more = True
                return scan
            records, scan.cursor = feed.take(scan.cursor, want - len(scan.records))

    def peek(
        self, ledger: Ledger, limit: int, now_ms: int, max_retries: int | None
    ) -> list[Message]:
        """What would be delivered next. Nothing is claimed, and nothing is noted."""
        pending, queue = ledger.pending, self._selection.queue
        ready = (
            offset
            for offset, lease in pending.items()
            if lease.is_due(now_ms) and not lease.is_spent(max_retries)
        )
        found: list[Message] = []
        while portion := list(islice(ready, limit - len(found))):  # some may have expired
            for record in filter(self._selection.takes, self._feed.read_at(portion)):
                lease = pending[record.offset]  # type: ignore[index]
                found.append(Message(queue, record, None, 0, 0, lease.count, lease.error))
        scan = Scan(ledger.cursor)
        scan.more = True
        while scan.more and (wanted := limit - len(found)):
            scan = self.scan(ledger, *self._feed.take(scan.cursor, wanted), wanted, scan)
            found += [Message(queue, record, None, 0, 0, 0) for record in scan.records]
        return found


def excess(state: HasCursor, log: QueueLog, group_id: str) -> Op | None:
    """What to do if a group is further than its queue. That happens when records were lost which
    nobody had promised to keep, and new ones would come at offsets that the group has passed."""
    if state.cursor <= log.end_offset:
        return None
    end = log.exact_end()  # others may have written what we have not seen
    if state.cursor <= end:
        return None
    logger.error(
        "%s ends at %d, and the group %r has come to %d: records were lost. It goes on at the end",
        log.path,
        end,
        group_id,
        state.cursor,
        extra={"path": log.path, "group": group_id, "offset": end},
    )
    return {"t": "rewind", "x": end}


class HasCursor(Protocol):
    cursor: int


def report_lost(feed: Feed, group_id: str) -> int:
    """Tell of what could not be read; how many offsets that are."""
    lost = 0
    for first, behind in feed.lost:
        lost += behind - first
        logger.error(
            "%s: offsets %d to %d cannot be read; the group %r goes on after them",
            feed.path,
            first,
            behind - 1,
            group_id,
            extra={"path": feed.path, "group": group_id, "offset": first},
        )
    feed.lost.clear()
    return lost


def first_of_keys(ledger: Ledger, records: list[Record], scan: Scan) -> list[Record]:
    """Those that may be claimed; the others are parked behind the one of their key that is
    pending."""
    first = []
    for record in records:
        if not record.key:
            first.append(record)
            continue
        key = _hash(record.key)
        offset: int = record.offset  # type: ignore[assignment]
        scan.keys += (offset, key)
        if key in scan.met or ledger.has_line(key):
            scan.parked.append(offset)
        else:
            scan.met.add(key)
            first.append(record)
    return first


def _hash(key: bytes) -> int:
    """63 bits of a key. If two share one they wait for each other, which is harmless."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
