"""The whole life of a vGPU on a real kernel and libvirt: clones, snapshots, restarts, deletion."""

from __future__ import annotations

import json
import statistics

from tests.domains import uuid_of
from tests.testbed.gpu import enable_vfs
from tests.testbed.guests import domain_xml, pci_hostdev
from tests.testbed.host import IDLE_DISK, IMAGES, PROJECT
from tests.testbed.plugin import Show
from tests.testhost.kinds import Kind, only_mdev, usually_mdev, usually_vf
from tests.testhost.repeated import run_at_random
from tests.testhost.vms import (
    assignments,
    define_request,
    let_go,
    qemu_pid,
    vgpu_requests,
)

STEPS = ["starts blocked", "stopped", "vGPU released", "undefined", "volume removed"]

TIME_TO_ATTACHED = """\
import subprocess, sys, time
for number in range(20):
    xml = open("/root/timed.xml").read().replace("NAME", f"timed{number}")
    open("/root/one.xml", "w").write(xml.replace("00000000aaaa", f"{number:012x}"))
    begin = time.monotonic()
    subprocess.run(["virsh", "-q", "define", "/root/one.xml"], check=True)
    defined = time.monotonic()
    while True:
        shown = subprocess.run(["virsh", "dumpxml", f"timed{number}"], stdout=subprocess.PIPE)
        if b"ua-vgpu-0" in shown.stdout:
            break
        assert time.monotonic() - begin < 300
    print("seconds", time.monotonic() - defined)
    subprocess.run(["virsh", "-q", "undefine", f"timed{number}"], check=True)
"""


def test_r1_r2_a_defined_request_is_attached_and_plain_start_is_enough(
    kind: Kind, show: Show
) -> None:
    host = kind.host
    define_request(host, "plain-start", {"profile": kind.profile})
    (device,) = kind.settled("plain-start")
    host.virsh("start", "plain-start")
    assert kind.present() == [device]
    host.virsh("destroy", "plain-start")
    # R1, R2: gone, and persisted, by the time that libvirt has answered.
    assert kind.present() == []
    assert assignments(host) == []
    text = domain_xml(
        "NAME",
        uuid="2b1f5c9e-7a65-4f0e-9d6e-00000000aaaa",
        disk=IDLE_DISK,
        profiles=[{"profile": kind.profile}],
    )
    host.machine.write("/root/timed.xml", text.encode())
    host.machine.write("/root/timed.py", TIME_TO_ATTACHED.encode())
    printed = host.run("python3 /root/timed.py", timeout=1200).stdout.splitlines()
    times = [float(line.split()[1]) for line in printed if line.startswith("seconds")]
    show(
        f"{kind.name}: from `virsh define` to attached, 20 times: median"
        f" {statistics.median(times):.2f} s (min {min(times):.2f}, max {max(times):.2f}; TCG)"
    )
    assert len(times) == 20


@usually_mdev
def test_r8_a_clone_of_a_stopped_domain_gets_a_device_of_its_own(kind: Kind) -> None:
    host = kind.host
    define_request(host, "first", {"profile": kind.profile})
    (parents,) = kind.settled("first")
    host.run("virt-clone --original first --name second --preserve-data --auto-clone")
    (own,) = kind.settled("second")
    assert own != parents
    for name in ("first", "second"):
        host.virsh("start", name)
    assert kind.present() == sorted([parents, own])
    for name in ("first", "second"):
        host.virsh("destroy", name)
    assert kind.present() == []


@usually_vf
def test_r7_r8_a_clone_of_a_domain_with_a_retained_vgpu(kind: Kind) -> None:
    host = kind.host
    (device,) = kind.define("parent", kind.profile)
    host.virsh("start", "parent")
    kind.hold("parent", device)
    host.virsh("destroy", "parent")
    assert assignments(host) == [("parent", "retained")]
    host.run("virt-clone --original parent --name child --preserve-data --auto-clone")
    (own,) = kind.settled("child")
    assert own != device
    host.virsh("start", "child")
    host.virsh("destroy", "child")
    assert kind.present() == [device]
    assert assignments(host) == [("parent", "retained")]
    let_go(host)
    # R7: the daemon gets it back by itself.
    host.wait_for("the timer has released it", lambda: kind.present() == [], timeout=600)
    assert assignments(host) == []


