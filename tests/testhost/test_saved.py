"""Saved VMs on the test host: where they come back, and what an image can't bring back."""

from __future__ import annotations

import shlex

import pytest

from tests.domains import device_of, uuid_of
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK, IMAGES, Host
from tests.testbed.plugin import Show
from tests.testhost.kinds import FOREIGN, MdevKind
from tests.testhost.vms import assignments, definition_devices, saveable

IMAGE = "/var/lib/libvirt/images/vm.save"

EDIT = """\
import sys
old, new = sys.argv[2:4], sys.argv[4:6]
data = open(sys.argv[1], "rb").read()
for before, after in zip(old, new):
    assert len(before) == len(after) and before.encode() in data
    data = data.replace(before.encode(), after.encode())
open(sys.argv[1], "wb").write(data)
"""
"""Gives a saved image another name and UUID, of the same length: its header counts bytes."""


@pytest.fixture(scope="module")
def mdev(host: Host) -> MdevKind:
    return MdevKind(host)


def start(kind: MdevKind, name: str, disk: str = IDLE_DISK) -> str:
    """Define and start a VM that QEMU can save; return its vGPU."""
    xml = saveable(name, disk)
    kind.host.define(xml if disk == IDLE_DISK else as_qcow2(xml))
    (device,) = kind.settled(name)
    kind.host.virsh("start", name)
    assert kind.present() == [device]
    return device


def as_qcow2(xml: str) -> str:
    return xml.replace('type="raw"', 'type="qcow2"').replace("<readonly />", "")


def live_devices(host: Host, name: str) -> list[str]:
    xml = host.virsh("dumpxml", name).stdout
    return [part.split("'")[1] for part in xml.split("<address uuid=")[1:]]


def end(kind: MdevKind, *names: str) -> None:
    for name in names:
        kind.host.virsh("destroy", name)
        kind.host.virsh("undefine", name, check=False)
    assert kind.present() == []
    assert assignments(kind.host) == []


def test_r9_a_vm_comes_back_on_its_current_assignment_and_not_on_what_its_image_names(
    mdev: MdevKind,
) -> None:
    """The image names a device that another VM runs on by now."""
    host = mdev.host
    device = start(mdev, "saved")
    host.virsh("save", "saved", IMAGE)
    assert mdev.present() == []
    xml = host.virsh("save-image-dumpxml", "--security-info", IMAGE).stdout
    host.machine.write("/root/image.xml", xml.replace(device, FOREIGN).encode())
    host.virsh("save-image-define", IMAGE, "/root/image.xml")
    assert FOREIGN in host.virsh("save-image-dumpxml", IMAGE).stdout
    _, hostdev = mdev.foreign()
    own = uuid_of("taker")
    host.define(domain_xml("taker", uuid=own, disk=IDLE_DISK, extra_hostdevs=[hostdev]))
    host.virsh("start", "taker")
    host.virsh("restore", IMAGE)
    assert host.state("saved") == "running"
    assert live_devices(host, "saved") == [device]
    assert mdev.present() == sorted([FOREIGN, device])
    assert assignments(host) == [("saved", "assigned")]
    assert host.state("taker") == "running"
    host.virsh("destroy", "taker")
    host.virsh("undefine", "taker")
    mdev.remove(FOREIGN)
    end(mdev, "saved")


def test_r8_an_image_that_was_given_another_name_and_uuid_gets_a_device_of_its_own(
    mdev: MdevKind, show: Show
) -> None:
    host = mdev.host
    device = start(mdev, "parent")
    host.virsh("save", "parent", IMAGE)
    xml = host.virsh("save-image-dumpxml", "--security-info", IMAGE).stdout
    edited = xml.replace(uuid_of("parent"), uuid_of("fork-1")).replace(">parent<", ">fork-1<")
    host.machine.write("/root/image.xml", edited.encode())
    # Only where libvirt lets it: 11.3 refuses another UUID, in an image as in `restore --xml`.
    refused = host.virsh("save-image-define", IMAGE, "/root/image.xml", check=False)
    show(f"save-image-edit of name and UUID: {refused.stderr.strip() or 'accepted'}")
    assert refused.returncode != 0
    # So it is done in the file, as people do it who need it.
    host.machine.write("/root/edit.py", EDIT.encode())
    names = ["<name>parent</name>", uuid_of("parent"), "<name>fork-1</name>", uuid_of("fork-1")]
    host.run(["python3", "-I", "/root/edit.py", IMAGE, *names])
    host.virsh("start", "parent")
    host.virsh("restore", IMAGE)
    own = device_of(uuid_of("fork-1"))
    assert live_devices(host, "fork-1") == [own]
    assert mdev.present() == sorted([device, own])
    assert assignments(host) == [("parent", "assigned"), ("fork-1", "assigned")]
    host.virsh("destroy", "fork-1")
    assert mdev.present() == [device]
    end(mdev, "parent")


def test_r9_a_managed_save_of_another_profile_is_refused_with_the_way_out(
    mdev: MdevKind, show: Show
) -> None:
    host = mdev.host
    start(mdev, "older")
    host.virsh("managedsave", "older")
    host.run("vgpu-hook attach older --slot 0 --profile mtty-2")
    refused = host.virsh("start", "older", check=False)
    show(refused.stderr.strip())
    assert refused.returncode == 1
    assert (
        "domain 'older': its saved state has a vGPU of profile 'mtty-1' in slot '0', but it asks"
        " for 'mtty-2' there now; to go on from it run: vgpu-hook attach --profile mtty-1 --slot 0"
        " older; to start afresh instead, drop a managed save: virsh managedsave-remove older"
    ) in refused.stderr
    assert mdev.present() == []
    host.run(shlex.split("vgpu-hook attach --profile mtty-1 --slot 0 older"))
    host.virsh("start", "older")
    assert mdev.type_of(device_of(uuid_of("older"))) == "mtty-1"
    end(mdev, "older")


def test_r9_an_external_snapshot_of_a_running_vm_is_reverted_to(mdev: MdevKind) -> None:
    host = mdev.host
    disk = f"{IMAGES}/external.qcow2"
    host.run(f"qemu-img create -q -f qcow2 {disk} 1M")
    device = start(mdev, "external", disk)
    host.run(
        "virsh snapshot-create-as external s1 --memspec file=/var/lib/libvirt/images/s1.mem"
        " --diskspec vda,snapshot=external,file=/var/lib/libvirt/images/external.s1"
    )
    host.virsh("snapshot-revert", "external", "s1")
    assert host.state("external") == "running"
    assert live_devices(host, "external") == [device]
    assert mdev.present() == [device]
    assert assignments(host) == [("external", "assigned")]
    # What stands is what was asked for last; the VM keeps what it runs with until it stops.
    host.run("vgpu-hook attach external --slot 0 --profile mtty-2")
    host.virsh("snapshot-revert", "external", "s1")
    assert mdev.type_of(device) == "mtty-1"

    def current() -> bool:
        inactive = host.virsh("dumpxml", "--inactive", "external").stdout
        return 'profile="mtty-2"' in inactive.replace("'", '"')

    host.wait_for("what was asked for last stands", current, timeout=600)
    assert definition_devices(host, "external") == [device]
    host.virsh("destroy", "external")
    host.virsh("start", "external")
    assert mdev.type_of(device) == "mtty-2"
    host.virsh("destroy", "external")
    host.virsh("undefine", "external", "--snapshots-metadata")
    assert mdev.present() == []
