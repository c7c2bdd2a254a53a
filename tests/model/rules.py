"""The steps, in any order: what libvirt, admins, kernels and power cuts do.

Each rule does one thing to the world, and then everything that must hold is checked. A rule that
has nothing to act on is not offered (`precondition`), so that each step counts.
"""

from __future__ import annotations

import libvirt
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.domains import device_of, domain_xml, uuid_of
from tests.simlibvirt.state import SimDomain, SimError, devices_of

from .drivers import Violation
from .machine import Machine, pick
from .texts import any_hostdev, forked, name_of, profiles_of
from .world import STOP

NAMES = ("a", "b", "c", "d", "e")
STRAY = ("prepare", "start", "started", "stopped", "release", "reconnect", "attach", "migrate",
         "restore", "what-comes-next", "")  # fmt: skip
ENDINGS = (STOP, STOP, STOP, ("stopped",), ("release",), (), ("release", "stopped"),
           ("stopped", "stopped", "release", "release"))  # fmt: skip
POLICIES = ("", "", "none", "refuse")
PROFILES = (0, 1, 0, 1, 0, 1, 2)
"""How often each is asked for."""

names = st.sampled_from(NAMES)


class Rules(Machine):
    """All of them."""

    # -- domains ----------------------------------------------------------------------------

    @rule(name=names, first=pick, second=st.none() | pick, guess=pick)
    def define(self, name: str, first: int, second: int | None, guess: int) -> None:
        """An admin defines a domain, or changes what it asks for."""
        self.step("define")
        self.define_one(name, first, second, guess)

    @rule(name=names, first=pick, second=st.none() | pick)
    def as_it_should_be(self, name: str, first: int, second: int | None) -> None:
        """Define, let the listener hear of it, start: what most people do most of the time."""
        self.step("as_it_should_be")
        self.define_one(name, first % 2, second, 1)
        self.world.check()
        self.driver.deliver(None)
        sure = self.has_daemon and self.must_start(name)
        started = self.start_one(name)
        if sure and not started:
            raise Violation(f"{name} is not started: {self.named(name)}")

    @precondition(lambda self: self.stopped())
    @rule(name=names)
    def heard_and_started(self, name: str) -> None:
        """Whatever was missed is heard of, and a domain starts."""
        self.step("heard_and_started")
        self.driver.deliver(None)
        self.start_one(name)

    @rule(name=names, own=pick)
    def define_without_a_request(self, name: str, own: int) -> None:
        """A domain that is none of our business, perhaps with a hostdev (R8, I10)."""
        self.step("define_without_a_request")
        there = sorted(self.world.devices()) or [device_of(uuid_of(name))]
        hostdevs = [any_hostdev(self.choose(there, own), None)] if own % 2 else []
        self.try_to(self.world.libvirt.define, domain_xml(name, hostdevs=hostdevs).decode())

    @precondition(lambda self: self.defined())
    @rule(which=pick, name=names, policy=st.sampled_from(POLICIES), at_once=st.booleans())
    def fork(self, which: int, name: str, policy: str, at_once: bool) -> None:
        """Somebody copies a definition, with all that is in it; perhaps starts it, unheard (R8)."""
        self.step("fork")
        source = self.choose(self.defined(), which)
        text = forked(str(source.definition), source.uuid, name, policy)
        self.try_to(self.world.libvirt.define, text)
        if at_once:
            self.start_one(name)

    @precondition(lambda self: self.stopped())
    @rule(which=pick, name=names)
    def rename(self, which: int, name: str) -> None:
        self.step("rename")
        if self.named(name) is None:
            self.try_to(self.world.libvirt.rename, self.choose(self.stopped(), which), name)

    @precondition(lambda self: self.defined())
    @rule(which=pick)
    def undefine(self, which: int) -> None:
        self.step("undefine")
        domain = self.choose(self.defined(), which)
        self.try_to(self.world.libvirt.undefine, domain)
        self.world.deleting.discard(domain.uuid)  # there is nothing left to delete

    @precondition(lambda self: self.defined())
    @rule(which=pick)
    def snapshot(self, which: int) -> None:
        self.step("snapshot")
        domain = self.choose(self.defined(), which)
        self.snapshots.append((domain.uuid, str(domain.definition)))

    @precondition(lambda self: self.snapshots)
    @rule(which=pick)
    def revert(self, which: int) -> None:
        """A stopped domain goes back to an older definition of its own."""
        self.step("revert")
        uuid, text = self.choose(self.snapshots, which)
        domain = self.world.libvirt.domains.get(uuid)
        if domain is not None and domain.live is None and domain.name == name_of(text):
            reverted = libvirt.VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT
            self.try_to(self.world.libvirt.define, text, reverted)

    # -- VMs --------------------------------------------------------------------------------

    @precondition(lambda self: self.stopped())
    @rule(which=pick)
    def start(self, which: int) -> None:
        self.step("start")
        domain = self.choose(self.stopped(), which)
        self.world.start(domain, str(domain.definition))

    @precondition(lambda self: self.stopped())
    @rule(which=pick, after=st.sampled_from((STOP, STOP, ("stopped",), ("release",), ())))
    def start_fails_in_qemu(self, which: int, after: tuple[str, ...]) -> None:
        """After the hook's yes; perhaps libvirtd dies too, and the hook never hears of it."""
        self.step("start_fails_in_qemu")
        domain = self.choose(self.stopped(), which)
        self.world.start(domain, str(domain.definition), fails=True, after=after)

    @precondition(lambda self: len(self.stopped()) > 1)
    @rule(which=pick, operation=st.sampled_from(("prepare", *STOP)), copy=st.booleans())
    def start_while_another(self, which: int, operation: str, copy: bool) -> None:
        """Between the hook's yes and QEMU, the hook is called for another domain, or a copy."""
        self.step("start_while_another")
        domain, other = (self.choose(self.stopped(), which + i) for i in (0, 1))
        text = str(other.definition)
        if copy:
            text = forked(str(domain.definition), domain.uuid, other.name, own=other.uuid)

        def meanwhile() -> None:
            self.world.hook(other, operation, text)

        self.world.start(domain, str(domain.definition), meanwhile=meanwhile)

    @precondition(lambda self: self.active())
    @rule(which=pick, calls=st.sampled_from(ENDINGS))
    def stop(self, which: int, calls: tuple[str, ...]) -> None:
        self.step("stop")
        self.world.stop(self.choose(self.active(), which), calls)

    @precondition(lambda self: self.guests())
    @rule(which=pick)
    def started_anew(self, which: int) -> None:
        """Nobody hears of a stop; the domain then starts with another profile (R5)."""
        self.step("started_anew")
        domain = self.choose(self.guests(), which)
        self.world.stop(domain, ())
        self.world.libvirt.pending.clear()
        if domain.uuid != uuid_of(domain.name) or self.named(domain.name) not in (domain, None):
            return  # it was renamed
        profile = self.host.profiles[which % 2]
        self.world.libvirt.define(domain_xml(domain.name, {"0": profile}).decode())
        sure = self.must_start(domain.name)
        if not self.start_one(domain.name) and sure:
            raise Violation(f"R5 {domain.name} is not started anew")

    @precondition(lambda self: self.active())
    @rule(which=pick)
    def stop_while_qemu_lingers(self, which: int) -> None:
        """The hook is called while the process still has the device open (facts B)."""
        self.step("stop_while_qemu_lingers")
        domain = self.choose(self.active(), which)
        with domain.busy:
            for operation in STOP:
                self.world.hook(domain, operation, str(domain.live))
            self.world.check()
        self.world.stop(domain, ("release",))

    @precondition(lambda self: self.guests())
    @rule(which=pick)
    def guest_lets_go(self, which: int) -> None:
        """A device is unplugged from a running VM."""
        self.step("guest_lets_go")
        domain = self.choose(self.guests(), which)
        self.world.unplug(domain, self.choose(sorted(devices_of(str(domain.live))), which))

    @precondition(lambda self: self.defined())
    @rule(which=pick, operation=st.sampled_from(STRAY))
    def stray_call(self, which: int, operation: str) -> None:
        """The hook is called when it should not be, with the stored XML."""
        self.step("stray_call")
        domain = self.choose(self.defined(), which)
        with domain.busy:
            self.world.hook(domain, operation, str(domain.definition))

    @rule(operation=st.sampled_from(STRAY))
    def plain_call(self, operation: str) -> None:
        """A VM without a request (I10)."""
        self.step("plain_call")
        self.call_for_plain(operation)

    @precondition(lambda self: self.active())
    @rule(which=pick)
    def save(self, which: int) -> None:
        self.step("save")
        domain = self.choose(self.active(), which)
        self.images.append((domain.uuid, str(domain.live)))
        self.world.stop(domain, STOP, libvirt.VIR_DOMAIN_EVENT_STOPPED_SAVED)

    @precondition(lambda self: self.images)
    @rule(which=pick, name=st.none() | names, heard=st.booleans())
    def restore(self, which: int, name: str | None, heard: bool) -> None:
        """An image comes back, perhaps under another name and UUID, with what stands now (R9)."""
        self.step("restore")
        uuid, text = self.choose(self.images, which)
        if name is not None:
            uuid, text = uuid_of(name), forked(text, uuid, name)
        if heard and uuid == uuid_of(name_of(text)):
            self.define_one(name_of(text), which, None, 1)
        if heard:
            self.start_daemon()  # it looks at every definition
        restored = libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED
        woken = self.wake_up(uuid, text, "restore", restored)
        sure = heard and not self.world.faults and not self.driver.concurrent
        if woken and sure:
            domain = self.world.libvirt.domains[uuid]
            stands = profiles_of(domain.definition)
            if stands and profiles_of(domain.live) != stands:
                raise Violation(f"R9 {domain.name} runs with {domain.live}, asked is {stands}")

    @rule(name=names, profile=pick, device=pick)
    def migrate_in(self, name: str, profile: int, device: int) -> None:
        """A VM comes from another host, with that one's devices."""
        self.step("migrate_in")
        vfs = sorted(self.world.sim.state()["vfs"])
        there = vfs[device % len(vfs)] if vfs and device % 2 else device_of(uuid_of(name))
        asked = {"0": self.host.profiles[profile % 2]}
        text = domain_xml(name, asked, hostdevs=[any_hostdev(there, "0")]).decode()
        migrated = libvirt.VIR_DOMAIN_EVENT_STARTED_MIGRATED
        self.wake_up(uuid_of(name), text, "migrate", migrated)

    # -- what is heard of it ----------------------------------------------------------------

    @precondition(lambda self: self.world.libvirt.pending)
    @rule(count=st.none() | st.integers(1, 3))
    def deliver(self, count: int | None) -> None:
        self.step("deliver")
        self.driver.deliver(count)

    @precondition(lambda self: self.world.libvirt.pending)
    @rule(which=pick, what=st.sampled_from(("lost", "twice", "last")))
    def disturb_events(self, which: int, what: str) -> None:
        self.step("disturb_events")
        pending = self.world.libvirt.pending
        position = which % len(pending)
        if what == "lost":
            del pending[position]
        elif what == "twice":
            pending.insert(position, pending[position])
        else:
            pending.append(pending.pop(position))

    @precondition(lambda self: not self.has_daemon)
    @rule()
    def daemon_starts(self) -> None:
        self.step("daemon_starts")
        self.start_daemon()

    @precondition(lambda self: self.has_daemon)
    @rule(what=st.sampled_from(("libvirtd restarts", "daemon restarts", "daemon gone")))
    def listener_misses_something(self, what: str) -> None:
        self.step("listener_misses_something")
        if what == "libvirtd restarts":
            self.world.libvirt.pending.clear()
            self.driver.disconnect()
        else:
            self.kill_daemon()
        if what == "daemon restarts":
            self.start_daemon()

    # -- commands ---------------------------------------------------------------------------

    @rule(reachable=st.sampled_from((True, True, False)))
    def reconcile(self, reachable: bool) -> None:
        """Without libvirt nothing can be told of any domain, so nothing is released (I2)."""
        self.step("reconcile")
        simulated = self.world.libvirt
        before = self.world.devices().keys()
        simulated.refuses = not reachable
        self.world.ask("reconcile")
        simulated.refuses = False
        if not reachable and not self.driver.concurrent and before - self.world.devices().keys():
            raise Violation("I2 released without libvirt")

    @precondition(lambda self: self.defined())
    @rule(which=pick, command=st.sampled_from(("release", "explain", "detach", "delete")))
    def command(self, which: int, command: str) -> None:
        self.step("command")
        self.world.ask(command, self.choose(self.defined(), which).uuid)

    @precondition(lambda self: any(d.definition for d in self.guests()))
    @rule(which=pick, ending=st.sampled_from(((), ("--cancel",))))
    def deletion_is_stopped(self, which: int, ending: tuple[str, ...]) -> None:
        """`delete` can't stop the VM: no start until it is done or called off (R10)."""
        self.step("deletion_is_stopped")
        domain = self.choose([d for d in self.guests() if d.definition], which)
        simulated = self.world.libvirt
        simulated.on_destroy = refused
        answer = self.world.ask("delete", domain.uuid)
        simulated.on_destroy = self.destroyed
        self.world.stop(domain)
        asks = "profile=" in str(domain.definition)
        if answer.status and asks and self.world.start(domain, str(domain.definition)):
            raise Violation(f"R10 {domain.name} starts, but is being deleted: {answer}")
        self.world.ask("delete", domain.uuid, *ending)

    @precondition(lambda self: self.defined())
    @rule(which=pick, profile=pick)
    def attach(self, which: int, profile: int) -> None:
        self.step("attach")
        domain = self.choose(self.defined(), which)
        self.world.ask(
            "attach", domain.name, "--profile", self.host.profiles[PROFILES[profile % 7]]
        )

    @rule(command=st.sampled_from(("status", "profiles", "quarantine")))
    def look(self, command: str) -> None:
        self.step("look")
        answer = self.world.ask(command)
        if answer.status != 0 and not self.world.faults:
            raise Violation(f"{command}: {answer}")

    # -- inside -----------------------------------------------------------------------------

    def define_one(self, name: str, first: int, second: int | None, guess: int) -> None:
        """Every third definition has hostdevs of its author's making, right or wrong."""
        asked = {"0": self.host.profiles[PROFILES[first % 7]]}
        if second is not None:
            asked["1"] = self.host.profiles[PROFILES[second % 7]]
        hostdevs = []
        if guess % 3 == 0:
            vfs = sorted(self.world.sim.state()["vfs"])
            for slot in asked:
                vf = self.choose(vfs, guess + int(slot)) if vfs else ""
                hostdevs.append(any_hostdev(vf or device_of(uuid_of(name), slot), slot))
        self.try_to(self.world.libvirt.define, domain_xml(name, asked, hostdevs=hostdevs).decode())

    def start_one(self, name: str) -> bool:
        domain = self.named(name)
        if domain is None or domain not in self.stopped():
            return False
        return self.world.start(domain, str(domain.definition))

    def must_start(self, name: str) -> bool:
        """Tell whether nothing stands against a start with what the domain's definition names.

        Only for a host with plenty of room, where nobody else is at work.
        """
        world, domain = self.world, self.named(name)
        if not self.host.file.startswith("mtty") or self.driver.concurrent:
            return False
        if domain is None or domain not in self.stopped() or world.faults:
            return False
        if self.host.profiles[2] in profiles_of(domain.definition).values():
            return False  # which the host does not have
        available = world.sim.state()["available"]["mtty"]
        mine = set(devices_of(str(domain.definition)).values())
        others = world.held() | world.foreign.keys() | world.unrecorded
        return bool(mine) and not mine & others and min(available.values()) >= 4

    def wake_up(self, uuid: str, text: str, operation: str, detail: int) -> bool:
        """The hook is asked for the XML to go on with, then the VM is started with it."""
        simulated, name = self.world.libvirt, name_of(text)
        domain = simulated.domains.get(uuid) or SimDomain(uuid, name)
        if (self.named(name) or domain) is not domain or domain.live or domain.name != name:
            return False  # libvirt has refused it
        with domain.busy:
            answer = self.world.hook(domain, operation, text)
            if answer.status != 0:
                return False
            known = uuid in simulated.domains
            simulated.domains[uuid] = domain
            started = self.world.start(domain, answer.out or text, detail)
            if not started and not known:
                del simulated.domains[uuid]
            return started


def refused(domain: SimDomain) -> None:
    """libvirt can't stop the VM."""
    raise SimError(libvirt.VIR_ERR_OPERATION_FAILED, f"Failed to terminate {domain.name}")
