"""Vendor-specific VFIO on VFs against facts E2: what the files read, and what writes do.

Each test names its fact (facts/libvirt-kernel-nvidia.md) or its row of peers.md; 525 is NVIDIA's
own source, see vendor.py. Other quirks of hosts with VFs are in test_vf_hosts.py.
"""

from __future__ import annotations

import errno
import os
import time

import pytest

from .client import SimHost
from .helpers import (
    VF,
    creatable,
    errno_of_put,
    errno_of_read,
    nvidia,
    put,
    set_type,
)

pytestmark = pytest.mark.simhost("l40s")

SECOND, THIRD = "0000:41:00.5", "0000:41:00.6"
Q2, Q24, Q48 = 1148, 1155, 1156

# --- what there is to see ---


def test_e2_the_files_of_a_vf_without_a_vgpu(simhost: SimHost) -> None:
    files = {path.name: oct(path.stat().st_mode & 0o777) for path in nvidia(simhost).iterdir()}
    assert files == {
        "creatable_vgpu_types": "0o444",
        "current_vgpu_type": "0o644",
        "gpu_instance_id": "0o644",
        "placement_id": "0o644",
        "vgpu_params": "0o644",
        "warm_update": "0o644",
    }
    lines = (nvidia(simhost) / "creatable_vgpu_types").read_text().splitlines()
    assert lines[:2] == ["ID    : vGPU Name", "1145  : NVIDIA L40S-1B"]
    assert len(lines) == 24
    assert (nvidia(simhost) / "current_vgpu_type").read_text() == "0\n"
    for name in ("gpu_instance_id", "placement_id", "vgpu_params"):
        assert errno_of_read(nvidia(simhost) / name) == "ENXIO"


def test_e2_the_tree_of_a_pf_and_its_vfs(simhost: SimHost) -> None:
    devices = simhost.sys / "bus/pci/devices"
    gpu, vf = devices / "0000:41:00.0", devices / VF
    assert sorted(os.listdir(devices))[0] == "0000:41:00.0"
    assert len(os.listdir(devices)) == 9
    expected = {"vendor": "0x10de", "device": "0x26b9", "class": "0x030200", "numa_node": "0"}
    for function in (gpu, vf):
        assert {name: (function / name).read_text().strip() for name in expected} == expected
        assert (function / "driver").resolve() == simhost.sys / "bus/pci/drivers/nvidia"
    assert (gpu / "subsystem_vendor").read_text() == "0x10de\n"
    assert (gpu / "subsystem_device").read_text() == "0x1851\n"
    assert (gpu / "sriov_totalvfs").read_text() == (gpu / "sriov_numvfs").read_text() == "8\n"
    assert (gpu / "virtfn0").resolve() == vf.resolve()
    assert (gpu / "virtfn4").resolve().name == "0000:41:01.0"
    assert (vf / "physfn").resolve() == gpu.resolve()
    assert not (gpu / "nvidia").exists()
    assert not (gpu / "vfio-dev").exists()
    assert not (simhost.sys / "class/mdev_bus").exists()


def test_e2_d5_a_vf_has_its_group_and_its_file_from_the_start(simhost: SimHost) -> None:
    vf = simhost.sys / "bus/pci/devices" / VF
    group = (vf / "iommu_group").resolve()
    assert group.parent == simhost.sys / "kernel/iommu_groups"
    assert os.listdir(group / "devices") == [VF]
    assert (group / "devices" / VF).resolve() == vf.resolve()
    assert os.listdir(vf / "vfio-dev") == ["vfio0"]
    assert (simhost.dev / "vfio" / group.name).exists()


# --- setting and taking away ---


def test_e2_a_written_type_is_read_back_and_0_frees(simhost: SimHost) -> None:
    assert set_type(simhost, VF, Q2) == "ok"
    assert (nvidia(simhost) / "current_vgpu_type").read_text() == "1148\n"
    assert (nvidia(simhost) / "creatable_vgpu_types").read_text() == "ID    : vGPU Name\n"
    assert (nvidia(simhost) / "placement_id").read_text() == "0\n"
    assert (nvidia(simhost) / "vgpu_params").read_text() == ""
    assert (nvidia(simhost) / "warm_update").read_text() == "0\n"
    assert errno_of_put(nvidia(simhost) / "warm_update", "2") == "EINVAL"
    assert set_type(simhost, VF, 0) == "ok"
    assert simhost.current_types() == {}
    assert len(creatable(simhost)) == 23
    assert errno_of_read(nvidia(simhost) / "placement_id") == "ENXIO"


def test_e2_siblings_lists_shrink_with_the_frame_buffer(simhost: SimHost) -> None:
    assert set_type(simhost, VF, Q24) == "ok"
    left = creatable(simhost, SECOND)
    assert Q24 in left
    assert Q48 not in left
    assert set_type(simhost, SECOND, 1153) == "ok"  # 12 GiB: sizes may differ
    assert Q24 not in creatable(simhost, THIRD)
    assert set_type(simhost, THIRD, 1153) == "ok"
    assert creatable(simhost, "0000:41:00.7") == []
    assert set_type(simhost, VF, 0) == "ok"
    assert Q24 in creatable(simhost, "0000:41:00.7")


