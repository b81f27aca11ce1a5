# cython: language_level=3
"""Locks on files that are free, most likely: the compiled twin of `tailrace.kernel.pure.flock`."""

import cython
from cython.cimports.cpython.exc import PyErr_SetFromErrno
from cython.cimports.libc.errno import EAGAIN, errno
from cython.cimports.tailrace.kernel.compiled.flock import LOCK_EX, LOCK_NB, LOCK_UN, flock


def lock_now(fd: cython.int):
    """Lock an open file if nobody has; neither call waits."""
    if flock(fd, LOCK_EX | LOCK_NB) == 0:
        return True
    if errno == EAGAIN:
        return False
    PyErr_SetFromErrno(OSError)


def unlock(fd: cython.int):
    if flock(fd, LOCK_UN) != 0:
        PyErr_SetFromErrno(OSError)
