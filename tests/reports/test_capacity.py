"""Reports of capacity, names and types (docs/reports.md, rows 29 to 40 and 73 to 75)."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from tests.domains import domain_xml, pci_hostdev, vgpus_of
from tests.product import Product
from tests.reports.calls import DONE, end, planned, refusal
from tests.simulated.arrivals import PROFILE, V4, V5, image, l40s, on_record
from tests.simulated.daemons import NO_LIBVIRT, only_client
from tests.simulated.kinds import Kind
from vgpu_hook.model import VgpuRequest

QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"


@pytest.mark.simhost("t4-type-in-use")
def test_mdevctl_59_what_limits_a_card_is_said(product: Product) -> None:
    told = refusal(product, "a", domain_xml("a", {"0": "GRID T4-4Q"}))
    assert "0000:3b:00.0 is taken by another type (1 of nvidia-233 in use)" in told
    offers = {offer["id"]: offer for offer in product.json("profiles")["profiles"]}
    assert offers["nvidia-233"]["free"] == 1
    assert offers["nvidia-232"]["free"] == 0
    assert "taken by another type" in offers["nvidia-232"]["why_none"]


@pytest.mark.simhost("nvidia-two-t4")
def test_mdevctl_59_another_card_is_taken_when_one_is_of_another_type(product: Product) -> None:
    product.sim.make("0f0f0f0f-1111-4222-8333-444444444444", "0000:3b:00.0", "nvidia-233")
    for name in "ab":
        assert product.hook(name, "prepare", domain_xml(name, {"0": "GRID T4-4Q"})) == DONE
    assert product.rows("parent") == [("0000:af:00.0",)] * 2


@pytest.mark.simhost("gvtg")
def test_gvt_linux_164_a_slot_that_only_looks_free_is_no_capacity_and_leaves_nothing(
    product: Product,
) -> None:
    """The aperture is in pieces: the kernel says ENOSPC though it has shown instances."""
    product.sim.heal()
    a, b = (domain_xml(name, {"0": "i915-GVTg_V5_4"}) for name in "ab")
    assert product.hook("a", "prepare", a) == DONE
    have = product.sim.devices()
    product.sim.fault("write", "sys/*/create", "ENOSPC")
    told = refusal(product, "b", b)
    assert "No space left on device (ENOSPC)" in told
    end(product, "b", b, "failed")
    assert product.sim.devices() == have
    assert product.rows() == [("a", "0", "assigned")]
    product.sim.heal()
    end(product, "a", a, "shutdown")
    assert product.hook("b", "prepare", b) == DONE


@pytest.mark.parametrize("by", ["configuration", "driver"])
def test_kubevirt_8425_a_type_that_went_and_came_back_is_made_again(
    product: Product, tmp_path: Path, by: str
) -> None:
    """By a daemon that has been there all the time."""
    a = domain_xml("a", {"0": "mtty-1"})
    whole = product.config
    product.configure(extra=NO_LIBVIRT)
    daemon = product.daemon()
    only_client(product, tmp_path)
    client = product.config

    def have(there: bool) -> None:
        if by == "driver":
            (product.sim.load if there else product.sim.unload)("mtty")
            return
        product.config = whole
        product.configure(extra=NO_LIBVIRT + ("" if there else "[gpu.mtty]\nuse = false\n"))
        product.config = client

    try:
        for _ in range(2):
            assert product.hook("a", "prepare", a) == DONE
            end(product, "a", a, "shutdown")
            have(there=False)
            refusal(product, "a", a)
            have(there=True)
        assert product.hook("a", "prepare", a) == DONE
    finally:
        daemon.kill()
        daemon.wait()


@l40s
def test_opennebula_5968_a_whole_gpu_that_is_passed_through_is_no_vgpu(product: Product) -> None:
    """A domain may have both; only what it asks for is touched."""
    whole = pci_hostdev("0000:41:00.0", None, "yes")
    alone = domain_xml("alone", hostdevs=[whole])
    both = domain_xml("both", {"0": PROFILE}, hostdevs=[whole, pci_hostdev(V4)])
    for operation in ("prepare", "restore", "migrate", "stopped", "release"):
        assert product.hook("alone", operation, alone) == DONE
    assert not product.state.exists()
    assert product.hook("both", "prepare", both) == DONE
    assert product.rows("device") == [(V4,)]
    end(product, "both", both, "shutdown")
    assert {write.path.split("/")[-3] for write in product.sim.writes()} == {V4}


@l40s
def test_opennebula_6841_vfs_with_vendor_specific_vfio_are_programmed_and_reset(
    product: Product,
) -> None:
    a = image("a", V4)
    assert product.hook("a", "prepare", a) == DONE
    assert product.sim.current_types() == {V4: 1148}
    end(product, "a", a, "shutdown")
    assert [write.data.strip() for write in product.sim.writes(f"*{V4}*")] == ["1148", "0"]
    assert product.sim.current_types() == {}


def test_lp_1758086_a_driver_that_allows_one_vgpu_for_a_vm_gets_it_refused_whole(
    product: Product, kind: Kind
) -> None:
    """Where two are allowed, each has a device of its own, and they come and go together."""
    two = kind.xml("two", kind.profile, kind.profile)
    assert product.hook("two", "prepare", two) == DONE
    assert set(kind.present()) == {kind.device("two", "0"), kind.device("two", "1")}
    end(product, "two", two, "shutdown")
    assert kind.present() == {}
    device = kind.device("two", "1")
    path = f"*{device}*" if kind.name == "vendor-vfio" else "sys/*/create"
    data = device if kind.name == "mdev" else "[1-9]*"
    product.sim.fault("write", path, "EINVAL", data=data)
    assert "slot '1'" in refusal(product, "two", two)
    assert kind.present() == {}
    assert product.rows() == []


def test_vgpu_unlock_71_what_is_said_to_qemu_itself_stays(product: Product, tmp_path: Path) -> None:
    """libvirt gives QEMU the VM's UUID, which NVIDIA's plugin wants; people add more by hand."""
    block = (
        f"<qemu:commandline xmlns:qemu='{QEMU}'><qemu:arg value='-uuid'/>"
        "<qemu:arg value='a &quot;b&quot; &lt;c>'/></qemu:commandline>"
    )
    asks = domain_xml("a", {"0": "mtty-1"}, hostdevs=[])
    out = planned(product, tmp_path, asks.replace(b"</domain>", block.encode() + b"</domain>"))
    assert len(vgpus_of(out)) == 1
    (kept,) = etree.fromstring(out).iterfind(f"{{{QEMU}}}commandline")
    kept.tail = None
    expected = etree.fromstring(block)
    assert etree.tostring(kept, method="c14n") == etree.tostring(expected, method="c14n")


@pytest.mark.simhost("no-name")
def test_gvt_linux_202_a_type_needs_no_name(product: Product) -> None:
    offer = next(o for o in product.json("profiles")["profiles"] if o["id"] == "i915-GVTg_V5_4")
    assert (offer["name"], offer["free"]) == ("", 2)
    assert product.command("status").status == 0
    assert product.hook("a", "prepare", domain_xml("a", {"0": "i915-GVTg_V5_4"})) == DONE


def test_gvt_linux_108_nothing_is_made_before_a_vm_starts(product: Product, kind: Kind) -> None:
    on_record(product, "a", VgpuRequest("0", kind.profile))
    product.configure(extra=NO_LIBVIRT)
    assert product.command("boot-gate") == (0, "", "")
    daemon = product.daemon()
    daemon.terminate()
    assert daemon.wait(60) == 0
    assert product.sim.writes() == []
    assert product.hook("a", "prepare", kind.xml("a")) == DONE
    assert kind.present() == kind.vgpus("a")


@pytest.mark.simhost("l40s-full")
def test_harvester_9353_free_looking_vfs_of_a_full_card_are_no_capacity(product: Product) -> None:
    idle = [vf for vf in product.sim.state()["vfs"].values() if not vf["type"]]
    assert len(idle) == 14
    assert {offer["free"] for offer in product.json("profiles")["profiles"]} == {0}
    big = domain_xml("a", {"0": "nvidia-1155"}, hostdevs=[pci_hostdev("0000:41:00.6")])
    told = refusal(product, "a", big)
    assert "14 of 16 VFs free, none of them can be nvidia-1155 now" in told
    assert f"{V4} is nvidia-1155, {V5} is nvidia-1155" in told
    assert product.sim.writes() == []