def test_e2_what_cannot_be_created_is_eio(simhost: SimHost) -> None:
    assert set_type(simhost, VF, 9999) == "EIO"
    assert set_type(simhost, VF, -1) == "EIO"
    assert set_type(simhost, VF, Q48) == "ok"
    assert set_type(simhost, SECOND, 1145) == "EIO"
    assert simhost.current_types() == {VF: Q48}


def test_e2_a_type_over_a_type_is_eio(simhost: SimHost) -> None:
    assert set_type(simhost, VF, Q2) == "ok"
    assert set_type(simhost, VF, Q2) == "EIO"
    assert set_type(simhost, VF, 1145) == "EIO"
    assert simhost.current_type(VF) == Q2


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("1148", "ok"),
        ("1148\n", "ok"),
        ("+1148", "ok"),
        ("1148 ", "EINVAL"),
        (" 1148", "EINVAL"),
        ("0x47c", "EINVAL"),
        ("NVIDIA L40S-2Q", "EINVAL"),
        ("\n", "EINVAL"),
        ("9" * 20, "ERANGE"),
    ],
)
def test_525_the_number_is_decimal_with_at_most_a_newline(
    simhost: SimHost, text: str, outcome: str
) -> None:
    assert errno_of_put(nvidia(simhost) / "current_vgpu_type", text) == outcome
    assert simhost.current_type(VF) == (Q2 if outcome == "ok" else 0)


def test_525_0_over_0_is_eperm(simhost: SimHost) -> None:
    assert set_type(simhost, VF, 0) == "EPERM"


def test_e2_vgpu_params_need_a_newline_and_go_with_the_vgpu(simhost: SimHost) -> None:
    params = nvidia(simhost) / "vgpu_params"
    assert errno_of_put(params, "frame_rate_limiter=0\n") == "ENXIO"
    simhost.assign(VF, Q2)
    put(params, "frame_rate_limiter=0")
    assert params.read_text() == ""
    put(params, "frame_rate_limiter=0\n")
    assert params.read_text() == "frame_rate_limiter=0\n"
    pid = simhost.hold(VF)
    assert errno_of_put(params, "\n") == "EPERM"
    simhost.drop(pid)
    put(params, " \n")
    assert params.read_text() == ""
    put(params, "x=1\n")
    simhost.assign(VF, 0)
    simhost.assign(VF, Q2)
    assert params.read_text() == ""


