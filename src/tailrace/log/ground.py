"""Is a directory on a file system that a log can be written on?

The writer's lock and the order of its writes hold within one kernel. On a network file system each
machine has locks and a page cache of its own, so that two of them may write to one log, and a flush
may end in the memory of a server. A log that is written there works until the day it is damaged,
so it is refused before that.

The folders that a host shares with a virtual machine are no better: as a rule (virtiofs: unless its
server is told otherwise) the guest keeps the locks to itself, so that the host, and every other
guest, may write at the same time; and each of them has a page cache. As long as one guest has the
folder to itself nothing happens, but it cannot know that. Docker Desktop runs containers in such a
guest, where all that is not in a volume is a folder of the host.

What cannot be found out is allowed: a wrong refusal stops somebody for good, and the lock still
does what it can. Nothing is kept between calls, so this is thread-safe, and a directory that is
mounted elsewhere later is looked at anew.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from typing import NamedTuple

from tailrace.errors import ConfigError

__all__ = ["LAYOUTS", "Layout", "Mount", "find_mount", "parse_mount", "refuse_network"]

MOUNTINFO = "/proc/self/mountinfo"

# File systems of other machines, of clusters, and of the host that a virtual machine runs on.
_KERNEL = """
    9p acfs afp afpfs afs auristorfs beegfs ceph cifs coda cvfs davfs dvs fakeowner fhgfs gfs gfs2
    glusterfs gpfs kafs lustre lustre_lite mmfs ncpfs nfs nfs3 nfs4 ocfs2 orangefs panfs prl_fs
    pvfs2 shfs smb smb2 smb3 smbfs vboxsf virtiofs vmhgfs webdav wekafs
"""

# Those that a program serves: the type is `fuse.NAME`, or plain `fuse` and the source has the name.
_PROGRAMS = """
    alluxio alluxio-fuse blobfuse blobfuse2 ceph-fuse cephfs curlftpfs cvmfs2 davfs2 fuse_dfs ftpfs
    gcsfuse gdfuse geesefs goofys google-drive-ocamlfuse grpcfuse gvfsd-fuse hdfs httpfs juicefs
    lizardfs mfs mfsmount moosefs mount-s3 mountpoint-s3 objectivefs onedriver osxfs prl_fsd quobyte
    rclone s3backer s3fs s3ql saunafs seaweedfs smbnetfs sshfs vmhgfs-fuse weed xtreemfs
