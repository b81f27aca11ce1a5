"""From the staging folder to where readers look, and into the manifest.

Anybody may read the folder of an archive, so a file that no step names must not stay there: its
rows would be archived again, perhaps in other files. So before the files of a step are renamed,
`_tailrace/placing` says which they are, and where they are staged. Whoever opens the archive after
one who was killed finishes that step, if all of its files are as they were written, or removes
them. Whatever else is staged is removed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import Corrupt
from tailrace.log.fs import read_file, remove_tree, replace_file
from tailrace.queue.backup_files import checksum
from tailrace.queue.journal import encode_line, parse_line
from tailrace.spark.lake.manifest import Step, Writing, document_of, side_of, step_of
from tailrace.spark.lake.writing import Staged, remove

if TYPE_CHECKING:
    from tailrace.log.fs import FileSystem

__all__ = ["place", "tidy"]

_NAME: Final = "placing"
_LARGEST: Final = 1 << 26


def place(fs: FileSystem, writing: Writing, staged: Staged) -> Step:
    """Have the files of a piece count. If the disk says no before the manifest is written, nothing
    is left of it."""
    piece = staged.piece
    step = Step(piece.first, piece.last, tuple(file for _, file in staged.files))
    if staged.files:
        paths = [path for path, _ in staged.files]
        names = [os.path.relpath(path, writing.staging) for path in paths]
        note = {"t": "placing", "step": document_of(step), "staged": names}
        try:
            replace_file(fs, _path(writing.folder), encode_line(note))
            _rename(fs, writing, step, paths)
        except BaseException:
            remove(fs, [*_targets(writing.folder, step), *paths])
            raise
    writing.add([step])
    return step


def tidy(fs: FileSystem, writing: Writing) -> None:
    """Finish or remove what was left by those who were killed, or failed. With the archive's
    lock."""
    data = read_file(fs, _path(writing.folder), _LARGEST)
    note = None if data is None else parse_line(data.removesuffix(b"\n"))
    if note is not None:
        _finish(fs, writing, note)
    for entry in fs.list(writing.staging):
        path = os.path.join(writing.staging, entry.name)
        if entry.is_dir:
            remove_tree(fs, path)
        else:
            fs.unlink(path)


def _finish(fs: FileSystem, writing: Writing, note: dict[str, Any]) -> None:
    path = _path(writing.folder)
    step = step_of(note["step"], path)
    if step in writing.manifest.added:  # those without rows come behind it, and have no note
        return
    if any(writing.manifest.within(step.first, step.last)):
        raise Corrupt(f"{path} does not go with the manifest", path=path)
    targets = _targets(writing.folder, step)
    staged = [os.path.join(writing.staging, name) for name in note["staged"]]
    places = zip(step.files, targets, staged, strict=True)
    if all(
        (file.size, file.crc32c) in (checksum(fs, target), checksum(fs, source))
        for file, target, source in places
    ):
        _rename(fs, writing, step, staged)
        writing.add([step])
        return
    for target in targets:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fs.unlink(target)
            fs.sync_dir(os.path.dirname(target))


def _rename(fs: FileSystem, writing: Writing, step: Step, staged: list[str]) -> None:
    """Those that are staged; the others have been renamed."""
    targets = _targets(writing.folder, step)
    for target, path in zip(targets, staged, strict=True):
        fs.make_dirs(os.path.dirname(target))
        with contextlib.suppress(FileNotFoundError):
            fs.rename(path, target)
    # Also those above: whoever made them may not have lived to sync their names.
    parents = {os.path.dirname(target) for target in targets}
    while parents:
        for parent in sorted(parents):
            fs.sync_dir(parent)
        parents = {os.path.dirname(each) for each in parents if each != writing.folder}


def _targets(folder: str, step: Step) -> list[str]:
    return [os.path.join(folder, file.path) for file in step.files]


def _path(folder: str) -> str:
    return os.path.join(side_of(folder), _NAME)
