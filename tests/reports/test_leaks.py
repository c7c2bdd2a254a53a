"""Reports of leaks, failed releases and orphans (docs/reports.md, rows 1 to 16).

Those for which libvirt has to say what runs are in tests/libvirt/test_reports.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.domains import domain_xml, pci_hostdev
from tests.product import Product
from tests.reports.calls import DONE, end, planned, planned_device, refusal
from tests.simulated.arrivals import V4, V5, image, l40s, run
from tests.simulated.daemons import NO_LIBVIRT, only_client
from tests.simulated.kinds import Kind

ATTEMPTS = 6
"""More than the host mdpy has room for: a leak of one each would exhaust it."""


@pytest.mark.simhost("mdpy")
def test_lxd_9499_starts_that_libvirt_gives_up_late_leave_nothing(product: Product) -> None:
    a = domain_xml("a", {"0": "mdpy-vga"})
    for _ in range(ATTEMPTS):
        assert product.hook("a", "prepare", a) == DONE
        assert len(product.sim.devices()) == 1
        end(product, "a", a, "failed")
        assert product.sim.devices() == []
        assert product.rows() == []


def test_lxd_9499_the_first_vgpu_goes_when_the_second_is_not_to_be_had(
    product: Product, kind: Kind
) -> None:
    two = kind.xml("two", kind.profile, kind.other)
    kind.fail_create("EIO", kind.other)
    for attempt in range(1, 4):
        assert "slot '1'" in refusal(product, "two", two)
        end(product, "two", two, "failed")
        assert kind.present() == {}
        assert product.rows() == []
        assert len(kind.removals()) == attempt  # of what this attempt had made, and of no more


def test_lxd_12128_failed_starts_leave_nothing_though_the_daemon_dies_in_between(
    product: Product, kind: Kind, tmp_path: Path
) -> None:
    a = kind.xml("a")
    product.configure(extra=NO_LIBVIRT)
    whole = product.config
    only_client(product, tmp_path)  # what works is the daemon's work
    client = product.config
    for _ in range(3):
        for operation in ("prepare", "stopped", "release"):
            product.config = whole
            daemon = product.daemon()
            product.config = client
            try:
                assert product.hook("a", operation, a, "failed") == DONE
                assert kind.present() == (kind.vgpus("a") if operation == "prepare" else {})
            finally:
                daemon.kill()
                daemon.wait()
                (product.runtime / "hook.sock").unlink()
    assert product.rows() == []


def test_lxd_11520_the_vgpu_of_a_crashed_vm_is_released(product: Product, kind: Kind) -> None:
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == DONE
    pid = product.sim.hold(kind.device("a"))
    assert product.hook("a", "stopped", a, "crashed") == DONE
    assert kind.present() == kind.vgpus("a")  # QEMU is not quite gone
    product.sim.drop(pid)
    assert product.hook("a", "release", a, "crashed") == DONE
    assert kind.present() == {}
    assert product.rows() == []
    assert len([event for event in product.events() if event == "released"]) == 1


def test_hypeman_pr_366_a_failed_release_does_not_lose_the_device(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == DONE
    product.configure(deadline=4)
    kind.fail_remove("EIO")
    end(product, "a", a, "destroyed")
    assert product.rows("device, state") == [(kind.device("a"), "retained")]
    assert kind.present() == kind.vgpus("a")
    product.sim.heal()
    assert product.hook("a", "release", a, "destroyed") == DONE
    assert kind.present() == {}


def test_hypeman_pr_366_a_fork_can_not_touch_what_its_source_has(
    product: Product, kind: Kind
) -> None:
    device = kind.device("a")
    assert product.hook("a", "prepare", kind.xml("a")) == DONE
    product.sim.hold(device)
    record = product.rows("*")
    product.sim.reset_writes()
    fork = domain_xml("fork", {"0": kind.profile}, hostdevs=[kind.hostdev(device)])
    assert "'a'" in refusal(product, "fork", fork)
    end(product, "fork", fork, "failed")
    assert product.sim.writes() == []
    assert product.rows("*") == record
    assert kind.present() == kind.vgpus("a")


@l40s
def test_cloudstack_11574_what_nobody_can_be_asked_about_is_never_free(
    product: Product, tmp_path: Path
) -> None:
    run(product, "a", V4)

    def stays_taken() -> None:
        unreachable = f"qemu+unix:///system?socket={tmp_path}/none"
        # Nor does it need a tool in PATH that may be missing.
        found = product.command("reconcile", "-c", unreachable, PATH="/nonexistent")
        assert "kept     libvirt can't be asked whether its domain runs" in found.out
        assert product.sim.current_types() == {V4: 1148}
        assert "domain 'a'" in refusal(product, "b", image("b", V4))
        assert planned_device(product, tmp_path, image("b", V4)) != V4

    stays_taken()
    product.sim.add_process(77, "other", "/dev/null")
    product.sim.fault("read", "proc/77/fd", "EACCES")  # who uses the VF can't be told
    assert product.hook("a", "stopped", image("a", V4), "shutdown") == DONE
    assert product.rows("device, state") == [(V4, "retained")]
    stays_taken()


def test_gvtg_vgpu_3_no_removal_is_written_while_the_vm_is_on(product: Product, kind: Kind) -> None:
    """The kernel would block it, for ever, as this simulated one does."""
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == DONE
    pid = product.sim.hold(kind.device("a"))
    end(product, "a", a, "destroyed")
    assert kind.removals() == []
    assert product.rows("state") == [("retained",)]
    product.sim.drop(pid)
    product.configure(deadline=2)
    kind.fail_remove("hang")
    assert product.hook("a", "release", a) == DONE
    assert product.rows("state") == [("retained",)]
    assert "has not returned within" in product.rows("reason")[0][0]
    product.sim.heal()
    product.configure()
    product.wait_for("the kernel has gone on", lambda: kind.present() == {})
    assert product.hook("a", "release", a) == DONE
    assert product.rows() == []


@l40s
def test_vgpu_unlock_131_a_vf_that_works_no_more_is_not_tried_for_ever(
    product: Product, tmp_path: Path
) -> None:
    product.sim.fault("write", f"*{V4}/nvidia/current_vgpu_type", "EIO", data="[1-9]*")
    for name in "ab":
        assert "another VF is free" in refusal(product, name, image(name, V4))
        moved = planned(product, tmp_path, image(name, V4))
        assert pci_hostdev(V4) not in moved.decode()
        assert product.hook(name, "prepare", moved) == DONE
    quarantine = product.command("quarantine")
    assert V4 in quarantine.out
    assert "EIO" in quarantine.out
    tries = len(product.sim.writes(f"*{V4}*"))
    assert planned_device(product, tmp_path, image("c", V4)) != V4
    assert len(product.sim.writes(f"*{V4}*")) == tries


@pytest.mark.simhost("vf-once-per-boot")
def test_vgpu_unlock_110_what_only_qemu_finds_unusable_is_given_back_each_time(
    product: Product,
) -> None:
    """After its first VM the VF takes types as before, and can't be opened."""
    a = image("a", V4)
    group = product.sim.dev / "vfio" / str(product.sim.state()["vfs"][V4]["group"])
    for reason in ("shutdown", "failed", "failed"):
        assert product.hook("a", "prepare", a) == DONE
        assert product.sim.current_types() == {V4: 1148}
        if reason == "failed":
            with pytest.raises(OSError, match="Input/output error"):
                os.open(group, os.O_RDWR)
        end(product, "a", a, reason)
        assert product.sim.current_types() == {}
        assert product.rows() == []
    history = product.json("explain", "a")["history"]
    assert [entry["event"] for entry in history].count("released") == 3
    assert product.hook("b", "prepare", image("b", V5)) == DONE
