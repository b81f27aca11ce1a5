"""Idempotent producers: which sequence numbers of whom the log has, and at which offset.

A batch appended with a producer id and a sequence carries both in reserved headers of its first
record, so the log itself is the truth and this table can be made again from it. A snapshot
(`.tailrace/producers`) saves reading the whole log; it names the offset up to which it counts.

A producer's sequences rise; they may leave numbers out. One that was seen among the last
`REMEMBERED` gives back its offset, an older one is refused.

Steps are what is done once for each of many things that come in any order, such as the messages of
a group, by their offsets. A batch of theirs has a third header: every sequence below that number is
settled, and does not come again. So what is remembered of them is bounded by what is under way.

Who was silent for `producer_expiry` is forgotten.

Not thread-safe: the log's append lock guards it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.errors import NotWritten
from tailrace.kernel import Headers
from tailrace.log.fs import FileSystem
from tailrace.log.number_set import NumberSet
from tailrace.log.sidefiles import load_checked_json, side_path, store_checked_json

__all__ = [
    "PRODUCER_HEADER",
    "SEQUENCE_HEADER",
    "SETTLED_HEADER",
    "Appended",
    "Once",
    "Producers",
    "headers_of",
]

PRODUCER_HEADER = "_producer"
SEQUENCE_HEADER = "_sequence"
SETTLED_HEADER = "_settled"
REMEMBERED = 64

_SNAPSHOT_LIMIT = 256 << 20
_FEW = 1024  # steps that are not worth tidying up


class Once(NamedTuple):
    """What tells a batch that is to be in the log once. `settled` is there if it is of a step."""

    producer: str
    sequence: int
    settled: int | None = None


def headers_of(once: Once) -> list[tuple[str, bytes]]:
    """What the first record of a batch bears."""
    producer, sequence, settled = once
    headers = [(PRODUCER_HEADER, producer.encode()), (SEQUENCE_HEADER, b"%d" % sequence)]
    return headers if settled is None else [*headers, (SETTLED_HEADER, b"%d" % settled)]


class Appended(NamedTuple):
    """Where a sequence went. Of a step: something that is durable no sooner."""

    offset: int
    records: int


class _Rising:
    """Of a producer whose sequences rise."""

    def __init__(self) -> None:
        self.last_ms = 0
        self._appended: dict[int, Appended] = {}  # by sequence, rising

    def find(self, once: Once) -> Appended | None:
        producer, sequence, _ = once
        found = self._appended.get(sequence)
        last = next(reversed(self._appended))
        if found is None and sequence < last:
            raise NotWritten(
                f"sequence {sequence} of producer {producer!r} is below the last one, {last}, and "
                f"not among the {REMEMBERED} remembered; sequences must rise",
                last_sequence=last,
            )
        return found

    def add(self, sequence: int, appended: Appended) -> None:
        self._appended[sequence] = appended
        if len(self._appended) > REMEMBERED:
            del self._appended[next(iter(self._appended))]

    def saved(self, durable: int) -> dict[str, Any] | None:
        appended = [[s, *a] for s, a in self._appended.items() if sum(a) <= durable]
        return {"last_ms": self.last_ms, "appended": appended} if appended else None

    @classmethod
    def load(cls, saved: dict[str, Any]) -> _Rising:
        known = cls()
        known.last_ms = saved["last_ms"]
        known._appended = {seq: Appended(*where) for seq, *where in saved["appended"]}
        return known


class _Steps:
    """Of steps of one kind, for one cause."""

    def __init__(self) -> None:
        self.last_ms = 0
        self._settled = 0
        self._done = NumberSet()
        self._last = Appended(0, 0)
        # Those that may not be durable, in the order of the log, with the ends of their batches.
        self._recent, self._recent_ends = array("q"), array("q")
        self._tidy_at = _FEW

    def find(self, once: Once) -> Appended | None:
        return self._last if once.sequence in self._done else None

    def add(self, sequence: int, appended: Appended) -> None:
        self._done.add(sequence)
        self._last = appended
        self._recent.append(sequence)
        self._recent_ends.append(sum(appended))

    def settle(self, below: int) -> None:
        if below > self._settled:
            self._settled = below
            self._done.discard_below(below)
            if len(self._recent) > self._tidy_at:
                self._tidy()

    def _tidy(self) -> None:
        """Of a log that nobody flushes there would be more and more."""
        kept = [at for at, sequence in enumerate(self._recent) if sequence >= self._settled]
        self._recent = array("q", (self._recent[at] for at in kept))
        self._recent_ends = array("q", (self._recent_ends[at] for at in kept))
        self._tidy_at = 2 * len(kept) + _FEW

    def saved(self, durable: int) -> dict[str, Any] | None:
        gone = bisect_right(self._recent_ends, durable)
        del self._recent[:gone], self._recent_ends[:gone]
        done = self._done.copy()
        for sequence in reversed(self._recent):
            done.discard(sequence)
        if not done:
            return None
        return {"last_ms": self.last_ms, "settled": self._settled, "done": done.runs}

    @classmethod
    def load(cls, saved: dict[str, Any]) -> _Steps:
        known = cls()
        known.last_ms, known._settled = saved["last_ms"], saved["settled"]
        known._done = NumberSet(saved["done"])
        return known


class Producers:
    """The table. `next_offset` is how far in the log it counts."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._producers: dict[str, _Rising | _Steps] = {}

    def find(self, once: Once) -> Appended | None:
        """Where this sequence is, if it is here; `None` when it is new."""
        known = self._producers.get(once.producer)
        return None if known is None else known.find(once)

    def add(self, once: Once, appended: Appended, now_ms: int) -> None:
        """A batch is in the log."""
        producer, sequence, settled = once
        kind = _Rising if settled is None else _Steps
        known = self._producers.get(producer)
        if not isinstance(known, kind):  # or somebody has taken the name of a step
            known = self._producers[producer] = kind()
        known.add(sequence, appended)
        known.last_ms = max(known.last_ms, now_ms)
        if isinstance(known, _Steps) and settled is not None:
            known.settle(settled)

    def observe(self, batches: Iterable[tuple[int, int, int, Headers | None]]) -> None:
        """Count batches of the log, in order: (base offset, count, base timestamp, first headers).
        What was counted is passed over."""
        for base_offset, count, base_timestamp, headers in batches:
            if base_offset < self.next_offset:
                continue
            if headers and PRODUCER_HEADER in headers and SEQUENCE_HEADER in headers:
                try:
                    settled = int(headers[SETTLED_HEADER]) if SETTLED_HEADER in headers else None
                    sequence = int(headers[SEQUENCE_HEADER])
                    once = Once(headers[PRODUCER_HEADER].decode(), sequence, settled)
                except ValueError:
                    continue  # somebody else's headers of the same name
                self.add(once, Appended(base_offset, count), base_timestamp)
            self.next_offset = base_offset + count

    def expire(self, before_ms: int) -> None:
        """Forget who has been silent since `before_ms`."""
        silent = [name for name, known in self._producers.items() if known.last_ms < before_ms]
        for name in silent:
            del self._producers[name]

    def __len__(self) -> int:
        return len(self._producers)

    # --- snapshot ---------------------------------------------------------------------------

    def snapshot(self, durable: int) -> dict[str, Any]:
        """What is below `durable`, to be stored; the rest may not survive."""
        saved = ((name, known.saved(durable)) for name, known in self._producers.items())
        producers = {name: each for name, each in saved if each is not None}
        return {"next_offset": durable, "producers": producers}

    @staticmethod
    def store(fs: FileSystem, folder: str, snapshot: dict[str, Any]) -> None:
        store_checked_json(fs, side_path(folder, "producers"), snapshot)

    @classmethod
    def load(cls, fs: FileSystem, folder: str, end_offset: int) -> Producers:
        """From the snapshot; empty when there is none that fits a log ending at `end_offset`."""
        producers = cls()
        document = load_checked_json(fs, side_path(folder, "producers"), _SNAPSHOT_LIMIT)
        if document is None or document["next_offset"] > end_offset:
            return producers
        producers.next_offset = document["next_offset"]
        for name, saved in document["producers"].items():
            kind = _Rising if "appended" in saved else _Steps
            producers._producers[name] = kind.load(saved)
        return producers
