"""attach --live and detach --live, given again, at once, and to a guest that takes its time.

The product's functions in this process (tests/model/drivers.py), under a simulated libvirtd.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.domains import domain_xml, vgpus_of
from tests.model.drivers import InProcess
from tests.product import Answer
from tests.simhost import SimHost
from vgpu_hook import hotplug

from .definitions import running
from .errors import SimError
from .state import SimDomain, SimLibvirt, devices_of

ATTACH = ("attach", "--live", "--slot", "0", "a", "--profile")
DETACH = ("detach", "--live", "a")
TAKEN = "is on record with a vGPU in slot '0' that it does not run with"


class Vm:
    """The domain `a`, which runs without a vGPU."""

    def __init__(self, sim: SimHost, folder: Path) -> None:
        self.sim = sim
        self.libvirt = SimLibvirt()
        self.driver = InProcess(sim, folder, self.libvirt)
        self.domain: SimDomain = self.libvirt.define(domain_xml("a").decode())
        self.libvirt.started(self.domain, running(str(self.domain.definition), 7))
        self.pids: list[int] = []
        self.libvirt.on_attach = self._opens
        self.libvirt.on_detach = self.lets_go

    def gives(self, *words: str) -> Answer:
        return self.driver.command(*words)

    def _opens(self, domain: SimDomain, hostdev: str) -> None:
        (device,) = devices_of(f"<domain><devices>{hostdev}</devices></domain>").values()
        self.pids.append(self.sim.hold(device))

    def lets_go(self, domain: SimDomain, alias: str) -> None:
        self.sim.drop(self.pids.pop())
        self.libvirt.let_go(domain, alias)

    def live(self) -> set[str]:
        return set(vgpus_of(str(self.domain.live)))

    def defined(self) -> set[str]:
        return set(vgpus_of(str(self.domain.definition)))

    def states(self) -> list[tuple[Any, ...]]:
        return self.driver.product.rows("slot, state")


@pytest.fixture
def vm(simhost: SimHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vm]:
    monkeypatch.setattr(hotplug, "UNPLUG_WAIT", 0.2)
    made = Vm(simhost, tmp_path)
    yield made
    made.driver.close()


def test_given_again_it_changes_nothing(vm: Vm) -> None:
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    live, definition = vm.domain.live, vm.domain.definition
    answer = vm.gives(*ATTACH, "mtty-1")
    assert answer.status == 0
    assert "It runs with it already" in answer.out
    assert (vm.domain.live, vm.domain.definition) == (live, definition)
    assert len(vm.sim.writes()) == 1


@pytest.mark.parametrize("other", [["mtty-2"], ["mtty-1", "--params", "x=1"]], ids=" ".join)
def test_what_is_not_what_it_runs_with_is_refused(vm: Vm, other: list[str]) -> None:
    """Its metadata, which saved images carry, must go on saying what it has."""
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    live, definition = vm.domain.live, vm.domain.definition
    answer = vm.gives(*ATTACH, *other)
    assert answer.status == 1
    assert "has a vGPU in slot '0' already" in answer.err
    assert (vm.domain.live, vm.domain.definition) == (live, definition)
    assert vm.states() == [("0", "assigned")]


def test_a_guest_that_takes_its_time_loses_it_later(vm: Vm) -> None:
    vm.driver.start_daemon()
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    vm.libvirt.on_detach = lambda domain, alias: None
    answer = vm.gives(*DETACH)
    assert answer.status == 0
    assert "It goes when the guest lets go of it." in answer.out
    answer = vm.gives(*ATTACH, "mtty-1")
    assert answer.status == 0
    assert "if it is being detached, it still loses it" in answer.out
    vm.lets_go(vm.domain, "ua-vgpu-0")
    vm.driver.deliver(None)
    assert vm.states() == []
    assert vm.sim.devices() == []


@pytest.mark.simhost("l40s")
def test_a_detach_given_twice_keeps_the_other_slots_vf(vm: Vm) -> None:
    reservations = "SELECT slot, device FROM reservation ORDER BY slot"
    for slot in ("0", "1"):
        assert vm.gives("attach", "--live", "--slot", slot, "a", "--profile", "1148").status == 0
    before = vm.driver.product.query(reservations)
    assert [slot for slot, _ in before] == ["0", "1"]
    vm.libvirt.on_detach = lambda domain, alias: None
    for _ in range(2):
        assert vm.gives(*DETACH, "--slot", "1").status == 0
        assert vm.driver.product.query(reservations) == before[:1]
    assert vm.defined() == {"0"}


@pytest.mark.parametrize("opened", [False, True])
def test_r12_what_is_on_its_way_in_is_not_taken_out(vm: Vm, opened: bool) -> None:
    """Somebody else detaches the slot before libvirt has put the device into the domain."""
    answers = []

    def on_attach(domain: SimDomain, hostdev: str) -> None:
        if opened:
            vm._opens(domain, hostdev)
        answers.append(vm.gives(*DETACH, "--slot", "0"))
        if not opened:
            vm._opens(domain, hostdev)

    vm.libvirt.on_attach = on_attach
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    assert answers[0].status == 1
    assert TAKEN in answers[0].err
    assert vm.states() == [("0", "assigned")]
    assert vm.live() == vm.defined() == {"0"}


def test_what_was_killed_before_libvirt_had_it_is_told_alike_by_both(vm: Vm) -> None:
    def refuse(domain: SimDomain, hostdev: str) -> None:
        vm.driver.kill_at(1)  # its process ends before it can give the vGPU back
        raise SimError(1, "internal error: it ends here")

    vm.libvirt.on_attach = refuse
    vm.gives(*ATTACH, "mtty-1")
    assert vm.driver.was_killed
    vm.libvirt.on_attach = vm._opens
    assert vm.states() == [("0", "assigned")]
    for words in ((*ATTACH, "mtty-1"), (*DETACH, "--slot", "0")):
        answer = vm.gives(*words)
        assert answer.status == 1
        assert TAKEN in answer.err
        assert "wait for 5 minutes, then run: vgpu-hook reconcile" in answer.err
    vm.driver.product.query("UPDATE assignment SET changed = '2020-01-01T00:00:00.000Z'")
    assert vm.gives("reconcile").status == 0
    assert vm.states() == []
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    assert vm.live() == {"0"}


def test_a_detach_that_was_ended_before_the_definition_goes_on(vm: Vm) -> None:
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    vm.libvirt.fail("defineXML", 1, "internal error: it ends here")
    assert vm.gives(*DETACH).status == 1
    assert (vm.live(), vm.defined()) == (set(), {"0"})
    answer = vm.gives(*DETACH)
    assert (answer.status, answer.err) == (0, "")
    assert vm.defined() == set()


def test_what_can_not_be_released_is_told(vm: Vm) -> None:
    assert vm.gives(*ATTACH, "mtty-1").status == 0
    vm.libvirt.on_detach = vm.libvirt.let_go  # QEMU has it open all the same
    for _ in range(2):
        answer = vm.gives(*DETACH, "--slot", "0")
        assert answer.status == 1
        assert "is retained: in use by" in answer.err
    vm.sim.drop(vm.pids.pop())
    assert vm.gives(*DETACH, "--slot", "0").status == 0
    assert vm.sim.devices() == []


def test_what_it_never_had_is_told(vm: Vm) -> None:
    answer = vm.gives(*DETACH, "--slot", "0")
    assert answer.status == 1
    assert "runs without a vGPU in slot '0'" in answer.err
