"""vfio.holders with real processes: what the kernel shows of them in /proc."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vgpu_hook.vfio import holders

LEADER_ENDS = """\
import ctypes, os, sys, threading
open_file = os.open(sys.argv[1], os.O_RDONLY)

def hold():
    while True:  # until the leader is a zombie, whose own files are gone
        with open(f"/proc/{os.getpid()}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                break
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)

if sys.argv[2] == "ends":
    threading.Thread(target=hold).start()
    ctypes.CDLL(None).syscall(60, 0)  # exit(2): of this thread alone
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""
"""A process with the file open, whose first thread ends or does not."""


@pytest.mark.parametrize("leader", ["lives", "ends"])
def test_r6_i2_whoever_has_a_device_open_is_seen_also_if_only_a_thread_is_left(
    tmp_path: Path, leader: str
) -> None:
    """As of a killed QEMU one of whose threads hangs in the kernel: it still has its files."""
    (tmp_path / "vfio").mkdir()
    device, proc = tmp_path / "vfio/7", tmp_path / "proc"
    device.touch()
    with subprocess.Popen(
        [sys.executable, "-c", LEADER_ENDS, device, leader],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            # That one alone: in a container not all others can be read.
            proc.mkdir()
            (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            (holder,) = holders(str(proc), ("/dev/vfio/7",))
            assert (holder.pid, holder.path) == (process.pid, str(device))
            assert holders(str(proc), ("/dev/vfio/8",)) == ()
        finally:
            process.stdin.close()
    assert holders(str(proc), ("/dev/vfio/7",)) == ()