@usually_mdev
def test_r9_after_a_snapshot_is_reverted_to_the_current_assignment_stands(kind: Kind) -> None:
    host = kind.host
    disk = f"{IMAGES}/snap.qcow2"
    host.run(f"qemu-img create -q -f qcow2 {disk} 1M")
    asked = [{"profile": kind.profile}]
    xml = domain_xml("snap", uuid=uuid_of("snap"), disk=disk, profiles=asked)
    host.define(xml.replace('type="raw"', 'type="qcow2"').replace("<readonly />", ""))
    kind.settled("snap")
    host.virsh("snapshot-create-as", "snap", "s1")
    host.run(f"vgpu-hook attach snap --slot 0 --profile {kind.other}")
    host.virsh("snapshot-revert", "snap", "s1")

    def current() -> bool:
        return f'profile="{kind.other}"' in host.virsh("dumpxml", "snap").stdout

    host.wait_for("what was planned last stands", current, timeout=600)
    (device,) = kind.settled("snap")
    host.virsh("start", "snap")
    assert kind.type_of(device).endswith(kind.other)
    host.virsh("destroy", "snap")
    assert kind.present() == []


@usually_vf
def test_r1_r10_delete_killed_after_each_step_ends_the_same(kind: Kind) -> None:
    host = kind.host
    # virt-clone may have made it before.
    host.run(f"virsh pool-info images || virsh pool-create-as images dir --target {IMAGES}")
    host.machine.put(PROJECT / "tests" / "killed_at.py", "/root/killed_at.py")
    # What the steps do is alike for VFs, and each takes half a minute under TCG.
    steps = STEPS if kind.name == "mdev" else STEPS[2:4]
    for number, step in enumerate(steps):
        name = f"doomed{number}"
        disk = f"{IMAGES}/{name}.raw"
        host.run(f"cp {IDLE_DISK} {disk} && virsh pool-refresh images")
        xml = domain_xml(name, uuid=uuid_of(name), disk=disk, profiles=[{"profile": kind.profile}])
        host.define(xml.replace("<readonly />", ""))
        kind.settled(name)
        host.virsh("start", name)
        # ssh has no word for a command that was killed: the shell there has.
        host.run(
            f"python3 -I /root/killed_at.py '{step}' delete {name} --remove-storage;"
            " test $? -eq 137"
        )
        if step == "starts blocked":
            host.virsh("destroy", name, check=False)
            refused = host.virsh("start", name, check=False)
            assert f"domain '{name}' is being deleted (since" in refused.stderr
        host.run(f"vgpu-hook delete {name} --remove-storage")
        assert host.virsh("dominfo", name, check=False).returncode != 0
        assert host.run(["test", "-e", disk], check=False).returncode == 1
        history = json.loads(host.run(f"vgpu-hook explain {uuid_of(name)} --format json").stdout)[
            "history"
        ]
        events = [entry["event"] for entry in history]
        order = [
            events.index(event)
            for event in ("delete: starts blocked", "released", "delete: undefined")
        ]
        assert order == sorted(order), history
        if "delete: volume removed" in events:
            assert events.index("delete: volume removed") > order[-1]
    assert kind.present() == []
    assert assignments(host) == []
    host.virsh("pool-destroy", "images")


@usually_mdev
def test_r13_an_unknown_kind_of_hostdev_is_refused_and_nothing_is_made(kind: Kind) -> None:
    host = kind.host
    host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")  # it would mend it
    host.define(
        domain_xml(
            "odd",
            uuid=uuid_of("odd"),
            disk=IDLE_DISK,
            profiles=[{"profile": kind.profile, "fork": "refuse"}],
            extra_hostdevs=[pci_hostdev("0000:00:1f.0", alias="ua-vgpu-0")],
        )
    )
    refused = host.virsh("start", "odd", check=False)
    assert "its hostdev names 0000:00:1f.0, which is no VF that can be a vGPU" in refused.stderr
    host.virsh("undefine", "odd")
    host.run("systemctl start vgpu-hookd.socket vgpu-hookd.service")
    assert kind.present() == []
    assert assignments(host) == []


