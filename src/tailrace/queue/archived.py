"""What a queue knows of its archive: where it is, and what must not be deleted before it is there.

A checked line in `.tailrace/archive` of the queue's folder. Whoever archives writes it, and
retention reads it: while the note `holds`, whatever the limits say, only what is below `verified`
may go. All that the log had from `verified_from` up to there was read back from the archive and
compared. A log that starts before that range has got back what nobody has compared with this
archive, so nothing goes until that is done.

A note that cannot be read holds everything: nobody deletes what may be the only copy.

In a store that was restored from a backup the note tells of the archive that the backup's store has
(`restored`). It holds as it did, but the copy does not go on with it until somebody says so: both
would give the same offsets to different messages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from tailrace.errors import ConfigError, Corrupt
from tailrace.log.fs import FileSystem, read_file, replace_file
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.layout import Layout, find_base

__all__ = ["NAME", "ArchiveNote", "archive_folder", "as_restored", "check_outside", "is_note"]

NAME: Final = "archive"

_LOCK: Final = "lock.archive"
_FORMAT: Final = 1
_LARGEST: Final = 64 << 10


def archive_folder(given: str) -> str:
    """The absolute path of an archive's folder, as a person names it. An address is refused: taken
    for a path it would be a folder beside the program, and what is deleted after it was archived
    would be on the same disk as before."""
    if "://" in given:
        raise ConfigError(
            f"{given} is an address, and an archive is a folder: mount it and name the path "
            "that it has then, or name a local folder"
        )
    return os.path.abspath(given)


def check_outside(folder: str, root: str) -> None:
    """Refuse an archive in the store's own folder, by a link as well."""
    real = os.path.realpath(root)
    if os.path.commonpath([real, os.path.realpath(folder)]) == real:
        raise ConfigError(
            f"{folder} is in the store itself; name a folder beside {os.path.abspath(root)}, or "
            "elsewhere"
        )


@dataclass(frozen=True)
class ArchiveNote:
    """`place` is the archive's folder: from the store's root on, if it is in the same folder as the
    store or further inside, so that both may move together; else absolute. That root is where the
    links lead by which the store is reached, so it is the same by any of them. `incarnation` is
    that of the queue, so a note that outlived it says nothing of the next of its name."""

    incarnation: str
    place: str
    verified: int = 0
    holds: bool = False
    verified_from: int = 0
    restored: bool = False

    @classmethod
    def load(cls, fs: FileSystem, layout: Layout, queue: str) -> ArchiveNote | None:
        """`None` if the queue was never archived. `Corrupt` if the note cannot be read."""
        path = _path(layout, queue)
        try:
            data = read_file(fs, path, _LARGEST)
        except NotADirectoryError:
            return None
        if data is None:
            return None
        document = parse_line(data.removesuffix(b"\n"))
        if document is None:
            raise Corrupt(
                f"{path} is damaged, so nothing of the queue {queue!r} is deleted; archive it "
                "again with --release, which drops the note",
                path=path,
            )
        if not _is_ours(document):
            raise Corrupt(f"{path} is of a newer version of tailrace: upgrade this one", path=path)
        del document["t"], document["format"]
        return cls(**document)

    @classmethod
    def change(
        cls,
        fs: FileSystem,
        layout: Layout,
        queue: str,
        edit: Callable[[ArchiveNote | None], ArchiveNote | None],
    ) -> ArchiveNote | None:
        """Replace the note by what `edit` makes of it, durably; `None` removes it. One process at a
        time."""
        folder = os.path.join(layout.queue(queue), FOLDER)
        fs.make_dirs(folder)
        lock = fs.lock(os.path.join(folder, _LOCK))
        try:
            lock.acquire()
            before = cls.load(fs, layout, queue)
            after = edit(before)
            if after is None and before is not None:
                _remove(fs, layout, queue)
            elif after is not None and after != before:
                replace_file(fs, _path(layout, queue), _line(asdict(after)))
            else:  # whoever wrote it may not have lived to sync its name
                fs.sync_dir(folder)
            return after
        finally:
            lock.close()

    @classmethod
    def drop(cls, fs: FileSystem, layout: Layout, queue: str) -> None:
        """Remove the note, whatever it says."""
        with contextlib.suppress(FileNotFoundError):
            _remove(fs, layout, queue)

    @staticmethod
    def place_of(layout: Layout, folder: str) -> str:
        """What to note of a folder."""
        root, real = os.path.realpath(layout.root), os.path.realpath(folder)
        around = os.path.dirname(find_base(root))
        if around != os.sep and os.path.commonpath([around, real]) == around:
            return os.path.relpath(real, root)
        return os.path.abspath(folder)

    def folder(self, layout: Layout) -> str:
        """Where the archive is."""
        roots = [os.path.realpath(layout.root), os.path.abspath(layout.root)]
        places = [os.path.normpath(os.path.join(root, self.place)) for root in roots]
        # Older notes begin at the root as it was typed.
        return next((place for place in places if os.path.isdir(place)), places[0])

    def is_of(self, layout: Layout, folder: str) -> bool:
        """Whether that is the archive's folder, by whatever links."""
        return os.path.realpath(self.folder(layout)) == os.path.realpath(folder)

    def verified_of(self, start: int) -> int:
        """Below which offset everything of a log that starts there is in the archive."""
        return self.verified if start >= self.verified_from else 0

    def floor(self, incarnation: str, start: int) -> int | None:
        """Below which offset retention may delete from a log that starts there; `None` if the
        archive has no say."""
        has_say = self.holds and self.incarnation == incarnation
        return self.verified_of(start) if has_say else None


def is_note(path: str) -> bool:
    """Whether a file of a store is such a note."""
    return os.path.basename(path) == NAME and os.path.basename(os.path.dirname(path)) == FOLDER


def as_restored(data: bytes) -> bytes:
    """A note of a backup as it is to be in the store that is restored from it. One that cannot be
    read stays as it is: it holds everything, and nobody goes on with it."""
    document = parse_line(data.removesuffix(b"\n"))
    if document is None or not _is_ours(document):
        return data
    return _line({**document, "restored": True})


def _is_ours(document: dict[str, Any]) -> bool:
    return document.get("t") == "archive" and document.get("format") == _FORMAT


def _line(document: dict[str, Any]) -> bytes:
    return encode_line({"t": "archive", "format": _FORMAT, **document})


def _path(layout: Layout, queue: str) -> str:
    return os.path.join(layout.queue(queue), FOLDER, NAME)


def _remove(fs: FileSystem, layout: Layout, queue: str) -> None:
    path = _path(layout, queue)
    fs.unlink(path)
    fs.sync_dir(os.path.dirname(path))
