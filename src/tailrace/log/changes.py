"""What changed at some paths: the kernel tells, and where it does not, we look.

inotify tells of a path that has a watch descriptor. The others are looked at: `stat` of a file, or
of a directory and (unless only its names count) all that is in it, compared with the last time.
That is so for all of them where there is no inotify, or no instance to be had; for one if the
kernel has no watch left for it, or if nothing is there any more. A path that is looked at is given
to inotify as soon as it is seen to change. So a file that is removed and made anew, or replaced by
another, is not lost. (A directory that is removed while somebody has it open says so only when it
is closed.)

The time of the last change is coarse, and a second change right after one that was seen may leave
it as it is. So each change that is seen is told again a little later, and once more for clocks that
are coarser still.

Not thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from tailrace.log.inotify import Inotify

__all__ = ["LOOK_FIRST_S", "LOOK_LAST_S", "Changes", "Place", "prepare"]

Owner = TypeVar("Owner")

# How often to look: at first, and when nothing happens less and less often.
LOOK_FIRST_S: Final = 0.001
LOOK_LAST_S: Final = 0.010
_LOOK_GROWTH = 1.25

# When to tell again of a change: clocks of file systems tick every few milliseconds, those of old
# ones every two seconds.
_ECHOES_S = (0.020, 2.1)

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM)


class Place(Generic[Owner]):
    """A path, for somebody. It has a watch descriptor, or is looked at. `names_only` is a directory
    of which only the names count; a look at it is quick, however many there are."""

    __slots__ = ("_echoes", "_signature", "names_only", "owner", "path", "wd")

    def __init__(self, owner: Owner, path: str, *, names_only: bool = False) -> None:
        self.owner = owner
        self.path = path
        self.names_only = names_only
        self.wd = -1
        self._signature: object = None
        self._echoes: list[float] = []

    def note(self, signature: object) -> None:
        self._signature = signature
        now = time.monotonic()
        self._echoes = [now + delay for delay in _ECHOES_S]

    def has_changed(self, signature: object) -> bool:
        """Since it was last noted or asked."""
        if signature != self._signature:
            self.note(signature)
            return True
        if self._echoes and time.monotonic() >= self._echoes[0]:
            del self._echoes[0]
            return True
        return False


class Changes(Generic[Owner]):
    """Places, and whose changed. Places that lead to the same inode share a watch descriptor; it
    goes with the last of them."""

    def __init__(self) -> None:
        self.inotify: Inotify | None = None
        self.complaint: OSError | None = None  # the last failure that a person can do something for
        self.look_every_s = LOOK_FIRST_S
        self.is_open = False
        self._places: set[Place[Owner]] = set()  # all; each is also in one of the following
        self._heard: dict[int, set[Place[Owner]]] = {}
        # If there are any, somebody must call `take` every `look_every_s`.
        self.looked: set[Place[Owner]] = set()

    def add(self, place: Place[Owner]) -> None:
        """Tell of a place from now on. If it was added before: of what is there now."""
        self._places.add(place)
        wd = self._watch_descriptor(place.path)
        if wd != place.wd:
            self._detach(place)
        place.wd = wd
        if wd >= 0:
            self._heard.setdefault(wd, set()).add(place)
        elif place not in self.looked:
            place.note(_signature(place.path, place.names_only))
            self.looked.add(place)
            self.look_every_s = LOOK_FIRST_S

    def remove(self, place: Place[Owner]) -> None:
        self._places.discard(place)
        self._detach(place)

    def _detach(self, place: Place[Owner]) -> None:
        self.looked.discard(place)
        places = self._heard.get(place.wd, set())
        if place in places:
            places.remove(place)
            if not places:
                del self._heard[place.wd]
                if self.inotify is not None:
                    self.inotify.remove(place.wd)

    def take(self) -> Collection[Owner]:
        """Whose places have changed, each once."""
        owners: dict[Owner, None] = {}
        if self.inotify is not None:
            for wd, is_itself in self.inotify.read().items():
                if wd < 0:  # events were dropped
                    owners.update(self.renew())
                    continue
                places = self._heard.get(wd, set())  # none: it was removed after it happened
                for place in places:
                    owners[place.owner] = None
                if is_itself:  # the path may lead to something else now
                    for place in list(places):
                        self.add(place)
        if self.looked:
            owners.update(self._look())
        return owners

    def renew(self) -> dict[Owner, None]:
        """We cannot be sure to have heard of everything, or an interrupt has left something half
        done: begin anew, and name everybody."""
        for place in self._places:
            self.add(place)
        return dict.fromkeys(place.owner for place in self._places)

    def _look(self) -> dict[Owner, None]:
        looks = {(place.path, place.names_only) for place in self.looked}
        signatures = {look: _signature(*look) for look in looks}
        changed = [p for p in self.looked if p.has_changed(signatures[p.path, p.names_only])]
        slower = min(self.look_every_s * _LOOK_GROWTH, LOOK_LAST_S)
        self.look_every_s = LOOK_FIRST_S if changed else slower
        for place in changed:
            self.add(place)
        return dict.fromkeys(place.owner for place in changed)

    def _watch_descriptor(self, path: str) -> int:
        self.open()
        if self.inotify is None:
            return -1
        try:
            return self.inotify.add(path)
        except OSError as error:  # nothing is there, or it may not be read, or there is no room
            if error.errno in _NO_ROOM:
                self.complaint = error
            return -1

    def open(self) -> None:
        """Ask the kernel for an instance, once; the first place does, too."""
        if self.is_open:
            return
        if _asks_kernel():
            from tailrace.log.inotify import Inotify

            try:
                self.inotify = Inotify()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self.complaint = error
        self.is_open = True

    def close(self) -> Iterable[Owner]:
        """Forget all places, without a word to the kernel but that we close our descriptors: a
        forked child's parent has them too. Returns whose they were."""
        owners = dict.fromkeys(place.owner for place in self._places)
        if self.inotify is not None:
            self.inotify.close()
        self.inotify = None
        self._places.clear()
        self._heard.clear()
        self.looked.clear()
        return owners


def prepare() -> None:
    """Import what takes long, for one who starts a thread that watches. A child that is forked
    while another thread imports a module never gets the rest of it."""
    if _asks_kernel():
        import tailrace.log.inotify  # noqa: F401


def _asks_kernel() -> bool:
    return os.environ.get("TAILRACE_WATCH") != "poll"


def _signature(path: str, names_only: bool) -> object:
    """What differs when a file has changed, or a directory or anything in it; `None` if nothing is
    there. The order of a listing does not count."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    entries = set()
    if stat.S_ISDIR(found.st_mode) and not names_only:
        # Whatever goes between one look and the next shows in the directory itself.
        with contextlib.suppress(OSError), os.scandir(path) as listing:
            for entry in listing:
                with contextlib.suppress(OSError):
                    st = entry.stat()
                    entries.add((entry.name, st.st_mtime_ns, st.st_size, st.st_ino))
    return found.st_mtime_ns, found.st_size, found.st_ino, frozenset(entries)
