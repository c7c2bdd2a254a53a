"""The host files with VFs: that each has the quirk that it is there for.

Each test names its fact (facts/libvirt-kernel-nvidia.md) or its row of peers.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .client import SimHost
from .helpers import (
    MTTY,
    VF,
    A,
    creatable,
    create,
    errno_of_put,
    errno_of_read,
    nvidia,
    put,
    set_type,
)
from .host import Host
from .hostfile import load
from .plaintree import large_host, plain_tree
from .plugin import MakeSimHost

SECOND, THIRD = "0000:41:00.5", "0000:41:00.6"
Q2, Q24, HEADER = 1148, 1155, "ID    : vGPU Name\n"


def pci(sim: SimHost, address: str = "0000:41:00.0") -> Path:
    return sim.sys / "bus/pci/devices" / address


# --- which types go together ---


@pytest.mark.simhost("l40s-same-type")
def test_e1_same_type_locks_the_others(simhost: SimHost) -> None:
    assert set_type(simhost, VF, Q2) == "ok"
    assert creatable(simhost, SECOND) == [Q2]
    assert set_type(simhost, SECOND, 1158) == "EIO"  # 2 GiB too
    assert set_type(simhost, VF, 0) == "ok"
    assert set_type(simhost, SECOND, 1158) == "ok"


@pytest.mark.simhost("l40s-equal-size")
def test_e2_equal_size_locks_the_other_sizes(simhost: SimHost) -> None:
    assert set_type(simhost, VF, Q2) == "ok"
    assert creatable(simhost, SECOND) == [Q2, 1158]
    assert set_type(simhost, SECOND, 1158) == "ok"


@pytest.mark.simhost("l40s-full")
def test_row75_free_looking_vfs_of_a_full_card(simhost: SimHost) -> None:
    assert simhost.current_types() == {VF: Q24, SECOND: Q24}
    vfs = [path.resolve().name for path in pci(simhost).glob("virtfn*")]
    assert len(vfs) == 16
    assert {(nvidia(simhost, vf) / "creatable_vgpu_types").read_text() for vf in vfs} == {HEADER}
    assert simhost.writes() == []


@pytest.mark.simhost("l40s-two")
def test_e2_two_gpus_have_capacity_and_numa_nodes_of_their_own(simhost: SimHost) -> None:
    other = "0000:c1:00.4"
    simhost.assign(VF, 1156)
    assert creatable(simhost, SECOND) == []
    assert set_type(simhost, other, 1156) == "ok"
    assert (pci(simhost) / "numa_node").read_text() == "0\n"
    assert (pci(simhost, other) / "numa_node").read_text() == "1\n"
    nodes = simhost.sys / "devices/system/node"
    assert (nodes / "node0/cpulist").read_text() == "0-15,32-47\n"
    assert (nodes / "node1/cpulist").read_text() == "16-31,48-63\n"


@pytest.mark.simhost("mig-h200")
def test_e2_mig_a_vgpu_needs_a_gpu_instance_of_its_type(simhost: SimHost) -> None:
    assert creatable(simhost) == [1414, 1415]
    assert set_type(simhost, VF, 1414) == "ok"
    assert (nvidia(simhost) / "gpu_instance_id").read_text() == "3\n"
    assert set_type(simhost, SECOND, 1414) == "ok"
    assert (nvidia(simhost, SECOND) / "gpu_instance_id").read_text() == "4\n"
    assert creatable(simhost, THIRD) == [1415]
    assert set_type(simhost, THIRD, 1414) == "EIO"
    assert set_type(simhost, VF, 0) == "ok"
    assert set_type(simhost, THIRD, 1414) == "ok"
    assert (nvidia(simhost, THIRD) / "gpu_instance_id").read_text() == "3\n"


@pytest.mark.simhost("mig-no-instances")
def test_e2_mig_without_instances_has_no_types(simhost: SimHost) -> None:
    assert (nvidia(simhost) / "creatable_vgpu_types").read_text() == HEADER
    assert set_type(simhost, VF, 1414) == "EIO"


# --- how it is shown ---


@pytest.mark.simhost("no-header")
def test_e2_no_header(simhost: SimHost) -> None:
    types = nvidia(simhost) / "creatable_vgpu_types"
    assert types.read_text().splitlines()[0] == "1145 : NVIDIA L40S-1B"
    assert set_type(simhost, VF, Q2) == "ok"
    assert types.read_text() == ""


@pytest.mark.simhost("pf-with-nvidia")
def test_e2_the_pf_has_an_nvidia_directory_and_no_vgpu(simhost: SimHost) -> None:
    decoy = pci(simhost) / "nvidia"
    assert len((decoy / "creatable_vgpu_types").read_text().splitlines()) == 10
    assert (decoy / "current_vgpu_type").read_text() == "0\n"
    assert errno_of_put(decoy / "current_vgpu_type", "1148\n") == "EIO"
    assert list(simhost.write_counts().values()) == [1]
    assert set_type(simhost, VF, Q2) == "ok"


@pytest.mark.simhost("vf-domain-0001")
def test_a_pci_domain_other_than_0(simhost: SimHost) -> None:
    vf = "0001:41:00.4"
    assert all(name.startswith("0001:") for name in os.listdir(pci(simhost, vf).parent))
    assert set_type(simhost, vf, Q2) == "ok"
    pid = simhost.hold(vf)
    assert "host=" + vf in (simhost.proc / str(pid) / "cmdline").read_text()


@pytest.mark.simhost("nvidia-525-answers")
def test_525_its_errors(simhost: SimHost) -> None:
    with pytest.raises(ValueError, match=str(19)):  # ENODEV
        simhost.hold(VF)
    assert set_type(simhost, VF, Q2) == "ok"
    assert set_type(simhost, VF, Q2) == "EPERM"
    assert set_type(simhost, SECOND, 9999) == "EIO"
    simhost.hold(VF)
    assert set_type(simhost, VF, 0) == "EPERM"


def test_a_driver_for_which_0_over_0_is_nothing(make_simhost: MakeSimHost, tmp_path: Path) -> None:
    text = '[[gpu]]\naddress = "0000:41:00.0"\nanswers = { nothing = "" }\n'
    (tmp_path / "x.toml").write_text(text)
    sim = make_simhost(tmp_path / "x.toml")
    assert set_type(sim, VF, 0) == "ok"


@pytest.mark.parametrize("text", ['mode = "any"', "mod = 1", 'answers = { open = "EWHAT" }'])
def test_what_is_wrong_in_a_gpu_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(f'[[gpu]]\naddress = "0000:41:00.0"\n{text}\n')
    with pytest.raises(ValueError, match=r"x\.toml"):
        load(tmp_path / "x.toml")


@pytest.mark.simhost("l40s-cdev")
def test_d5_a_vf_can_be_held_by_its_character_device(simhost: SimHost) -> None:
    simhost.assign(SECOND, Q2)
    device = "/dev/vfio/devices/" + os.listdir(pci(simhost, SECOND) / "vfio-dev")[0]
    assert (pci(simhost, SECOND) / "vfio-dev/vfio1/dev").read_text() == "511:1\n"
    pid = simhost.hold(device)
    links = [os.readlink(link) for link in (simhost.proc / str(pid) / "fd").iterdir()]
    assert device in links
    assert set_type(simhost, SECOND, 0) == "EBUSY"
    simhost.drop(pid)
    assert set_type(simhost, SECOND, 0) == "ok"


# --- what is not there, or broken ---


@pytest.mark.simhost("l40s-late")
def test_row20_vfs_appear_late_and_their_driver_later(simhost: SimHost) -> None:
    vf = pci(simhost, VF)
    assert (pci(simhost) / "sriov_numvfs").read_text() == "0\n"
    assert [vf.exists() for _ in range(3)] == [False, False, True]
    assert not (vf / "driver").exists()
    assert [(vf / "nvidia").exists() for _ in range(2)] == [False, True]
    assert (vf / "driver").exists()
    assert set_type(simhost, VF, Q2) == "ok"


@pytest.mark.simhost("vfs-off")
def test_e2_vfs_are_off_until_sriov_manage_has_run(simhost: SimHost) -> None:
    gpu = pci(simhost)
    assert (gpu / "driver").resolve().name == "nvidia"
    assert (gpu / "sriov_totalvfs").read_text() == "32\n"
    assert (gpu / "sriov_numvfs").read_text() == "0\n"
    assert list(gpu.glob("virtfn*")) == []
    assert os.listdir(gpu.parent) == ["0000:41:00.0"]
    simhost.load(VF)
    assert (gpu / "sriov_numvfs").read_text() == "1\n"
    assert set_type(simhost, VF, Q2) == "ok"


@pytest.mark.simhost("nvidia-driver-missing")
def test_e2_the_driver_is_missing(simhost: SimHost) -> None:
    gpu = pci(simhost)
    assert (gpu / "vendor").read_text() == "0x10de\n"
    assert not (gpu / "driver").exists()
    assert (gpu / "sriov_totalvfs").read_text() == "32\n"
    assert (gpu / "sriov_numvfs").read_text() == "0\n"
    assert os.listdir(gpu.parent) == ["0000:41:00.0"]


@pytest.mark.simhost("t4-unsupported")
def test_e2_a_t4_on_kernel_6_8_has_neither_interface(simhost: SimHost) -> None:
    gpu = pci(simhost, "0000:3b:00.0")
    assert (gpu / "driver").resolve().name == "nvidia"
    for name in ("sriov_totalvfs", "sriov_numvfs", "nvidia", "mdev_supported_types"):
        assert not (gpu / name).exists()
    assert not (simhost.sys / "class/mdev_bus").exists()


@pytest.mark.simhost("vf-unreadable")
def test_row69_one_vf_cannot_be_read(simhost: SimHost) -> None:
    for name in ("creatable_vgpu_types", "current_vgpu_type"):
        assert errno_of_read(nvidia(simhost, THIRD) / name) == "EIO"
    assert (pci(simhost, THIRD) / "vendor").read_text() == "0x10de\n"
    assert len(creatable(simhost)) == 9


# --- other frameworks ---


@pytest.mark.simhost("mixed-mdev-vfio")
def test_both_frameworks_on_one_host(simhost: SimHost) -> None:
    assert os.listdir(simhost.sys / "class/mdev_bus") == [MTTY]
    assert create(simhost, MTTY, "mtty-1") == "ok"
    assert set_type(simhost, VF, Q2) == "ok"
    first, second = simhost.hold(A), simhost.hold(VF)
    state = simhost.state()
    assert state["devices"][A]["holders"] == [first]
    assert state["vfs"][VF]["holders"] == [second]
    with pytest.raises(ValueError, match="no type"):
        simhost.make(A, VF, "1148")
    with pytest.raises(ValueError, match="no VF"):
        simhost.assign(MTTY, 1)


@pytest.mark.simhost("xe")
def test_e4_plain_vfs_of_xe(simhost: SimHost) -> None:
    gpu, vf = pci(simhost, "0000:03:00.0"), pci(simhost, "0000:03:00.1")
    for function in (gpu, vf):
        assert (function / "vendor").read_text() == "0x8086\n"
        assert (function / "class").read_text() == "0x030000\n"
        assert (function / "driver").resolve().name == "xe"
        assert not (function / "nvidia").exists()
    assert (vf / "physfn").resolve() == gpu.resolve()
    assert (gpu / "sriov_numvfs").read_text() == "4\n"
    assert os.listdir(simhost.dev / "vfio") == ["vfio"]


@pytest.mark.simhost("gim")
def test_e5_plain_vfs_of_gim_are_on_vfio_pci(simhost: SimHost) -> None:
    gpu, vf = pci(simhost, "0000:05:00.0"), pci(simhost, "0000:05:02.0")
    assert (gpu / "driver").resolve().name == "gim"
    assert (gpu / "device").read_text() == "0x74a1\n"
    assert (gpu / "virtfn0").resolve() == vf.resolve()
    assert (vf / "device").read_text() == "0x74b5\n"
    assert (vf / "driver").resolve().name == "vfio-pci"
    pid = simhost.hold("0000:05:02.0")
    group = (vf / "iommu_group").resolve().name
    links = [os.readlink(link) for link in (simhost.proc / str(pid) / "fd").iterdir()]
    assert f"/dev/vfio/{group}" in links


@pytest.mark.simhost("vfio-ap")
def test_d6_vfio_ap_is_an_mdev_parent_and_no_gpu(simhost: SimHost) -> None:
    assert create(simhost, "matrix", "vfio_ap-passthrough") == "ok"
    device = simhost.sys / "devices/vfio_ap/matrix" / A
    kind = (device / "mdev_type").resolve()
    assert (kind / "device_api").read_text() == "vfio-ap\n"
    put(device / "assign_adapter", "5\n")
    assert os.listdir(simhost.sys / "bus/pci/devices") == []


# --- an ordinary directory tree ---


def test_plain_tree_has_the_layout_of_the_simulated_host(tmp_path: Path) -> None:
    root = plain_tree(tmp_path / "host", gpus=3, vfs=5, types=7)
    devices = root / "sys/bus/pci/devices"
    assert len(os.listdir(devices)) == 3 * 6
    vf = devices / "0000:09:00.4"
    assert (vf / "physfn").resolve() == (devices / "0000:09:00.0").resolve()
    assert (vf / "physfn/virtfn0").resolve() == vf.resolve()
    assert (vf / "class").read_text() == "0x030200\n"
    assert (vf / "driver").resolve() == root / "sys/bus/pci/drivers/nvidia"
    assert (vf / "nvidia/current_vgpu_type").read_text() == "0\n"
    assert len((vf / "nvidia/creatable_vgpu_types").read_text().splitlines()) == 8
    assert not (vf / "nvidia/gpu_instance_id").exists()
    assert (root / "dev/vfio" / (vf / "iommu_group").resolve().name).exists()
    numa = {(devices / f"0000:{bus}:00.0/numa_node").read_text() for bus in ("01", "09", "11")}
    assert numa == {"0\n", "1\n"}


def test_the_large_host_of_the_plain_tree_fits_on_the_pci_buses() -> None:
    host = Host(large_host(gpus=16, vfs=32, types=30))
    assert len(host.parents) == 16 * 32
    assert sum(1 for parent in host.parents.values() if parent.registered) == 16 * 32
