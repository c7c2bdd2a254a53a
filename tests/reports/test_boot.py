"""Reports of host reboots, boot order and driver reloads (docs/reports.md, rows 17 to 28)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.domains import domain_xml, pci_hostdev
from tests.product import REPOSITORY, Product
from tests.reports.calls import DONE, end, planned_device, refusal, script
from tests.simulated.arrivals import PROFILE, V4, image, l40s, on_record
from tests.simulated.daemons import NO_LIBVIRT
from tests.simulated.kinds import Kind
from vgpu_hook.model import VgpuRequest

T4 = "GRID T4-2Q"
GPU = "0000:41:00.0"


def gate(product: Product, *commands: tuple[str, ...], timeout: int = 60) -> tuple[int, str]:
    """Run the boot gate with these commands; return its exit status and what it said."""
    listed = [list(command) for command in commands]
    product.configure(extra=f"[boot]\ncommands = {listed}\ntimeout = {timeout}\n")
    answer = product.command("boot-gate")
    return answer.status, answer.out


@pytest.mark.simhost("late-parent")
def test_mdevctl_82_the_boot_waits_for_a_parent_that_comes_late(product: Product) -> None:
    on_record(product, "a", VgpuRequest("0", T4))
    assert gate(product) == (0, "")
    assert product.hook("a", "prepare", domain_xml("a", {"0": T4})) == DONE


@pytest.mark.simhost("no-gpu")
def test_mdevctl_82_a_parent_that_never_comes_is_waited_for_no_longer_and_named(
    product: Product,
) -> None:
    on_record(product, "a", VgpuRequest("0", T4))
    assert gate(product, timeout=1) == (1, f"still missing: profile '{T4}'\n")


def test_mdevctl_82_a_file_that_is_not_there_is_named_with_its_path(product: Product) -> None:
    product.sim.fault("write", "sys/*/mtty-1/create", "ENOENT")
    told = refusal(product, "a", domain_xml("a", {"0": "mtty-1"}))
    assert f"writing {product.sim.sys}/class/mdev_bus/mtty/" in told
    assert "/mtty-1/create: No such file or directory" in told


@pytest.mark.simhost("late-parent")
def test_mdevctl_53_what_has_succeeded_is_not_done_again(product: Product, tmp_path: Path) -> None:
    """Neither while the gate waits for something else, nor when it is run again."""
    on_record(product, "a", VgpuRequest("0", T4))
    tool, log = script(tmp_path, "nvidia-smi", 0)
    a = domain_xml("a", {"0": T4})
    for times in (1, 2):
        status, told = gate(product, (tool, "vgpu", "-shm", "1"))
        assert (status, told.count("done: ")) == (0, 1)
        assert log.read_text() == "nvidia-smi vgpu -shm 1\n" * times
        if times == 1:
            assert product.hook("a", "prepare", a) == DONE
            product.sim.reset_writes()
    assert product.sim.writes() == []
    assert product.rows("state") == [("assigned",)]


def test_gpu_passthrough_7_after_a_reboot_the_same_device_is_made_again(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == DONE
    product.sim.reboot()
    assert kind.present() == {}
    assert product.hook("a", "prepare", a) == DONE
    assert kind.present() == kind.vgpus("a")
    assert product.rows("device, state") == [(kind.device("a"), "assigned")]
    assert "retained" not in product.events()


@pytest.mark.simhost("l40s-late")
def test_stackhpc_pr_37_vfs_that_come_late_are_waited_for(product: Product, tmp_path: Path) -> None:
    """sriov-manage fails as long as functions come and go."""
    on_record(product, "a", VgpuRequest("0", PROFILE))
    tool, log = script(tmp_path, "sriov-manage", 1, 1, 0)
    status, told = gate(product, (tool, "-e", "ALL"))
    assert (status, told) == (0, f"done: {tool} -e ALL\n")
    assert log.read_text() == "sriov-manage -e ALL\n" * 3
    assert product.hook("a", "prepare", image("a", V4)) == DONE


@l40s
def test_cubecos_1316_the_mode_is_set_after_the_vfs_and_before_the_first_vgpu(
    product: Product, tmp_path: Path
) -> None:
    """nvidia-smi answers 19 for as long as the GPU is busy."""
    on_record(product, "a", VgpuRequest("0", PROFILE))
    vfs, log = script(tmp_path, "sriov-manage", 0)
    mode, _ = script(tmp_path, "nvidia-smi", 19, 0)
    assert gate(product, (vfs, "-e", GPU), (mode, "vgpu", "-shm", "1"))[0] == 0
    tried = "nvidia-smi vgpu -shm 1\n"
    assert log.read_text() == f"sriov-manage -e {GPU}\n" + 2 * tried
    assert product.sim.writes() == []
    unit = (REPOSITORY / "packaging/systemd/vgpu-hook-boot.service").read_text()
    assert re.search(r"^Before=.*\blibvirtd\.service virtqemud\.service\b", unit, re.MULTILINE)
    assert re.search(r"^Type=oneshot$", unit, re.MULTILINE)


@l40s
def test_harvester_10394_vgpus_are_programmed_again_after_an_upgrade(product: Product) -> None:
    """All VFs have lost their types, and all that is left is what is on record."""
    product.configure(extra=NO_LIBVIRT)
    names = {"a": V4, "b": "0000:41:00.7"}
    for _ in range(2):
        daemon = product.daemon()
        try:
            for name, vf in names.items():
                assert product.hook(name, "prepare", image(name, vf)) == DONE
        finally:
            daemon.kill()
            daemon.wait()
            (product.runtime / "hook.sock").unlink()
        assert product.sim.current_types() == dict.fromkeys(names.values(), 1148)
        product.sim.reboot()
        assert product.sim.current_types() == {}
    assert product.rows() == [("a", "0", "assigned"), ("b", "0", "assigned")]


def test_systemd_14246_no_unit_is_bound_to_a_device() -> None:
    units = list((REPOSITORY / "packaging/systemd").iterdir())
    assert {unit.suffix for unit in units} == {".service", ".socket"}
    for unit in units:
        assert not re.search(r"^\w+=.*\.device\b", unit.read_text(), re.MULTILINE), unit.name


def test_virt_manager_392_a_device_that_is_only_defined_is_made_at_the_start(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    for _ in range(2):
        assert kind.present() == {}
        assert product.hook("a", "prepare", a) == DONE
        assert kind.present() == kind.vgpus("a")
        end(product, "a", a, "shutdown")


@pytest.mark.simhost("nvidia-two-t4")
def test_mdevctl_38_the_parent_that_is_asked_for_is_taken_or_the_start_refused(
    product: Product,
) -> None:
    def on_second(name: str, profile: str) -> bytes:
        return domain_xml(name, {"0": profile}, attributes="gpu='0000:af:00.0'")

    for name in "ab":
        assert product.hook(name, "prepare", on_second(name, "GRID T4-8Q")) == DONE
    assert product.rows("parent") == [("0000:af:00.0",)] * 2
    told = refusal(product, "c", on_second("c", "GRID T4-8Q"))
    assert "0000:af:00.0 has 0 of nvidia-233 free" in told
    assert "0000:3b:00.0" not in told
    assert len(product.sim.devices()) == 2


PF_ROWS = [
    pytest.param("0000:41:00.0", marks=pytest.mark.simhost("l40s"), id="nvidia"),
    pytest.param("0000:03:00.0", marks=pytest.mark.simhost("xe"), id="xe"),
]


@pytest.mark.parametrize("gpu", PF_ROWS)
def test_proxmenux_179_a_gpu_with_vfs_is_never_written_to(product: Product, gpu: str) -> None:
    """Not even by a domain that says that the GPU itself is its vGPU."""
    whole = domain_xml("whole", hostdevs=[pci_hostdev(gpu, None, "yes")])
    assert product.hook("whole", "prepare", whole) == DONE
    end(product, "whole", whole, "shutdown")
    asks = domain_xml("asks", {"0": PROFILE}, hostdevs=[pci_hostdev(gpu)])
    told = refusal(product, "asks", asks)
    assert f"its hostdev names {gpu}, which is no VF that can be a vGPU here" in told
    end(product, "asks", asks, "failed")
    assert product.sim.writes() == []
    assert product.rows() == []


@l40s
def test_sriov_dkms_342_a_vgpu_is_planned_on_a_vf_whatever_the_hostdev_names(
    product: Product, tmp_path: Path
) -> None:
    asks = domain_xml("asks", {"0": PROFILE}, hostdevs=[pci_hostdev(GPU)])
    assert planned_device(product, tmp_path, asks) in product.sim.state()["vfs"]
    assert product.sim.writes() == []


@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_atmosphere_3313_no_tool_of_the_host_is_needed(
    product: Product, kind: Kind, path: str
) -> None:
    """As in a container that has libvirt, and no mdevctl."""
    a = kind.xml("a")
    assert product.hook_argv(["a", "prepare", "begin", "-"], a, PATH=path) == DONE
    assert kind.present() == kind.vgpus("a")
    assert product.hook_argv(["a", "stopped", "end", "-"], a, PATH=path) == DONE
    assert kind.present() == {}


def test_atmosphere_3313_a_tool_that_is_missing_is_named(product: Product, tmp_path: Path) -> None:
    tool = f"{tmp_path}/sriov-manage"
    status, told = gate(product, (tool, "-e", "ALL"))
    assert status == 1
    assert told.startswith(f"failed: {tool} -e ALL: ")
    assert "No such file or directory" in told
