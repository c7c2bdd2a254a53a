"""The main job on a real kernel, libvirt and QEMU, through virsh as people use it.

Without the daemon: the hook is right by itself. With it, see test_life_cycle.py.
"""

from __future__ import annotations

import pytest

from tests.domains import device_of, uuid_of
from tests.testbed.guests import domain_xml, mdev_hostdev
from tests.testbed.host import IDLE_DISK, POWEROFF_DISK, Host
from tests.testhost.vms import (
    assignments,
    define,
    group_of,
    hold,
    let_go,
    qemu_pid,
    status,
)

FOREIGN = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module", autouse=True)
def without_daemon(host: Host) -> None:
    host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")


def test_attach_start_destroy(host: Host) -> None:
    """One command and plain virsh: the VM has its vGPU, and then it has gone."""
    host.define(domain_xml("main", uuid=uuid_of("main"), disk=IDLE_DISK))
    attached = host.run("vgpu-hook attach main --profile 'single port serial'")
    assert attached.stdout == "vGPU 'single port serial' attached to domain 'main', slot 0.\n"
    device = device_of(uuid_of("main"))
    host.virsh("start", "main")
    assert host.mdevs() == [device]
    pid = qemu_pid(host, "main")
    assert device in host.run(["cat", f"/proc/{pid}/cmdline"]).stdout
    assert group_of(host, device) in host.run(f"readlink /proc/{pid}/fd/*").stdout.split()
    assert assignments(host) == [("main", "assigned")]
    host.virsh("destroy", "main")
    assert host.mdevs() == []
    assert assignments(host) == []


def test_start_and_destroy_20_times_leaves_nothing(host: Host) -> None:
    define(host, "often", "mtty-1")
    host.run(
        "set -e; for i in $(seq 20); do virsh -q start often; virsh -q destroy often; done",
        timeout=1800,
    )
    assert host.mdevs() == []
    assert assignments(host) == []


def test_a_guest_that_shuts_itself_down_releases(host: Host) -> None:
    (device,) = define(host, "leaver", "mtty-2", disk=POWEROFF_DISK)
    host.virsh("start", "leaver")
    assert host.mdevs() == [device]
    host.wait_for("the guest is off", lambda: host.state("leaver") == "shut off", timeout=600)
    assert host.mdevs() == []
    assert assignments(host) == []


def test_a_killed_qemu_releases(host: Host) -> None:
    define(host, "victim", "mtty-1")
    host.virsh("start", "victim")
    host.run(["kill", "-9", str(qemu_pid(host, "victim"))])
    host.wait_for("libvirt has noticed", lambda: host.state("victim") == "shut off", timeout=600)
    assert host.mdevs() == []
    assert assignments(host) == []


def test_r11_the_second_vgpu_has_no_room_and_the_first_is_given_back(host: Host) -> None:
    types = "/sys/class/mdev_bus/mtty/mdev_supported_types"
    host.run(
        f"for i in $(seq 23); do cat /proc/sys/kernel/random/uuid > {types}/mtty-1/create; done"
    )
    others = host.mdevs()
    assert len(others) == 23
    define(host, "two", "mtty-1", "mtty-1")
    refused = host.virsh("start", "two", check=False)
    assert refused.returncode == 1
    assert "domain 'two' (slot '1'): no free instance of profile 'mtty-1'" in refused.stderr
    assert host.mdevs() == others
    assert assignments(host) == []
    assert host.virsh("list", "--name").stdout.strip() == ""
    host.run("for d in /sys/bus/mdev/devices/*; do echo 1 > $d/remove; done")


def test_r8_a_clone_is_refused_while_the_original_runs_and_nothing_hangs(host: Host) -> None:
    """Facts G9: with the hook scripts in circulation this hangs libvirt."""
    (device,) = define(host, "original", "mtty-1")
    host.run("virt-clone --original original --name 'a clone' --preserve-data --auto-clone")
    assert device in host.virsh("dumpxml", "a clone").stdout
    host.virsh("start", "original")
    pid = qemu_pid(host, "original")
    refused = host.virsh("start", "a clone", check=False)
    assert refused.returncode == 1
    assert (
        f"domain 'a clone': vGPU 'mtty-1' (slot '0') has inherited {device} of domain 'original',"
        " which stays untouched; run: vgpu-hook attach --profile mtty-1 --slot 0 'a clone'"
    ) in refused.stderr
    assert host.virsh("list", "--name").stdout.split() == ["original"]
    assert host.mdevs() == [device]
    assert qemu_pid(host, "original") == pid
    assert assignments(host) == [("original", "assigned")]
    # What the refusal says to do works, with both running.
    host.run("vgpu-hook attach --profile mtty-1 --slot 0 'a clone'")
    host.virsh("start", "a clone")
    assert len(host.mdevs()) == 2
    for name in ("a clone", "original"):
        host.virsh("destroy", name)
    assert host.mdevs() == []


