"""vgpu-hookd under a libvirtd whose events come late, twice, in another order, or never."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import libvirt
import pytest

from tests.domains import device_of, domain_xml, renamed, uuid_of
from tests.product import Answer

from .errors import SimError
from .qemu import no_hook
from .simulation import Simulation
from .state import SimDomain, devices_of

STOPPED = libvirt.VIR_DOMAIN_EVENT_STOPPED


@pytest.fixture
def daemon(simulation: Simulation) -> Simulation:
    """With a daemon that listens and has handled what it connected for."""
    simulation.start_daemon()
    return simulation


def asks(name: str, *profiles: str) -> str:
    """A definition with a request, and no hostdev yet."""
    requests = {str(slot): profile for slot, profile in enumerate(profiles or ("mtty-1",))}
    return domain_xml(name, requests, hostdevs=[]).decode()


def settled(simulation: Simulation, name: str = "a") -> SimDomain:
    """A domain that has been given its hostdev."""
    domain = simulation.libvirt.define(asks(name))
    simulation.handled()
    assert simulation.vgpus(domain) == {"0": device_of(uuid_of(name))}
    return domain


def test_a_definition_gets_its_hostdev_when_it_is_heard_of(daemon: Simulation) -> None:
    domain = daemon.libvirt.define(asks("a"))
    late = daemon.libvirt.drop()
    daemon.handled()
    assert daemon.vgpus(domain) == {}
    daemon.libvirt.pending.append(late)
    daemon.handled()
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}
    daemon.qemu.start(domain)
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
    daemon.qemu.destroy(domain)
    assert daemon.product.sim.devices() == []


def test_r7_a_stop_that_nobody_heard_of_is_made_good_by_reconcile(daemon: Simulation) -> None:
    """libvirtd was killed while the VM stopped: no hook, no event."""
    domain = settled(daemon)
    daemon.qemu.start(domain)
    daemon.handled()
    daemon.qemu.hook = no_hook
    daemon.qemu.destroy(domain)
    while daemon.libvirt.pending:
        daemon.libvirt.drop()
    daemon.handled()
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
    assert daemon.command("reconcile").status == 0
    assert daemon.product.sim.devices() == []
    assert daemon.product.rows() == []


def test_r7_a_stop_that_only_the_event_tells_of_is_released(daemon: Simulation) -> None:
    domain = settled(daemon)
    daemon.qemu.start(domain)
    daemon.qemu.hook = no_hook
    daemon.qemu.destroy(domain)
    daemon.handled()
    daemon.product.wait_for("it is released", lambda: daemon.product.sim.devices() == [])


def test_what_happened_while_it_was_not_connected_is_made_good(daemon: Simulation) -> None:
    """libvirtd was started again: VMs run on, and nothing tells of what changed (facts A13)."""
    running, stopped = settled(daemon, "a"), settled(daemon, "b")
    daemon.qemu.start(running)
    daemon.qemu.start(stopped)
    daemon.handled()
    daemon.libvirt.refuses = True
    daemon.server.disconnect()
    daemon.product.wait_for("it has gone", lambda: daemon.server.listeners == 0)
    daemon.qemu.hook = no_hook
    daemon.qemu.destroy(stopped)
    missed = daemon.libvirt.define(asks("c"))
    daemon.libvirt.deliver()
    daemon.libvirt.refuses = False
    daemon.wait_until_connected()
    assert daemon.vgpus(missed) == {"0": device_of(uuid_of("c"))}
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]


def test_r12_a_second_stopped_after_a_later_start_touches_nothing(daemon: Simulation) -> None:
    domain = settled(daemon)
    daemon.qemu.start(domain)
    daemon.qemu.destroy(domain)
    again = [event for event in daemon.libvirt.pending if event.arguments[0] == STOPPED]
    assert len(again) == 1
    daemon.handled()
    daemon.qemu.start(domain)
    daemon.handled()
    daemon.product.sim.reset_writes()
    daemon.libvirt.pending += [*again, *again]
    daemon.handled()
    assert daemon.product.sim.writes() == []
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
    assert daemon.product.rows() == [("a", "0", "assigned")]


def test_r12_a_stopped_that_comes_during_the_next_start_waits_for_it(daemon: Simulation) -> None:
    """By the time that it is heard of, the domain starts again (facts B3)."""
    domain = settled(daemon)
    daemon.qemu.start(domain)
    daemon.handled()
    daemon.qemu.destroy(domain)
    asked = threading.Event()

    def before(call: str, subject: str = "", *_: object) -> None:
        if (call, subject) == ("lookupByUUIDString", domain.uuid):
            asked.set()

    def hook(arguments: list[str], xml: bytes) -> Answer:
        if arguments[1] == "start":  # the vGPU has been made, QEMU has not opened it
            daemon.libvirt.before = before
            daemon.libvirt.deliver()
            assert asked.wait(60)
        return daemon.product.hook_argv(arguments, xml)

    daemon.qemu.hook = hook
    daemon.qemu.start(domain)
    daemon.handled()
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
    assert daemon.product.rows() == [("a", "0", "assigned")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,), (0,)], ids=str)
def test_a_rename_in_any_order(daemon: Simulation, order: tuple[int, ...]) -> None:
    """UNDEFINED comes under the old name, DEFINED under the new one; or one of them never."""
    domain = settled(daemon)
    daemon.libvirt.rename(domain, "b")
    events = daemon.libvirt.pending[:]
    assert len(events) == 2
    daemon.libvirt.pending[:] = [events[n] for n in order]
    daemon.handled()
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}
    daemon.qemu.start(domain)
    assert daemon.product.rows() == [("b", "0", "assigned")]


def test_an_edit_that_somebody_else_makes_meanwhile_is_kept(daemon: Simulation) -> None:
    """Between the product's look at a definition and its change of it."""
    text = asks("a").replace("</metadata>", "<o:note xmlns:o='urn:o'>{}</o:note></metadata>")
    domain = daemon.libvirt.define(text.format("first"))
    looks: list[str] = []

    def before(call: str, subject: str = "", *_: object) -> None:
        if call in ("XMLDesc", "defineXML") and domain.uuid in subject:
            looks.append(call)
            if looks in (["XMLDesc"] * 3, ["XMLDesc", "XMLDesc", "defineXML"]):
                daemon.libvirt.define(text.format("second"))

    daemon.libvirt.before = before
    daemon.handled()
    assert "second" in str(domain.definition)
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}


