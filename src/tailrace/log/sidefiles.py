"""The small files beside the segments, in `.tailrace/`; FORMAT.md has their bytes.

    log.json     format number and flush mode          replaced whole
    watermark    what is durable                       two slots, written in turn, in place
    reserved     which offsets may have been seen      two slots, written in turn, synced
    start        the log start offset                  two slots, both written, synced
    clean        left by a clean close                 replaced whole, removed on open
    seals        facts about segments that are closed  fixed entries, appended; a cache
    gaps         offsets that hold no record, and why  lines, appended, synced
    poisoned     a flush failed                        replaced whole
    producers    idempotent producers (producers.py)   replaced whole; a cache
    quarantine/  bytes that recovery took away

Everything carries a CRC-32C. A file that a crash may tear is either replaced by a rename or holds
two slots of which one is always whole; what is only a cache is thrown away when in doubt.
Nothing here is thread-safe: the log's lock (or recovery's solitude) guards it.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import Any, NamedTuple

from tailrace.errors import ConfigError
from tailrace.kernel import crc32c
from tailrace.log.fs import File, FileSystem, read_exactly, read_file, replace_file, write_all

__all__ = [
    "FOLDER",
    "FORMAT",
    "CleanMarker",
    "Gap",
    "Gaps",
    "Identity",
    "Poison",
    "Reserved",
    "Seal",
    "Seals",
    "Slots",
    "StartOffset",
    "Watermark",
    "WatermarkFile",
    "load_checked_json",
    "side_path",
    "store_checked_json",
]

FOLDER = ".tailrace"
FORMAT = 1

_SMALL = 1 << 16  # no fixed side file is larger; a bound for reading one that was tampered with


def side_path(folder: str, name: str) -> str:
    return os.path.join(folder, FOLDER, name)


# --- JSON documents -------------------------------------------------------------------------


def store_checked_json(fs: FileSystem, path: str, document: dict[str, Any]) -> None:
    """A JSON object whose last key is the CRC of the rest."""
    body = json.dumps(document, separators=(",", ":"), sort_keys=True)
    checked = body[:-1] + f',"crc32c":{crc32c(body.encode())}}}\n'
    replace_file(fs, path, checked.encode())


def load_checked_json(fs: FileSystem, path: str, limit: int = _SMALL) -> dict[str, Any] | None:
    """What `store_checked_json` wrote; `None` when the file is missing or damaged."""
    data = read_file(fs, path, limit)
    if data is None:
        return None
    body, found, checksum = data.rpartition(b',"crc32c":')
    body += b"}"
    if not found or checksum != b"%d}\n" % crc32c(body):
        return None
    document = json.loads(body)
    return document if isinstance(document, dict) else None


# --- log.json -------------------------------------------------------------------------------


class Identity(NamedTuple):
    """What a log is. Below `sparse_below` there may be offsets without a record that nobody has
    recorded, because somebody else wrote that part."""

    flush: str
    sparse_below: int

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> Identity | None:
        """`None` when it was never stored (a folder of another writer's)."""
        document = load_checked_json(fs, side_path(folder, "log.json"))
        if document is None:
            return None
        version = document["format"]
        if version > FORMAT:
            raise ConfigError(
                f"{folder} is a log of format {version}; this tailrace knows formats up to "
                f"{FORMAT}: upgrade tailrace to open it"
            )
        return cls(*(document[key] for key in cls._fields))

    def store(self, fs: FileSystem, folder: str) -> None:
        document = {"format": FORMAT, **self._asdict()}
        store_checked_json(fs, side_path(folder, "log.json"), document)


# --- two slots ------------------------------------------------------------------------------


class Slots:
    """A file of two slots in sectors of their own, so that a torn write spoils one at most.

    A slot: magic, format, sequence number, payload, CRC. The valid slot with the highest sequence
    counts.
    """

    STRIDE = 512
    _HEAD = struct.Struct("<4sB3xQB")

    def __init__(self, fs: FileSystem, path: str, magic: bytes) -> None:
        self._fs = fs
        self._path = path
        self._magic = magic
        self._sequence = 0
        self._file: File | None = None
        self._name_is_durable = False  # as far as we know

    @classmethod
    def parse(cls, magic: bytes, slot: bytes) -> tuple[int, bytes] | None:
        """(sequence, payload) of a slot's bytes; `None` when they are not a whole slot."""
        size_of_head, size_of_crc = cls._HEAD.size, 4
        if len(slot) < size_of_head + size_of_crc:
            return None
        found_magic, version, sequence, size = cls._HEAD.unpack_from(slot)
        end = size_of_head + size
        if found_magic != magic or version != FORMAT or end + size_of_crc > len(slot):
            return None
        if crc32c(slot[:end]) != int.from_bytes(slot[end : end + size_of_crc], "little"):
            return None
        return sequence, slot[size_of_head:end]

    def load(self) -> bytes | None:
        """What counts now. Somebody else may have written since, so do this before a `store`."""
        if self._file is not None:
            data = self._file.pread(2 * self.STRIDE, 0)  # all of it, as the file is shorter
        else:
            data = read_file(self._fs, self._path, 2 * self.STRIDE) or b""
        return self._newest(data)

    def load_now(self) -> bytes | None:
        """The same; `None` also if it would take longer than a look at memory."""
        data = self._file.pread_now(2 * self.STRIDE, 0) if self._file is not None else None
        return None if data is None else self._newest(data)

    def _newest(self, data: bytes) -> bytes | None:
        first, second = data[: self.STRIDE], data[self.STRIDE :]
        if int.from_bytes(first[8:16], "little") < int.from_bytes(second[8:16], "little"):
            first, second = second, first  # the later one, if it is whole
        newest = self.parse(self._magic, first) or self.parse(self._magic, second)
        if newest is None:
            return None
        self._sequence, payload = newest
        return payload

    def open(self, *, write: bool = True) -> None:
        """Keep the file open, for those who look at it often."""
        if self._file is None:
            self._file = self._fs.open(self._path, write=write)

    def store(self, payload: bytes, sync: bool) -> None:
        """Write the slot whose turn it is."""
        sequence = self._sequence + 1
        slot = self._HEAD.pack(self._magic, FORMAT, sequence, len(payload)) + payload
        slot += crc32c(slot).to_bytes(4, "little")
        position = (sequence & 1) * self.STRIDE
        try:
            self.open()
        except FileNotFoundError:  # make it whole, so that nobody ever finds it without a slot
            replace_file(self._fs, self._path, bytes(position) + slot)
            self._sequence, self._name_is_durable = sequence, True
            return
        assert self._file is not None
        if self._file.pwrite(slot, position) != len(slot):
            write_all(self._file, slot, position)
        if sync:
            self._file.sync()
            if not self._name_is_durable:
                self._fs.sync_dir(os.path.dirname(self._path))
                self._name_is_durable = True
        self._sequence = sequence

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_WATERMARK = struct.Struct("<QQQ16s")


class Watermark(NamedTuple):
    """Every record below `durable` is on the disk; they end at `position` in `segment`. Written in
    the boot `boot_id`."""

    durable: int
    segment: int
    position: int
    boot_id: bytes

    @classmethod
    def unpack(cls, payload: bytes) -> Watermark | None:
        return cls(*_WATERMARK.unpack(payload)) if len(payload) == _WATERMARK.size else None


class WatermarkFile:
    """Written after each flush, without a sync of its own unless asked: after a power cut it may
    be behind the truth, never ahead of it."""

    MAGIC = b"TRWM"
    SIZE = _WATERMARK.size

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._slots = Slots(fs, side_path(folder, "watermark"), self.MAGIC)

    def load(self) -> Watermark | None:
        payload = self._slots.load()
        return Watermark.unpack(payload) if payload is not None else None

    def load_now(self) -> Watermark | None:
        payload = self._slots.load_now()
        return Watermark.unpack(payload) if payload is not None else None

    def open(self, *, write: bool = True) -> None:
        self._slots.open(write=write)

    def store(self, watermark: Watermark, sync: bool = False) -> None:
        self._slots.store(_WATERMARK.pack(*watermark), sync)

    def close(self) -> None:
        self._slots.close()


class Reserved:
    """In an `async` log readers see records that a power cut can take back. So that their offsets
    never come again, the log notes here, durably and ahead of time, how far it may hand them out;
    after a power cut it goes on from there."""

    MAGIC = b"TRRS"
    LAYOUT = struct.Struct("<Q16s")

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._slots = Slots(fs, side_path(folder, "reserved"), self.MAGIC)
        self._boot_id = fs.boot_id()
        self.offset = 0  # what this boot has reserved

    def load(self, *, cache_lost: bool = False) -> int:
        """The offset below which records may have been seen and lost. In the same boot the page
        cache has them all, unless it is known to have dropped some."""
        payload = self._slots.load()
        if payload is None or len(payload) != self.LAYOUT.size:
            return 0
        offset, boot_id = self.LAYOUT.unpack(payload)
        return int(offset) if cache_lost or boot_id != self._boot_id else 0

    def store(self, offset: int) -> None:
        self._slots.load()  # another writer may have stored one
        self._slots.store(self.LAYOUT.pack(offset, self._boot_id), sync=True)
        self.offset = offset

    def close(self) -> None:
        self._slots.close()


class StartOffset:
    """The log start offset. Both slots get every value, so that one damaged slot changes nothing
    and a crash between the two leaves the old value or the new."""

    MAGIC = b"TRST"

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._slots = Slots(fs, side_path(folder, "start"), self.MAGIC)

    def load(self) -> int:
        payload = self._slots.load()
        return int.from_bytes(payload, "little") if payload is not None else 0

    def store(self, offset: int) -> None:
        payload = offset.to_bytes(8, "little")
        self._slots.load()  # another writer may have stored one
        self._slots.store(payload, sync=True)
        self._slots.store(payload, sync=True)

    def close(self) -> None:
        self._slots.close()


# --- clean marker and poison ----------------------------------------------------------------


class CleanMarker(NamedTuple):
    """Says that the last segment is whole at `size` bytes, so that opening needs no scan.

    `boot_id` is empty when everything was synced; otherwise the marker holds for that boot only.
    """

    segment: int
    size: int
    end_offset: int
    boot_id: str

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> CleanMarker | None:
        document = load_checked_json(fs, side_path(folder, "clean"))
        return cls(*(document[key] for key in cls._fields)) if document is not None else None

    def store(self, fs: FileSystem, folder: str) -> None:
        store_checked_json(fs, side_path(folder, "clean"), self._asdict())

    @staticmethod
    def remove(fs: FileSystem, folder: str) -> None:
        try:
            fs.unlink(side_path(folder, "clean"))
        except FileNotFoundError:
            return
        fs.sync_dir(os.path.join(folder, FOLDER))


class Poison(NamedTuple):
    """A flush failed. What the page cache shows behind `position` of `segment` may not be on the
    disk, and asking again proves nothing; recovery starts from here."""

    durable: int
    segment: int
    position: int
    reason: str

    @classmethod
    def load(cls, fs: FileSystem, folder: str, mark: Watermark | None) -> Poison | None:
        """That the file exists is the message. If it cannot be read, the watermark says how far
        to go back."""
        path = side_path(folder, "poisoned")
        document = load_checked_json(fs, path)
        if document is not None:
            return cls(*(document[key] for key in cls._fields))
        if mark is None or read_file(fs, path, 0) is None:
            return None
        return cls(mark.durable, mark.segment, mark.position, "the reason cannot be read")

    def store(self, fs: FileSystem, folder: str) -> None:
        store_checked_json(fs, side_path(folder, "poisoned"), self._asdict())

    @staticmethod
    def remove(fs: FileSystem, folder: str) -> None:
        fs.unlink(side_path(folder, "poisoned"))
        fs.sync_dir(os.path.join(folder, FOLDER))


# --- seals ----------------------------------------------------------------------------------


class Seal(NamedTuple):
    """What is true of a segment file of exactly `size` bytes, and the checksums of the two index
    files that belong to it. A cache: without it the segment is scanned."""

    base: int
    size: int
    next_offset: int
    records: int
    first_timestamp: int
    max_timestamp: int
    idx_size: int
    idx_crc: int
    tix_size: int
    tix_crc: int


class Seals:
    """Entries of fixed size, appended; for a base the last valid one counts.

    There is one for each segment, of which few are ever asked for: they stay bytes until then.
    """

    MAGIC = b"TRSL"
    ENTRY = struct.Struct("<4sB3xQQQQqqIIIII")
    _BASE = struct.Struct("<8xQ60x")  # of an entry

    def __init__(self, fs: FileSystem, folder: str, *, read_only: bool = False) -> None:
        self._fs = fs
        self._path = side_path(folder, "seals")
        self._read_only = read_only
        self._entries: dict[int, Seal] = {}
        # Entries of the file as they were read, a piece at a time; and where the last one of each
        # base is, unless it is above. Replaced at one stroke: other threads may be looking.
        self._pieces: list[bytes] = []
        self._size = 0  # of them all
        self._unread: dict[int, tuple[bytes, int]] = {}

    def load(self, live_bases: set[int], *, alone: bool = False) -> None:
        """Read all; and if we are `alone`, rewrite the file when most of it is about segments that
        are gone."""
        limit = 4 * self.ENTRY.size * (len(live_bases) + 1024)
        data = read_file(self._fs, self._path, limit) or b""
        self._pieces, self._size, self._unread = [], 0, {}
        self._take_in(data)
        slots_used = -(-len(data) // self.ENTRY.size)
        for base in self._unread.keys() - live_bases:
            del self._unread[base]
        if alone and not self._read_only and slots_used > 2 * len(self._unread) + 64:
            bases = sorted(self._unread)
            seals = [seal for seal in map(self._find, bases) if seal is not None]
            data = b"".join(map(self._pack, seals))
            replace_file(self._fs, self._path, data)
            self._pieces, self._size = [data], len(data)

    def load_more(self) -> None:
        """Read what was appended since, as long as nobody has rewritten the file."""
        try:
            file = self._fs.open(self._path)
        except FileNotFoundError:
            return
        try:
            self._take_in(read_exactly(file, _SMALL, self._size))
        finally:
            file.close()

    def _take_in(self, data: bytes) -> None:
        size = self.ENTRY.size
        data = data[: len(data) // size * size]  # the last one may be about to be written
        self._pieces.append(data)
        self._size += len(data)
        for number, (base,) in enumerate(self._BASE.iter_unpack(data)):
            self._unread[base] = data, number * size
            self._entries.pop(base, None)

    def _find(self, base: int) -> Seal | None:
        place = self._unread.get(base)
        if place is not None:
            data, position = place
            found = self.parse(data[position : position + self.ENTRY.size])
            if not found:  # torn: an earlier one counts
                found = [seal for seal in self.parse(b"".join(self._pieces)) if seal.base == base]
            if found:
                self._entries[base] = found[-1]
            if self._unread.get(base) is place:
                self._unread.pop(base, None)
        return self._entries.get(base)

    @classmethod
    def parse(cls, data: bytes) -> list[Seal]:
        size = cls.ENTRY.size
        seals = []
        for position in range(0, len(data) - size + 1, size):
            magic, version, *fields, crc = cls.ENTRY.unpack_from(data, position)
            body = data[position : position + size - 4]
            if magic == cls.MAGIC and version == FORMAT and crc == crc32c(body):
                seals.append(Seal(*fields))
        return seals

    @classmethod
    def _pack(cls, seal: Seal) -> bytes:
        body = cls.ENTRY.pack(cls.MAGIC, FORMAT, *seal, 0)[:-4]
        return body + crc32c(body).to_bytes(4, "little")

    def get(self, base: int, size: int) -> Seal | None:
        seal = self._find(base)
        return seal if seal is not None and seal.size == size else None

    def add(self, seal: Seal) -> None:
        if self._find(seal.base) == seal:
            return
        self._entries[seal.base] = seal
        if self._read_only:
            return
        file = self._fs.open(self._path, write=True, create=True)
        try:
            slots_used = -(-file.size() // self.ENTRY.size)
            write_all(file, self._pack(seal), slots_used * self.ENTRY.size)
        finally:
            file.close()

    def forget(self, base: int) -> None:
        self._unread.pop(base, None)
        self._entries.pop(base, None)

    def forget_all(self) -> None:
        self._pieces, self._size, self._entries, self._unread = [], 0, {}, {}

    def void(self, base: int) -> None:
        """Outdate what is written of a segment that was cut: it may grow to the same size again."""
        if self._find(base) is not None:
            self.add(Seal(base, 0, base, 0, 0, 0, 0, 0, 0, 0))


# --- gaps -----------------------------------------------------------------------------------


class Gap(NamedTuple):
    """Offsets `first <= o < next` hold no record. `kind` is "lost" (there were records, and they
    are damaged or gone) or "skipped" (recovery stepped over numbers that may have been handed
    out). Readers refuse to pass a lost gap until it is `acknowledged`."""

    first: int
    next: int
    kind: str
    acknowledged: bool
    reason: str
    time_ms: int


class Gaps:
    """An append-only journal, one line each: the CRC in hex, a space, JSON. A later line about the
    same range replaces the earlier one."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = side_path(folder, "gaps")
        self._gaps: dict[tuple[int, int], Gap] = {}

    def load(self) -> None:
        """At one stroke: who reads in another thread looks at them any time."""
        data = b""
        with contextlib.suppress(FileNotFoundError):
            size = self._fs.stat(self._path).size
            data = read_file(self._fs, self._path, size) or b""
        self._gaps = {(gap.first, gap.next): gap for gap in self.parse(data)}

    @staticmethod
    def parse(data: bytes) -> list[Gap]:
        gaps = []
        for line in data.split(b"\n"):
            checksum, _, body = line.partition(b" ")
            if body and checksum == b"%08x" % crc32c(body):
                gaps.append(Gap(**json.loads(body)))
        return gaps

    def add(self, *gaps: Gap) -> None:
        """Record gaps, durably, before anything relies on them."""
        new = [gap for gap in gaps if self._gaps.get((gap.first, gap.next)) != gap]
        if not new:
            return
        lines = b""
        for gap in new:
            body = json.dumps(gap._asdict(), separators=(",", ":")).encode()
            lines += b"%08x %s\n" % (crc32c(body), body)
        file = self._fs.open(self._path, write=True, create=True)
        try:
            end = file.size()
            if end and read_exactly(file, 1, end - 1) != b"\n":  # a crash tore the last line
                lines = b"\n" + lines
            write_all(file, lines, end)
            file.sync()
        finally:
            file.close()
        self._fs.sync_dir(os.path.join(self._folder, FOLDER))
        self._gaps = self._gaps | {(gap.first, gap.next): gap for gap in new}

    def all(self) -> list[Gap]:
        return sorted(self._gaps.values())

    def uncovered(
        self, first: int, next_offset: int, *, acknowledged_only: bool = False
    ) -> tuple[int, int] | None:
        """The first part of this range that no recorded gap accounts for."""
        for gap in self.all():
            if acknowledged_only and not gap.acknowledged and gap.kind != "skipped":
                continue
            if gap.first <= first < gap.next:
                first = gap.next
            elif first < gap.first:
                next_offset = min(next_offset, gap.first)
                break
        return (first, next_offset) if first < next_offset else None

    def is_skipped(self, offset: int) -> bool:
        """Was the offset stepped over, so that no record ever has it?"""
        return any(gap.first <= offset < gap.next for gap in self.all() if gap.kind == "skipped")

    def last_before(self, offset: int) -> int:
        """The greatest offset below `offset` that is in no gap which readers step over."""
        for gap in reversed(self.all()):
            if (gap.acknowledged or gap.kind == "skipped") and gap.first < offset <= gap.next:
                offset = gap.first
        return offset - 1

    def reason(self, offset: int) -> str | None:
        """Why the record at `offset` is lost, if that is recorded and not acknowledged."""
        for gap in self.all():
            if gap.first <= offset < gap.next and gap.kind == "lost" and not gap.acknowledged:
                return gap.reason
        return None