def test_a_foreign_device_without_a_request_is_never_touched(host: Host) -> None:
    host.create_mdev(FOREIGN)
    host.define(
        domain_xml(
            "foreign",
            uuid=uuid_of("foreign"),
            disk=IDLE_DISK,
            extra_hostdevs=[mdev_hostdev(FOREIGN)],
        )
    )
    host.virsh("start", "foreign")
    assert host.state("foreign") == "running"
    host.virsh("destroy", "foreign")
    assert host.mdevs() == [FOREIGN]
    value = status(host)
    assert value["assignments"] == []
    assert value["gpus"][0]["parents"][0]["devices"] == [{"device": FOREIGN, "domain": None}]
    host.run(f"echo 1 > /sys/bus/mdev/devices/{FOREIGN}/remove")


def test_capacity_exhausted_refuses_and_says_so(host: Host) -> None:
    for number in range(3):
        define(host, f"eight{number}", *["mtty-1"] * 8)
        host.virsh("start", f"eight{number}")
    assert len(host.mdevs()) == 24
    define(host, "late", "mtty-1")
    refused = host.virsh("start", "late", check=False)
    assert refused.returncode == 1
    assert (
        "domain 'late' (slot '0'): no free instance of profile 'mtty-1': mtty has 0 of mtty-1"
        " free (24 of mtty-1 in use); run: vgpu-hook profiles"
    ) in refused.stderr
    assert len(host.mdevs()) == 24
    for number in range(3):
        host.virsh("destroy", f"eight{number}")
    assert host.mdevs() == []
    host.virsh("start", "late")
    host.virsh("destroy", "late")
    assert assignments(host) == []


def test_r3_r4_r6_a_device_that_somebody_holds_is_retained_and_recovered(host: Host) -> None:
    (device,) = define(host, "held", "mtty-1")
    host.virsh("start", "held")
    hold(host, "held", device)
    host.virsh("destroy", "held")
    assert host.state("held") == "shut off"
    assert host.mdevs() == [device]
    assert assignments(host) == [("held", "retained")]
    assert "in use by python3 (pid " in host.run("vgpu-hook status").stdout
    refused = host.virsh("start", "held", check=False)
    assert f"the vGPU {device} of an earlier run can't be released: in use by" in refused.stderr
    explained = host.run("vgpu-hook explain held").stdout
    assert "the guard would say: keep" in explained
    assert host.run("vgpu-hook release held", check=False).returncode == 1
    let_go(host)
    assert "Released 1 of 1" in host.run("vgpu-hook release held").stdout
    assert host.mdevs() == []
    assert assignments(host) == []


def test_r5_start_releases_what_was_retained(host: Host) -> None:
    (device,) = define(host, "again", "mtty-1")
    host.virsh("start", "again")
    hold(host, "again", device)
    host.virsh("destroy", "again")
    let_go(host)
    assert assignments(host) == [("again", "retained")]
    host.virsh("start", "again")
    assert assignments(host) == [("again", "assigned")]
    host.virsh("destroy", "again")
    assert host.mdevs() == []


def test_refusals_and_releases_are_in_the_journal_with_their_fields(host: Host) -> None:
    (device,) = define(host, "logged", "mtty-1")
    host.virsh("start", "logged")
    host.virsh("destroy", "logged")
    entries = host.journal("-t", "vgpu-hook", f"VGPU_DEVICE={device}")
    assert [entry["VGPU_OPERATION"] for entry in entries] == ["prepare", "stopped"]
    assert {entry["VGPU_DOMAIN_NAME"] for entry in entries} == {"logged"}
    assert len({entry["MESSAGE_ID"] for entry in entries}) == 2


def test_rendered_xml_starts_with_virsh_create(host: Host) -> None:
    xml = domain_xml(
        "passing", uuid=uuid_of("passing"), disk=IDLE_DISK, profiles=[{"profile": "1"}]
    )
    host.run("vgpu-hook render - > /root/passing.xml", input=xml)
    host.virsh("create", "/root/passing.xml")
    assert host.mdevs() == [device_of(uuid_of("passing"))]
    host.virsh("destroy", "passing")
    assert host.mdevs() == []


def test_r14_a_domain_without_a_request_starts_whatever_is_broken(host: Host) -> None:
    """Last in this module: it breaks the host."""
    host.define(domain_xml("plain", uuid=uuid_of("plain"), disk=IDLE_DISK))
    define(host, "asking", "mtty-1")
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
    assert host.mdevs() == []
