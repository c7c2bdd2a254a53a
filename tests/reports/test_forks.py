"""Reports of clones, snapshots, restores and suspended VMs (docs/reports.md, rows 41 to 48)."""

from __future__ import annotations

import pytest

from tests.domains import domain_xml, renamed
from tests.product import Product
from tests.reports.calls import DONE, end, refusal
from tests.simulated.arrivals import V4, V5, goes_on, image, l40s, run, stop
from tests.simulated.kinds import Kind


@l40s
def test_hypeman_pr_322_a_restored_vm_does_not_share_the_vgpu_that_another_has_by_now(
    product: Product,
) -> None:
    run(product, "a", V4)
    stop(product, "a", V4)
    assert product.hook("a", "restore", image("a", V4)) == DONE  # free: not a byte is changed
    run(product, "b", V4)
    product.sim.hold(V4)
    record = product.rows("*")
    ((_, vf),) = goes_on(product, "a", "restore", image("a", V4)).values()
    assert vf != V4
    stop(product, "a", vf)
    assert product.rows("*") == record
    assert product.sim.current_types() == {V4: 1148}


@pytest.mark.simhost("l40s-same-type")
def test_hypeman_pr_322_a_restore_that_has_no_other_vgpu_is_refused(product: Product) -> None:
    vfs = sorted(product.sim.state()["vfs"])
    for number, vf in enumerate(vfs):
        run(product, f"vm{number}", vf)
    record = product.rows("*")
    a = image("a", vfs[0])
    answer = product.hook("a", "restore", a)
    assert (answer.status, answer.err) == (0, "")
    going_on = answer.out.encode() or a
    assert "'a'" in refusal(product, "a", going_on)
    end(product, "a", going_on, "failed")
    assert product.rows("*") == record


def test_proxmox_vgpu_installer_22_two_vms_with_one_device_never_run_both(
    product: Product, kind: Kind
) -> None:
    """And the one that has it is told of, not a failed read of its VFIO group."""
    a = kind.xml("a", marked=True)
    assert product.hook("a", "prepare", a) == DONE
    told = refusal(product, "copy", renamed(a, "a", "copy"))
    assert kind.device("a") in told
    assert "'a'" in told
    assert "run: vgpu-hook attach" in told
    assert kind.present() == kind.vgpus("a")


def test_proxmox_vgpu_installer_17_an_error_of_the_driver_is_not_called_in_use(
    product: Product, kind: Kind
) -> None:
    kind.fail_create("EIO")
    told = refusal(product, "a", kind.xml("a"))
    assert "Input/output error (EIO)" in told
    assert "in use" not in told
    product.sim.heal()
    assert product.hook("a", "prepare", kind.xml("a")) == DONE
    product.sim.add_process(77, "other", "/dev/null")
    product.sim.fault("read", "proc/77/fd", "EIO")
    end(product, "a", kind.xml("a"), "shutdown")
    ((reason,),) = product.rows("reason")
    assert "can't tell who uses it" in reason
    assert "Input/output error (EIO)" in reason
    assert "in use by" not in reason
    assert kind.present() == kind.vgpus("a")


def test_vgpu_unlock_rs_49_a_vm_starts_again_after_it_was_stopped(
    product: Product, kind: Kind
) -> None:
    for _ in range(3):
        assert product.hook("a", "prepare", kind.xml("a")) == DONE
        pid = product.sim.hold(kind.device("a"))
        product.sim.drop(pid)
        end(product, "a", kind.xml("a"), "shutdown")
        assert kind.present() == {}


def test_xen_api_pr_3364_a_suspended_vm_holds_no_vgpu_and_comes_back_on_its_own(
    product: Product, kind: Kind
) -> None:
    a = kind.xml("a", marked=True)
    assert product.hook("a", "prepare", a) == DONE
    end(product, "a", a, "saved")
    assert kind.present() == {}
    assert kind.free() == kind.room
    assert product.query("SELECT profile FROM request") == [(kind.profile,)]
    assert product.hook("other", "prepare", kind.xml("other")) == DONE
    assert product.hook("a", "restore", a) == DONE
    assert product.hook("a", "prepare", a) == DONE
    assert kind.present() == kind.vgpus("a", "other")


def test_lp_1762688_a_rescue_start_gets_the_same_device(product: Product, kind: Kind) -> None:
    """It is another VM for the same domain, started as soon as the first has ended."""
    a = kind.xml("a")
    rescue = a.replace(b"<type>hvm</type>", b"<type>hvm</type><kernel>/rescue</kernel>")
    assert rescue != a
    assert product.hook("a", "prepare", a) == DONE
    for xml in (rescue, a):
        end(product, "a", xml, "destroyed")
        assert product.hook("a", "prepare", xml) == DONE
        assert kind.present() == kind.vgpus("a")
    assert product.rows("device, state") == [(kind.device("a"), "assigned")]


def test_hypeman_364_a_device_that_is_opened_after_the_first_look_is_kept(
    product: Product, kind: Kind
) -> None:
    """The intent is committed then; only the look right before the write can see it."""
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == DONE
    # Handles are read process by process: 10 has none yet when the first look comes to it.
    product.sim.add_process(10, "qemu-system-x86")
    product.sim.add_process(20, "other", "/dev/null")
    product.sim.control(f"after 1 read proc/20/fd hold {kind.device('a')} 10")
    assert product.hook("a", "stopped", a) == DONE
    assert "intent to release" in product.events()
    assert kind.removals() == []
    assert kind.present() == kind.vgpus("a")
    assert "in use by qemu-system-x86 (pid 10" in product.rows("reason")[0][0]


@l40s
def test_ravada_1965_a_clone_gets_a_vgpu_of_its_own_by_its_own_request(product: Product) -> None:
    """Also while the original runs; that its definition is put in order: tests/libvirt."""
    run(product, "a", V4)
    clone = domain_xml("clone", {"0": "1148"}, hostdevs=[])
    assert "has no hostdev yet; run: vgpu-hook attach" in refusal(product, "clone", clone)
    assert product.hook("clone", "prepare", image("clone", V5)) == DONE
    assert product.sim.current_types() == {V4: 1148, V5: 1148}