def test_e2_placement_can_be_chosen_until_the_vm_starts(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    simhost.assign(SECOND, Q2)
    placement = nvidia(simhost, SECOND) / "placement_id"
    assert placement.read_text() == "1\n"
    put(placement, "8\n")
    assert placement.read_text() == "8\n"
    simhost.hold(SECOND)
    assert errno_of_put(placement, "9\n") == "EPERM"
    assert errno_of_put(nvidia(simhost) / "gpu_instance_id", "3\n") == "EPERM"


# --- in use ---


def test_e2_0_is_ebusy_while_somebody_has_it_open(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    pid = simhost.hold(VF)
    assert "host=" + VF in (simhost.proc / str(pid) / "cmdline").read_text()
    assert set_type(simhost, VF, 0) == "EBUSY"
    assert simhost.current_type(VF) == Q2
    simhost.drop(pid)
    assert set_type(simhost, VF, 0) == "ok"


def test_e2_d5_a_real_process_opens_the_group_once_a_type_is_set(simhost: SimHost) -> None:
    group = simhost.dev / "vfio" / (nvidia(simhost).parent / "iommu_group").resolve().name
    with pytest.raises(OSError, match="Input/output error") as refused:
        os.open(group, os.O_RDWR)
    assert refused.value.errno == errno.EIO
    with pytest.raises(ValueError, match="not set"):
        simhost.hold(VF)
    assert set_type(simhost, VF, Q2) == "ok"
    fd = os.open(group, os.O_RDWR)
    assert simhost.state()["vfs"][VF]["holders"] == [os.getpid()]
    with pytest.raises(OSError, match="busy"):
        os.open(group, os.O_RDWR)
    assert set_type(simhost, VF, 0) == "EBUSY"
    os.close(fd)
    end = time.monotonic() + 5
    while simhost.state()["vfs"][VF]["holders"] and time.monotonic() < end:
        time.sleep(0.005)
    assert set_type(simhost, VF, 0) == "ok"


# --- faults ---


def test_fault_a_write_that_is_ignored(simhost: SimHost) -> None:
    simhost.fault("write", f"*/{VF}/nvidia/current_vgpu_type", "ignore", times=1)
    assert set_type(simhost, VF, Q2) == "ok"
    assert simhost.current_type(VF) == 0
    assert set_type(simhost, VF, Q2) == "ok"
    assert simhost.current_type(VF) == Q2


def test_fault_another_type_than_asked_for(simhost: SimHost) -> None:
    simhost.fault("write", "*/current_vgpu_type", "instead:1145", data="1148")
    assert set_type(simhost, VF, Q2) == "ok"
    assert simhost.current_type(VF) == 1145
    (write,) = simhost.writes("*/current_vgpu_type")
    assert (write.data, write.outcome) == ("1148\n", "ok")
    assert set_type(simhost, VF, 0) == "ok"


def test_fault_a_reset_that_succeeds_at_the_third_try(simhost: SimHost) -> None:
    simhost.fault("write", "*/current_vgpu_type", "EBUSY", data="0", times=2)
    assert set_type(simhost, VF, Q2) == "ok"
    assert [set_type(simhost, VF, 0) for _ in range(3)] == ["EBUSY", "EBUSY", "ok"]


def test_fault_a_reset_that_fails_once_after_an_ignored_one(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    simhost.fault("write", "*/current_vgpu_type", "ignore", data="0", nth=1)
    simhost.fault("read", f"sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type", "EIO", nth=2)
    assert set_type(simhost, VF, 0) == "ok"
    assert (nvidia(simhost) / "current_vgpu_type").read_text() == "1148\n"
    assert errno_of_read(nvidia(simhost) / "current_vgpu_type") == "EIO"
    assert (nvidia(simhost) / "current_vgpu_type").read_text() == "1148\n"


def test_fault_the_vf_vanishes_with_its_vgpu_and_its_holder_and_comes_back(
    simhost: SimHost,
) -> None:
    simhost.assign(VF, Q48)
    simhost.hold(VF)
    group = (nvidia(simhost).parent / "iommu_group").resolve()
    simhost.fault("read", f"*/{VF}/nvidia/current_vgpu_type", "vanish")
    assert errno_of_read(nvidia(simhost) / "current_vgpu_type") == "ENODEV"
    assert not nvidia(simhost).parent.exists()
    assert not group.exists()
    assert simhost.state()["vfs"][VF]["holders"] == []
    holder = [os.readlink(link) for link in (simhost.proc.glob("*/fd/*"))]
    assert not any("vfio" in target for target in holder)
    assert not (simhost.dev / "vfio" / group.name).exists()
    gpu = simhost.sys / "bus/pci/devices/0000:41:00.0"
    assert not (gpu / "virtfn0").exists()
    assert (gpu / "sriov_numvfs").read_text() == "7\n"
    assert Q48 in creatable(simhost, SECOND)
    simhost.heal()
    simhost.load(VF)
    assert (gpu / "virtfn0").resolve().name == VF
    assert simhost.current_type(VF) == 0
    assert set_type(simhost, VF, Q2) == "ok"


@pytest.mark.parametrize("line", ["fault read * instead:1", "fault read * EIO data=0"])
def test_fault_data_is_for_writes(simhost: SimHost, line: str) -> None:
    with pytest.raises(ValueError, match="for writes"):
        simhost.control(line)


# --- steering ---


def test_writes_are_counted_by_file_and_assign_is_none(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    assert simhost.write_counts() == {}
    assert set_type(simhost, VF, Q2) == "EIO"
    assert set_type(simhost, VF, 0) == "ok"
    assert set_type(simhost, SECOND, Q2) == "ok"
    counts = {path.rpartition("/0000:")[2]: n for path, n in simhost.write_counts().items()}
    assert counts == {
        "41:00.4/nvidia/current_vgpu_type": 2,
        "41:00.5/nvidia/current_vgpu_type": 1,
    }
    assert len(simhost.writes(f"sys/bus/pci/devices/{VF}/nvidia/*")) == 2


def test_a_reboot_takes_the_types_away(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    simhost.hold(VF)
    simhost.reboot()
    assert simhost.current_types() == {}
    assert len(creatable(simhost)) == 23
    assert set_type(simhost, VF, Q2) == "ok"


def test_the_driver_lets_go_of_an_idle_vf_only(simhost: SimHost) -> None:
    simhost.assign(VF, Q2)
    pid = simhost.hold(VF)
    with pytest.raises(ValueError, match="open"):
        simhost.unload(VF)
    simhost.drop(pid)
    simhost.unload(VF)
    vf = simhost.sys / "bus/pci/devices" / VF
    assert vf.exists()
    assert not any((vf / name).exists() for name in ("nvidia", "vfio-dev", "driver"))
    simhost.load(VF)
    assert (vf / "nvidia/current_vgpu_type").read_text() == "0\n"


@pytest.mark.parametrize(
    ("text", "outcome"), [("4", "ENOENT"), ("9", "ERANGE"), ("8\n", "ok"), ("x", "EINVAL")]
)
def test_e2_the_number_of_vfs_cannot_be_written(simhost: SimHost, text: str, outcome: str) -> None:
    numvfs = simhost.sys / "bus/pci/devices/0000:41:00.0/sriov_numvfs"
    assert errno_of_put(numvfs, text) == outcome
    assert numvfs.read_text() == "8\n"
