"""The main job on a real kernel, libvirt and QEMU, through virsh as people use it.

For both frameworks; with mdev without the daemon: the hook is right by itself.
"""

from __future__ import annotations

import pytest

from tests.domains import uuid_of
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK, POWEROFF_DISK
from tests.testhost.kinds import Kind, usually_mdev, usually_vf
from tests.testhost.repeated import start_and_destroy
from tests.testhost.vms import assignments, let_go, qemu_pid, status


@pytest.fixture(scope="module", autouse=True)
def daemon(kind: Kind) -> None:
    if kind.name == "mdev":
        kind.host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")


def test_attach_start_destroy(kind: Kind) -> None:
    """One command and plain virsh: the VM has its vGPU, and then it has gone."""
    host = kind.host
    host.define(domain_xml("main", uuid=uuid_of("main"), disk=IDLE_DISK))
    attached = host.run(["vgpu-hook", "attach", "main", "--profile", kind.by_name])
    assert attached.stdout == f"vGPU '{kind.by_name}' attached to domain 'main', slot 0.\n"
    (device,) = kind.settled("main")
    host.virsh("start", "main")
    assert kind.present() == [device]
    assert kind.type_of(device) == kind.type_id
    pid = qemu_pid(host, "main")
    assert device in host.run(["cat", f"/proc/{pid}/cmdline"]).stdout
    assert kind.group_of(device) in host.run(f"readlink /proc/{pid}/fd/*").stdout.split()
    assert assignments(host) == [("main", "assigned")]
    host.virsh("destroy", "main")
    assert kind.present() == []
    assert assignments(host) == []


@usually_vf
def test_start_and_destroy_many_times_leaves_nothing(kind: Kind) -> None:
    """Fewer for VFs, since a start on one takes a quarter of a minute there: the IOMMU that QEMU
    needs for it is emulated too. 20 times: tests/soak."""
    start_and_destroy(kind, 8 if kind.name == "mdev" else 3)


