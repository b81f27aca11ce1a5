"""A log is written on file systems of this machine, and on no other."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tailrace.log.log as log_module
from tailrace import ConfigError, Log
from tailrace.log.ground import LAYOUTS, Mount, find_mount, parse_mount, refuse_network

NETWORK = [
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.ceph", "fuse.glusterfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.goofys", "fuse.gcsfuse", "davfs", "lustre",
    "gpfs", "beegfs", "ocfs2", "gfs2", "9p", "vboxsf", "glusterfs", "fuse.juicefs",
    "fuse.vmhgfs-fuse", "virtiofs", "fakeowner", "fuse.grpcfuse", "fuse.osxfs", "prl_fs",
    "fuse.prl_fsd",
]  # fmt: skip

LOCAL = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay",
    "apfs", "hfs", "ufs", "vfat", "exfat", "ntfs3", "fuseblk", "fuse", "fuse.ntfs-3g",
    "fuse.bindfs", "fuse.gocryptfs", "fuse.fuse-overlayfs", "ecryptfs", "nilfs2", "", "nfsd",
]  # fmt: skip

NOBODYS = os.makedev(0, 9999)  # a device that is in no table


def line(
    point: str, kind: str, device: str = "0:50", *, source: str = "src", tags: str = ""
) -> str:
    return f"36 25 {device} / {point} rw,relatime {tags}- {kind} {source} rw\n"


def device_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Write a mountinfo, and say where it is."""

    def write(*lines: str) -> str:
        (tmp_path / "mountinfo").write_text("".join(lines))
        return str(tmp_path / "mountinfo")

    return write


# --- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        pytest.param(
            "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard",
            Mount("254:0", "/", "ext4", "/dev/vda"),
            id="plain",
        ),
        pytest.param(
            "36 35 98:0 /part /whole rw,noatime master:1 shared:7 - ext3 /dev/root rw",
            Mount("98:0", "/whole", "ext3", "/dev/root"),
            id="optional fields",
        ),
        pytest.param(
            "40 27 0:44 / /a\\040b\\011c\\012d\\134e rw - nfs4 srv:/my\\040data rw",
            Mount("0:44", "/a b\tc\nd\\e", "nfs4", "srv:/my data"),
            id="escapes",
        ),
        pytest.param("40 27 0:44 / /a rw - tmpfs  rw", Mount("0:44", "/a", "tmpfs", ""), id="bare"),
        pytest.param(
            "40 27 0:44 / - rw - - - -", Mount("0:44", "-", "-", "-"), id="dashes everywhere"
        ),
        pytest.param("", None, id="empty"),
        pytest.param("40 27 0:44 / /a rw shared:1", None, id="no dash"),
        pytest.param("40 27 0:44 / /a rw - nfs", None, id="cut short"),
        pytest.param("nonsense", None, id="nonsense"),
    ],
)
def test_a_line_of_the_table(text: str, mount: Mount | None) -> None:
    assert parse_mount(text.encode()) == mount


def test_a_mount_point_that_is_not_utf8() -> None:
    mount = parse_mount(b"40 27 0:44 / /caf\xe9\\377 rw - ext4 /dev/sda rw")
    assert mount is not None
    assert os.fsencode(mount.point) == b"/caf\xe9\xff"


@pytest.mark.parametrize("kind", NETWORK)
def test_a_network_file_system(kind: str) -> None:
    assert Mount("0:1", "/", kind, "somewhere").is_network


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_file_system(kind: str) -> None:
    assert not Mount("0:1", "/", kind, "/dev/sda1").is_network


@pytest.mark.parametrize(
    ("source", "is_network"),
    [
        ("sshfs#me@host:/data", True),
        ("s3fs", True),
        ("JuiceFS:volume", True),
        ("gcsfuse", True),
        ("grpcfuse", True),
        ("/dev/fuse", False),
        ("", False),
        ("encfs", False),
    ],
)
def test_a_fuse_mount_without_a_subtype_is_told_by_its_source(
    source: str, is_network: bool
) -> None:
    assert Mount("0:1", "/", "fuse", source).is_network == is_network


# --- which mount it is ----------------------------------------------------------------------


def found(lines: list[str], directory: str, device: int | None = NOBODYS) -> str:
    mount = find_mount("".join(lines).encode(), directory, device)
    return mount.source if mount is not None else "none"


def test_the_device_decides_before_the_place() -> None:
    table = [line("/", "ext4", "8:1", source="disk"), line("/far", "nfs4", "0:50", source="nfs")]
    assert found(table, "/far/log", os.makedev(8, 1)) == "disk"
    assert found(table, "/far/log", os.makedev(0, 50)) == "nfs"
    assert found(table, "/near/log", os.makedev(0, 50)) == "nfs"  # by a way that is not shown
    assert found(table, "/far/log", os.makedev(0, 5)) == "nfs"
    assert found(table, "/near/log", os.makedev(0, 5)) == "disk"


