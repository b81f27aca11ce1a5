"""Rows to a folder of files, exactly once, also for those who only look at the folder.

Spark's own sink for files leaves behind what a batch has written that was cut short, and only Spark
knows which files those are. So Spark writes each batch into a folder that nobody reads; then its
files get their names in the target, by renames, after these names were written down. A batch that
comes again removes what is there under the names of its first attempt. Of a batch without rows
Spark writes a file all the same, which stays behind.

That folder is the pipeline's own, since a pattern like `**/*.parquet` finds whatever is below the
target. Where nothing can be renamed from there, to another file system, it is in the target, under
a name that Spark and Arrow pass over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

from tailrace.log.fs import OsFileSystem
from tailrace.log.sidefiles import load_checked_json, store_checked_json
from tailrace.spark.pipelines.decoding import CSV
from tailrace.spark.pipelines.definition import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FileWriter", "as_files"]

_AS_OTHERS: Final = {  # CSV that says what it is, with blanks as they are
    "header": "true",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    **CSV,
}
_LARGEST = 1 << 26
_PART = re.compile(r"^[^.]*(\.c\d+)?")  # of a name of Spark's, before its ending


def as_files(writer: Any, to: Files) -> Any:
    """A writer of Spark's, of rows or of a stream, with the format and the folders of a target."""
    for name, value in _AS_OTHERS.items() if to.format == "csv" else ():
        writer = writer.option(name, value)
    return writer.format(to.format).partitionBy(*to.partition_by)


class FileWriter:
    """Called by Spark with each batch, one at a time."""

    def __init__(self, to: Files, scratch: str, owner: str) -> None:
        """`scratch` is ours, and on the file system of the target if that can be; `owner` is in
        the names of the files."""
        self._is_beside: bool | None = None  # is the scratch there? Unknown until it is tried
        self._to = to
        self._scratch = scratch
        self._owner = owner
        self._fs = OsFileSystem()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        os.makedirs(self._to.path, exist_ok=True)
        os.makedirs(self._scratch, exist_ok=True)
        note = os.path.join(self._scratch, "moving.json")
        self._undo(note, batch)
        name = f"_{self._owner}-{batch}.tmp"
        places = [os.path.join(folder, name) for folder in (self._scratch, self._to.path)]
        for place in places:  # an earlier attempt may have had the other one
            shutil.rmtree(place, ignore_errors=True)
        staged = places[0] if self._can_rename() else places[1]
        try:
            writer = as_files(frame.write, self._to)
            writer.mode("overwrite").save(f"file://{os.path.abspath(staged)}")
            moves = self._moves(staged, batch)
            document = {"owner": self._owner, "batch": batch, "files": list(moves.values())}
            store_checked_json(self._fs, note, document)
            for source, target in moves.items():
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(source, "rb") as file:
                    os.fsync(file.fileno())
                os.rename(source, target)
            for folder in {os.path.dirname(target) for target in moves.values()}:
                self._fs.sync_dir(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _can_rename(self) -> bool:
        """From the scratch to the target. Numbers of devices do not tell: one may be mounted
        twice, and nothing is renamed from the one place to the other."""
        if self._is_beside is None:
            tried = os.path.join(self._scratch, "tried")
            target = os.path.join(self._to.path, f"_{self._owner}.tmp")
            try:
                with open(tried, "wb"):
                    pass
                os.rename(tried, target)
                self._is_beside = True
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._is_beside = False
            finally:
                for path in (tried, target):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
        return self._is_beside

    def _undo(self, note: str, batch: int) -> None:
        """What an earlier attempt of this batch has left. One of the same number under another
        checkpoint is another batch, whose files stay."""
        found = load_checked_json(self._fs, note, _LARGEST)
        if found is not None and (found["owner"], found["batch"]) == (self._owner, batch):
            for path in found["files"]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _moves(self, staged: str, batch: int) -> dict[str, str]:
        """Each file that was written, and what it is to be called."""
        moves: dict[str, str] = {}
        for folder, _, names in sorted(os.walk(staged)):
            for name in sorted(names):
                if name.startswith(("_", ".")) or _is_empty(os.path.join(folder, name)):
                    continue
                ending = _PART.sub("", name)
                # Whatever the owner is called: readers pass over names with a '_' or a '.' first.
                made = f"part-{self._owner}-{batch:06d}-{len(moves):04d}{ending}"
                inside = os.path.relpath(folder, staged)
                target = os.path.normpath(os.path.join(self._to.path, inside, made))
                moves[os.path.join(folder, name)] = target
        return moves


def _is_empty(path: str) -> bool:
    """Has a file of Spark's no rows?"""
    if path.endswith(".parquet"):
        from pyarrow import parquet

        return bool(parquet.read_metadata(path).num_rows == 0)
    with open(path, "rb") as file:
        if path.endswith(".csv"):
            file.readline()  # the header
        return not file.read(1)
