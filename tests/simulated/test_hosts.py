"""One test for each hardware quirk that a host file plays (tests/simhost/hosts)."""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.product import Product


def start(product: Product, name: str, profile: str, attributes: str = "") -> str:
    """Start a domain with one vGPU; return the refusal, or ""."""
    xml = domain_xml(name, {"0": profile}, attributes=attributes)
    answer = product.hook(name, "prepare", xml)
    assert (answer.status == 0) == (answer.err == "")
    return answer.err


def parents(product: Product) -> list[str]:
    return [row[0] for row in product.rows("parent")]


@pytest.mark.simhost("nvidia-two-t4")
def test_spread_takes_the_emptier_card_and_pack_the_fuller(product: Product) -> None:
    for name in "abcd":
        start(product, name, "GRID T4-2Q")
    assert sorted(parents(product)) == ["0000:3b:00.0"] * 2 + ["0000:af:00.0"] * 2
    product.configure(extra="[policy]\nplacement = 'pack'")
    for name in "ef":
        start(product, name, "grid t4-2q")
    assert parents(product)[4] == parents(product)[5]


@pytest.mark.simhost("nvidia-two-t4")
def test_a_request_can_pin_its_gpu_and_a_gpu_can_be_left_alone(product: Product) -> None:
    assert start(product, "a", "231", "gpu='0000:AF:00.0'") == ""
    assert parents(product) == ["0000:af:00.0"]
    assert "there are: 0000:3b:00.0, 0000:af:00.0" in start(product, "b", "231", "gpu='0:1:2.3'")
    product.configure(extra="[gpu.'0000:af:00.0']\nuse = false")
    assert start(product, "c", "231") == ""
    assert parents(product)[-1] == "0000:3b:00.0"


@pytest.mark.simhost("nvidia-t4")
def test_a_card_locked_to_another_type_says_so(product: Product) -> None:
    assert start(product, "a", "GRID T4-1Q") == ""
    refusal = start(product, "b", "GRID T4-2Q")
    assert "0000:3b:00.0 is taken by another type (1 of nvidia-230 in use)" in refusal
    assert "run: vgpu-hook profiles" in refusal


@pytest.mark.simhost("nvidia-ampere-vf")
def test_vfs_of_one_gpu_each_carry_one_vgpu(product: Product) -> None:
    offers = product.json("profiles")["profiles"]
    best = max(offers, key=lambda offer: offer["free"])
    for number in range(3):
        assert start(product, f"vm{number}", best["id"]) == ""
    used = parents(product)
    assert len(set(used)) == 3
    gpus = {gpu["gpu"] for gpu in product.json("status")["gpus"]}
    assert gpus.isdisjoint(used)


@pytest.mark.simhost("gvtg")
def test_intel_gvt_linux_164_enospc_although_an_instance_looks_free(product: Product) -> None:
    results = [start(product, f"vm{n}", "i915-GVTg_V5_8") for n in range(8)]
    made = results.count("")
    assert made >= 1
    assert len(product.rows()) == len(product.sim.devices()) == made
    assert all("no free instance" in text or "ENOSPC" in text for text in results if text)


@pytest.mark.simhost("no-name")
def test_intel_gvt_linux_202_a_type_directory_without_name(product: Product) -> None:
    offer = max(product.json("profiles")["profiles"], key=lambda offer: offer["free"])
    assert offer["name"] == ""
    assert start(product, "a", offer["id"]) == ""


@pytest.mark.simhost("domain-0001")
def test_pci_domains_other_than_0000(product: Product) -> None:
    offer = product.json("profiles")["profiles"][0]
    assert offer["gpu"].startswith("0001:")
    assert start(product, "a", offer["id"], f"gpu='{offer['gpu']}'") == ""
    assert product.hook("a", "stopped", domain_xml("a", {"0": offer["id"]})).status == 0
    assert product.sim.devices() == []


@pytest.mark.simhost("mdpy")
def test_eusers_at_the_limit_is_no_capacity(product: Product) -> None:
    profile = product.json("profiles")["profiles"][0]["id"]
    results = [start(product, f"vm{n}", profile) for n in range(5)]
    assert results[:4] == [""] * 4
    assert "no free instance" in results[4]


@pytest.mark.simhost("old-kernel")
def test_a_kernel_without_vfio_dev_folders(product: Product) -> None:
    profile = product.json("profiles")["profiles"][0]["id"]
    xml = domain_xml("a", {"0": profile})
    assert start(product, "a", profile) == ""
    pid = product.sim.hold(device_of(uuid_of("a")))
    product.hook("a", "stopped", xml)
    assert len(product.sim.devices()) == 1
    product.sim.drop(pid)
    product.hook("a", "release", xml)
    assert product.sim.devices() == []


@pytest.mark.simhost("mtty-cdev")
def test_a_handle_on_the_character_device_counts(product: Product) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "prepare", xml)
    device = device_of(uuid_of("a"))
    cdev = product.sim.state()["devices"][device]["cdev"]
    product.sim.add_process(4242, "qemu-system-x86", f"/dev/vfio/devices/vfio{cdev}")
    product.hook("a", "stopped", xml)
    assert product.sim.devices() == [device]
    assert "in use by qemu-system-x86 (pid 4242" in product.rows("reason")[0][0]


