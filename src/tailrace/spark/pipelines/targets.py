"""Whether a pipeline may write where it is told to, as far as that is a folder of this machine."""

from __future__ import annotations

import os

from tailrace.errors import ConfigError, TailraceError
from tailrace.log.fs import OsFileSystem
from tailrace.queue.archived import check_outside
from tailrace.queue.layout import find_root
from tailrace.spark.checkpoints import is_local
from tailrace.spark.lake.manifest import archive_around
from tailrace.spark.pipelines.definition import Definition, Files

__all__ = ["check_places"]


def check_places(store: str, definition: Definition) -> None:
    """`TailraceError` if its files would be among those of a store or an archive, where others take
    them for their own; or if there is a file where a folder is to be."""
    to, checkpoint = definition.to, definition.checkpoint
    try:
        if checkpoint is not None and is_local(checkpoint):
            _check_folder("checkpoint", checkpoint.removeprefix("file://"))
        if isinstance(to, Files) and is_local(to.path):
            _check_target(to.path.removeprefix("file://"), store)
    except ConfigError as error:
        raise TailraceError(f"pipeline {definition.name!r}: {error}") from None


def _check_target(folder: str, store: str) -> None:
    _check_folder("to.path", folder)
    try:
        check_outside(folder, find_root(OsFileSystem(), os.path.abspath(store)))
    except ConfigError as error:
        raise ConfigError(f"to.path: {error}") from None
    around = archive_around(folder)
    if around is not None:
        raise ConfigError(f"to.path: {around} is an archive of a queue; name another folder")


def _check_folder(key: str, path: str) -> None:
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise ConfigError(f"{key}: {path} is a file, not a folder; name another one")
