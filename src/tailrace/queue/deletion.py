"""How the files of a queue go.

A queue is deleted when it is not in the registry any more. Its folder outlives that for a moment,
or, if somebody is killed, for longer; a folder without an entry may also be one that FluxMQ left,
whose data is kept. So before the entry goes, the folder is marked with the queue's incarnation:
whoever makes a queue of the same name removes a marked folder first.
"""

from __future__ import annotations

import os

from tailrace.log.fs import FileSystem, read_file, remove_tree, replace_file
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.clock import SystemClock
from tailrace.queue.fluxmq_groups import FluxGroup, find_groups
from tailrace.queue.layout import Layout

__all__ = ["clear", "mark"]


def _path(folder: str) -> str:
    return os.path.join(folder, FOLDER, "deleted")


def mark(fs: FileSystem, folder: str, incarnation: str) -> None:
    """The queue in this folder is about to be deleted."""
    fs.make_dirs(os.path.join(folder, FOLDER))
    replace_file(fs, _path(folder), incarnation.encode())


def clear(fs: FileSystem, layout: Layout, name: str) -> None:
    """Remove what is left of a queue that is not in the registry, if it was deleted. Done again, it
    does the rest."""
    folder = layout.queue(name)
    incarnation = read_file(fs, _path(folder), 256)
    if incarnation is None:
        return
    for group_id, mode in find_groups(fs, layout.root, name).items():
        FluxGroup(
            fs,
            layout.root,
            name,
            group_id,
            mode=mode,
            pattern=group_id.partition("@")[2],
            clock=SystemClock(),
        ).forget()
    trash = layout.trash(incarnation.decode("ascii", "replace").replace("/", "_"))
    fs.make_dirs(os.path.dirname(trash))
    try:
        fs.rename(folder, trash)
    except FileNotFoundError:
        return  # another process was faster
    fs.sync_dir(os.path.dirname(folder))
    fs.sync_dir(os.path.dirname(trash))  # or it might come back without its mark
    remove_tree(fs, trash)
