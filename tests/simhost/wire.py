"""The wire format of /dev/fuse (include/uapi/linux/fuse.h), what the simulated host needs of it.

Not a FUSE library: libfuse (and mfusepy above it) gives one inode to one path, and the kernel holds
that inode's lock during a direct write and for O_TRUNC. A `create` that hangs would then hang every
later `echo > create`, which a real sysfs does not do (tried: two writers of 2 s took 4 s). Here
each lookup of a writable file has an inode of its own, and a request may be answered at any later
time without a thread that waits for it.

Most requests would be lookups: the kernel walks every path name by name. So it is told that it may
remember the names in lasting directories (tree.py), but no attributes and no absence. When
such a node is gone, using it gives ESTALE, at which the kernel walks the whole path again and asks
for each name (retry_estale, LOOKUP_REVAL): nobody sees a name that is not there, or misses one
that is there again. Writable files are never remembered, for the reason above.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

LOOKUP, FORGET, GETATTR, SETATTR, READLINK = 1, 2, 3, 4, 5
SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 6, 8, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE = 14, 15, 16, 17, 18
INIT, OPENDIR, READDIR, RELEASEDIR = 26, 27, 28, 29
CREATE, INTERRUPT, DESTROY, IOCTL, BATCH_FORGET, RENAME2 = 35, 36, 38, 39, 42, 45
NO_REPLY = frozenset({FORGET, INTERRUPT, BATCH_FORGET})

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI7I")
ENTRY_HEAD = struct.Struct("<QQQQII")
ATTR_HEAD = struct.Struct("<QII")
ATTR = struct.Struct("<6Q10I")
OPEN_IN = struct.Struct("<II")
OPEN_OUT = struct.Struct("<QIi")
READ_IN = struct.Struct("<QQIIQII")
WRITE_IN = READ_IN
WRITE_OUT = struct.Struct("<II")
RELEASE_IN = struct.Struct("<QIIQ")
FORGET_IN = struct.Struct("<Q")
BATCH_IN = struct.Struct("<II")
FORGET_ONE = struct.Struct("<QQ")
DIRENT = struct.Struct("<QQII")
STATFS_OUT = struct.Struct("<5Q4I6I")

ROOT_ID = 1
MAX_WRITE = 1 << 16
BUFFER_SIZE = MAX_WRITE + 4096
FOPEN_DIRECT_IO = 1
REMEMBERED_SECONDS = 1 << 20
_ATOMIC_O_TRUNC, _BIG_WRITES, _PARALLEL_DIROPS = 1 << 3, 1 << 5, 1 << 18
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2

_libc = ctypes.CDLL(None, use_errno=True)


def init_reply(body: memoryview) -> bytes:
    """The answer to INIT: protocol 7.31, no caches, no readdirplus."""
    _major, _minor, _ahead, offered = INIT_IN.unpack_from(body)
    flags = offered & (_ATOMIC_O_TRUNC | _BIG_WRITES | _PARALLEL_DIROPS)
    return INIT_OUT.pack(7, 31, 0, flags, 64, 48, MAX_WRITE, 1, 0, 0, 0, *[0] * 7)


def attributes(ino: int, mode: int, size: int) -> bytes:
    """struct fuse_attr of a file of root's."""
    nlink = 2 if mode & 0o170000 == 0o040000 else 1
    return ATTR.pack(ino, size, 0, 0, 0, 0, 0, 0, 0, mode, nlink, 0, 0, 0, 4096, 0)


def dirent(ino: int, offset: int, name: str, mode: int) -> bytes:
    """struct fuse_dirent; `offset` is where the next one starts."""
    raw = name.encode("utf-8", "surrogateescape")
    entry = DIRENT.pack(ino, offset, len(raw), (mode & 0o170000) >> 12) + raw
    return entry + bytes(-len(entry) % 8)


def reply(fd: int, unique: int, error: int, payload: bytes = b"") -> None:
    """Answer a request. A request that was given up on in between (ENOENT) is no error."""
    head = OUT_HEADER.pack(OUT_HEADER.size + len(payload), -error, unique)
    try:
        os.write(fd, head + payload)
    except OSError as failure:
        if failure.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def mount(fd: int, where: str) -> None:
    """Mount the connection of an open /dev/fuse there. Needs root."""
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    flags = _MS_NOSUID | _MS_NODEV
    if _libc.mount(b"simhost", os.fsencode(where), b"fuse.simhost", flags, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), where)


def unmount(where: str) -> bool:
    """Take the mount away at once, busy or not. False if nothing is mounted there."""
    return bool(_libc.umount2(os.fsencode(where), _MNT_DETACH) == 0)
