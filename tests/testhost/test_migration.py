"""VMs that go from one test host to the other with their vGPUs, and those that can't."""

from __future__ import annotations

import pytest

from tests.testbed.host import Host
from tests.testbed.pair import Pair
from tests.testbed.plugin import Show
from tests.testhost.kinds import MdevKind, VfKind
from tests.testhost.there_and_back import migrate, there_and_back
from tests.testhost.vms import assignments, qemu_pid, query

ROUNDS = 2
"""`make soak` does ten."""

URI = "qemu+ssh://root@host2/system"


@pytest.fixture(scope="module")
def hosts(pair: Pair) -> tuple[Host, Host]:
    return pair.first, pair.second


def start(host: Host, name: str) -> str:
    (device,) = MdevKind(host).define(name, "mtty-1", movable=True)
    host.virsh("start", name)
    return device


def test_an_mdev_there_and_back_leaves_nothing_behind(hosts: tuple[Host, Host], show: Show) -> None:
    show(there_and_back((MdevKind(hosts[0]), MdevKind(hosts[1])), ROUNDS))


def test_check_migrate_says_so_before_and_no_room_leaves_the_vm_where_it_is(
    hosts: tuple[Host, Host], show: Show
) -> None:
    first, second = hosts
    device = start(first, "staying")
    command = f"vgpu-hook check-migrate staying {URI}"
    good = first.run(command, check=False)
    show(good.stdout + good.stderr)
    assert good.returncode == 0
    assert "As far as can be told, domain 'staying' can.\n" in good.stdout
    full = MdevKind(second)
    full.fill("")
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
        f" --remain-after-exit virsh migrate --live --persistent --bandwidth 1 cut {URI}"
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


def test_a_vm_on_a_vf_goes_to_a_free_one_live_and_stopped(
    hosts: tuple[Host, Host], show: Show
) -> None:
    """Last in this module: it plugs in GPUs."""
    here, there = VfKind(hosts[0]), VfKind(hosts[1])
    (taken,) = there.define("resident", "1148")
    there.host.virsh("start", "resident")
    (vf,) = here.define("mover", "1148", movable=True)
    assert vf == taken
    here.host.virsh("start", "mover")
    migrate(here.host, "mover", "host2")
    assert here.present() == []
    (arrived,) = set(there.present()) - {taken}
    assert there.settled("mover") == [arrived]
    assert sorted(assignments(there.host)) == [("mover", "assigned"), ("resident", "assigned")]
    for name in ("mover", "resident"):
        there.host.virsh("destroy", name)
        there.host.virsh("undefine", name)
    show(there_and_back((here, there), 1))
    # One that QEMU can't move stays, and goes when it is stopped.
    (vf,) = here.define("fixed", "1148")
    here.host.virsh("start", "fixed")
    refused = migrate(here.host, "fixed", "host2", check=False)
    show(refused.stderr.strip())
    assert "cannot migrate domain" in refused.stderr
    assert here.present() == [vf]
    assert assignments(here.host) == [("fixed", "assigned")]
    here.host.virsh("destroy", "fixed")
    here.host.virsh("migrate", "--offline", "--persistent", "--undefinesource", "fixed", URI)
    there.settled("fixed")
    there.host.virsh("start", "fixed")
    assert assignments(there.host) == [("fixed", "assigned")]

    def forgotten() -> bool:
        here.host.run("vgpu-hook reconcile")
        return query(here.host, "SELECT * FROM reservation") == []

    # What is kept for a VM on its way is kept for a minute, whatever becomes of it.
    here.host.wait_for("the source has forgotten what has gone", forgotten, timeout=600)
    there.host.virsh("destroy", "fixed")
    assert there.present() == []