def test_a_number_elsewhere_in_a_line_is_not_its_device() -> None:
    table = [line("/", "nfs4", "8:1", source="0:5"), line("/a", "ext4", "0:5", source="disk")]
    assert found(table, "/b", os.makedev(0, 5)) == "disk"
    assert found(table[:1], "/b", os.makedev(0, 5)) == "0:5"  # found by its place


def test_the_longest_mount_point_above_the_path_decides() -> None:
    table = [
        line("/a/b", "ext4", source="inner"),
        line("/", "ext4", source="root"),
        line("/a", "ext4", source="outer"),
    ]
    for directory, source in {
        "/": "root",
        "/x": "root",
        "/ab": "root",
        "/a": "outer",
        "/a/bc": "outer",
        "/a/b": "inner",
        "/a/b/c/d": "inner",
    }.items():
        assert found(table, directory) == source, directory


def test_of_mounts_over_each_other_the_last_one_counts() -> None:
    table = [line("/a", "nfs", source="first"), line("/a", "ext4", source="second")]
    assert found(table, "/a/log") == "second"
    assert found(table[::-1], "/a/log") == "first"


def test_a_bind_mount_has_the_type_of_its_device() -> None:
    """The message names the mount that the path leads through."""
    table = [
        line("/export", "nfs4", "0:50", source="export"),
        line("/bound", "nfs4", "0:50", source="bound"),
        line("/other", "nfs4", "0:50", source="other"),
    ]
    assert found(table, "/bound/log", os.makedev(0, 50)) == "bound"
    assert found(table, "/elsewhere", os.makedev(0, 50)) == "other"


def test_no_mount_above_the_path() -> None:
    assert found([line("/a", "nfs")], "/b") == "none"
    assert found([], "/b") == "none"
    assert found(["junk\n", "\n"], "/b", None) == "none"


def test_a_directory_that_cannot_be_looked_at_is_told_by_its_place() -> None:
    assert found([line("/a", "nfs", source="gone")], "/a/log", None) == "gone"


# --- refusing -------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "log", "not/there/yet"])
def test_where_the_tests_run(below: str, tmp_path: Path) -> None:
    refuse_network(str(tmp_path / below))


@pytest.mark.parametrize("kind", NETWORK)
def test_a_refusal_says_what_is_wrong_and_what_to_do(
    kind: str, tmp_path: Path, table: Callable[..., str]
) -> None:
    mountinfo = table(line(str(tmp_path), kind, device_of(tmp_path)))
    with pytest.raises(ConfigError) as caught:
        refuse_network(str(tmp_path / "log"), mountinfo=mountinfo)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'log'} is on a file system of type {kind} ")
    assert f"(mounted at {tmp_path})" in message
    for reason in ("locks", "page cache", "two writers", "fsync", "local disk", "read_only=True"):
        assert reason in message


@pytest.mark.parametrize(
    ("share", "kind"),
    [
        ("/run/host_mark/data /data rw - fakeowner /run/host_mark/data rw", "fakeowner"),
        ("/data /data rw - virtiofs virtiofs0 rw", "virtiofs"),
        ("/data /data rw - fuse.grpcfuse grpcfuse rw,user_id=0", "fuse.grpcfuse"),
    ],
)
def test_a_folder_of_the_host_in_a_container(share: str, kind: str) -> None:
    """A volume beside it is on a disk of the virtual machine, and so are the container's files."""
    table = "\n".join(
        [
            "1 0 0:60 / / rw - overlay overlay rw,lowerdir=/l",
            "2 1 254:1 /docker/volumes/v/_data /volume rw - ext4 /dev/vda1 rw",
            f"3 1 0:61 {share}",
        ]
    ).encode()
    shared = find_mount(table, "/data/log", os.makedev(0, 61))
    assert shared is not None
    assert (shared.type, shared.point, shared.is_network) == (kind, "/data", True)
    for directory, device in (("/volume/log", (254, 1)), ("/log", (0, 60))):
        local = find_mount(table, directory, os.makedev(*device))
        assert local is not None
        assert not local.is_network


