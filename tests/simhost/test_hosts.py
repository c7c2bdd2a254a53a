"""The host files: that they load, and that each has the quirk that it is there for.

Each test names its fact (E1, E3: facts/libvirt-kernel-nvidia.md) or its row of peers.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .client import SimHost
from .helpers import (
    T4,
    A,
    B,
    available,
    bus,
    create,
    create_file,
    put,
)
from .hostfile import HOSTS, load

# --- host files ---


@pytest.mark.parametrize("path", sorted(HOSTS.glob("*.toml")), ids=lambda path: path.stem)
def test_host_files_load_and_say_their_quirk_and_source(path: Path) -> None:
    assert load(path.stem).name == path.stem
    comment = path.read_text().partition("[")[0]
    assert comment.startswith("# ")
    assert "Source: " in path.read_text()


def test_an_unknown_key_of_a_host_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[[parent]]\npath = "virtual/a/b"\ndriver = "d"\ncreat_seconds = 1\n')
    with pytest.raises(ValueError, match="creat_seconds"):
        load(path)


# --- E: vendors ---


@pytest.mark.simhost("nvidia-t4")
def test_e1_after_the_first_vgpu_other_types_are_at_zero(simhost: SimHost) -> None:
    kind = create_file(simhost, T4, "nvidia-231").parent
    assert (kind / "name").read_text() == "GRID T4-2Q\n"
    assert "framebuffer=2048M" in (kind / "description").read_text()
    assert available(simhost, T4, "nvidia-230") == 16
    assert create(simhost, T4, "nvidia-231") == "ok"
    assert available(simhost, T4, "nvidia-231") == 7
    assert available(simhost, T4, "nvidia-230") == 0
    assert create(simhost, T4, "nvidia-230", B) == "ENOSPC"
    put(bus(simhost) / "remove", "1")
    assert create(simhost, T4, "nvidia-230", B) == "ok"


@pytest.mark.simhost("nvidia-t4")
def test_e1_row62_vgpu_params_need_a_newline_and_a_blank_clears_them(simhost: SimHost) -> None:
    simhost.make(A, T4, "nvidia-231")
    params = bus(simhost) / "nvidia/vgpu_params"
    put(params, "frame_rate_limiter=0")
    assert params.read_text() == ""
    put(params, "frame_rate_limiter=0\n")
    assert params.read_text() == "frame_rate_limiter=0\n"
    put(params, " \n")
    assert params.read_text() == ""


@pytest.mark.simhost("nvidia-ampere-vf")
def test_e1_one_mdev_for_each_vf_and_a_shared_frame_buffer(simhost: SimHost) -> None:
    first, second, third = "0000:41:00.4", "0000:41:00.5", "0000:41:01.0"
    vf = simhost.sys / "bus/pci/devices" / first
    assert (vf / "physfn").resolve().name == "0000:41:00.0"
    assert (vf / "physfn/virtfn0").resolve() == vf.resolve()
    assert (vf / "physfn/sriov_numvfs").read_text() == "8\n"
    assert (vf / "driver").resolve().name == "nvidia"
    assert create(simhost, first, "nvidia-565", A) == "ok"  # 24 of 48 GiB
    assert available(simhost, first, "nvidia-565") == 0
    assert available(simhost, second, "nvidia-565") == 1
    assert available(simhost, second, "nvidia-558") == 0
    assert create(simhost, second, "nvidia-565", B) == "ok"
    assert available(simhost, third, "nvidia-565") == 0


@pytest.mark.simhost("gvtg")
def test_e3_row31_the_second_create_fails_although_there_is_room(simhost: SimHost) -> None:
    gpu = "0000:00:02.0"
    kind = create_file(simhost, gpu, "i915-GVTg_V5_8").parent
    assert (kind / "description").read_text().splitlines()[0] == "low_gm_size: 64MB"
    assert create(simhost, gpu, "i915-GVTg_V5_8", A) == "ok"
    assert available(simhost, gpu, "i915-GVTg_V5_8") >= 1
    assert create(simhost, gpu, "i915-GVTg_V5_8", B) == "ENOSPC"
    assert create(simhost, gpu, "i915-GVTg_V5_8", B) == "ok"


@pytest.mark.simhost("no-name")
def test_row73_a_type_without_name_and_description(simhost: SimHost) -> None:
    kind = create_file(simhost, "0000:00:02.0", "i915-GVTg_V5_4").parent
    assert sorted(os.listdir(kind)) == ["available_instances", "create", "device_api", "devices"]


@pytest.mark.simhost("no-gpu")
def test_no_gpu_has_no_mdev_bus(simhost: SimHost) -> None:
    assert not (simhost.sys / "class/mdev_bus").exists()
    assert os.listdir(simhost.sys / "bus/pci/devices") == ["0000:00:1f.6"]


@pytest.mark.simhost("late-parent")
def test_row17_a_parent_appears_after_three_looks(simhost: SimHost) -> None:
    looks = [os.listdir(simhost.sys / "class/mdev_bus") for _ in range(4)]
    assert looks == [[], [], [], [T4]]
    simhost.reboot()
    types = simhost.sys / "bus/pci/devices" / T4 / "mdev_supported_types"
    assert [types.exists() for _ in range(4)] == [False, False, False, True]


@pytest.mark.simhost("late-vfs")
def test_row20_vfs_appear_late_and_their_driver_later(simhost: SimHost) -> None:
    vf = simhost.sys / "bus/pci/devices/0000:41:00.4"
    assert [vf.exists() for _ in range(3)] == [False, False, True]
    assert not (vf / "driver").exists()
    assert [(vf / "mdev_supported_types").exists() for _ in range(2)] == [False, True]
    assert (vf / "driver").exists()
