"""Short forms for tests of and with the simulated host: write to an attribute, create, look.

For mediated devices create, bus and available; for VFs with vendor-specific VFIO nvidia, creatable
and set_type.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

from .client import SimHost

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
T4, MTTY = "0000:3b:00.0", "mtty"
VF = "0000:41:00.4"
"""The first VF of l40s and the hosts that are like it."""


def put(path: Path, text: str) -> None:
    """write(2) once, as `printf | tee` does; OSError has the kernel's errno."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def errno_of_put(path: Path, text: str) -> str:
    try:
        put(path, text)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def errno_of_read(path: Path) -> str:
    try:
        path.read_bytes()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def nvidia(sim: SimHost, vf: str = VF) -> Path:
    """Where the files of vendor-specific VFIO are."""
    return sim.sys / "bus/pci/devices" / vf / "nvidia"


def creatable(sim: SimHost, vf: str = VF) -> list[int]:
    """The type ids that creatable_vgpu_types lists."""
    lines = (nvidia(sim, vf) / "creatable_vgpu_types").read_text().splitlines()
    return [int(line.split(":")[0]) for line in lines if not line.startswith("ID")]


def set_type(sim: SimHost, vf: str, kind: int) -> str:
    """A write to current_vgpu_type: "ok" or the errno's name."""
    return errno_of_put(nvidia(sim, vf) / "current_vgpu_type", f"{kind}\n")


def create_file(sim: SimHost, parent: str, kind: str) -> Path:
    return sim.sys / "class/mdev_bus" / parent / "mdev_supported_types" / kind / "create"


def create(sim: SimHost, parent: str, kind: str, name: str = A) -> str:
    return errno_of_put(create_file(sim, parent, kind), name + "\n")


def bus(sim: SimHost, name: str = A) -> Path:
    return sim.sys / "bus/mdev/devices" / name


def available(sim: SimHost, parent: str, kind: str) -> int:
    return int(create_file(sim, parent, kind).with_name("available_instances").read_text())


def writer(path: Path, text: str = "1") -> subprocess.Popen[bytes]:
    """A process that writes, for writes that block."""
    code = "import os,sys; os.write(os.open(sys.argv[1], os.O_WRONLY), sys.argv[2].encode())"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(path), text], stderr=subprocess.DEVNULL
    )


def wait_until_blocked(sim: SimHost, glob: str) -> None:
    """Until a write to such a file blocks; AssertionError after 10 s."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if any(write.outcome == "blocked" for write in sim.writes(glob)):
            return
        time.sleep(0.005)
    raise AssertionError(f"nothing blocks: {sim.writes(glob)}")


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
