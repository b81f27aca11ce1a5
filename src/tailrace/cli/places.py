"""Which folder a person means, and whether it is what they think."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TypeVar

import click

from tailrace.errors import Locked, TailraceError
from tailrace.log.sidefiles import FOLDER, side_path

__all__ = [
    "check_path",
    "find_log",
    "find_store",
    "is_log",
    "refuse_store",
    "written_by_nobody_else",
]

T = TypeVar("T")

_SEGMENT = re.compile(r"\d{20}\.seg")
_SIDE_FILES = ("log.json", "watermark")  # a store's `.tailrace` has neither


def check_path(_: click.Context, __: click.Parameter, given: T) -> T:
    """What a shell makes of a variable that is not set names nothing: taken for the working folder,
    or for the usual one, it would be another than was meant."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise click.BadParameter("the path is empty; name a file or a folder")
    return given


def find_log(given: str) -> str:
    """The log's folder: the one that was given, or `segments` in it."""
    if not os.path.exists(given):
        raise TailraceError(f"{given}: there is no such directory")
    if not os.path.isdir(given):
        raise TailraceError(
            f"{given} is a file; name the directory it is in (or look into it: tailrace dump)"
        )
    if _is_log(given):
        return given
    if _is_log_below(given):
        return os.path.join(given, "segments")
    raise TailraceError(f"{given} holds no log: there are no .seg files in it{_hint(given)}")


def is_log(given: str) -> bool:
    """Would `find_log` find one?"""
    return os.path.isdir(given) and (_is_log(given) or _is_log_below(given))


def find_store(given: str) -> str | None:
    """The folder with a store's `config` and `queues`: the one that was given, or `queue` in it;
    `None` if it is no store, and perhaps a log."""
    if not os.path.isdir(given) or _is_log(given) or _is_log_below(given):
        return None
    from tailrace.log.fs import OsFileSystem
    from tailrace.queue.layout import find_root

    root = find_root(OsFileSystem(), given)
    names = (os.path.join("config", "queues.json"), "queues")
    return root if any(os.path.exists(os.path.join(root, name)) for name in names) else None


def _is_log_below(folder: str) -> bool:
    below = os.path.join(folder, "segments")
    return os.path.isdir(below) and _is_log(below)


def _is_log(folder: str) -> bool:
    if any(os.path.exists(side_path(folder, name)) for name in _SIDE_FILES):
        return True
    return any(_SEGMENT.fullmatch(name) for name in os.listdir(folder))


def _hint(folder: str) -> str:
    """Where the log may be that was meant. A store holds many: name one."""
    above, name = os.path.split(os.path.abspath(folder))
    if name == FOLDER and _is_log(above):
        return f"; it belongs to the log {above}"
    for queues in (os.path.join(folder, "queues"), os.path.join(folder, "queue", "queues")):
        if os.path.isdir(queues):
            for name in sorted(os.listdir(queues)):
                log = os.path.join(queues, name, "segments")
                if os.path.isdir(log) and _is_log(log):
                    return f"; it looks like a store, whose logs are folders such as {log}"
    for name in sorted(os.listdir(folder)):
        below = os.path.join(folder, name)
        if os.path.isdir(below) and os.access(below, os.R_OK | os.X_OK) and _is_log(below):
            return f"; there is a log in {below}"
    return ""


def refuse_store(folder: str) -> None:
    """Raise if the log is a queue's: its consumers may need what nobody here knows about."""
    log = os.path.realpath(folder)
    queue = os.path.dirname(log)
    queues = os.path.dirname(queue)
    store = os.path.dirname(queues)
    if os.path.basename(log) != "segments":
        return
    is_queue = os.path.basename(queues) == "queues" and os.path.exists(
        os.path.join(store, "config")
    )
    if is_queue or os.path.isdir(os.path.join(store, ".tailrace")):
        raise TailraceError(
            f"{folder} is the log of the queue '{os.path.basename(queue)}' in the store {store}: "
            "its consumers may still need what would be deleted. Set the retention of the queue "
            "instead; vacuum is for a log that stands alone"
        )


@contextlib.contextmanager
def written_by_nobody_else(folder: str) -> Iterator[None]:
    """The library's error advises programs; give one that helps in a shell."""
    try:
        yield
    except Locked as error:
        who = "another process"
        if error.holder is not None and error.holder != who:
            who += f" ({error.holder})"
        raise TailraceError(f"{folder}: {who} writes to it; stop it first") from error
