"""How many files a process may have open, about how many of them a queue takes, and what an error
says when there may be no more."""

from __future__ import annotations

import errno
import resource
from typing import Final

from tailrace.errors import TailraceError

__all__ = [
    "FILES_OF_A_GROUP",
    "FILES_OF_A_LOG",
    "FILES_OF_DELAYS",
    "advice_on",
    "lacks_files",
    "most_files",
]

FILES_OF_A_LOG: Final = 14
FILES_OF_DELAYS: Final = FILES_OF_A_LOG + 3
FILES_OF_A_GROUP: Final = 7

_FEWEST, _MOST = 256, 4096


def most_files(share: int) -> int:
    """One part in `share` of the files that this process may have open. Often that is 1,024."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST
    return min(max(limit // share, _FEWEST), _MOST)


def lacks_files(error: BaseException | None) -> bool:
    """Could something not be opened since this process, or the machine, may open no more?"""
    if isinstance(error, TailraceError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def advice_on(error: OSError) -> str:
    """What ends a message about it: nothing, unless this process may open no more."""
    if error.errno != errno.EMFILE:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f". This process may have {limit:,} files open, and a queue in use takes about "
        f"{FILES_OF_A_LOG + FILES_OF_A_GROUP}: raise the limit (ulimit -n), or use fewer at once"
    )
