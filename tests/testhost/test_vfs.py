"""Vendor-specific VFIO on the test host: what is not alike under mdev, with VFs passed to QEMU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.testbed.gpu import DRIVER, Fault, current_type, set_fault, writes
from tests.testbed.plugin import Show, Testbed
from tests.testhost.kinds import VfKind
from tests.testhost.twelve import run_twelve
from tests.testhost.vms import assignments, define_request, query, status


@pytest.fixture(scope="module")
def vfs(testbed: Testbed) -> VfKind:
    """Two GPUs of four VFs each on a clean test host."""
    return VfKind(testbed.clean_host())


@pytest.fixture(autouse=True)
def clean(vfs: VfKind) -> Iterator[None]:
    """Leave no fault, no domain and no memory of failures to the next test."""
    yield
    faults = "".join(f"echo {vf} none 0 > {DRIVER}/fault; " for vf in vfs.vfs)
    failed = [row[0] for row in query(vfs.host, "SELECT DISTINCT device FROM failure")]
    clear = f"vgpu-hook quarantine --clear {' '.join(failed)}" if failed else ":"
    vfs.host.run(
        f"{faults} for d in $(virsh list --all --name); do virsh -q destroy $d 2>/dev/null;"
        f" virsh -q undefine $d; done; {clear}",
        check=False,
    )
    vfs.host.wait_for("no record is left", lambda: assignments(vfs.host) == [], timeout=600)
    assert vfs.present() == []


def test_r12_a_late_release_writes_nothing(vfs: VfKind) -> None:
    """`stopped` and `release` of A, called once more when B runs on the same VF."""
    host = vfs.host
    (vf,) = vfs.define("early", "1148")
    host.virsh("start", "early")
    xml = host.virsh("dumpxml", "early").stdout
    host.virsh("destroy", "early")
    host.virsh("undefine", "early")
    (again,) = vfs.define("later", "1148")
    assert again == vf
    host.virsh("start", "later")
    before = writes(host.machine, vf)
    for operation, extra in (("stopped", "-"), ("release", "destroyed")):
        hook = ["/etc/libvirt/hooks/qemu.d/50-vgpu-hook", "early", operation, "end", extra]
        host.run(hook, input=xml)
    host.run("vgpu-hook reconcile")
    assert writes(host.machine, vf) == before
    assert current_type(host.machine, vf) == 1148
    assert host.state("later") == "running"


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("wedged", "Input/output error (EIO)"),
        ("unreadable", "can't be read"),
        ("ignore-write", "reads back none"),
        ("wrong-type", "was to be nvidia-1148, but is nvidia-"),
    ],
)
def test_a_vf_that_fails_at_create_is_refused_and_left_for_another(
    vfs: VfKind, show: Show, fault: Fault, seen: str
) -> None:
    host = vfs.host
    (vf,) = vfs.define(fault, "1148")
    set_fault(host.machine, vf, fault)
    refused = host.virsh("start", fault, check=False)
    assert refused.returncode == 1
    assert seen in refused.stderr
    show(f"{fault}: {refused.stderr.strip()}")
    if fault != "unreadable":
        assert current_type(host.machine, vf) == 0
    assert assignments(host) == []
    # The daemon points the domain to another VF, and it starts.
    host.wait_for("another VF is named", lambda: vfs.settled(fault) != [vf], timeout=600)
    host.virsh("start", fault)
    assert assignments(host) == [(fault, "assigned")]


@pytest.mark.parametrize("fault", ["reset-eio", "reset-ebusy", "wedged"])
def test_a_vf_that_fails_at_reset_is_retained_and_others_go_on(
    vfs: VfKind, show: Show, fault: Fault
) -> None:
    host = vfs.host
    (vf,) = vfs.define("stuck", "1148")
    host.virsh("start", "stuck")
    set_fault(host.machine, vf, fault)
    host.virsh("destroy", "stuck")
    assert host.state("stuck") == "shut off"
    assert vfs.present() == [vf]
    # Somebody may be trying again at this very moment, and the record has no reason then.
    reasons: list[str] = []

    def retained() -> bool:
        rows = query(host, "SELECT reason FROM assignment WHERE state = 'retained'")
        reasons[:] = [row[0] for row in rows]
        return bool(reasons)

    host.wait_for("retained", retained, timeout=600)
    (reason,) = reasons
    show(f"{fault}: {reason}")
    assert ("EIO" if fault != "reset-ebusy" else "EBUSY") in reason
    (other,) = vfs.define("beside", "1148")
    host.virsh("start", "beside")
    assert vfs.present() == sorted([vf, other])
    # The domain itself is pointed to a sibling.
    host.wait_for("another VF is named", lambda: vfs.settled("stuck") != [vf], timeout=600)
    host.virsh("start", "stuck")
    assert host.state("stuck") == "running"


def test_quarantine_is_shown_avoided_and_cleared(vfs: VfKind, show: Show) -> None:
    host = vfs.host
    (vf,) = vfs.define("q0", "1148")
    set_fault(host.machine, vf, "wedged")
    host.virsh("start", "q0", check=False)
    host.virsh("undefine", "q0")
    (same,) = vfs.define("q1", "1148")
    assert same == vf
    host.virsh("start", "q1", check=False)
    aside = {(f["device"], f["domain_name"]) for f in status(host)["quarantine"]}
    assert aside == {(vf, "q0"), (vf, "q1")}
    for number in range(2, 10):
        define_request(host, f"q{number}", {"profile": "1148"})
        assert vfs.settled(f"q{number}") != [vf]
    show(host.run("vgpu-hook status").stdout)
    set_fault(host.machine, vf, "none")
    host.run(f"vgpu-hook quarantine --clear {vf}")
    assert status(host)["quarantine"] == []


def test_a_slow_create_is_waited_for(vfs: VfKind) -> None:
    host = vfs.host
    (vf,) = vfs.define("slow", "1148")
    set_fault(host.machine, vf, "slow-create", milliseconds=3000)
    host.virsh("start", "slow")
    assert current_type(host.machine, vf) == 1148


def test_a_dirty_vf_is_left_out_and_a_sibling_used(vfs: VfKind) -> None:
    host = vfs.host
    (vf,) = vfs.define("clean", "1148")
    host.run(f"echo 1145 > /sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type")
    refused = host.virsh("start", "clean", check=False)
    assert f"{vf} carries nvidia-1145, which is not on record" in refused.stderr
    host.wait_for("another VF is named", lambda: vfs.settled("clean") != [vf], timeout=600)
    host.virsh("start", "clean")
    host.virsh("destroy", "clean")
    assert vfs.present() == [vf]
    found = json.loads(host.run("vgpu-hook reconcile --format json").stdout)["findings"]
    assert [(f["device"], f["action"]) for f in found] == [(vf, "left alone")]
    vfs.remove(vf)


def test_what_status_profiles_and_explain_show(vfs: VfKind, show: Show) -> None:
    host = vfs.host
    vfs.define("shown", "NVIDIA L40S-2Q")
    host.virsh("start", "shown")
    for command in ("status", "profiles", "explain shown"):
        show(host.run(f"vgpu-hook {command}").stdout)


def test_twelve_domains_share_eight_vfs(vfs: VfKind, show: Show) -> None:
    """A minute of what `make soak` does for ten."""
    show(run_twelve(vfs, seconds=60))
