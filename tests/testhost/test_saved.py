"""Saved VMs on the test host: where they come back, and what an image can't bring back."""

from __future__ import annotations

import shlex

from tests.domains import device_of, uuid_of
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK, IMAGES
from tests.testbed.plugin import Show
from tests.testhost.kinds import FOREIGN, Kind, MdevKind, only_mdev, usually_mdev, usually_vf
from tests.testhost.vms import assignments, definition_devices

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


def start(kind: Kind, name: str) -> str:
    """Define and start a VM that QEMU can save; return its vGPU."""
    before = kind.present()
    kind.define(name, kind.profile, movable=True)
    kind.host.virsh("start", name)
    kind.movable(name)
    (device,) = set(kind.present()) - set(before)
    return device


def end(kind: Kind, *names: str) -> None:
    for name in names:
        kind.host.virsh("destroy", name)
        kind.host.virsh("undefine", name, check=False)
    assert kind.present() == []
    assert assignments(kind.host) == []


@usually_vf
def test_r9_a_vm_comes_back_on_another_device_when_its_old_one_was_taken(kind: Kind) -> None:
    """For an mdev, whose UUID nobody else gets, the image is made to name what another has."""
    host = kind.host
    device = start(kind, "saved")
    host.virsh("save", "saved", IMAGE)
    assert kind.present() == []
    if kind.name == "mdev":
        xml = host.virsh("save-image-dumpxml", "--security-info", IMAGE).stdout
        host.machine.write("/root/image.xml", xml.replace(device, FOREIGN).encode())
        host.virsh("save-image-define", IMAGE, "/root/image.xml")
        assert FOREIGN in host.virsh("save-image-dumpxml", IMAGE).stdout
        taken, hostdev = kind.foreign()
        own = uuid_of("taker")
        host.define(domain_xml("taker", uuid=own, disk=IDLE_DISK, extra_hostdevs=[hostdev]))
        host.virsh("start", "taker")
    else:
        kind.fill(device)
        taken = start(kind, "taker")
        kind.empty()
        assert taken == device
    host.virsh("restore", IMAGE)
    assert host.state("saved") == "running"
    (other,) = set(kind.present()) - {taken}
    assert (other == device) == (kind.name == "mdev")
    assert ("saved", "assigned") in assignments(host)
    assert host.state("taker") == "running"
    host.virsh("destroy", "taker")
    host.virsh("undefine", "taker")
    if kind.name == "mdev":
        kind.remove(FOREIGN)
    end(kind, "saved")


@usually_mdev
def test_r8_an_image_that_was_given_another_name_and_uuid_gets_a_device_of_its_own(
    kind: Kind, show: Show
) -> None:
    host = kind.host
    device = start(kind, "parent")
    host.virsh("save", "parent", IMAGE)
    xml = host.virsh("save-image-dumpxml", "--security-info", IMAGE).stdout
    edited = xml.replace(uuid_of("parent"), uuid_of("fork-1")).replace(">parent<", ">fork-1<")
    host.machine.write("/root/image.xml", edited.encode())
    # libvirt refuses another UUID, in an image as in `restore --xml`.
    refused = host.virsh("save-image-define", IMAGE, "/root/image.xml", check=False)
    show(f"save-image-edit of name and UUID: {refused.stderr.strip()}")
    assert "does not match source" in refused.stderr
    # So it is done in the file, as people do it who need it.
    host.machine.write("/root/edit.py", EDIT.encode())
    names = ["<name>parent</name>", uuid_of("parent"), "<name>fork-1</name>", uuid_of("fork-1")]
    host.run(["python3", "-I", "/root/edit.py", IMAGE, *names])
    host.virsh("start", "parent")
    assert kind.present() == [device]
    host.virsh("restore", IMAGE)
    (own,) = set(kind.present()) - {device}
    if kind.name == "mdev":
        assert own == device_of(uuid_of("fork-1"))
    assert assignments(host) == [("parent", "assigned"), ("fork-1", "assigned")]
    host.virsh("destroy", "fork-1")
    assert kind.present() == [device]
    end(kind, "parent")


@usually_vf
def test_r9_a_managed_save_of_another_profile_is_refused_with_the_way_out(
    kind: Kind, show: Show
) -> None:
    host = kind.host
    start(kind, "older")
    host.virsh("managedsave", "older")
    host.run(f"vgpu-hook attach older --slot 0 --profile {kind.other}")
    refused = host.virsh("start", "older", check=False)
    show(refused.stderr.strip())
    assert refused.returncode == 1
    way_out = f"vgpu-hook attach --profile {kind.profile} --slot 0 older"
    assert (
        f"domain 'older': its saved state has a vGPU of profile '{kind.profile}' in slot '0', but"
        f" it asks for '{kind.other}' there now; to go on from it run: {way_out}; to start afresh"
        " instead, drop a managed save: virsh managedsave-remove older"
    ) in refused.stderr
    assert kind.present() == []
    # libvirt 11.3 removes an image whose restore hook fails; this one is still there.
    host.run(shlex.split(way_out))
    host.virsh("start", "older")
    assert host.state("older") == "running"
    (device,) = kind.present()
    assert kind.type_of(device).endswith(kind.profile)
    end(kind, "older")


@only_mdev
def test_r9_an_external_snapshot_of_a_running_vm_is_reverted_to(kind: Kind) -> None:
    assert isinstance(kind, MdevKind)
    host = kind.host
    disk = f"{IMAGES}/external.qcow2"
    host.run(f"qemu-img create -q -f qcow2 {disk} 1M")
    (device,) = kind.define("external", "mtty-1", disk=disk, movable=True)
    xml = host.virsh("dumpxml", "--inactive", "external").stdout
    host.define(xml.replace("type='raw'", "type='qcow2'").replace("<readonly/>", ""))
    host.virsh("start", "external")
    host.run(
        f"virsh snapshot-create-as external s1 --memspec file={IMAGES}/s1.mem"
        f" --diskspec vda,snapshot=external,file={IMAGES}/external.s1"
    )
    host.virsh("snapshot-revert", "external", "s1")
    assert host.state("external") == "running"
    assert kind.present() == [device]
    assert assignments(host) == [("external", "assigned")]
    # What stands is what was asked for last; the VM keeps what it runs with until it stops.
    host.run("vgpu-hook attach external --slot 0 --profile mtty-2")
    host.virsh("snapshot-revert", "external", "s1")
    assert kind.type_of(device) == "mtty-1"

    def current() -> bool:
        inactive = host.virsh("dumpxml", "--inactive", "external").stdout
        return 'profile="mtty-2"' in inactive.replace("'", '"')

    host.wait_for("what was asked for last stands", current, timeout=600)
    assert definition_devices(host, "external") == [device]
    host.virsh("destroy", "external")
    host.virsh("start", "external")
    assert kind.type_of(device) == "mtty-2"
    host.virsh("destroy", "external")
    host.virsh("undefine", "external", "--snapshots-metadata")
    assert kind.present() == []