@usually_mdev
def test_a_guest_that_shuts_itself_down_releases(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("leaver", kind.other, disk=POWEROFF_DISK)
    host.virsh("start", "leaver")
    assert kind.present() == [device]
    host.wait_for("the guest is off", lambda: host.state("leaver") == "shut off", timeout=600)
    assert kind.present() == []
    assert assignments(host) == []


@usually_vf
def test_a_killed_qemu_releases(kind: Kind) -> None:
    host = kind.host
    kind.define("victim", kind.profile)
    host.virsh("start", "victim")
    host.run(["kill", "-9", str(qemu_pid(host, "victim"))])
    host.wait_for("libvirt has noticed", lambda: host.state("victim") == "shut off", timeout=600)
    assert kind.present() == []
    assert assignments(host) == []


@usually_mdev
def test_r11_the_second_vgpu_has_no_room_and_the_first_is_given_back(kind: Kind) -> None:
    host = kind.host
    first, _ = kind.define("two", kind.profile, kind.profile)
    kind.fill(first)
    others = kind.present()
    refused = host.virsh("start", "two", check=False)
    assert refused.returncode == 1
    assert "domain 'two' (slot '" in refused.stderr
    assert f"no free instance of profile '{kind.profile}'" in refused.stderr
    assert kind.present() == others
    assert assignments(host) == []
    assert host.virsh("list", "--name").stdout.strip() == ""
    kind.empty()
    host.virsh("undefine", "two")


@usually_vf
def test_r8_a_clone_is_refused_while_the_original_runs_and_nothing_hangs(kind: Kind) -> None:
    """Facts G9: with the hook scripts in circulation this hangs libvirt."""
    host = kind.host
    host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")
    if kind.name == "vendor-vfio":
        host.define(domain_xml("original", uuid=uuid_of("original"), disk=IDLE_DISK))
        host.run(f"vgpu-hook attach original --profile {kind.profile}")
        (device,) = kind.settled("original")
    else:
        (device,) = kind.define("original", kind.profile)
    host.run("virt-clone --original original --name 'a clone' --preserve-data --auto-clone")
    host.virsh("start", "original")
    pid = qemu_pid(host, "original")
    refused = host.virsh("start", "a clone", check=False)
    assert refused.returncode == 1
    assert (
        f"domain 'a clone': vGPU '{kind.profile}' (slot '0') has inherited {device} of domain"
        f" 'original', which stays untouched; run: vgpu-hook attach --profile {kind.profile}"
        " --slot 0 'a clone'"
    ) in refused.stderr
    assert host.virsh("list", "--name").stdout.split() == ["original"]
    assert kind.present() == [device]
    assert qemu_pid(host, "original") == pid
    assert assignments(host) == [("original", "assigned")]
    # What the refusal says to do works, with both running.
    host.run(f"vgpu-hook attach --profile {kind.profile} --slot 0 'a clone'")
    host.virsh("start", "a clone")
    assert len(kind.present()) == 2
    for name in ("a clone", "original"):
        host.virsh("destroy", name)
        host.virsh("undefine", name)
    assert kind.present() == []
    if kind.name == "vendor-vfio":
        host.run("systemctl start vgpu-hookd.socket vgpu-hookd.service")


@usually_mdev
def test_a_foreign_device_without_a_request_is_never_touched(kind: Kind) -> None:
    host = kind.host
    device, hostdev = kind.foreign()
    own = uuid_of("foreign")
    host.define(domain_xml("foreign", uuid=own, disk=IDLE_DISK, extra_hostdevs=[hostdev]))
    host.virsh("start", "foreign")
    assert host.state("foreign") == "running"
    host.run("vgpu-hook reconcile")
    host.virsh("destroy", "foreign")
    host.run("vgpu-hook reconcile")
    assert kind.present() == [device]
    value = status(host)
    assert value["assignments"] == []
    found = [d for g in value["gpus"] for p in g["parents"] for d in p["devices"]]
    assert found == [{"device": device, "domain": None}]
    kind.remove(device)
    host.virsh("undefine", "foreign")


@usually_vf
def test_capacity_exhausted_refuses_and_says_so(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("late", kind.profile)
    kind.fill(device)
    kind.define("last", kind.profile)
    host.virsh("start", "last")
    full = kind.present()
    refused = host.virsh("start", "late", check=False)
    assert refused.returncode == 1
    assert "domain 'late' (slot '0'): " in refused.stderr
    assert f"no free instance of profile '{kind.profile}'" in refused.stderr
    assert "run: vgpu-hook profiles" in refused.stderr
    if kind.name == "vendor-vfio":
        assert "is nvidia-1148 of domain 'last'" in refused.stderr
    else:
        assert "mtty has 0 of mtty-1 free (24 of mtty-1 in use)" in refused.stderr
    assert kind.present() == full
    host.virsh("destroy", "last")
    host.virsh("undefine", "last")
    kind.empty()
    assert kind.present() == []
    host.virsh("start", "late")
    host.virsh("destroy", "late")
    assert assignments(host) == []


@usually_vf
def test_r3_r4_r6_a_device_that_somebody_holds_is_retained_and_recovered(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("held", kind.profile)
    host.virsh("start", "held")
    kind.hold("held", device)
    host.virsh("destroy", "held")
    assert host.state("held") == "shut off"
    assert kind.present() == [device]
    assert assignments(host) == [("held", "retained")]
    assert "in use by python3 (pid " in host.run("vgpu-hook status").stdout
    if kind.name == "mdev":
        refused = host.virsh("start", "held", check=False)
        assert f"the vGPU {device} of an earlier run can't be released: in use by" in refused.stderr
    else:  # vgpu-hookd has it name a sibling
        host.wait_for("a sibling is named", lambda: kind.settled("held") != [device])
        host.virsh("start", "held")
        host.virsh("destroy", "held")
        assert kind.present() == [device]
    explained = host.run("vgpu-hook explain held").stdout
    assert "the guard would say: keep" in explained
    assert host.run("vgpu-hook release held", check=False).returncode == 1
    let_go(host)
    host.run("vgpu-hook release held")
    assert kind.present() == []
    assert assignments(host) == []


@usually_mdev
def test_r5_start_releases_what_was_retained(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("again", kind.profile)
    host.virsh("start", "again")
    kind.hold("again", device)
    host.virsh("destroy", "again")
    let_go(host)
    host.virsh("start", "again")
    assert assignments(host) == [("again", "assigned")]
    host.virsh("destroy", "again")
    assert kind.present() == []


@usually_vf
def test_refusals_and_releases_are_in_the_journal_with_their_fields(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("logged", kind.profile)
    host.virsh("start", "logged")
    host.virsh("destroy", "logged")
    entries = host.journal("-t", "vgpu-hook", f"VGPU_DEVICE={device}", "VGPU_DOMAIN_NAME=logged")
    assert [entry["VGPU_OPERATION"] for entry in entries] == ["prepare", "stopped"]
    assert len({entry["MESSAGE_ID"] for entry in entries}) == 2


@usually_mdev
def test_rendered_xml_starts_with_virsh_create(kind: Kind) -> None:
    host = kind.host
    asked = [{"profile": kind.profile}]
    xml = domain_xml("passing", uuid=uuid_of("passing"), disk=IDLE_DISK, profiles=asked)
    host.run("vgpu-hook render - > /root/passing.xml", input=xml)
    host.virsh("create", "/root/passing.xml")
    assert len(kind.present()) == 1
    assert assignments(host) == [("passing", "assigned")]
    host.virsh("destroy", "passing")
    assert kind.present() == []


@usually_mdev
def test_r14_a_domain_without_a_request_starts_whatever_is_broken(kind: Kind) -> None:
    """Last in this module: it breaks the host."""
    host = kind.host
    host.define(domain_xml("plain", uuid=uuid_of("plain"), disk=IDLE_DISK))
    kind.define("asking", kind.profile)
    host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")
    host.run("rm -rf /var/lib/vgpu-hook && mkdir -p /var/lib/vgpu-hook/store.db")
    host.run("echo ']] garbage' > /etc/vgpu-hook/vgpu-hook.toml")
    host.run(
        "mount --bind /var/lib /var/lib && mount -o remount,bind,ro /var/lib"
        " && mount --bind /var/lib/libvirt /var/lib/libvirt"
        " && mount -o remount,bind,rw /var/lib/libvirt"
    )
    assert host.run("touch /var/lib/vgpu-hook/x", check=False).returncode != 0
    host.virsh("start", "plain")
    host.virsh("destroy", "plain")
    refused = host.virsh("start", "asking", check=False)
    assert "vgpu-hook: domain 'asking': configuration /etc/vgpu-hook/" in refused.stderr
    assert "Traceback" not in refused.stderr
    host.run("echo > /etc/vgpu-hook/vgpu-hook.toml")
    refused = host.virsh("start", "asking", check=False)
    assert "vgpu-hook: domain 'asking': store /var/lib/vgpu-hook/store.db can't" in refused.stderr
    host.virsh("start", "plain")
    host.virsh("destroy", "plain")
    assert kind.present() == []
