"""Orders for shim.c: count the writing calls of a process tree, kill or fail the Nth.

Why a preloaded library and not strace: SQLite's and Python's calls go through libc, so it sees
them all (test_shim.py holds its log against the files and the simulated kernel's own log); it
costs a call a microsecond where ptrace costs two switches; and it can kill the whole tree before
the call is done, fail it, shift the clock and keep the data for the power losses, in one place.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("shim.c")

# Kinds of records (shim.c)
WRITE, TRUNCATE, SYNC, CREATE, MAKE, UNLINK, RENAME, LINK, SEND, READ, CHANGE = range(1, 12)
KILL_WRITER, KILL_ALL, FAIL_ONCE, FAIL_FROM_THERE = range(1, 5)
FILES, PEERS, READS = 1, 2, 4
"""What counts: writes to files, what is sent to other processes, reads of files."""

_ORDERS = struct.Struct("<8Iq")
_RECORD = struct.Struct("<4Iq4I")


class Record(NamedTuple):
    """One counted call that was done. `offset` is a new size, of a TRUNCATE."""

    point: int
    pid: int
    kind: int
    offset: int
    path: str
    other: str
    data: bytes


def library() -> Path:
    """Return the compiled library; compiled once for each state of its source."""
    source = SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"vgpu-hook-crash-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not path.exists():
        temporary = folder / f"{path.name}.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", temporary, SOURCE, "-ldl"], check=True)
        temporary.rename(path)
    return path


class Shim:
    """The orders of one test, in a file that the processes map."""

    def __init__(self, folder: Path, roots: list[Path]) -> None:
        self._path = folder / "crash-control"
        self._path.write_bytes(bytes(_ORDERS.size))
        self._log = folder / "crash-control.log"
        with self._path.open("r+b") as file:
            self._orders = mmap.mmap(file.fileno(), _ORDERS.size)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "CRASH_CONTROL": str(self._path),
            "CRASH_ROOTS": ":".join(map(str, roots)),
        }

    def order(
        self,
        target: int = 0,
        action: int = 0,
        error: int = 0,
        *,
        scope: int = FILES | PEERS,
        log: bool = False,
    ) -> None:
        """Count from 0 again; do `action` at the call number `target` if it is not 0."""
        self._log.unlink(missing_ok=True)
        _ORDERS.pack_into(self._orders, 0, 0, target, action, error, log, scope, 0, 0, 0)

    @property
    def count(self) -> int:
        """How many calls were counted."""
        return int(_ORDERS.unpack_from(self._orders)[0])

    @property
    def failed(self) -> int:
        """How many calls were failed."""
        return int(_ORDERS.unpack_from(self._orders)[6])

    def set_clock(self, seconds: float) -> None:
        """Have the wall clock be off by so much, for the processes that map the orders."""
        struct.pack_into("<q", self._orders, _ORDERS.size - 8, int(seconds * 1e9))

    @contextmanager
    def logged(self, scope: int = FILES | PEERS) -> Iterator[list[Record]]:
        """Log what the block does; the list is filled at its end."""
        found: list[Record] = []
        self.order(log=True, scope=scope)
        yield found
        found += self._records()
        self.order(scope=0)

    def _records(self) -> Iterator[Record]:
        data = self._log.read_bytes() if self._log.exists() else b""
        at = 0
        while at < len(data):
            size, point, pid, kind, offset, *sizes, _ = _RECORD.unpack_from(data, at)
            start = at + _RECORD.size
            path_end = start + sizes[0]
            other_end = path_end + sizes[1]
            path = data[start:path_end].decode("utf-8", "surrogateescape")
            other = data[path_end:other_end].decode("utf-8", "surrogateescape")
            yield Record(point, pid, kind, offset, path, other, data[other_end : at + size])
            at += size
