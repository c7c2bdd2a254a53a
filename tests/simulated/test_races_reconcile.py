"""Reconcile against starts and stops in flight: it never takes what a call is at work on (R7, R12).

libvirt tells it each time that there is no such domain. What keeps it from a start's device is the
domain's lock and the generation of the record, at every moment of the start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.product import PATIENCE, Product
from tests.simulated import moments
from tests.simulated.kinds import Kind
from tests.simulated.moments import STARTING, STOPPING
from tests.simulated.reconciling import Reconcile


@pytest.mark.parametrize("moment", STARTING)
def test_r7_a_start_in_flight_keeps_its_device(product: Product, kind: Kind, moment: str) -> None:
    a = kind.xml("a")
    assert product.hook("b", "prepare", kind.xml("b")) == (0, "", "")
    product.sim.reset_reads()
    product.sim.reset_writes()
    moments.hold_up(kind, moment, "hang")
    call = product.popen("a", "prepare", a)
    product.wait_for(moment, in_flight(product, kind, moment))
    runs = [Reconcile(product) for _ in range(3)]
    findings = [run.result() for run in runs]
    assert call.poll() is None, "it was over before"
    product.sim.heal()
    assert call.communicate(timeout=PATIENCE) == (b"", b"")
    assert call.returncode == 0
    own = kind.device("a")
    assert {f.action for found in findings for f in found if f.device == own} <= {"kept"}
    assert product.rows() == [("a", "0", "assigned")]
    assert kind.present() == kind.vgpus("a")
    # The real orphan was got back meanwhile, once.
    orphan = [f.action for found in findings for f in found if f.device == kind.device("b")]
    assert "released" in orphan
    assert len([w for w in kind.removals() if w.outcome == "ok"]) == 1


def in_flight(product: Product, kind: Kind, moment: str) -> Callable[[], bool]:
    if moment == moments.IN_CREATE:
        return lambda: ("a", "0", "creating") in product.rows()
    return moments.reached(product, kind, moment)


@pytest.mark.parametrize("earlier", ["nothing", "assigned", "retained"])
def test_r12_a_start_that_came_and_went_while_libvirt_was_asked_keeps_its_device(
    product: Product, kind: Kind, tmp_path: Path, earlier: str
) -> None:
    """What was read before is out of date: the same device, another generation."""
    a = kind.xml("a")
    if earlier != "nothing":
        assert product.hook("a", "prepare", a) == (0, "", "")
    if earlier == "retained":
        kind.fail_remove("EIO")
        assert product.hook("a", "stopped", a) == (0, "", "")
        product.sim.heal()
        assert product.rows("state") == [("retained",)]
    hold = tmp_path / "hold"
    hold.mkdir()
    run = Reconcile(product, hold)
    run.wait_until_it_asks()
    assert product.hook("a", "prepare", a) == (0, "", "")
    product.sim.reset_writes()
    run.go_on()
    found = run.result()
    assert product.sim.writes() == []
    assert product.rows() == [("a", "0", "assigned")]
    assert kind.present() == kind.vgpus("a")
    if earlier == "nothing" and kind.name == "mdev":  # seen, and no orphan
        assert [(f.device, f.action) for f in found] == [(kind.device("a"), "kept")]


@pytest.mark.parametrize("moment", STOPPING)
def test_r12_a_stop_in_flight_is_done_once(product: Product, kind: Kind, moment: str) -> None:
    a = kind.xml("a")
    assert product.hook("a", "prepare", a) == (0, "", "")
    product.sim.reset_writes()
    moments.hold_up(kind, moment)
    call = product.popen("a", "stopped", a)
    product.wait_for(moment, moments.reached(product, kind, moment))
    runs = [Reconcile(product) for _ in range(3)]
    for run in runs:
        run.result()
    assert call.communicate(timeout=PATIENCE) == (b"", b"")
    assert (product.rows(), kind.present()) == ([], {})
    assert [w.outcome for w in kind.removals()] == ["ok"]


def test_i7_many_reconciles_and_restarts_of_many_domains(product: Product, kind: Kind) -> None:
    names = [f"vm{n}" for n in range(4)]
    for name in names:
        assert product.hook(name, "prepare", kind.xml(name)) == (0, "", "")
    runs = [Reconcile(product) for _ in range(3)]
    calls = [product.popen(name, "prepare", kind.xml(name)) for name in names]
    for run in runs:
        run.result()
    for call in calls:
        assert call.communicate(timeout=PATIENCE) == (b"", b"")
        assert call.returncode == 0
    # To this libvirt none of them exists, so what has come to be by then may be taken again: whole.
    on_record = [row[0] for row in product.rows()]
    assert {row[2] for row in product.rows()} <= {"assigned"}
    assert kind.present() == kind.vgpus(*on_record)
    Reconcile(product).result()
    assert (product.rows(), kind.present()) == ([], {})
