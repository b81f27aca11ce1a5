"""Idempotent producers: which sequence numbers of whom the log has, and at which offset.

A batch appended with a producer id and a sequence carries both in reserved headers of its first
record, so the log itself is the truth and this table can be made again from it. A snapshot
(`.tailrace/producers`) saves reading the whole log; it names the offset up to which it counts.

A producer's sequences rise; they may leave numbers out. One that was seen among the last
`REMEMBERED` gives back its offset, an older one is refused. Producers that were silent for
`producer_expiry` are forgotten.

Not thread-safe: the log's append lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.errors import NotWritten
from tailrace.kernel import Headers
from tailrace.log.fs import FileSystem
from tailrace.log.sidefiles import load_checked_json, side_path, store_checked_json

__all__ = ["PRODUCER_HEADER", "SEQUENCE_HEADER", "Appended", "Producers", "headers_of"]

PRODUCER_HEADER = "_producer"
SEQUENCE_HEADER = "_sequence"
REMEMBERED = 64

_SNAPSHOT_LIMIT = 256 << 20


def headers_of(producer: str, sequence: int) -> list[tuple[str, bytes]]:
    """What the first record of a batch bears."""
    return [(PRODUCER_HEADER, producer.encode()), (SEQUENCE_HEADER, b"%d" % sequence)]


class Appended(NamedTuple):
    """Where a sequence went."""

    offset: int
    records: int


class _Producer:
    __slots__ = ("appended", "last_ms")

    def __init__(self) -> None:
        self.last_ms = 0
        self.appended: dict[int, Appended] = {}  # by sequence, rising


class Producers:
    """The table. `next_offset` is how far in the log it counts."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._producers: dict[str, _Producer] = {}

    def find(self, producer: str, sequence: int) -> Appended | None:
        """Where this sequence is, if it is here; `None` when it is new."""
        known = self._producers.get(producer)
        if known is None:
            return None
        found = known.appended.get(sequence)
        last = next(reversed(known.appended))
        if found is None and sequence < last:
            raise NotWritten(
                f"sequence {sequence} of producer {producer!r} is below the last one, {last}, and "
                f"not among the {REMEMBERED} remembered; sequences must rise"
            )
        return found

    def add(self, producer: str, sequence: int, appended: Appended, now_ms: int) -> None:
        known = self._producers.setdefault(producer, _Producer())
        known.appended[sequence] = appended
        known.last_ms = max(known.last_ms, now_ms)
        if len(known.appended) > REMEMBERED:
            del known.appended[next(iter(known.appended))]

    def observe(self, batches: Iterable[tuple[int, int, int, Headers | None]]) -> None:
        """Count batches of the log, in order: (base offset, count, base timestamp, first headers).
        What was counted is passed over."""
        for base_offset, count, base_timestamp, headers in batches:
            if base_offset < self.next_offset:
                continue
            if headers and PRODUCER_HEADER in headers and SEQUENCE_HEADER in headers:
                try:
                    producer = headers[PRODUCER_HEADER].decode()
                    sequence = int(headers[SEQUENCE_HEADER])
                except ValueError:
                    continue  # somebody else's headers of the same name
                self.add(producer, sequence, Appended(base_offset, count), base_timestamp)
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
        producers: dict[str, Any] = {}
        for name, known in self._producers.items():
            appended = [[s, *a] for s, a in known.appended.items() if sum(a) <= durable]
            if appended:
                producers[name] = {"last_ms": known.last_ms, "appended": appended}
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
            known = producers._producers[name] = _Producer()
            known.last_ms = saved["last_ms"]
            known.appended = {seq: Appended(*where) for seq, *where in saved["appended"]}
        return producers
