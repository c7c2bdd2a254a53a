"""Faults, the control file, the logs, and that a simulated host leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from .client import SimHost
from .helpers import (
    MTTY,
    A,
    B,
    available,
    bus,
    create,
    create_file,
    put,
    wait_until_blocked,
    writer,
)

# --- faults and control ---


def test_fault_nth_hits_that_call_only(simhost: SimHost) -> None:
    simhost.fault("write", "*/create", "EIO", nth=2)
    outcomes = [create(simhost, MTTY, "mtty-1", str(uuid.uuid4())) for _ in range(3)]
    assert outcomes == ["ok", "EIO", "ok"]
    assert [write.outcome for write in simhost.writes("*/create")] == outcomes
    assert len(simhost.devices()) == 2


def test_fault_by_the_path_through_a_link(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    simhost.fault("write", f"sys/bus/mdev/devices/{A}/remove", "ignore", times=1)
    put(bus(simhost) / "remove", "1")
    assert simhost.devices() == [A]
    put(bus(simhost) / "remove", "1")
    assert simhost.devices() == []


def test_fault_vanish_during_a_read(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    simhost.fault("read", f"*/{A}/uevent", "vanish")
    with pytest.raises(OSError, match="No such device"):
        (bus(simhost) / "uevent").read_text()
    assert not bus(simhost).exists()
    assert available(simhost, MTTY, "mtty-1") == 24


def test_a_hanging_create_stops_nobody_else_and_goes_on_after_heal(simhost: SimHost) -> None:
    simhost.fault("write", "*/mtty-1/create", "hang", nth=1)
    process = writer(create_file(simhost, MTTY, "mtty-1"), A)
    wait_until_blocked(simhost, "*/create")
    assert create(simhost, MTTY, "mtty-1", B) == "ok"  # the same file
    assert simhost.devices() == [B]
    simhost.heal()
    assert process.wait(5) == 0
    assert simhost.devices() == [A, B]


def test_fault_slow(simhost: SimHost) -> None:
    simhost.fault("read", "*/name", "slow:0.1")
    begin = time.monotonic()
    (create_file(simhost, MTTY, "mtty-1").parent / "name").read_text()
    assert 0.1 <= time.monotonic() - begin < 2


def test_faults_in_proc_make_the_holder_unknown(simhost: SimHost) -> None:
    simhost.add_process(5000, "qemu", "/dev/vfio/7", "socket:[1]")
    fds = simhost.proc / "5000/fd"
    assert sorted(os.listdir(fds)) == ["0", "1", "2", "3", "4"]
    simhost.fault("readlink", "proc/5000/fd/3", "ENOENT")
    with pytest.raises(FileNotFoundError):
        os.readlink(fds / "3")
    assert os.readlink(fds / "4") == "socket:[1]"
    simhost.fault("open", "proc/5000/fd", "EACCES")
    with pytest.raises(PermissionError):
        os.listdir(fds)
    simhost.heal()
    comm = os.open(simhost.proc / "5000/comm", os.O_RDONLY)
    simhost.drop(5000)
    with pytest.raises(ProcessLookupError):
        os.read(comm, 10)
    os.close(comm)


def test_reboot_leaves_no_devices_and_no_processes(simhost: SimHost) -> None:
    boot_id = simhost.proc / "sys/kernel/random/boot_id"
    before = boot_id.read_text()
    simhost.make(A, MTTY, "mtty-1")
    simhost.hold(A, 5000)
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    simhost.reboot()
    assert process.wait(5) == 1
    assert boot_id.read_text() != before
    assert simhost.devices() == []
    assert not (simhost.proc / "5000").exists()
    assert create(simhost, MTTY, "mtty-1") == "ok"


@pytest.mark.parametrize("line", ["hold", "hold nobody", "fault write * EWHAT", "drop 1", "fly"])
def test_control_says_what_is_wrong(simhost: SimHost, line: str) -> None:
    with pytest.raises(ValueError, match=line.split()[0]):
        simhost.control(line)
    simhost.control("heal")
    assert (simhost.root / "control").read_text() == ""


def test_writes_and_reads_are_counted(simhost: SimHost) -> None:
    name = create_file(simhost, MTTY, "mtty-1").parent / "name"
    assert create(simhost, MTTY, "mtty-1") == "ok"
    (write,) = simhost.writes("sys/class/mdev_bus/mtty/*/create")
    assert (write.pid, write.data, write.outcome) == (os.getpid(), A + "\n", "ok")
    simhost.reset_reads()
    name.read_text()
    path = "sys/devices/virtual/mtty/mtty/mdev_supported_types/mtty-1/name"
    assert simhost.reads()[path]["open"] == 1
    simhost.reset_writes()
    assert simhost.writes() == []


# --- coming and going ---


def is_mounted(root: Path) -> bool:
    """Only its own: other tests may have theirs mounted at the same time."""
    return f" {root} " in Path("/proc/self/mounts").read_text()


def test_nothing_is_left_even_when_a_killed_writer_blocks() -> None:
    sim = SimHost.start("mtty")
    sim.make(A, MTTY, "mtty-1")
    sim.hold(A)
    process = writer(bus(sim) / "remove")
    wait_until_blocked(sim, "*/remove")
    process.kill()
    kept_open = os.open(sim.sys / "bus", os.O_RDONLY)
    sim.stop()
    sim.stop()
    os.close(kept_open)
    assert process.wait(5) == -signal.SIGKILL
    assert not is_mounted(sim.root)
    assert not sim.root.exists()
    assert sim.process.returncode == 0


def test_nothing_is_left_when_the_server_is_killed() -> None:
    sim = SimHost.start("mtty")
    sim.process.kill()
    sim.process.wait()
    sim.stop()
    assert not is_mounted(sim.root)
    assert not sim.root.exists()


def test_an_unknown_host_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="nonsense"):
        SimHost.start("nonsense")
    assert list(tmp_path.iterdir()) == []
    assert "nonsense" in capfd.readouterr().err


def test_nothing_is_left_when_the_test_process_is_killed() -> None:
    code = f"import time; from {__package__} import SimHost\n"
    code += "sim = SimHost.start('mtty'); print(sim.root, flush=True); time.sleep(60)"
    root = Path(__file__).resolve().parents[len((__package__ or "").split("."))]
    child = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE)
    assert child.stdout is not None
    mounted = Path(child.stdout.readline().decode().strip())
    child.kill()
    child.wait()
    child.stdout.close()
    for _ in range(400):
        if not is_mounted(mounted) and not os.path.lexists(mounted):
            return
        time.sleep(0.005)
    raise AssertionError(f"{mounted} is left")


@pytest.mark.simhost("two-mtty-like")
def test_many_writers_at_once_leave_a_consistent_host(simhost: SimHost) -> None:
    code = """
import os, sys, uuid
root = sys.argv[1]
for number in range(60):
    name, parent = str(uuid.uuid4()), ("mtty", "mtty2")[number % 2]
    kind = f"{root}/sys/class/mdev_bus/{parent}/mdev_supported_types/mtty-{1 + number % 2}/create"
    with open(kind, "w") as file:
        file.write(name)
    assert name in os.listdir(f"{root}/sys/bus/mdev/devices")
    os.readlink(f"{root}/sys/bus/mdev/devices/{name}/iommu_group")
    with open(f"{root}/sys/bus/mdev/devices/{name}/remove", "w") as file:
        file.write("1")
"""
    argv = [sys.executable, "-I", "-S", "-c", code, str(simhost.root)]
    writers = [subprocess.Popen(argv) for _ in range(6)]
    assert [process.wait(60) for process in writers] == [0] * 6
    assert {write.outcome for write in simhost.writes()} == {"ok"}
    assert len(simhost.writes()) == 6 * 60 * 2
    assert simhost.available("mtty", "mtty-1") == simhost.available("mtty2", "mtty-1") == 24
    assert os.listdir(simhost.sys / "kernel/iommu_groups") == []
