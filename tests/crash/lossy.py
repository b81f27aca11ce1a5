"""A file system on the real kernel that forgets what was not synced.

    with Lossy(folder) as lossy:      # mounted on the folder, empty
        ...                           # processes work there, and are killed
        lossy.crash(seed)             # a power cut; mounted again, with what it left
        ...                           # look

Its files are in the memory of a server process, on a `SimulatedDisk`: what a power cut may take
from a file or a directory is decided there, for this file system as for the tests without one. The
server adds what is a kernel's business: numbers for files, files that are open and have no name,
and directories that are as forgettable as any other name. `fuse_protocol` has the wire.

Not there: hard and symbolic links, extended attributes, owners, a rename over a directory. A
file's permissions are kept, and never lost.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.log.fs import OsFileSystem
from tailrace.testing import SimulatedDisk
from tailrace.testing.tree import Directory, Inode, Node, os_error
from tests.crash import fuse_protocol as fuse
from tests.crash.fuse_protocol import BLOCK, KernelTree, Op, Request
from tests.project import ROOT as PROJECT

__all__ = ["BootedFileSystem", "CannotMount", "Lossy"]

_PATIENCE_S = 30
_UNLIMITED = 1 << 20  # blocks
_NO_REPLACE = 1 << 0


class CannotMount(Exception):
    """This machine or this user cannot mount it; the text says why."""


# --- the test's side ------------------------------------------------------------------------


class Lossy:
    """A mounted file system and the process that serves it. Not thread-safe.

    However this object ends, the mount ends with it: `close` sees to it, and if the process of the
    test is no more, the server does.
    """

    def __init__(self, path: Path, *, seed: int = 0, strict_names: bool = True) -> None:
        """Mount it on an empty folder. `strict_names` is that of `SimulatedDisk`; `seed` is no
        more than the name of the machine, which goes into its boots."""
        if sys.platform != "linux" or not os.path.exists("/dev/fuse"):
            raise CannotMount("there is no /dev/fuse")
        if os.geteuid() != 0:
            raise CannotMount("only root may mount a file system")
        self.path = path
        self.boot_id = b""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE_S)
        self._control = ours
        words = [str(theirs.fileno()), str(path), str(seed), str(int(strict_names))]
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.lossy", *words],
                cwd=PROJECT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt of the test must not end it before the test
            )
        try:
            self._booted(self._answer())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def crash(self, seed: int) -> None:
        """Cut the power and mount what is left.

        Kill those who use the mount first, and wait for their end: what they have mapped is written
        back then, and counts as written. Whoever is left has files on a dead mount.
        """
        self._booted(self._ask("crash", seed))

    def save(self, name: str) -> None:
        """Remember the disk as it is, with what is not synced, under a name."""
        self._ask("save", name)

    def restore(self, name: str) -> None:
        """Go back to what was saved, to try another power cut. What was open is on a dead mount,
        and faults that were to come do not."""
        self._booted(self._ask("restore", name))

    def fail(self, op: str, n: int, error: int) -> None:
        """Let the n-th request from now on fail, once: `write`, `fsync`, `fsyncdir`, or any other
        by its name in `Op`. A file whose sync failed has lost what was to be synced, as on Linux:
        it reads as written, and no later sync will write it."""
        self._ask("fail", op, n, error)

    def set_full(self, limit: int | None) -> None:
        """The disk holds this many bytes, in blocks of 4096; a hole in a file takes none."""
        self._ask("set_full", limit)

    def kill_at(self, n: int, pid: int) -> None:
        """Kill a process when the n-th request from now on arrives, before it is served; whoever
        made it. Nothing is left of this after a crash."""
        self._ask("kill_at", n, pid)

    def counts(self) -> dict[str, int]:
        """How many requests of each kind there were."""
        counts: dict[str, int] = self._ask("counts")
        return counts

    @property
    def fs(self) -> OsFileSystem:
        """What a log on this mount has to use; see `BootedFileSystem`."""
        return BootedFileSystem(self.boot_id)

    def close(self) -> None:
        """End the server and the mount; it may be done twice."""
        self._control.close()  # which tells the server to leave
        try:
            self._server.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        finally:
            fuse.unmount(str(self.path))

    def _ask(self, command: str, *arguments: object) -> Any:
        self._control.send(json.dumps([command, *arguments]).encode())
        return self._answer()

    def _answer(self) -> Any:
        answer = self._control.recv(1 << 16)
        if not answer:
            raise RuntimeError("the server of the lossy file system has died")
        return json.loads(answer)

    def _booted(self, answer: dict[str, str]) -> None:
        if "refused" in answer:
            raise CannotMount(f"the mount was refused: {answer['refused']}")
        self.boot_id = bytes.fromhex(answer["boot"])


class BootedFileSystem(OsFileSystem):
    """The file system of a machine that was started anew.

    After a power cut a log finds that the boot is another one, and that the page cache is gone.
    Here the kernel stays, so somebody has to say it.
    """

    def __init__(self, boot_id: bytes) -> None:
        self._boot_id = boot_id

    def boot_id(self) -> bytes:
        return self._boot_id


# --- the server -----------------------------------------------------------------------------


class _Server:
    """Answers the kernel and the test, one at a time, in one thread."""

    def __init__(self, target: str, seed: int, *, strict_names: bool) -> None:
        self._target = target
        self._disk = SimulatedDisk(seed, clock=lambda: time.time_ns() // 1_000_000)
        self._disk._tree = KernelTree(strict=strict_names)
        self._saved: dict[str, SimulatedDisk] = {}
        self._listings: dict[int, list[tuple[str, int, bool]]] = {}  # by handle
        self._last_handle = 0
        self._counts: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], int] = {}
        self._victim: tuple[int, int] | None = None  # requests to go, descriptor of the process
        self._handlers: dict[Op, Callable[[Request], bytes]] = {
            Op.INIT: fuse.init_reply,
            Op.LOOKUP: self._look_up,
            Op.GETATTR: self._get_attributes,
            Op.SETATTR: self._set_attributes,
            Op.MKNOD: self._make_node,
            Op.MKDIR: self._make_dir,
            Op.UNLINK: self._remove,
            Op.RMDIR: self._remove,
            Op.RENAME: self._rename,
            Op.RENAME2: self._rename,
            Op.OPEN: lambda _: fuse.open_reply(),
            Op.CREATE: lambda request: self._make_node(request) + fuse.open_reply(),
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.FSYNC: self._sync,
            Op.STATFS: self._statfs,
            Op.RELEASE: lambda _: b"",
            Op.OPENDIR: self._open_dir,
            Op.READDIR: self._read_dir,
            Op.RELEASEDIR: self._release_dir,
            Op.FSYNCDIR: self._sync_dir,
        }
        self._connection = fuse.Connection(target)

    def run(self, control: socket.socket) -> None:
        """Serve until the test is done, or gone."""
        try:
            control.send(json.dumps(self._boot()).encode())
            while True:
                ready, _, _ = select.select([control.fileno(), self._connection.fd], [], [])
                if control.fileno() in ready:
                    message = control.recv(1 << 16)
                    if not message:
                        return
                    command, *arguments = json.loads(message)
                    answer = getattr(self, f"do_{command}")(*arguments)
                    control.send(json.dumps(answer).encode())
                else:
                    self._serve()
        finally:
            self._connection.close()

    # -- what the test asks for ---------------------------------------------------------------

    def do_crash(self, seed: int) -> dict[str, str]:
        self._connection.close()
        self._disk.crash(seed)
        return self._start_anew()

    def do_save(self, name: str) -> None:
        self._saved[name] = self._disk.clone()

    def do_restore(self, name: str) -> dict[str, str]:
        self._connection.close()
        self._disk = self._saved[name].clone()
        return self._start_anew()

    def do_fail(self, op: str, n: int, error: int) -> None:
        self._faults[op, self._counts[op] + n] = error

    def do_set_full(self, limit: int | None) -> None:
        self._tree.limit = None if limit is None else limit // BLOCK

    def do_kill_at(self, n: int, pid: int) -> None:
        self._spare()
        self._victim = (n, os.pidfd_open(pid))  # the number may be another's when the time comes

    def do_counts(self) -> dict[str, int]:
        return dict(self._counts)

    def _start_anew(self) -> dict[str, str]:
        self._tree.start_anew()
        self._listings.clear()
        self._faults.clear()
        self._spare()
        self._connection = fuse.Connection(self._target)
        return self._boot()

    def _spare(self) -> None:
        if self._victim is not None:
            os.close(self._victim[1])
            self._victim = None

    def _boot(self) -> dict[str, str]:
        return {"boot": self._disk.boot_id().hex()}

    @property
    def _tree(self) -> KernelTree:
        tree = self._disk._tree
        assert isinstance(tree, KernelTree)
        return tree

    # -- what the kernel asks for -------------------------------------------------------------

    def _serve(self) -> None:
        request = self._connection.receive()
        if request is None:
            return
        if request.op in (Op.FORGET, Op.BATCH_FORGET):
            for number, lookups in request.forgotten():
                self._tree.forget(number, lookups)
            return
        # If we hang, so does the test, in a system call that nothing interrupts. Dying helps.
        signal.alarm(_PATIENCE_S)
        try:
            reply = self._handle(request)
        except OSError as error:
            self._connection.reply(request, error=error.errno or errno.EIO)
        else:
            self._connection.reply(request, reply)
        signal.alarm(0)

    def _handle(self, request: Request) -> bytes:
        if self._victim is not None:
            n, fd = self._victim
            self._victim = (n - 1, fd)
            if n == 1:
                with contextlib.suppress(ProcessLookupError):  # it is dead already
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                self._spare()
        if request.op not in self._handlers:
            raise os_error(errno.ENOSYS, "")
        op = Op(request.op)
        name = op.name.lower()
        self._counts[name] += 1
        fault = self._faults.pop((name, self._counts[name]), 0)
        if fault:
            if op is Op.FSYNC:
                self._file(request).contents.lose_dirty()
            raise os_error(fault, "")
        return self._handlers[op](request)

    def _file(self, request: Request) -> Inode:
        node = self._tree.node(request.node)
        if not isinstance(node, Inode):
            raise os_error(errno.EISDIR, "")
        return node

    def _directory(self, request: Request) -> Directory:
        node = self._tree.node(request.node)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, "")
        return node

    def _attributes(self, node: Node) -> fuse.Attributes:
        facts = self._tree.facts(node)
        size, kind, links = 0, stat.S_IFDIR, 2
        if isinstance(node, Inode):
            size, kind, links = len(node.contents.cached), stat.S_IFREG, 1
        return fuse.Attributes(
            number=facts.number,
            size=size,
            blocks=len(facts.blocks),
            time_ms=node.modified_ms,
            mode=kind | facts.mode,
            links=0 if facts.nameless else links,
        )

    def _entry(self, node: Node) -> bytes:
        self._tree.know(node)
        return self._attributes(node).entry()

    def _look_up(self, request: Request) -> bytes:
        return self._entry(self._tree.find(request.path()))

    def _get_attributes(self, request: Request) -> bytes:
        return self._attributes(self._tree.node(request.node)).reply()

    def _set_attributes(self, request: Request) -> bytes:
        node = self._tree.node(request.node)
        new = request.set_attributes()
        if new.owner:
            raise os_error(errno.EPERM, "")
        if new.size is not None:
            file = self._file(request)
            self._tree.truncate(file, new.size)
            self._disk._touch(file)
        if new.mode is not None:
            self._tree.facts(node).mode = new.mode
        if new.now:
            self._disk._touch(node)
        elif new.time_ms is not None:
            node.modified_ms = new.time_ms
        return self._attributes(node).reply()

    def _make_node(self, request: Request) -> bytes:
        """MKNOD and CREATE; the mode is first in the one, and second in the other."""
        mode = request.numbers("II")[request.op == Op.CREATE]
        if not stat.S_ISREG(mode):
            raise os_error(errno.EPERM, "")
        return self._new(request, request.path(16), mode)

    def _make_dir(self, request: Request) -> bytes:
        (mode,) = request.numbers("I")
        return self._new(request, request.path(8), stat.S_IFDIR | mode)

    def _new(self, request: Request, path: str, mode: int) -> bytes:
        node = self._tree.make(path, mode)
        self._disk._touch(node)
        self._disk._touch(self._directory(request))
        return self._entry(node)

    def _remove(self, request: Request) -> bytes:
        if request.op == Op.RMDIR:
            self._tree.remove_dir(request.path())
        else:
            self._tree.unlink(request.path())
        self._disk._touch(self._directory(request))
        return b""

    def _rename(self, request: Request) -> bytes:
        size = 8 if request.op == Op.RENAME else 16
        to, flags = (*request.numbers("Q" if size == 8 else "QI"), 0)[:2]
        old, new = request.names(size)
        source, target = f"{request.node}/{old}", f"{to}/{new}"
        if flags & ~_NO_REPLACE:
            raise os_error(errno.EINVAL, target)
        if flags and self._tree.has(target):
            raise os_error(errno.EEXIST, target)
        self._tree.rename(source, target)
        for number in (request.node, to):
            self._disk._touch(self._tree.node(number))
        return b""

    def _read(self, request: Request) -> bytes:
        _, position, size = request.read()
        return bytes(self._file(request).contents.cached[position : position + size])

    def _write(self, request: Request) -> bytes:
        file = self._file(request)
        position, data = request.write()
        size = self._tree.take_space(file, position, position + len(data)) - position
        if data and not size:
            raise os_error(errno.ENOSPC, "")
        file.contents.write(data[:size], position)
        self._disk._touch(file)
        return fuse.write_reply(size)

    def _sync(self, request: Request) -> bytes:
        file = self._file(request)
        file.contents.sync()
        self._tree.file_synced(file)
        return b""

    def _sync_dir(self, request: Request) -> bytes:
        self._tree.sync_directory(self._directory(request))
        return b""

    def _statfs(self, _: Request) -> bytes:
        blocks = _UNLIMITED if self._tree.limit is None else self._tree.limit
        return fuse.statfs_reply(blocks, max(0, blocks - self._tree.used()))

    def _open_dir(self, _: Request) -> bytes:
        self._last_handle += 1
        return fuse.open_reply(self._last_handle)

    def _read_dir(self, request: Request) -> bytes:
        """The names as they were when the reading began."""
        handle, first, size = request.read()
        if first == 0:
            self._listings[handle] = [
                (name, self._tree.facts(node).number, isinstance(node, Directory))
                for name, node in self._directory(request).entries.items()
            ]
        return fuse.directory_reply(self._listings[handle], first, size)

    def _release_dir(self, request: Request) -> bytes:
        (handle,) = request.numbers("Q")
        self._listings.pop(handle, None)
        return b""


def _main(control_fd: str, target: str, seed: str, strict_names: str) -> None:
    with socket.socket(fileno=int(control_fd)) as control:
        try:
            server = _Server(target, int(seed), strict_names=bool(int(strict_names)))
        except OSError as error:
            control.send(json.dumps({"refused": str(error)}).encode())
            return
        server.run(control)


if __name__ == "__main__":
    _main(*sys.argv[1:])