@usually_mdev
def test_r12_a_late_event_does_not_touch_what_a_later_start_made(kind: Kind) -> None:
    """The daemon hears of the stop when the domain runs again; the hook did both without it."""
    host = kind.host
    (device,) = kind.define("late", kind.profile)
    host.virsh("start", "late")
    host.run("systemctl service-watchdogs no; systemctl kill --signal=STOP vgpu-hookd")
    try:
        host.virsh("destroy", "late")
        assert kind.present() == []
        host.virsh("start", "late")
    finally:
        host.run("systemctl kill --signal=CONT vgpu-hookd; systemctl service-watchdogs yes")
    # It has come to the end of its queue when a later event has been handled.
    define_request(host, "marker", {"profile": kind.profile})
    kind.settled("marker")
    assert kind.present() == [device]
    assert assignments(host) == [("late", "assigned")]
    host.virsh("destroy", "late")
    assert kind.present() == []


@usually_vf
def test_vms_go_on_when_libvirtd_or_the_daemon_or_both_are_restarted(kind: Kind) -> None:
    host = kind.host
    devices = []
    for number in range(2):  # one after the other: what nobody runs on may be given to both
        devices += kind.define(f"on{number}", kind.profile)
        host.virsh("start", f"on{number}")
    pids = [qemu_pid(host, f"on{number}") for number in range(2)]
    for units in ("libvirtd", "vgpu-hookd", "libvirtd vgpu-hookd"):
        host.run(f"systemctl kill --signal=KILL --kill-whom=main {units}")
        host.run(f"systemctl restart {units}")
        host.wait_for("libvirt answers", lambda: host.state("on0") == "running", timeout=600)
        host.run("vgpu-hook reconcile")
        assert kind.present() == sorted(devices)
        assert [qemu_pid(host, f"on{number}") for number in range(2)] == pids
        assert {state for _, state in assignments(host)} == {"assigned"}
    for number in range(2):
        host.virsh("destroy", f"on{number}")
    assert kind.present() == []


@usually_mdev
def test_a_vgpu_is_plugged_into_and_out_of_a_running_vm(kind: Kind) -> None:
    host = kind.host
    host.define(
        domain_xml(
            "hot",
            uuid=uuid_of("hot"),
            disk=IDLE_DISK,
            profiles=[{"profile": kind.profile}],
            spare_ports=3,
        )
    )
    kind.settled("hot")
    host.virsh("start", "hot")
    host.run(f"vgpu-hook attach hot --profile {kind.profile} --live")
    devices = kind.settled("hot", 2)
    assert kind.present() == sorted(devices)
    live = host.virsh("dumpxml", "hot").stdout
    assert live.count("ua-vgpu-") == 2
    # What a saved image and a migration carry along says so too.
    assert len(vgpu_requests(live)) == 2
    done = host.run("vgpu-hook detach hot --slot 1 --live", check=False)
    assert done.returncode == 0, done.stderr
    # A guest without a system may never let go.
    held = "when the guest lets go" in done.stdout
    assert kind.present() == (sorted(devices) if held else devices[:1])
    assert len(vgpu_requests(host.virsh("dumpxml", "hot").stdout)) == (2 if held else 1)
    host.virsh("destroy", "hot")
    assert kind.present() == []
    assert assignments(host) == []


@usually_vf
def test_managed_save_gives_the_vgpu_back_and_start_takes_one_again(kind: Kind) -> None:
    host = kind.host
    devices = kind.define("saved", kind.profile, movable=True)
    host.virsh("start", "saved")
    kind.movable("saved")
    host.virsh("managedsave", "saved")
    assert kind.present() == []
    assert assignments(host) == []
    host.virsh("start", "saved")
    assert host.state("saved") == "running"
    assert kind.present() == devices
    host.virsh("destroy", "saved")
    assert kind.present() == []


@only_mdev
def test_events_in_random_order_and_reconnects_end_in_agreement(kind: Kind) -> None:
    """VFs have twelve domains on eight instead: test_vfs.py. 200 events: tests/soak."""
    run_at_random(kind, events=20, reconnects=3)


@usually_vf
def test_r5_r14_i9_after_a_reboot_nothing_stale_counts_and_starts_work(kind: Kind) -> None:
    """Last in this module: it pulls the host's plug."""
    host = kind.host
    kind.define("rebooted", kind.profile)
    host.virsh("start", "rebooted")
    host.machine.power_cycle()
    if kind.name == "vendor-vfio":
        enable_vfs(host.machine, gpus=2, vfs=4)
    assert kind.present() == []
    host.wait_for("no record is left", lambda: assignments(host) == [], timeout=600)
    host.virsh("start", "rebooted")
    assert len(kind.present()) == 1
    assert assignments(host) == [("rebooted", "assigned")]
    host.virsh("destroy", "rebooted")
    assert kind.present() == []
