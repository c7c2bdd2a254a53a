"""SimHost: starts a simulated host for a test, steers it and takes it away again.

The file system runs in a process of its own: one that used a mount which it serves itself would
deadlock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from . import wire

_PACKAGE = __package__ or "simhost"
_ROOT = Path(__file__).resolve().parents[len(_PACKAGE.split("."))]


class Write(NamedTuple):
    """One write to an attribute below sys/. outcome: "ok", an errno's name, or "blocked"."""

    seq: int
    pid: int
    path: str
    """Relative to the mount point, no links in it."""
    alias: str
    """The same file by way of /sys/bus or /sys/class, or ""."""
    data: str
    outcome: str


class SimHost:
    """A running simulated host. `with SimHost.start("mtty") as sim:`"""

    def __init__(self, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.root = root
        self.process = process

    @classmethod
    def start(cls, host: str | Path = "mtty", *, dev_links: str = "/dev") -> SimHost:
        """Mount it in a directory of its own. Raises RuntimeError if that fails.

        host: a name in hosts/ or a path. dev_links: what the links in /proc/<pid>/fd begin with,
        "/dev" as on a real host; "@" stands for this one's own dev directory.
        """
        root = Path(tempfile.mkdtemp(prefix="simhost-"))
        links = str(root / "dev") if dev_links == "@" else dev_links
        ready_read, ready_write = os.pipe()
        argv = [sys.executable, "-S", "-m", f"{_PACKAGE}.serve", str(host), str(root)]
        argv += ["--ready-fd", str(ready_write), "--until-eof", "--temporary"]
        argv += ["--dev-links", links]
        if isinstance(host, Path) or "/" in host:
            argv[4] = str(Path(host).resolve())
        process = subprocess.Popen(
            argv,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[ready_write],
        )
        os.close(ready_write)
        sim = cls(root, process)
        with os.fdopen(ready_read, "rb") as ready:
            if ready.readline() != b"ready\n":
                sim.stop()
                raise RuntimeError(f"the simulated host {host} did not start, see its stderr")
        return sim

    def stop(self) -> None:
        """Unmount and end it, whatever still blocks in it. May be called twice."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()  # a forked child may still hold the other end of its stdin
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        wire.unmount(str(self.root))  # for a server that was killed; else there is nothing
        with suppress(FileNotFoundError):
            self.root.rmdir()

    def __enter__(self) -> SimHost:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    # --- steering ---

    def control(self, line: str) -> None:
        """One or more command lines, see control.py. Raises ValueError with the host's reason."""
        file = self.root / "control"
        try:
            with file.open("wb", buffering=0) as control:
                control.write(line.encode("utf-8", "surrogateescape") + b"\n")
        except OSError as error:
            raise ValueError(file.read_text().strip() or str(error)) from error

    def hold(self, device: str, pid: int | None = None, comm: str = "qemu-system-x86") -> int:
        """A process has the device (UUID, or address of a VF) open. Returns its pid."""
        if pid is None:
            pid = max([3999, *self.state()["processes"]]) + 1
        self.control(f"hold {device} {pid} {_quoted(comm)}")
        return pid

    def drop(self, pid: int) -> None:
        self.control(f"drop {pid}")

    def add_process(self, pid: int, comm: str, *links: str) -> None:
        """A process that has such links in /proc/<pid>/fd and no handle on a device."""
        self.control(" ".join(["process", str(pid), _quoted(comm), *map(_quoted, links)]))

    def fault(
        self,
        op: str,
        path: str,
        action: str,
        *,
        nth: int | None = None,
        times: int | None = None,
        data: str | None = None,
    ) -> None:
        """See faults.py. `path` is a glob relative to the mount point, `data` one of the data."""
        words = ["fault", op, _quoted(path), _quoted(action)]
        options = {"nth": nth, "times": times, "data": data}
        words += [_quoted(f"{key}={value}") for key, value in options.items() if value is not None]
        self.control(" ".join(words))

    def heal(self) -> None:
        self.control("heal")

    def reboot(self) -> None:
        self.control("reboot")

    def make(self, uuid: str, parent: str, type: str) -> None:
        """A device made by somebody else: it is not in writes()."""
        self.control(f"make {uuid} {parent} {type}")

    def assign(self, vf: str, type: int) -> None:
        """A VF's type set by somebody else: it is not in writes(). 0 takes it away."""
        self.control(f"assign {vf} {type}")

    def load(self, parent: str) -> None:
        """The driver takes a parent; a VF that is not there comes."""
        self.control(f"load {parent}")

    def unload(self, parent: str) -> None:
        self.control(f"unload {parent}")

    # --- looking, uncounted ---

    def state(self) -> dict[str, Any]:
        """boot_id, devices (parent, type, state, group, cdev, holders), vfs, available, processes.

        vfs by address: type (0: none), creatable, params, group, cdev, holders, there.
        """
        state: dict[str, Any] = json.loads((self.root / "state").read_text())
        return state

    def devices(self) -> list[str]:
        """UUIDs on the bus; one whose removal blocks is no longer among them."""
        devices = self.state()["devices"].items()
        return sorted(uuid for uuid, device in devices if device["state"] != "removing")

    def available(self, parent: str, type: str) -> int:
        """available_instances of that type of that parent."""
        return int(self.state()["available"][parent][type])

    def current_type(self, vf: str) -> int:
        """The type that a VF has, 0 for none."""
        return int(self.state()["vfs"][vf]["type"])

    def current_types(self) -> dict[str, int]:
        """All VFs that have a type, by address."""
        vfs = self.state()["vfs"]
        return {name: int(vf["type"]) for name, vf in vfs.items() if vf["type"]}

    def writes(self, path_glob: str | None = None) -> list[Write]:
        """The write log, oldest first; the glob is matched with both path and alias."""
        lines = (self.root / "writes").read_text().splitlines()
        found = [Write(**json.loads(line)) for line in lines]
        if path_glob is None:
            return found
        return [w for w in found if any(fnmatchcase(p, path_glob) for p in (w.path, w.alias))]

    def write_counts(self) -> dict[str, int]:
        """How often each file below sys/ was written to, failed writes too; path without links."""
        return dict(Counter(write.path for write in self.writes()))

    def reset_writes(self) -> None:
        self.control("writes reset")

    def reads(self) -> dict[str, dict[str, int]]:
        """For each path how often: open, read, readdir, readlink."""
        counts: dict[str, dict[str, int]] = {}
        for line in (self.root / "reads").read_text().splitlines():
            entry = json.loads(line)
            counts[entry.pop("path")] = entry
        return counts

    def reset_reads(self) -> None:
        self.control("count reset")


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