"""

_NETWORK = frozenset(_KERNEL.split())
_SERVED = _NETWORK.union(_PROGRAMS.split())


class Mount(NamedTuple):
    """A mounted file system. `device` is "major:minor" (Linux only); `remote` says that the kernel
    calls it so, whatever its type (macOS and BSD only)."""

    device: str
    point: str
    type: str
    source: str
    remote: bool = False

    @property
    def is_network(self) -> bool:
        family, _, served = self.type.partition(".")
        if family in ("fuse", "fuseblk"):
            served = served or re.split("[#:]", self.source)[0]
            return self.remote or served.lower() in _SERVED
        return self.remote or self.type in _NETWORK


def refuse_network(path: str, *, mountinfo: str = MOUNTINFO) -> None:
    """Raise `ConfigError` if `path` is on a file system of a network, a cluster or a host. It need
    not exist: the nearest directory above it that does decides."""
    try:
        if sys.platform == "linux":
            mount = _ask_mountinfo(path, mountinfo)
        else:
            mount = _ask_statfs(path)
    except OSError:
        return
    if mount is not None and mount.is_network:
        raise ConfigError(
            f"{path} is on a file system of type {mount.type} (mounted at {mount.point}), and a "
            "log cannot be written there: locks and the page cache are not shared between "
            "machines, so two writers could damage the log, and fsync may not mean what it says. "
            "Put the log on a local disk (with Docker Desktop: in a volume, not in a folder of the "
            "host); reading it with read_only=True still works"
        )


def _nearest_directory(path: str) -> tuple[str, int | None]:
    """What exists of a path, and its device: `None` if it cannot be looked at, as on a server that
    went away."""
    is_real = False
    while True:
        try:
            # The dot has an automounter mount what would be mounted on the first use.
            return path, os.stat(os.path.join(path, ".")).st_dev
        except (FileNotFoundError, NotADirectoryError):
            # A link to nowhere is a place to be: the way up starts where it points to.
            path = os.path.dirname(path) if is_real else os.path.realpath(path)
            is_real = True
        except OSError:
            return path, None


# --- Linux ----------------------------------------------------------------------------------


def _ask_mountinfo(path: str, mountinfo: str) -> Mount | None:
    # First, so that what this mounts is in the table.
    directory, device = _nearest_directory(path)
    with open(mountinfo, "rb", buffering=0) as file:
        return find_mount(file.readall(), directory, device)


def find_mount(table: bytes, directory: str, device: int | None) -> Mount | None:
    """The file system of a directory, from the text of mountinfo.

    The device number tells, whatever is mounted over or bound to what. Some file systems show
    numbers that are not in the table (btrfs has one for each subvolume); then the place does: the
    mount point with the longest name above the directory, and the last one there, since it hides
    the others.
    """
    lines = table.split(b"\n")
    if device is not None:
        number = f"{os.major(device)}:{os.minor(device)}"
        field = f" {number} ".encode()
        found = [parse_mount(line) for line in lines if field in line]  # a table may be long
        same = [mount for mount in found if mount is not None and mount.device == number]
        if same:  # of one type; the place is for the message
            return (_above(directory, same) if same[-1].is_network else None) or same[-1]
    return _above(directory, [mount for line in lines if (mount := parse_mount(line)) is not None])


def parse_mount(line: bytes) -> Mount | None:
    """A line of mountinfo; `None` if it is something else. The number of fields before the dash
    varies, and the source may be empty: proc_pid_mountinfo(5)."""
    fields = line.split(b" ")
    try:
        dash = fields.index(b"-", 6)
        device, point, kind, source = (fields[i] for i in (2, 4, dash + 1, dash + 2))
    except (ValueError, IndexError):
        return None
    return Mount(_unescape(device), _unescape(point), _unescape(kind), _unescape(source))


def _unescape(field: bytes) -> str:
    if b"\\" in field:  # white space and backslashes come in octal
        field = re.sub(rb"\\([0-3][0-7]{2})", lambda found: bytes([int(found[1], 8)]), field)
    return os.fsdecode(field)


def _above(directory: str, mounts: list[Mount]) -> Mount | None:
    real = os.path.realpath(directory)
    best: Mount | None = None
    for mount in mounts:
        is_above = f"{real}/".startswith(mount.point.rstrip("/") + "/")
        if is_above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


# --- macOS and FreeBSD ----------------------------------------------------------------------

_MNT_LOCAL = 0x1000
_STATFS_BYTES = 4096  # more than any `struct statfs` has


class Layout(NamedTuple):
    """Where the facts are in a `struct statfs`: the offsets of `f_flags` (and its format),
    `f_fstypename`, `f_mntonname` and `f_mntfromname`."""

    flags: int
    flags_format: str
    type: int
    point: int
    source: int

    def parse(self, data: bytes) -> Mount:
        (flags,) = struct.unpack_from(self.flags_format, data, self.flags)
        kind, point, source = (
            os.fsdecode(data[start : data.index(b"\0", start)])
            for start in (self.type, self.point, self.source)
        )
        return Mount("", point, kind, source, remote=not flags & _MNT_LOCAL)


LAYOUTS = {
    "darwin": Layout(64, "=I", 72, 88, 1112),  # with 64-bit inodes
    "freebsd": Layout(8, "=Q", 280, 1320, 296),  # since FreeBSD 12
}


def _ask_statfs(path: str) -> Mount | None:
    layout = LAYOUTS.get(sys.platform.rstrip("0123456789"))
    if layout is None:
        return None
    directory, _device = _nearest_directory(path)
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        # On Intel, macOS keeps the plain name for the struct that it had before.
        statfs = getattr(libc, "statfs$INODE64", None) or libc.statfs
        data = ctypes.create_string_buffer(_STATFS_BYTES)
        return layout.parse(data.raw) if statfs(os.fsencode(directory), data) == 0 else None
    except (ImportError, AttributeError, ValueError):
        return None