def test_a_log_is_refused_for_writing_and_can_be_read(
    tmp_path: Path, table: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log") as log:
        log.append([b"x"]).wait()
    mountinfo = table(line(str(tmp_path), "nfs4", device_of(tmp_path)))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(log_module, "refuse_network", partial(refuse_network, mountinfo=mountinfo))
    with pytest.raises(ConfigError, match="of type nfs4"):
        Log(tmp_path / "log")
    with pytest.raises(ConfigError, match="of type nfs4"):
        Log(tmp_path / "another")
    assert sorted(tmp_path.rglob("*")) == before
    with Log(tmp_path / "log", read_only=True) as log:
        assert [record.value for record in log.read()] == [b"x"]


def test_by_the_place_of_a_mount_point_with_blanks(
    tmp_path: Path, table: Callable[..., str]
) -> None:
    folder = tmp_path / "my share"
    folder.mkdir()
    mountinfo = table(line("/", "ext4"), line(str(folder).replace(" ", "\\040"), "cifs"))
    refuse_network(str(tmp_path), mountinfo=mountinfo)
    with pytest.raises(ConfigError, match=r"type cifs \(mounted at .*my share\)"):
        refuse_network(str(folder / "log"), mountinfo=mountinfo)


def test_the_nearest_directory_that_exists_decides(
    tmp_path: Path, table: Callable[..., str]
) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "file").touch()
    mountinfo = table(line("/", "ext4"), line(str(tmp_path / "share"), "nfs4"))
    refuse_network(str(tmp_path / "share2" / "log"), mountinfo=mountinfo)
    for below in ("log", "a/b/c", "file", "file/log", "a/../log"):
        with pytest.raises(ConfigError, match="nfs4"):
            refuse_network(str(tmp_path / "share" / below), mountinfo=mountinfo)


def test_links_are_followed(tmp_path: Path, table: Callable[..., str]) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to("share")
    (tmp_path / "to nowhere").symlink_to("share/not/there")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "share" / "out").symlink_to(tmp_path)
    mountinfo = table(line("/", "ext4"), line(str(tmp_path / "share"), "nfs4"))
    for name in ("link", "link/log", "to nowhere", "to nowhere/log"):
        with pytest.raises(ConfigError, match="nfs4"):
            refuse_network(str(tmp_path / name), mountinfo=mountinfo)
    for name in ("share/out", "link/out/log", "loop", "loop/log"):
        refuse_network(str(tmp_path / name), mountinfo=mountinfo)