@pytest.mark.parametrize(
    "link", ["/vfio/{0}", "/dev/vfio/{0} (deleted)", "/{0}", "/x/dev/vfio/{0}"]
)
def test_r6_a_handle_from_another_mount_namespace_counts(product: Product, link: str) -> None:
    """libvirt's private /dev: seen on Debian 13 when QEMU, and its namespace, had ended."""
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "prepare", xml)
    device = device_of(uuid_of("a"))
    group = product.sim.state()["devices"][device]["group"]
    product.sim.add_process(4242, "holder", link.format(group))
    product.hook("a", "stopped", xml)
    assert product.sim.devices() == [device]
    assert "in use by holder (pid 4242" in product.rows("reason")[0][0]


def test_other_devices_of_the_same_name_are_no_handles(product: Product) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "prepare", xml)
    group = product.sim.state()["devices"][device_of(uuid_of("a"))]["group"]
    product.sim.add_process(4242, "shell", f"/dev/pts/{group}", f"/tmp/{group}", f"/vfio/1{group}")
    product.hook("a", "stopped", xml)
    assert product.sim.devices() == []


@pytest.mark.parametrize("besides", ["", "/dev/vfio/vfio", "/home/x/vfio/notes", "/x/vfio/7.log"])
def test_a_device_handle_that_cannot_be_told_apart_counts(product: Product, besides: str) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "prepare", xml)
    product.sim.add_process(4242, "odd", *filter(None, [besides, "anon_inode:[vfio-device]"]))
    product.hook("a", "stopped", xml)
    assert len(product.sim.devices()) == 1
    product.sim.drop(4242)
    product.hook("a", "release", xml)
    assert product.sim.devices() == []


@pytest.mark.parametrize("by", ["/dev/vfio/99", "/vfio/noiommu-99", "/dev/vfio/devices/vfio99"])
def test_a_device_handle_beside_that_of_another_device_is_that_ones(
    product: Product, by: str
) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "prepare", xml)
    product.sim.add_process(4243, "other-vm", by, "anon_inode:[vfio-device]")
    product.hook("a", "stopped", xml)
    assert product.sim.devices() == []


@pytest.mark.simhost("no-gpu")
def test_a_host_without_a_gpu_says_so(product: Product) -> None:
    assert "this host has no device that offers vGPUs" in start(product, "a", "nvidia-63")
    assert product.command("status").status == 0


@pytest.mark.simhost("slow")
def test_a_slow_create_is_waited_for(product: Product) -> None:
    profile = product.json("profiles")["profiles"][0]["id"]
    assert start(product, "a", profile) == ""
    assert product.rows("state") == [("assigned",)]


@pytest.mark.simhost("two-mtty-like")
def test_a_parent_that_fails_is_left_out_and_the_other_serves(product: Product) -> None:
    names = [parent["name"] for gpu in product.json("status")["gpus"] for parent in gpu["parents"]]
    assert len(names) == 2
    for name in names:
        product.sim.heal()
        product.sim.fault("write", f"sys/class/mdev_bus/{name}/*/create", "EINVAL")
        assert start(product, f"not-on-{name}", "1") == ""
        assert parents(product)[-1] != name


@pytest.mark.simhost("two-mtty-like")
def test_an_unreadable_parent_does_not_blank_the_other(product: Product) -> None:
    names = [parent["name"] for gpu in product.json("status")["gpus"] for parent in gpu["parents"]]
    product.sim.fault("read", f"sys/class/mdev_bus/{names[0]}/*/available_instances", "EIO")
    assert start(product, "a", "1") == ""
    assert parents(product) == [names[1]]
    status = product.command("status")
    assert f"warning: {names[0]} is left out" in status.err


def test_a_create_that_reports_success_and_does_nothing_is_not_believed(
    product: Product,
) -> None:
    product.sim.fault("write", "sys/*/create", "ignore")
    refusal = start(product, "a", "mtty-1")
    assert "but the device is not there" in refusal
    assert product.rows() == []


def test_a_remove_that_reports_success_and_does_nothing_is_not_believed(
    product: Product,
) -> None:
    start(product, "a", "mtty-1")
    product.sim.fault("write", "sys/*/remove", "ignore", times=1)
    xml = domain_xml("a", {"0": "mtty-1"})
    product.hook("a", "stopped", xml)
    assert product.rows("state") == [("retained",)]
    assert "is still there" in product.rows("reason")[0][0]
    product.hook("a", "release", xml)
    assert product.rows() == []


def test_ovirt_vdsm_92_vgpu_params_end_in_a_newline_or_the_start_is_refused(
    product: Product,
) -> None:
    refusal = start(product, "a", "mtty-1", "params='frame_rate_limiter=0'")
    assert "nvidia/vgpu_params" in refusal
    assert product.sim.devices() == []
    assert product.rows() == []


@pytest.mark.simhost("nvidia-t4")
def test_vgpu_params_are_written_with_a_newline(product: Product) -> None:
    assert start(product, "a", "GRID T4-1Q", "params='frame_rate_limiter=0'") == ""
    assert product.sim.writes("*/vgpu_params")[0].data == "frame_rate_limiter=0\n"
