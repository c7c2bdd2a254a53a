"""Simulated processes and their open VFIO handles: /proc/<pid> and /dev/vfio of the simulated host.

A process gets here in two ways: a real one that opens /dev/vfio/N through the mount, or a made-up
one from the control file. Other processes of the machine that runs the tests are not in this /proc.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .tree import Dir, detach


@dataclass
class Handle:
    """An open VFIO file; `fds` are the links in /proc/<pid>/fd that stand for it."""

    pid: int
    file: str
    """Below /dev: `vfio/7` or `vfio/devices/vfio0`."""
    fds: tuple[int, ...] = ()


@dataclass
class Process:
    pid: int
    comm: str
    dir: Dir
    starttime: int
    next_fd: int = 3
    fixed: bool = False
    """Made by `process` or `hold`: it stays when its last handle is closed."""
    links: dict[int, str] = field(default_factory=dict)


class Processes:
    def __init__(self, proc: Dir, dev_links: str, exit_: Callable[[int], None]) -> None:
        """dev_links: what the links in fd/ begin with; exit_(pid) ends a process for the host."""
        self.proc = proc
        self._exit = exit_
        self.dev_links = dev_links
        self.by_pid: dict[int, Process] = {}
        self.handles: dict[int, Handle] = {}
        self._tokens = itertools.count(1)
        self._starttimes = itertools.count(100000, 100)
        self._free_pids = itertools.count(4000)

    def free_pid(self) -> int:
        return next(pid for pid in self._free_pids if pid not in self.by_pid)

    def start(self, pid: int, comm: str, cmdline: bytes | None = None) -> Process:
        """A process of that number; the one that is there already, if one is."""
        if pid in self.by_pid:
            return self.by_pid[pid]
        here = self.proc.dir(str(pid))
        process = Process(pid, comm, here, next(self._starttimes))
        short = comm.encode()[:15]
        here.attr("comm", short + b"\n")
        here.attr("cmdline", cmdline if cmdline is not None else comm.encode() + b"\0")
        after = f"S 1 {pid} {pid} 0 -1 4194560 " + "0 " * 8 + "20 0 1 0"
        rest = f" {after} {process.starttime} " + " ".join(["0"] * 30)
        here.attr("stat", b"%d (%s)" % (pid, short) + rest.encode() + b"\n")
        here.dir("fd").mode = 0o040500
        here.vanish = lambda: self._exit(pid)
        self.by_pid[pid] = process
        for number, target in enumerate(["/dev/null"] * 3):
            here.dir("fd").link(str(number), target)
        return process

    def add_link(self, process: Process, target: str) -> int:
        number = process.next_fd
        process.next_fd += 1
        process.dir.dir("fd").link(str(number), target)
        process.links[number] = target
        return number

    def open(self, process: Process, file: str) -> int:
        """Open a VFIO file; the token closes it. A group is exclusive: EBUSY (facts D5)."""
        exclusive = not file.startswith("vfio/devices/")
        if exclusive and any(handle.file == file for handle in self.handles.values()):
            raise OSError(errno.EBUSY, file)
        targets = [f"{self.dev_links}/{file}", "anon_inode:[vfio-device]"]
        if exclusive:
            targets.insert(0, f"{self.dev_links}/vfio/vfio")
        token = next(self._tokens)
        fds = tuple(self.add_link(process, target) for target in targets)
        self.handles[token] = Handle(process.pid, file, fds)
        return token

    def recorded(self, pid: int, comm: str, links: dict[int, str], files: set[str]) -> None:
        """A process as it was recorded, with these links; `files` are those that may be open."""
        process = self.start(pid, comm)
        process.fixed = True
        for number, target in sorted(links.items()):
            process.dir.remove(f"fd/{number}")
            process.dir.dir("fd").link(str(number), target)
            process.links[number] = target
            file = target.removesuffix(" (deleted)").rpartition("/vfio/")[2]
            if f"vfio/{file}" in files:
                self.handles[next(self._tokens)] = Handle(pid, f"vfio/{file}", (number,))
        process.next_fd = max(links, default=2) + 1

    def open_real(self, pid: int, file: str) -> int:
        """A process of this machine opens the file through the mount."""
        return self.open(self.by_pid.get(pid) or self._adopt(pid), file)

    def _adopt(self, pid: int) -> Process:
        try:
            real = Path("/proc", str(pid))
            comm, cmdline = real.joinpath("comm").read_text().strip(), real.joinpath("cmdline")
            return self.start(pid, comm, cmdline.read_bytes())
        except OSError:
            return self.start(pid, "gone")

    def close(self, token: int) -> None:
        handle = self.handles.pop(token, None)
        process = self.by_pid.get(handle.pid) if handle is not None else None
        if handle is None or process is None:
            return
        for number in handle.fds:
            process.dir.dir("fd").remove(str(number))
            process.links.pop(number, None)
        if not process.fixed and not any(h.pid == process.pid for h in self.handles.values()):
            self._forget(process)

    def end(self, pid: int) -> list[str]:
        """The process exits. Returns the VFIO files that it had open."""
        process = self.by_pid.get(pid)
        if process is None:
            return []
        mine = [token for token, handle in self.handles.items() if handle.pid == pid]
        files = [self.handles.pop(token).file for token in mine]
        self._forget(process)
        return files

    def _forget(self, process: Process) -> None:
        detach(process.dir)
        self.by_pid.pop(process.pid, None)

    def holders(self, files: set[str]) -> list[int]:
        return [handle.pid for handle in self.handles.values() if handle.file in files]

    def close_files(self, files: set[str]) -> None:
        """The files are gone although they were open (a device that vanished)."""
        for token in [t for t, handle in self.handles.items() if handle.file in files]:
            self.close(token)

    def clear(self) -> None:
        for pid in list(self.by_pid):
            self.end(pid)
