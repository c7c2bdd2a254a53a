"""The simulated host against the facts about the kernel's mdev core: D1 to D5, F1, F2, G9.

Each test names its fact (facts/libvirt-kernel-nvidia.md).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
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
    errno_of_put,
    process_state,
    put,
    wait_until_blocked,
    writer,
)
from .plugin import MakeSimHost

# --- D1, D3: what there is to see ---


def test_d1_types_of_mtty_have_no_description(simhost: SimHost) -> None:
    kinds = simhost.sys / "class/mdev_bus/mtty/mdev_supported_types"
    assert sorted(os.listdir(kinds)) == ["mtty-1", "mtty-2"]
    expected = ["available_instances", "create", "device_api", "devices", "name"]
    assert sorted(os.listdir(kinds / "mtty-1")) == expected
    assert (kinds / "mtty-2/name").read_text() == "Dual port serial\n"
    assert (kinds / "mtty-1/device_api").read_text() == "vfio-pci\n"


def test_d1_mdev_bus_is_a_link_to_the_parent(simhost: SimHost) -> None:
    link = simhost.sys / "class/mdev_bus/mtty"
    assert os.readlink(link) == "../../devices/virtual/mtty/mtty"
    assert link.resolve() == simhost.sys / "devices/virtual/mtty/mtty"


def test_d3_a_device_has_its_links_from_birth(simhost: SimHost) -> None:
    assert create(simhost, MTTY, "mtty-1") == "ok"
    device = bus(simhost)
    assert device.resolve() == simhost.sys / "devices/virtual/mtty/mtty" / A
    assert (device / "mdev_type").resolve().name == "mtty-1"
    assert (device / "driver").resolve().name == "mtty"
    group = (device / "iommu_group").resolve()
    assert group.parent == simhost.sys / "kernel/iommu_groups"
    assert os.listdir(group / "devices") == [A]
    assert (simhost.dev / "vfio" / group.name).exists()
    assert os.listdir(device / "vfio-dev") == ["vfio0"]
    kind = simhost.sys / "class/mdev_bus/mtty/mdev_supported_types/mtty-1"
    assert (kind / "devices" / A).resolve() == device.resolve()


@pytest.mark.simhost("old-kernel")
def test_d3_kernel_5_10_has_vfio_mdev_and_no_vfio_dev(simhost: SimHost) -> None:
    assert create(simhost, MTTY, "mtty-1") == "ok"
    assert (bus(simhost) / "driver").resolve().name == "vfio_mdev"
    assert not (bus(simhost) / "vfio-dev").exists()


def test_attributes_look_like_sysfs(simhost: SimHost) -> None:
    kind = create_file(simhost, MTTY, "mtty-1").parent
    assert oct((kind / "create").stat().st_mode) == "0o100200"
    assert oct((kind / "name").stat().st_mode) == "0o100444"
    assert (kind / "name").stat().st_size == 4096
    for path, flags in ((kind / "create", os.O_RDONLY), (kind / "name", os.O_WRONLY)):
        with pytest.raises(PermissionError):
            os.open(path, flags)
    with pytest.raises(PermissionError):  # a shell's `> file` that is not there
        os.open(kind / "nothing", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


# --- D2: create ---


@pytest.mark.parametrize("text", ["", A[:-1], A + "\n\n", A.replace("-", "x"), "g" + A[1:]])
def test_d2_create_refuses_what_is_no_uuid(simhost: SimHost, text: str) -> None:
    outcome = errno_of_put(create_file(simhost, MTTY, "mtty-1"), text)
    assert outcome == ("ok" if text == "" else "EINVAL")  # write(2) of nothing does nothing
    assert simhost.devices() == []


@pytest.mark.parametrize("text", [A, A + "\n", A + " "])
def test_d2_create_takes_36_or_37_bytes(simhost: SimHost, text: str) -> None:
    put(create_file(simhost, MTTY, "mtty-1"), text)
    assert simhost.devices() == [A]


@pytest.mark.simhost("two-mtty-like")
def test_d2_a_uuid_is_unique_on_the_host_in_any_case(simhost: SimHost) -> None:
    assert create(simhost, "mtty", "mtty-1", A.upper()) == "ok"
    assert os.listdir(simhost.sys / "bus/mdev/devices") == [A]
    assert create(simhost, "mtty2", "mtty-2", A) == "EEXIST"
    assert create(simhost, "mtty2", "mtty-2", A.upper()) == "EEXIST"


def test_d2_f1_types_share_the_ports_and_full_is_enospc(simhost: SimHost) -> None:
    assert create(simhost, MTTY, "mtty-2") == "ok"
    assert (available(simhost, MTTY, "mtty-1"), available(simhost, MTTY, "mtty-2")) == (22, 11)
    for _ in range(22):
        assert create(simhost, MTTY, "mtty-1", str(uuid.uuid4())) == "ok"
    assert (available(simhost, MTTY, "mtty-1"), available(simhost, MTTY, "mtty-2")) == (0, 0)
    assert create(simhost, MTTY, "mtty-1", B) == "ENOSPC"
    assert create(simhost, MTTY, "mtty-1", A) == "EEXIST"  # checked first


@pytest.mark.simhost("mdpy")
def test_d2_f2_the_core_counts_mdpy_and_full_is_eusers(simhost: SimHost) -> None:
    for kind in ("mdpy-vga", "mdpy-xga", "mdpy-hd", "mdpy-vga"):
        assert create(simhost, "mdpy", kind, str(uuid.uuid4())) == "ok"
    assert create(simhost, "mdpy", "mdpy-hd") == "EUSERS"


def test_d2_enoent_once_the_type_is_gone_and_enodev_for_an_open_file(simhost: SimHost) -> None:
    fd = os.open(create_file(simhost, MTTY, "mtty-1"), os.O_WRONLY)
    simhost.unload(MTTY)
    with pytest.raises(OSError, match="No such device") as caught:
        os.write(fd, A.encode())
    os.close(fd)
    assert caught.value.errno == errno.ENODEV
    assert create(simhost, MTTY, "mtty-1") == "ENOENT"
    simhost.load(MTTY)
    assert create(simhost, MTTY, "mtty-1") == "ok"


@pytest.mark.simhost("slow")
def test_d3_d4_a_slow_create_shows_half_a_device(simhost: SimHost) -> None:
    process = writer(create_file(simhost, MTTY, "mtty-1"), A)
    wait_until_blocked(simhost, "*/create")
    assert bus(simhost).exists()
    assert not (bus(simhost) / "mdev_type").exists()
    assert errno_of_put(bus(simhost) / "remove", "1") == "EAGAIN"
    assert process.wait(5) == 0
    assert (bus(simhost) / "mdev_type").exists()


# --- D4: remove ---


def test_d4_remove_of_an_idle_device_is_immediate(simhost: SimHost) -> None:
    assert create(simhost, MTTY, "mtty-1") == "ok"
    put(bus(simhost) / "remove", "1\n")
    assert simhost.devices() == []
    assert available(simhost, MTTY, "mtty-1") == 24
    assert not (simhost.sys / "devices/virtual/mtty/mtty" / A).exists()
    assert os.listdir(simhost.sys / "kernel/iommu_groups") == []
    assert os.listdir(simhost.dev / "vfio") == ["vfio"]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("0", "ok"),
        ("0\n", "ok"),
        ("x", "EINVAL"),
        ("1 ", "EINVAL"),
        ("-1", "EINVAL"),
        ("08", "EINVAL"),
    ],
)
def test_d4_remove_takes_a_number_and_zero_does_nothing(
    simhost: SimHost, text: str, outcome: str
) -> None:
    simhost.make(A, MTTY, "mtty-1")
    assert errno_of_put(bus(simhost) / "remove", text) == outcome
    assert simhost.devices() == [A]
    assert errno_of_put(bus(simhost) / "remove", "0x1") == "ok"
    assert simhost.devices() == []


def test_d4_g9_remove_of_a_device_in_use_blocks_until_it_is_closed(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    pid = simhost.hold(A)
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    assert not bus(simhost).exists()  # G9: the owner loses its directory at once
    assert (simhost.sys / "devices/virtual/mtty/mtty" / A / "iommu_group").exists()
    assert available(simhost, MTTY, "mtty-1") == 23
    assert create(simhost, MTTY, "mtty-1") == "EEXIST"
    assert create(simhost, MTTY, "mtty-1", B) == "ok"  # others go on
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    simhost.drop(pid)
    assert process.wait(5) == 0
    assert available(simhost, MTTY, "mtty-1") == 23
    assert [w.outcome for w in simhost.writes("sys/bus/mdev/devices/*/remove")] == ["ok"]


def test_d4_the_remove_file_is_gone_for_a_second_writer(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    simhost.hold(A, 5000)
    directory = bus(simhost).resolve()
    second = os.open(directory / "remove", os.O_WRONLY)
    process = writer(directory / "remove")
    wait_until_blocked(simhost, "*/remove")
    assert errno_of_put(directory / "remove", "1") == "ENOENT"
    with pytest.raises(OSError, match="No such device"):
        os.write(second, b"1")
    os.close(second)
    simhost.drop(5000)
    assert process.wait(5) == 0


def test_d4_a_killed_writer_stays_until_the_device_is_closed(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    simhost.hold(A, 5000)
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    process.send_signal(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    assert process_state(process.pid) == "D"
    simhost.drop(5000)
    assert process.wait(5) == -signal.SIGKILL
    assert simhost.devices() == []


# --- D5: who has it open ---


def test_d5_a_group_can_be_opened_once(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    group = simhost.dev / "vfio" / (bus(simhost) / "iommu_group").resolve().name
    fd = os.open(group, os.O_RDWR)
    with pytest.raises(OSError, match="busy") as caught:
        os.open(group, os.O_RDWR)
    assert caught.value.errno == errno.EBUSY
    mine = simhost.proc / str(os.getpid())
    assert (mine / "comm").read_text() == Path("/proc/self/comm").read_text()
    links = [os.readlink(link) for link in (mine / "fd").iterdir()]
    assert f"/dev/vfio/{group.name}" in links
    os.close(fd)
    for _ in range(200):
        if not mine.exists():
            return
        time.sleep(0.005)
    raise AssertionError("the process is still there")


def test_d5_a_real_process_that_has_the_group_open_blocks_remove(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    group = simhost.dev / "vfio" / (bus(simhost) / "iommu_group").resolve().name
    fd = os.open(group, os.O_RDWR)
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    os.close(fd)
    assert process.wait(5) == 0


def test_d5_a_held_device_is_seen_in_proc(make_simhost: MakeSimHost) -> None:
    sim = make_simhost("mtty", dev_links="@")
    sim.make(A, MTTY, "mtty-1")
    pid = sim.hold(A, comm="qemu-system-x86")
    group = (bus(sim) / "iommu_group").resolve().name
    links = [os.readlink(link) for link in (sim.proc / str(pid) / "fd").iterdir()]
    assert {str(sim.dev / "vfio" / group), "anon_inode:[vfio-device]"} <= set(links)
    assert (sim.proc / str(pid) / "comm").read_text() == "qemu-system-x86\n"
    assert A in (sim.proc / str(pid) / "cmdline").read_text()
    stat = (sim.proc / str(pid) / "stat").read_text()
    assert len(stat.rpartition(") ")[2].split()) == 50
    assert int(stat.rpartition(") ")[2].split()[19]) >= 100000  # starttime
    with pytest.raises(OSError, match="busy"):
        os.open(sim.dev / "vfio" / group, os.O_RDWR)
    with pytest.raises(ValueError, match="open already"):
        sim.hold(A)


@pytest.mark.simhost("mtty-cdev")
def test_d5_a_cdev_is_a_handle_too(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    pid = simhost.hold("/dev/vfio/devices/vfio0")
    links = [os.readlink(link) for link in (simhost.proc / str(pid) / "fd").iterdir()]
    assert "/dev/vfio/devices/vfio0" in links
    process = writer(bus(simhost) / "remove")
    wait_until_blocked(simhost, "*/remove")
    simhost.drop(pid)
    assert process.wait(5) == 0


def test_group_numbers_are_used_again(simhost: SimHost) -> None:
    simhost.make(A, MTTY, "mtty-1")
    first = os.readlink(bus(simhost) / "iommu_group")
    put(bus(simhost) / "remove", "1")
    simhost.make(B, MTTY, "mtty-1")
    assert os.readlink(bus(simhost, B) / "iommu_group") == first