def test_an_edit_that_libvirt_refuses_is_made_at_the_next_event(daemon: Simulation) -> None:
    failed = libvirt.VIR_ERR_OPERATION_FAILED
    daemon.libvirt.fail("defineXML", failed, "operation failed: disk full")
    domain = daemon.libvirt.define(asks("a"))
    daemon.handled()
    assert daemon.vgpus(domain) == {}
    daemon.libvirt.set_metadata(
        domain, "<vgpus><vgpu profile='mtty-1'/></vgpus>", flags=libvirt.VIR_DOMAIN_AFFECT_CONFIG
    )
    daemon.handled()
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}


def test_i3_the_hook_answers_while_libvirtd_hangs(daemon: Simulation) -> None:
    """The daemon waits for libvirt, and serves the hook (facts A10)."""
    domain = settled(daemon)
    daemon.libvirt.define(asks("b"))
    daemon.libvirt.serving.clear()
    daemon.libvirt.deliver()
    daemon.qemu.start(domain)
    assert daemon.product.rows() == [("a", "0", "assigned")]
    daemon.qemu.destroy(domain)
    assert daemon.product.rows() == []
    daemon.libvirt.serving.set()
    daemon.handled()


def test_r9_a_revert_keeps_the_domains_request(daemon: Simulation) -> None:
    domain = settled(daemon)
    daemon.qemu.revert(domain, asks("a", "mtty-2", "mtty-2"))
    daemon.handled()
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}
    assert "mtty-2" not in str(domain.definition)


def test_delete_with_a_volume(daemon: Simulation) -> None:
    """Over the socket: destroy calls the hook while the command waits for libvirt."""
    disk = (
        "<devices><disk type='volume' device='disk'><source pool='images' volume='a.img'/>"
        "<target dev='vda'/></disk>"
    )
    daemon.libvirt.volumes = {"/images/a.img": ("images", "a.img"), "/images/b": ("images", "b")}
    domain = daemon.libvirt.define(asks("a").replace("<devices>", disk))
    daemon.handled()
    daemon.qemu.start(domain)
    answer = daemon.command("delete", "a", "--remove-storage")
    assert (answer.status, answer.err) == (0, "")
    assert list(daemon.libvirt.volumes) == ["/images/b"]
    assert domain.uuid not in daemon.libvirt.domains
    assert daemon.product.sim.devices() == []


