"""VMs that go from one test host to the other with their vGPUs, and those that can't."""

from __future__ import annotations

import pytest

from tests.testbed.host import Host
from tests.testbed.pair import Pair
from tests.testbed.plugin import Show
from tests.testhost.kinds import MdevKind, VfKind
from tests.testhost.there_and_back import migrate, there_and_back
from tests.testhost.vms import assignments, qemu_pid, query, saveable

ROUNDS = 2
"""`make soak` does ten."""


@pytest.fixture(scope="module")
def hosts(pair: Pair) -> tuple[Host, Host]:
    return pair.first, pair.second


def start(host: Host, name: str) -> str:
    kind = MdevKind(host)
    host.define(saveable(name))
    (device,) = kind.settled(name)
    host.virsh("start", name)
    return device


def test_live_there_and_back_leaves_nothing_behind(hosts: tuple[Host, Host], show: Show) -> None:
    show(there_and_back(hosts, ROUNDS))


def test_check_migrate_says_so_before_and_no_room_leaves_the_vm_where_it_is(
    hosts: tuple[Host, Host], show: Show
) -> None:
    first, second = hosts
    device = start(first, "staying")
    command = "vgpu-hook check-migrate staying qemu+ssh://root@host2/system"
    good = first.run(command, check=False)
    show(good.stdout + good.stderr)
    assert good.returncode == 0
    assert "Domain 'staying' can.\n" in good.stdout
    full = MdevKind(second)
    full.fill("none")
    full.foreign()
    others = second.mdevs()
    assert len(others) == 24
    bad = first.run(command, check=False)
    show(bad.stderr.strip())
    assert bad.returncode == 1
    assert "no free instance of profile 'mtty-1': mtty has 0 of mtty-1 free" in bad.stderr
    pid = qemu_pid(first, "staying")
    refused = migrate(first, "staying", "host2", check=False)
    show(refused.stderr.strip())
    assert refused.returncode == 1
    assert "domain 'staying' (slot '0'): no free instance of profile 'mtty-1'" in refused.stderr
    assert first.state("staying") == "running"
    assert qemu_pid(first, "staying") == pid
    assert first.mdevs() == [device]
    assert assignments(first) == [("staying", "assigned")]
    assert second.mdevs() == others
    assert assignments(second) == []
    full.empty()
    first.virsh("destroy", "staying")
    assert first.mdevs() == []


def test_r11_the_other_host_s_libvirtd_is_killed_in_the_middle(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    device = start(first, "cut")
    first.run(
        "systemd-run --quiet --unit=going --property=StandardError=file:/root/going.err"
        " --remain-after-exit virsh migrate --live --persistent --bandwidth 1 cut"
        " qemu+ssh://root@host2/system"
    )
    second.wait_for("the other side has its device", lambda: second.mdevs() == [device], 600)
    second.run("systemctl kill --signal=KILL --kill-whom=main libvirtd; systemctl start libvirtd")

    def over() -> bool:
        return first.run("systemctl show -P SubState going").stdout.strip() != "running"

    first.wait_for("the migration has failed", over, timeout=1200)
    assert first.run("systemctl show -P Result going").stdout.strip() == "exit-code"
    assert first.state("cut") == "running"
    assert first.mdevs() == [device]
    assert assignments(first) == [("cut", "assigned")]
    second.wait_for("what it took is given back", lambda: second.mdevs() == [], timeout=1200)
    second.wait_for("and its record", lambda: assignments(second) == [], timeout=600)
    # And then it works.
    first.run("systemctl reset-failed going; systemctl stop going", check=False)
    migrate(first, "cut", "host2")
    assert (first.mdevs(), second.mdevs()) == ([], [device])
    second.virsh("destroy", "cut")
    assert second.mdevs() == []


def test_a_vm_on_a_vf_goes_as_far_as_qemu_lets_it(hosts: tuple[Host, Host], show: Show) -> None:
    """Last in this module: it plugs in GPUs. QEMU can't move what is behind these VFs."""
    first, second = hosts
    here, there = VfKind(first), VfKind(second)
    there.define("resident", "1148")
    second.virsh("start", "resident")
    (vf,) = here.define("mover", "1148")
    first.virsh("start", "mover")
    refused = migrate(first, "mover", "host2", check=False)
    show(refused.stderr.strip())
    assert refused.returncode == 1
    assert first.state("mover") == "running"
    assert here.present() == [vf]
    first.virsh("destroy", "mover")
    assert here.present() == []
    uri = "qemu+ssh://root@host2/system"
    first.virsh("migrate", "--offline", "--persistent", "--undefinesource", "mover", uri)
    (other,) = there.settled("mover")
    assert other not in there.present()
    second.virsh("start", "mover")
    assert other in there.present()
    assert sorted(assignments(second)) == [("mover", "assigned"), ("resident", "assigned")]
    first.wait_for("the source has forgotten it", lambda: not reserved(first), timeout=600)
    for name in ("mover", "resident"):
        second.virsh("destroy", name)
    assert there.present() == []


def reserved(host: Host) -> bool:
    """Whether any VF is reserved, once the daemon has had a look."""
    host.run("vgpu-hook reconcile")
    return bool(query(host, "SELECT * FROM reservation"))
