"""Reports of races, migration and health (docs/reports.md, rows 66 to 70).

Those about libvirt's events (64, 65) are in tests/libvirt/test_reports.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from lxml import etree

from tests.domains import device_of, domain_xml, pci_hostdev, uuid_of
from tests.product import PATIENCE, Product
from tests.reports.calls import DONE, end, planned_device, refusal, script
from tests.simulated.arrivals import AWAY, PROFILE, V4, V5, image, l40s, on_record, run
from tests.simulated.daemons import NO_LIBVIRT
from tests.unit.test_migration import GOOD, Out, Pair, said
from vgpu_hook.model import VgpuRequest
from vgpu_hook.remote import NO


@pytest.mark.simhost("leaves-later")
def test_tp_libvirt_pr_4599_a_device_that_goes_later_is_on_record_until_it_has(
    product: Product,
) -> None:
    """`remove` has returned, and says nothing of when the device will be gone."""
    a = domain_xml("a", {"0": "mtty-1"})
    assert product.hook("a", "prepare", a) == DONE
    assert product.hook("a", "stopped", a) == DONE
    if product.rows():  # on a slow machine it may have gone by then
        assert product.rows("device, state") == [(device_of(uuid_of("a")), "retained")]
        assert "is still there after `remove`" in product.rows("reason")[0][0]
        product.wait_for("it has gone", lambda: product.sim.devices() == [])
        assert product.hook("a", "release", a) == DONE
    assert product.rows() == []
    assert product.sim.devices() == []
    assert product.hook("a", "prepare", a) == DONE


@l40s
def test_kubevirt_pr_16675_a_migration_changes_the_address_and_nothing_else(
    product: Product,
) -> None:
    there = image("a", AWAY)
    answer = product.hook("a", "migrate", there)
    assert (answer.status, answer.err) == (0, "")
    ((_, vf),) = product.query("SELECT slot, device FROM reservation")
    expected = there.replace(pci_hostdev(AWAY).encode(), pci_hostdev(vf).encode())
    assert expected != there
    out, golden = (etree.fromstring(xml) for xml in (answer.out, expected))
    assert etree.tostring(out, method="c14n") == etree.tostring(golden, method="c14n")
    assert product.hook("a", "prepare", expected) == DONE
    assert product.sim.current_types() == {vf: 1148}


def test_kubevirt_pr_16675_a_mediated_device_has_the_same_uuid_on_either_host(
    product: Product,
) -> None:
    a = domain_xml("a", {"0": "mtty-1"})
    assert product.hook("a", "migrate", a) == DONE
    assert product.hook("a", "prepare", a) == DONE
    assert product.sim.devices() == [device_of(uuid_of("a"))]


def test_gvt_linux_166_what_can_not_migrate_is_told_beforehand(pair: Pair, capsys: Out) -> None:
    """Intel's GVT-g was for kernels of which none migrates VFIO devices."""
    pair.uri = pair.ssh(said(GOOD, kernel="5.4.0"))
    expected = (NO, "host2 has 5.4.0; a running VM needs 5.18")
    assert pair.found(capsys)["kernel"] == expected
    pair.stop()
    assert pair.check() == 0  # it goes without its state


@l40s
def test_hypeman_435_a_vf_that_a_killed_start_has_wedged_costs_no_other(
    product: Product, tmp_path: Path
) -> None:
    product.configure(extra=NO_LIBVIRT)
    product.sim.fault("write", f"*{V4}/nvidia/current_vgpu_type", "slow:2", times=1)
    call = product.popen("a", "prepare", image("a", V4))
    product.wait_for("it is being made", lambda: product.rows("state") == [("creating",)])
    call.send_signal(signal.SIGKILL)
    call.communicate(timeout=PATIENCE)
    product.wait_for("it is done", lambda: product.rows("state") == [("assigned",)])
    product.sim.fault("write", f"*{V4}/nvidia/current_vgpu_type", "EIO")
    product.configure(deadline=4)
    end(product, "a", image("a", V4), "failed")
    assert product.rows("device, state") == [(V4, "retained")]
    told = refusal(product, "b", image("b", V4))
    assert f"{V4} could not be released by domain 'a'" in told
    assert planned_device(product, tmp_path, image("b", V4)) != V4
    run(product, "b", V5)
    assert planned_device(product, tmp_path, image("a", V4)) not in (V4, V5)


@pytest.mark.simhost("vf-unreadable")
def test_hypeman_435_a_vf_that_can_not_be_read_costs_no_other(product: Product) -> None:
    bad = "0000:41:00.6"
    told = refusal(product, "a", image("a", bad))
    assert f"{bad} can't be read" in told
    assert "Input/output error (EIO)" in told
    for name, vf in (("a", V4), ("b", V5)):
        assert product.hook(name, "prepare", image(name, vf)) == DONE
    status = product.command("status")
    assert status.status == 0
    assert f"warning: {bad} is left out" in status.err


@l40s
def test_gpu_operator_2600_a_tool_that_is_held_up_is_tried_again(
    product: Product, tmp_path: Path
) -> None:
    on_record(product, "a", VgpuRequest("0", PROFILE))
    tool, log = script(tmp_path, "sriov-manage", 1, 1, 0)
    product.configure(extra=f"[boot]\ncommands = [['{tool}']]\n")
    assert product.command("boot-gate") == (0, f"done: {tool}\n", "")
    assert len(log.read_text().splitlines()) == 3


@l40s
def test_gpu_operator_2594_but_not_for_ever_and_what_is_there_is_used(
    product: Product, tmp_path: Path
) -> None:
    on_record(product, "a", VgpuRequest("0", PROFILE))
    tool, log = script(tmp_path, "sriov-manage", 1)
    product.configure(extra=f"[boot]\ncommands = [['{tool}']]\n")
    assert product.command("boot-gate") == (1, f"failed: {tool}: exit status 1\n", "")
    assert 1 < len(log.read_text().splitlines()) < 10
    assert product.hook("a", "prepare", image("a", V4)) == DONE