def test_r10_a_definition_is_left_alone_while_its_domain_is_deleted(daemon: Simulation) -> None:
    """libvirt would define it anew if it was undefined in that moment."""
    domain = settled(daemon)
    with closing(sqlite3.connect(daemon.product.state / "store.db")) as store, store:
        store.execute("UPDATE domain SET deleting_since = '2026-01-01T00:00:00.000Z'")
    daemon.libvirt.define(asks("a", "mtty-2"))
    daemon.handled()
    assert "<hostdev" not in str(domain.definition)
    answer = daemon.command("delete", "a", "--cancel")
    assert (answer.status, answer.err) == (0, "")
    daemon.libvirt.define(asks("a", "mtty-2"))
    daemon.handled()
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}


def plain_vm(daemon: Simulation, *, transient: bool) -> SimDomain:
    """Return a VM without a vGPU, that runs."""
    plain = domain_xml("a").decode()
    domain = daemon.qemu.create(plain) if transient else daemon.libvirt.define(plain)
    if not transient:
        daemon.qemu.start(domain)
    daemon.handled()
    return domain


@pytest.mark.parametrize("transient", [False, True], ids=["persistent", "transient"])
def test_hot_plug(daemon: Simulation, *, transient: bool) -> None:
    """Attached and detached while it runs; the daemon hears of it each time."""
    domain = plain_vm(daemon, transient=transient)
    answer = daemon.command("attach", "a", "--live", "--profile", "mtty-1")
    assert (answer.status, answer.err) == (0, "")
    daemon.handled()
    assert daemon.product.rows() == [("a", "0", "assigned")]
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
    answer = daemon.command("detach", "a", "--live")
    assert (answer.status, answer.err) == (0, "")
    daemon.handled()
    assert daemon.product.rows() == []
    assert daemon.product.sim.devices() == []
    assert domain.live is not None


@pytest.mark.simhost("l40s")
@pytest.mark.parametrize("profile", ["1148"])
@pytest.mark.parametrize("transient", [False, True], ids=["persistent", "transient"])
def test_hot_plug_of_a_vf(daemon: Simulation, *, transient: bool) -> None:
    """What libvirt tells of a transient domain as inactive never has the VF that was plugged in."""
    domain = plain_vm(daemon, transient=transient)
    answer = daemon.command("attach", "a", "--live", "--profile", "1148")
    assert (answer.status, answer.err) == (0, "")
    daemon.handled()
    plugged = devices_of(str(domain.live))["0"]
    assert daemon.product.sim.current_types() == {plugged: 1148}
    other = daemon.libvirt.define(asks("b", "1148"))
    daemon.handled()
    assert daemon.vgpus(other)["0"] != plugged
    daemon.qemu.start(other)
    assert len(daemon.product.sim.current_types()) == 2
    daemon.product.sim.reset_writes()
    assert daemon.command("reconcile").status == 0
    assert daemon.product.sim.writes() == []
    daemon.qemu.destroy(other)
    daemon.qemu.destroy(domain)
    daemon.handled()
    assert daemon.product.sim.current_types() == {}
    assert daemon.product.rows() == []


def test_i1_a_restore_of_what_runs_touches_nothing(daemon: Simulation) -> None:
    """libvirt asks the hook before it looks whether the domain runs, and then refuses."""
    domain = settled(daemon)
    daemon.qemu.start(domain)
    image = daemon.qemu.save(domain)
    daemon.qemu.start(domain)
    daemon.handled()
    daemon.product.sim.reset_writes()
    with pytest.raises(SimError, match="already active"):
        daemon.qemu.restore(image)
    daemon.handled()
    assert daemon.product.sim.writes() == []
    assert daemon.product.rows() == [("a", "0", "assigned")]
    assert daemon.vgpus(domain) == {"0": device_of(uuid_of("a"))}
    daemon.qemu.destroy(domain)
    daemon.qemu.restore(image)
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]


def test_r8_an_image_under_another_name_gets_a_device_of_its_own(daemon: Simulation) -> None:
    """While the VM that it was made of runs on."""
    domain = settled(daemon)
    daemon.qemu.start(domain)
    image = daemon.qemu.save(domain)
    daemon.qemu.start(domain)
    fork = daemon.qemu.restore(renamed(image.encode(), "a", "b").decode())
    assert devices_of(str(fork.live)) == {"0": device_of(uuid_of("b"))}
    daemon.handled()
    assert sorted(daemon.product.rows()) == [("a", "0", "assigned"), ("b", "0", "assigned")]
    daemon.qemu.destroy(fork)
    daemon.handled()
    assert daemon.product.sim.devices() == [device_of(uuid_of("a"))]
