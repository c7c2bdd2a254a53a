"""Scripts of faults, and what a driver does in its own time: devices go, come, or are wanted."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from .client import SimHost
from .helpers import (
    MTTY,
    T4,
    VF,
    A,
    B,
    available,
    bus,
    creatable,
    create,
    create_file,
    errno_of_put,
    nvidia,
    put,
    set_type,
    wait_until_blocked,
    writer,
)
from .plugin import MakeSimHost

C = "cccccccc-0000-4000-8000-000000000003"
MTTY_HOST = """
[[parent]]
path = "virtual/mtty/mtty"
driver = "mtty"
capacity = { total = 24 }
type = [{ id = "mtty-1" }]
"""

Make = Callable[[str], SimHost]


@pytest.fixture
def mtty_with(make_simhost: MakeSimHost, tmp_path: Path) -> Make:
    """An mtty host whose parent has these keys as well."""

    def make(keys: str) -> SimHost:
        script, _, parent = keys.rpartition("---\n")
        path = tmp_path / "x.toml"
        path.write_text(script + MTTY_HOST + parent + "\n")
        return make_simhost(path)

    return make


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- scripts ---


def test_a_step_comes_after_the_nth_call_has_succeeded(simhost: SimHost) -> None:
    simhost.control(f"after 2 write */create outcome=ok vanish {B}")
    assert create(simhost, MTTY, "mtty-1", A) == "ok"
    assert create(simhost, MTTY, "mtty-1", A) == "EEXIST"
    assert simhost.devices() == [A]
    assert create(simhost, MTTY, "mtty-1", B) == "ok"
    assert simhost.devices() == [A]
    assert create(simhost, MTTY, "mtty-1", B) == "ok"
    assert simhost.devices() == [A, B]


def test_a_script_with_a_slip_is_refused_at_once(simhost: SimHost) -> None:
    for line in ("after 1 write * fly", "later 1", "after 0 write * heal", "after 1 chew * heal"):
        with pytest.raises(ValueError, match=line.split()[0]):
            simhost.control(line)
    with pytest.raises(ValueError, match="for writes"):
        simhost.control("after 1 read * data=1 heal")


def test_a_step_that_cannot_be_done_is_told(simhost: SimHost) -> None:
    simhost.control(f"each 1 write */create vanish {C}")
    assert create(simhost, MTTY, "mtty-1") == "ok"
    assert create(simhost, MTTY, "mtty-1", B) == "ok"
    problems = simhost.state()["problems"]
    assert len(problems) == 2
    assert f"vanish {C}" in problems[0]


def test_a_chain_of_steps(simhost: SimHost) -> None:
    simhost.control("after 1 write */remove after 2 read */available_instances unload mtty")
    assert create(simhost, MTTY, "mtty-1") == "ok"
    assert available(simhost, MTTY, "mtty-1") == 23
    put(bus(simhost) / "remove", "1")
    assert available(simhost, MTTY, "mtty-1") == 24
    assert (simhost.sys / "class/mdev_bus/mtty").exists()
    assert available(simhost, MTTY, "mtty-1") == 24
    assert not (simhost.sys / "class/mdev_bus/mtty").exists()


def test_a_step_after_a_time_and_after_a_fault(simhost: SimHost) -> None:
    simhost.fault("write", "*/create", "ENOSPC", times=1)
    simhost.control(f"after 1 write */create outcome=ENOSPC later 0.05 make {A} mtty mtty-1")
    assert create(simhost, MTTY, "mtty-1", B) == "ENOSPC"
    wait_until(lambda: simhost.devices() == [A])


@pytest.mark.simhost("l40s")
def test_a_step_after_what_is_written(simhost: SimHost) -> None:
    simhost.control("after 1 write */current_vgpu_type data=0 fault write */current_vgpu_type EIO")
    assert set_type(simhost, VF, 1148) == "ok"
    assert set_type(simhost, VF, 0) == "ok"
    assert set_type(simhost, VF, 1148) == "EIO"


def test_a_host_file_has_a_script(mtty_with: Make) -> None:
    script = 'script = "after 3 read sys/class/mdev_bus load mtty"'
    sim = mtty_with(script + "\n---\nabsent = true")
    looks = [os.listdir(sim.sys / "class/mdev_bus") for _ in range(4)]
    assert looks == [[], [], [], [MTTY]]
    assert create(sim, MTTY, "mtty-1") == "ok"


# --- a name that the kernel remembers ---


@pytest.mark.parametrize("look", ["stat", "open", "list", "link"])
@pytest.mark.simhost("l40s")
def test_a_remembered_name_that_is_gone_and_back_is_seen(simhost: SimHost, look: str) -> None:
    """See wire.py: names are remembered, and nobody can tell."""
    files = nvidia(simhost)

    def seen() -> bool:
        match look:
            case "stat":
                return (files / "current_vgpu_type").exists()
            case "list":
                return os.path.isdir(files) and len(os.listdir(files)) == 6
            case "link":
                return (files.parent / "driver").resolve().name == "nvidia"
        try:
            return (files / "creatable_vgpu_types").read_text().startswith("ID")
        except FileNotFoundError:
            return False

    for _ in range(3):
        assert seen()
        simhost.unload(VF)
        assert not seen()
        simhost.load(VF)
        assert seen()
        simhost.control(f"vanish {VF}")
        assert not seen()
        simhost.load(VF)
    simhost.reboot()
    assert seen()


# --- a parent that goes ---


def test_d2_d4_a_parent_that_goes_waits_for_the_one_in_use_and_keeps_those_behind_it(
    simhost: SimHost,
) -> None:
    for name in (A, B, C):
        simhost.make(name, MTTY, "mtty-1")
    pid = simhost.hold(B)
    create_fd = os.open(create_file(simhost, MTTY, "mtty-1"), os.O_WRONLY)
    simhost.unload(MTTY)
    assert simhost.devices() == [C]  # A has gone, B is waited for
    assert not (simhost.sys / "class/mdev_bus/mtty").exists()
    assert errno_of_put(bus(simhost, C) / "remove", "1") == "ENODEV"
    with pytest.raises(OSError, match="No such device"):
        os.write(create_fd, str(uuid.uuid4()).encode())
    os.close(create_fd)
    with pytest.raises(ValueError, match="is loaded"):
        simhost.load(MTTY)
    simhost.drop(pid)
    assert simhost.devices() == []
    assert not (simhost.sys / "devices/virtual/mtty/mtty").exists()
    simhost.load(MTTY)
    assert create(simhost, MTTY, "mtty-1") == "ok"


def test_d4_a_parent_that_goes_waits_for_a_remove_that_blocks(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    simhost.make(B, MTTY, "mtty-1")
    pid = simhost.hold(A)
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    simhost.unload(MTTY)
    assert simhost.devices() == [B]
    assert (simhost.sys / "class/mdev_bus/mtty").exists()
    assert create(simhost, MTTY, "mtty-1", C) == "ENODEV"
    simhost.drop(pid)
    assert process.wait(5) == 0
    assert simhost.devices() == []


def test_d2_a_parent_that_goes_waits_for_a_slow_create(mtty_with: Make) -> None:
    sim = mtty_with("create_seconds = 0.3")
    process = writer(create_file(sim, MTTY, "mtty-1"), A)
    wait_until_blocked(sim, "*/create")
    sim.unload(MTTY)
    assert process.wait(5) == 0
    assert sim.devices() == []


# --- what a driver does in its own time ---


def test_d2_a_driver_that_refuses_when_the_device_is_on_the_bus(mtty_with: Make) -> None:
    sim = mtty_with("create_seconds = 0.2\ncreate_error = 'ENOMEM'")
    process = writer(create_file(sim, MTTY, "mtty-1"), A)
    wait_until_blocked(sim, "*/create")
    assert bus(sim).exists()
    assert process.wait(5) == 1
    assert sim.writes("*/create")[0].outcome == "ENOMEM"
    assert not bus(sim).exists()
    assert available(sim, MTTY, "mtty-1") == 24


def test_row66_a_device_that_goes_some_time_after_remove(mtty_with: Make) -> None:
    sim = mtty_with("leave_seconds = 0.2")
    sim.make(A, MTTY, "mtty-1")
    remove = bus(sim) / "remove"
    put(remove, "1")
    assert bus(sim).exists()
    assert errno_of_put(remove, "1") == "ENOENT"
    wait_until(lambda: not bus(sim).exists())
    assert available(sim, MTTY, "mtty-1") == 24


def test_d4_a_driver_that_asks_for_the_device_gets_it(mtty_with: Make) -> None:
    sim = mtty_with("request_seconds = 0.1")
    sim.make(A, MTTY, "mtty-1")
    pid = sim.hold(A)
    subprocess.run(["sh", "-c", f"echo 1 > {bus(sim)}/remove"], check=True, timeout=30)
    assert sim.devices() == []
    links = [os.readlink(link) for link in (sim.proc / str(pid) / "fd").iterdir()]
    assert not any("vfio" in link for link in links)


def test_d4_a_driver_that_cleans_up_itself_fails_who_does_it_first(mtty_with: Make) -> None:
    sim = mtty_with("clean_seconds = 0.3\nclean_error = 'EIO'")
    sim.make(A, MTTY, "mtty-1")
    sim.make(B, MTTY, "mtty-1")
    sim.drop(sim.hold(A))
    assert errno_of_put(bus(sim) / "remove", "1") == "EIO"
    put(bus(sim, B) / "remove", "1")  # it was never open
    wait_until(lambda: sim.devices() == [])


@pytest.mark.simhost("nvidia-t4")
def test_vanish_takes_a_parent_of_mediated_devices_from_its_driver(simhost: SimHost) -> None:
    simhost.make(A, T4, "nvidia-231")
    simhost.control(f"vanish {T4}")
    assert simhost.devices() == []
    assert not (simhost.sys / "bus/pci/devices" / T4 / "mdev_supported_types").exists()


# --- sriov-manage, nvidia-smi, sriov_numvfs ---

GPU = "0000:41:00.0"


@pytest.mark.simhost("l40s")
def test_row21_the_mode_is_lost_with_the_vfs(simhost: SimHost) -> None:
    simhost.control(f"vfs {GPU} on")  # they are: nothing happens
    assert set_type(simhost, VF, 1148) == "ok"
    with pytest.raises(ValueError, match="vGPUs"):
        simhost.control(f"mode {GPU} equal-size")
    pid = simhost.hold(VF)
    with pytest.raises(ValueError, match="open"):
        simhost.control(f"vfs {GPU} off")
    simhost.drop(pid)
    simhost.control(f"vfs {GPU} off")
    assert not nvidia(simhost).exists()
    simhost.control(f"vfs {GPU} on")
    assert set_type(simhost, VF, 1148) == "ok"
    assert 1156 not in creatable(simhost, "0000:41:00.5")
    assert 1145 not in creatable(simhost, "0000:41:00.5")
    assert set_type(simhost, VF, 0) == "ok"
    simhost.control(f"mode {GPU} heterogeneous")
    assert set_type(simhost, VF, 1148) == "ok"
    assert 1145 in creatable(simhost, "0000:41:00.5")


@pytest.mark.simhost("mig-h200")
def test_e2_gpu_instances_are_wiped_with_the_vfs(simhost: SimHost) -> None:
    assert creatable(simhost)
    simhost.control(f"vfs {GPU} off\nvfs {GPU} on")
    assert creatable(simhost) == []
    simhost.control(f"instance {GPU} 5 1414")
    assert creatable(simhost) == [1414]
    assert set_type(simhost, VF, 1414) == "ok"
    assert (nvidia(simhost) / "gpu_instance_id").read_text() == "5\n"
    with pytest.raises(ValueError, match="has a vGPU"):
        simhost.control(f"instance {GPU} 5")


@pytest.mark.simhost("vfs-off-busy")
def test_row70_the_lock_is_not_to_be_had_at_once(simhost: SimHost) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="unbindLock"):
            simhost.control(f"vfs {GPU} on")
    simhost.control(f"vfs {GPU} on")
    assert nvidia(simhost).exists()


@pytest.mark.simhost("xe-sriov-admin")
def test_e4_xe_makes_vfs_when_their_number_is_written(simhost: SimHost) -> None:
    gpu = simhost.sys / "bus/pci/devices/0000:03:00.0"
    put(gpu / "sriov_admin/vf1/profile/sched_priority", "high\n")
    assert (gpu / "sriov_admin/vf1/profile/sched_priority").read_text() == "high\n"
    answers = [errno_of_put(gpu / "sriov_numvfs", text) for text in ("2", "0", "2", "3", "99")]
    assert answers == ["EBUSY", "ok", "ok", "EBUSY", "ERANGE"]
    assert sorted(path.name for path in gpu.glob("virtfn*")) == ["virtfn0", "virtfn1"]
