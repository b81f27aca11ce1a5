"""inotify by ctypes: the kernel tells of changes to files and directories, whoever makes them.

Only what `watch.py` needs, which does not ask what happened: it wants to know which watch
descriptors were told of, and whether something happened to the watched thing itself, so that its
path may lead elsewhere now.

Importing ctypes takes long, so this module is imported by the first who watches something, or
starts a thread that does (`changes.prepare`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct

__all__ = ["OVERFLOW", "Inotify"]

OVERFLOW = -1  # the descriptor of the event that says that events were dropped

_IN_MODIFY = 0x0002
_IN_ATTRIB = 0x0004
_IN_MOVED_FROM = 0x0040
_IN_MOVED_TO = 0x0080
_IN_CREATE = 0x0100
_IN_DELETE = 0x0200
_IN_DELETE_SELF = 0x0400
_IN_MOVE_SELF = 0x0800
_IN_UNMOUNT = 0x2000
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000

# One mask for files and directories; what a file cannot do it does not tell. A file whose name is
# taken away (or given to another) while somebody has it open tells that only by IN_ATTRIB.
_NAMES = _IN_CREATE | _IN_DELETE | _IN_MOVED_FROM | _IN_MOVED_TO
_MASK = _IN_MODIFY | _IN_ATTRIB | _NAMES | _IN_DELETE_SELF | _IN_MOVE_SELF

# These tell of the watched thing itself if they carry no name; with one, of an entry in it.
_ITSELF = _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT | _IN_Q_OVERFLOW | _IN_IGNORED

_EVENT = struct.Struct("=iIII")  # wd, mask, cookie, bytes of the name that follows
_BUFFER = 8192
_READS_MAX = 100  # at a time; whoever writes without pause must not keep us here


class Inotify:
    """One inotify instance, with a bell for whoever sleeps on it. `OSError` if there can be none,
    as on systems that lack it.

    The system calls are thread-safe, and so is this, but for `sleep`, where only one may be. Each
    event is read once.
    """

    def __init__(self) -> None:
        self.fd = self._bell = -1
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            init = libc.inotify_init1
            self._add = libc.inotify_add_watch
            self._remove = libc.inotify_rm_watch
            eventfd = os.eventfd
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self.fd = init(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error("inotify_init1")
        try:
            self._bell = eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._poller = select.poll()
        self._poller.register(self.fd, select.POLLIN)
        self._poller.register(self._bell, select.POLLIN)

    def add(self, path: str) -> int:
        """Watch a path. The descriptor is the same for all paths of one inode."""
        wd: int = self._add(self.fd, os.fsencode(path), _MASK)
        if wd < 0:
            raise _error(path)
        return wd

    def remove(self, wd: int) -> None:
        """End a watch. That it is gone, because its inode is, is fine."""
        if self._remove(self.fd, wd) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise _error(f"inotify_rm_watch {wd}")

    def read(self) -> dict[int, bool]:
        """Take what there is, without waiting: watch descriptor to whether the thing itself was
        removed, renamed or the like."""
        heard: dict[int, bool] = {}
        for _ in range(_READS_MAX):
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                break
            position = 0
            while position < len(data):
                wd, mask, _cookie, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size + length
                is_itself = mask & _ITSELF != 0 and length == 0
                heard[wd] = is_itself or heard.get(wd, False)
            if len(data) < _BUFFER // 2:  # the next event would have fitted
                break
        return heard

    def sleep(self, timeout_s: float | None) -> None:
        """Return when there is something to read, or somebody rang, now or before."""
        for fd, _event in self._poller.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == self._bell:
                os.eventfd_read(fd)

    def ring(self) -> None:
        """End the sleep, or the next one."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        fds = self.fd, self._bell
        self.fd = self._bell = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