def test_a_relative_path(
    tmp_path: Path, table: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mountinfo = table(line(str(tmp_path), "nfs4"))
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", "log", "a/log"):
        with pytest.raises(ConfigError, match="nfs4"):
            refuse_network(path, mountinfo=mountinfo)


def test_a_working_directory_that_is_gone(
    tmp_path: Path, table: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes next will say so better."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    refuse_network("log", mountinfo=table(line("/", "nfs4")))


def test_a_table_that_cannot_be_read_is_no_reason_to_refuse(
    tmp_path: Path, table: Callable[..., str]
) -> None:
    refuse_network(str(tmp_path), mountinfo=str(tmp_path / "missing"))
    refuse_network(str(tmp_path), mountinfo=str(tmp_path))
    refuse_network(str(tmp_path), mountinfo=table())
    refuse_network(str(tmp_path), mountinfo=table("not\n", "a table"))


# --- real mounts ----------------------------------------------------------------------------

MOUNTS = """
import ctypes, json, os, sys
import tailrace.log.log as log_module
from tailrace import ConfigError, Log
from tailrace.log.ground import refuse_network

libc = ctypes.CDLL(None, use_errno=True)
BIND = 4096

def mount(source, name, kind, flags=0, data=""):
    words = [word.encode() for word in (source, name, kind)]
    if libc.mount(*words, flags, data.encode()):
        print(json.dumps(os.strerror(ctypes.get_errno())))
        sys.exit()

def verdict(path):
    try:
        refuse_network(path)
    except ConfigError as error:
        return str(error).split(", and a log")[0].removeprefix(path + " is on a ")
    return "allowed"

os.chdir(sys.argv[1])
for name in ("memory", "a b", "bound", "dead", "hidden"):
    os.mkdir(name)
"""

LOCAL_MOUNTS = """
mount("none", "memory", "tmpfs")
mount("none", "a b", "tmpfs")
os.mkdir("memory/sub")
mount("memory/sub", "bound", "", BIND)
print(json.dumps([verdict(name) for name in ("memory", "memory/x/y", "a b", "bound", "bound/x")]))
"""

DEAD_MOUNT = """
def mount_dead(name):
    server = os.open("/dev/fuse", os.O_RDWR)
    try:
        mount("me@host:", name, "fuse.sshfs", 0,
              f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}")
    finally:
        os.close(server)  # the server goes away: every look at it fails now

mount_dead("dead")
mount_dead("hidden")
mount("none", "hidden", "tmpfs")
print(json.dumps([verdict(name) for name in ("dead", "dead/log", "hidden", "hidden/log", ".")]))
"""


def in_a_namespace(code: str, folder: Path) -> list[str]:
    """Run code that may mount, if any process may here. The mounts end with it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    inside = [unshare, "--user", "--map-root-user", "--mount"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("a process may not have mounts of its own here")
    done = subprocess.run(
        [*inside, sys.executable, "-c", MOUNTS + code, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if isinstance(answer, str):
        pytest.skip(f"cannot mount here: {answer}")
    assert isinstance(answer, list)
    return answer


def test_local_mounts_are_allowed(tmp_path: Path) -> None:
    assert in_a_namespace(LOCAL_MOUNTS, tmp_path) == ["allowed"] * 5


def test_a_real_network_mount_whose_server_is_gone_is_refused(tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no FUSE here")
    refused = f"file system of type fuse.sshfs (mounted at {tmp_path / 'dead'})"
    assert in_a_namespace(DEAD_MOUNT, tmp_path) == [refused, refused, *["allowed"] * 3]


# --- macOS and FreeBSD ----------------------------------------------------------------------

LOCAL_FLAG, NO_FLAG = 0x1000 | 0x200000, 0x200000


def darwin(kind: bytes, flags: int) -> bytes:
    numbers = struct.pack("=Ii5Q2iIIII", 4096, 1 << 20, 9, 8, 7, 6, 5, 1, 2, 501, 23, flags, 0)
    names = struct.pack("16s1024s1024sI28x", kind, b"/Volumes/data", b"//me@srv/data", 0)
    return numbers + names


def freebsd(kind: bytes, flags: int) -> bytes:
    numbers = struct.pack("=IIQ11Q80xII2i80x", 0x20140518, 53, flags, *range(11), 255, 0, 1, 2)
    return numbers + struct.pack("16s1024s1024s", kind, b"//me@srv/data", b"/Volumes/data")


STRUCTS: dict[str, Callable[[bytes, int], bytes]] = {"darwin": darwin, "freebsd14": freebsd}


class Libc:
    """A C library whose statfs fills in what it was given, or fails."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data
        self.asked: list[bytes] = []

    def statfs(self, path: bytes, buffer: Any) -> int:
        self.asked.append(path)
        if self.data is None:
            return -1
        ctypes.memmove(buffer, self.data, len(self.data))
        return 0


@pytest.fixture(params=list(STRUCTS))
def statfs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Libc]:
    """Be another system, whose statfs answers this."""

    def answer(kind: bytes | None, flags: int = 0) -> Libc:
        data = None if kind is None else STRUCTS[request.param](kind, flags)
        libc = Libc(data)
        monkeypatch.setattr("tailrace.log.ground.sys.platform", request.param)
        monkeypatch.setattr(ctypes, "CDLL", lambda _name: libc)
        return libc

    return answer


@pytest.mark.parametrize(("name", "size"), [("darwin", 2168), ("freebsd14", 2344)])
def test_the_structs_are_as_long_as_they_are_there(name: str, size: int) -> None:
    data = STRUCTS[name](b"nfs", LOCAL_FLAG)
    assert len(data) == size
    mount = LAYOUTS[name.rstrip("14")].parse(data)
    assert mount == Mount("", "/Volumes/data", "nfs", "//me@srv/data", remote=False)
    assert mount.is_network


@pytest.mark.parametrize("kind", [b"smbfs", b"nfs", b"afpfs", b"webdav", b"something", b"macfuse"])
def test_what_the_kernel_calls_remote(kind: bytes, statfs: Callable[..., Libc]) -> None:
    libc = statfs(kind, NO_FLAG)
    with pytest.raises(ConfigError, match=rf"type {kind.decode()} \(mounted at /Volumes/data\)"):
        refuse_network("/not/there")
    assert libc.asked == [b"/"]


@pytest.mark.parametrize("kind", [b"apfs", b"hfs", b"ufs", b"zfs", b"something"])
def test_what_the_kernel_calls_local(kind: bytes, statfs: Callable[..., Libc]) -> None:
    statfs(kind, LOCAL_FLAG)
    refuse_network("/")


@pytest.mark.parametrize("statfs", ["darwin"], indirect=True)
def test_the_name_for_64_bit_inodes_comes_first(statfs: Callable[..., Libc]) -> None:
    libc = statfs(b"apfs", LOCAL_FLAG)
    refuse_network("/")
    setattr(libc, "statfs$INODE64", Libc(darwin(b"smbfs", NO_FLAG)).statfs)
    with pytest.raises(ConfigError, match="smbfs"):
        refuse_network("/")


def test_a_statfs_that_fails(statfs: Callable[..., Libc]) -> None:
    libc = statfs(None)
    refuse_network("/")
    assert libc.asked == [b"/"]


def test_no_statfs_at_all(statfs: Callable[..., Libc], monkeypatch: pytest.MonkeyPatch) -> None:
    statfs(b"nfs")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    refuse_network("/")
    monkeypatch.delattr(ctypes, "CDLL")
    refuse_network("/")


def test_a_system_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.log.ground.sys.platform", "plan9")
    refuse_network("/")
