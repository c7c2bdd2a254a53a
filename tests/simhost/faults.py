"""Faults put into the simulated host, and the log of what was done to it. Pure.

A fault is an operation (write; read: of a file or the list of a directory; open: of either;
readlink), a glob of the path relative to the mount point
(`*` also matches `/`; the links of /sys/bus and /sys/class count as paths too) and an action:

    EIO, ENOSPC, ...   the call fails with it
    hang               it does not return until `heal`
    slow:SECONDS       it goes on after that time
    vanish             what the path belongs to (device, parent, process) is gone, the call fails
    ignore             a write reports success and does nothing
    instead:TEXT       a write reports success and does what a write of TEXT does

`nth` leaves the first nth-1 matching calls alone; with it, `times` is 1 unless given. `times`
alone makes the first ones fail: `EBUSY` with times=3 is a write that succeeds at the fourth try.
`data` is a glob of what is written, without the white space around it: only such writes count.
"""

from __future__ import annotations

import errno
import json
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

OPS = ("write", "read", "open", "readlink")
_ACTIONS = ("hang", "vanish", "ignore", *errno.errorcode.values())


@dataclass
class Fault:
    op: str
    path: str
    action: str
    nth: int = 1
    times: int | None = None
    data: str | None = None
    seen: int = 0
    used: int = 0

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"unknown operation {self.op!r}, one of {', '.join(OPS)}")
        if self.action.startswith("slow:"):
            float(self.action[5:])
        elif self.instead is None and self.action not in _ACTIONS:
            raise ValueError(f"unknown action {self.action!r}")
        for_writes = self.action == "ignore" or self.instead is not None or self.data is not None
        if for_writes and self.op != "write":
            raise ValueError("ignore, instead and data are for writes")

    @property
    def seconds(self) -> float | None:
        return float(self.action[5:]) if self.action.startswith("slow:") else None

    @property
    def instead(self) -> bytes | None:
        return self.action[8:].encode() if self.action.startswith("instead:") else None

    def hit(self, paths: list[str], data: bytes = b"") -> bool:
        """Whether this call is one that fails. Counts it."""
        if not any(fnmatchcase(path, self.path) for path in paths):
            return False
        written = data.decode("utf-8", "backslashreplace").strip()
        if self.data is not None and not fnmatchcase(written, self.data):
            return False
        self.seen += 1
        if self.seen < self.nth or (self.times is not None and self.used >= self.times):
            return False
        self.used += 1
        return True


def make_fault(
    op: str,
    path: str,
    action: str,
    nth: int | None = None,
    times: int | None = None,
    data: str | None = None,
) -> Fault:
    if times is None and nth is not None:
        times = 1
    return Fault(op, path.lstrip("/"), action, nth or 1, times, data)


@dataclass
class LoggedWrite:
    seq: int
    pid: int
    path: str
    alias: str
    data: str
    outcome: str = "blocked"

    def end(self, number: int) -> None:
        self.outcome = errno.errorcode.get(number, str(number)) if number else "ok"

    def line(self) -> str:
        return json.dumps(self.__dict__)


class Log:
    """Every write to an attribute below sys/, and how often each file was read."""

    def __init__(self) -> None:
        self.writes: list[LoggedWrite] = []
        self.reads: Counter[tuple[str, str]] = Counter()
        self._seq = 0

    def write(self, pid: int, paths: list[str], data: bytes) -> LoggedWrite:
        self._seq += 1
        text = data.decode("utf-8", "backslashreplace")
        entry = LoggedWrite(self._seq, pid, paths[0], paths[1] if len(paths) > 1 else "", text)
        self.writes.append(entry)
        return entry

    def show_writes(self) -> bytes:
        return "".join(entry.line() + "\n" for entry in self.writes).encode()

    def show_reads(self) -> bytes:
        lines: dict[str, dict[str, object]] = {}
        for (op, path), count in sorted(self.reads.items()):
            lines.setdefault(path, {"path": path})[op] = count
        return "".join(json.dumps(line) + "\n" for line in lines.values()).encode()
