"""One example: a host from its first boot on, what goes wrong with it, how it must end.

The rules for domains and VMs are in rules.py.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.domains import domain_xml, uuid_of
from tests.simhost import SimHost
from tests.simlibvirt.state import SimDomain, SimError, SimLibvirt, devices_of

from .drivers import InProcess, Processes, Violation, settled, wipe
from .hosts import HOSTS, TROUBLES, ModelHost, Trouble, free_places, put_in
from .texts import is_vf
from .world import STOP, World

PAIRS: Counter[tuple[str, str]] = Counter()
"""How often one rule came right after another, over all runs of this process."""

T = TypeVar("T")

PLAIN = domain_xml("plain")
CONFIGURATIONS = (
    "",
    None,
    "[policy]\nplacement = 'pack'\n",
    "[gpu.mtty]\nuse = false\n",
    "[gpu.'0000:41:00.0']\nuse = false\n",
)
WHO = ("hook", "hook", "daemon", "command")
pick = st.integers(0, 255)


class Machine(RuleBasedStateMachine):
    """The state of an example, and its beginning and end."""

    driver_class: ClassVar[type[InProcess] | type[Processes]] = InProcess
    hosts: ClassVar[dict[str, SimHost]] = {}
    """Mounted once for a run, and power-cycled for each example."""
    steps: ClassVar[int] = 0
    examples: ClassVar[int] = 0
    is_simplest: ClassVar[bool] = False
    """Whether the next example is the first of a round, which is always the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self.images: list[tuple[str, str]] = []
        """Saved VMs: the domain's UUID and its XML."""
        self.snapshots: list[tuple[str, str]] = []
        self.never_failed = True
        """No fault was ever put in: no VF is in quarantine."""

    @initialize(host=st.sampled_from(HOSTS), daemon=st.booleans(), there=st.integers(0, 3))
    def boot(self, host: ModelHost, daemon: bool, there: int) -> None:
        if self.is_simplest:  # one rule over and over: it would be half of all steps
            type(self).is_simplest = False
            reject()
        type(self).examples += 1
        self.host = host
        sim = self.hosts.get(host.file)
        if sim is None:
            sim = self.hosts[host.file] = SimHost.start(host.file)
        sim.heal()
        sim.reboot()
        sim.reset_writes()
        self.folder = tempfile.TemporaryDirectory(prefix="model-", dir=self.driver_class.folder)
        simulated = SimLibvirt()
        self.driver = self.driver_class(sim, Path(self.folder.name), simulated)
        self.world = World(sim, simulated, self.driver)
        self.has_daemon = False
        simulated.on_destroy = self.destroyed
        if daemon:
            self.start_daemon()
        for name in "abc"[:there]:
            self.new_vm(name, host.profiles[1])

    def new_vm(self, name: str, profile: str) -> None:
        """An admin defines a domain, attaches a vGPU and starts it; on a host that is well."""
        world = self.world
        domain = world.libvirt.define(domain_xml(name, {"0": profile}, hostdevs=[]).decode())
        answer = world.ask("attach", name, "--slot", "0", "--profile", profile)
        if answer.status or not world.start(domain, str(domain.definition)):
            raise Violation(f"a new domain can't start: {answer}, {domain.definition}")

    def destroyed(self, domain: SimDomain) -> None:
        """virDomainDestroy, perhaps in a thread of the simulated libvirtd."""
        try:
            self.world.stop(domain, STOP, 1)
        except Violation as violation:
            self.world.problems.append(violation)

    # -- the end ----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Whatever was: when all VMs are stopped and the host is well, nothing of ours is left."""
        if not hasattr(self, "world"):
            return
        try:
            self.converge()
            self.still_works()
        finally:
            self.driver.close()
            self.folder.cleanup()

    def converge(self) -> None:
        """I7: nothing leaks, and somebody else's are as they were."""
        world = self.world
        self.heal_all()
        for domain in self.active():
            world.stop(domain)
        self.driver.deliver(None)

        def clean() -> bool:
            world.ask("reconcile")
            allowed = world.foreign.keys() | world.unrecorded
            return not world.recorded() - allowed and not world.devices().keys() - allowed

        if not (clean() or clean()) and not (self.driver.concurrent and settled(clean)):
            left = self.driver.product.rows("domain_name, device, state, reason, boot_id")
            raise Violation(f"I7 left: {left}, {world.devices()}")
        world.check()

    def still_works(self) -> None:
        """A product that refuses everything keeps every rule: a new domain gets its vGPU."""
        world, profile = self.world, self.host.profiles[0]
        quarantined = not self.never_failed and self.host.vfs_only
        if world.devices() or quarantined:
            return
        self.new_vm("fresh", profile)
        for domain in self.active():
            world.stop(domain)
        world.check()

    # -- the host, and what goes wrong with it ----------------------------------------------

    @rule(which=pick, nth=st.integers(1, 3), lasting=st.booleans())
    def fault(self, which: int, nth: int, lasting: bool) -> None:
        """The kernel fails, once or until it is healed."""
        self.step("fault")
        trouble = self.choose(TROUBLES, which)
        put_in(self.world.sim, trouble, nth=nth, lasting=lasting)
        self.world.faults, self.never_failed = True, False
        self.world.blind |= trouble.blind and lasting

    @precondition(lambda self: len(self.guests()) > 1)
    @rule(which=st.sampled_from([t for t in TROUBLES if t.blind]), stopped=pick)
    def nobody_can_tell(self, which: Trouble, stopped: int) -> None:
        """From now on it can't be read who has what open; a VM stops, another goes on (I2)."""
        self.step("nobody_can_tell")
        put_in(self.world.sim, which, nth=1, lasting=True)
        self.world.faults = self.world.blind = True
        self.never_failed = False
        self.world.stop(self.choose(self.guests(), stopped))

    @precondition(lambda self: self.world.faults)
    @rule()
    def heal(self) -> None:
        self.step("heal")
        self.heal_all()

    @rule(which=pick)
    def somebody_else_makes_one(self, which: int) -> None:
        self.step("somebody_else_makes_one")
        reserved = self.world.recorded()
        free = [place for place in free_places(self.world.sim) if place.parent not in reserved]
        if free:
            place = self.choose(free, which * 7)
            if place.is_vf:
                self.world.sim.assign(place.parent, int(place.type))
                self.world.foreign[place.parent] = place.type
            else:
                uuid = uuid_of(f"foreign {self.steps}")
                self.world.sim.make(uuid, *place)
                self.world.foreign[uuid] = place.type

    @precondition(lambda self: self.world.foreign.keys() - self.world.held())
    @rule(which=pick)
    def somebody_else_takes_one_away(self, which: int) -> None:
        self.step("somebody_else_takes_one_away")
        there = sorted(self.world.foreign.keys() - self.world.held())
        self.world.somebody_removes(self.choose(there, which))

    @precondition(lambda self: self.idle())
    @rule(which=pick, instead=st.booleans())
    def somebody_removes_one_of_ours(self, which: int, instead: bool) -> None:
        """By hand, while no VM has it; perhaps to make another one under its name (R6)."""
        self.step("somebody_removes_one_of_ours")
        device = self.choose(self.idle(), which)
        kind = self.world.devices()[device].type
        self.world.somebody_removes(device)
        places = [p for p in free_places(self.world.sim) if p.is_vf == is_vf(device)]
        others = [p for p in places if p.type != kind and (not p.is_vf or p.parent == device)]
        if instead and others:
            place = self.choose(others, which)
            if place.is_vf:
                self.world.sim.assign(device, int(place.type))
            else:
                self.world.sim.make(device, *place)
            self.world.replaced(device, place.type)

    @rule(which=pick)
    def power_cut(self, which: int) -> None:
        """The plug is pulled; perhaps mdevctl then makes a device under one of our names (I9)."""
        self.step("power_cut")
        mdevs = [device for device in sorted(self.world.recorded()) if not is_vf(device)]
        self.world.power_cycle()
        self.has_daemon = False
        places = [place for place in free_places(self.world.sim) if not place.is_vf]
        if mdevs and places and which % 2:
            device = self.choose(mdevs, which)
            self.world.sim.make(device, *self.choose(places, which))
            self.world.unrecorded.add(device)
            self.world.ask("reconcile")
            if device not in self.world.devices():
                raise Violation(f"I9 {device} went for a record of another boot")

    @rule(lost=st.sampled_from((False, False, False, True)))
    def state_folder(self, lost: bool) -> None:
        """It can't be used for a while, or goes: who runs is found again, or reported."""
        self.step("state_folder")
        self.kill_daemon()
        if lost:
            wipe(self.driver.product)
            self.world.lose_records()
        else:
            self.while_broken(self.driver.product.state)

    @rule(configuration=st.sampled_from(CONFIGURATIONS))
    def reconfigure(self, configuration: str | None) -> None:
        """The owner changes the configuration; None: it is not understood for a while."""
        self.step("reconfigure")
        if configuration is None:
            self.while_broken(self.driver.product.config)
        else:
            self.driver.configure(configuration)
            self.world.faults |= "use = false" in configuration

    @precondition(lambda self: self.driver_class is InProcess and self.defined())
    @rule(which=pick, number=st.integers(1, 24), what=st.sampled_from(WHO))
    def killed(self, which: int, number: int, what: str) -> None:
        """kill -9 before its n-th write, of whoever is at work (I7)."""
        self.step("killed")
        domain = self.choose(self.defined(), which)
        self.driver.kill_at(number)
        if what == "command":
            self.world.ask(
                self.choose(("reconcile", "release", "detach"), number),
                *([domain.uuid] if number % 3 else []),
            )
        elif what == "daemon":
            self.driver.deliver(None)
        elif domain.live is None:
            self.world.start(domain, str(domain.definition), after=self.choose((STOP, ()), which))
        else:
            self.world.stop(domain, self.choose((STOP, ("stopped",)), which))
        if self.driver.was_killed and what == "daemon":
            self.has_daemon = False

    @precondition(lambda self: self.driver_class is not InProcess and self.guests())
    @rule(which=pick)
    def kernel_hangs(self, which: int) -> None:
        """A removal that never returns: the hook answers (I3), and the record stays (I6)."""
        self.step("kernel_hangs")
        self.never_failed = False
        self.driver.configure("", deadline=2)
        for glob in ("sys/*/remove", "sys/*/current_vgpu_type"):
            self.world.sim.fault("write", glob, "hang")
        self.world.faults = self.world.hanging = True
        self.world.stop(self.choose(self.guests(), which))
        self.world.check()
        self.heal_all()
        self.world.check()
        self.world.hanging = False

    def while_broken(self, path: Path) -> None:
        """Put something else in the place of a file or folder, and call the hook (R3, I10)."""
        away = path.with_name("away")
        if path.exists():
            path.rename(away)
        path.write_text("[not understood")
        faults, self.world.faults, self.world.broken = self.world.faults, True, True
        self.call_for_plain("prepare")
        for domain in self.active()[:1]:
            self.world.stop(domain)
        for domain in self.stopped()[:1]:
            text = str(domain.definition)
            if self.world.start(domain, text) and devices_of(text):
                raise Violation("a start without a store or configuration")
        path.unlink()
        if away.exists():
            away.rename(path)
        self.world.faults, self.world.broken = faults, False

    def call_for_plain(self, operation: str) -> None:
        answer = self.driver.hook(["plain", operation, "begin", "-"], PLAIN)
        if answer != (0, "", ""):
            raise Violation(f"I10 {operation}: {answer}")

    # -- for the rules ----------------------------------------------------------------------

    def step(self, name: str) -> None:
        """Count a rule that begins; what it leaves is checked when it has ended."""
        PAIRS[self.last, name] += 1
        self.last = name
        type(self).steps += 1

    def check_invariants(self, *arguments: Any, **options: Any) -> None:
        """Called by hypothesis after each step."""
        if hasattr(self, "world"):
            self.world.check()

    def start_daemon(self) -> None:
        self.driver.start_daemon()
        self.has_daemon = True

    def kill_daemon(self) -> None:
        self.driver.kill_daemon()
        self.has_daemon = False

    def heal_all(self) -> None:
        self.world.sim.heal()
        self.driver.configure("")
        self.world.faults = self.world.blind = False

    def try_to(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Do what libvirt may refuse, such as a second domain of one name."""
        try:
            call(*arguments)
        except SimError:
            return

    def choose(self, among: Sequence[T], which: int) -> T:
        return among[which % len(among)]

    def named(self, name: str) -> SimDomain | None:
        return next((d for d in self.world.libvirt.domains.values() if d.name == name), None)

    def defined(self) -> list[SimDomain]:
        return [d for d in self.world.libvirt.domains.values() if d.definition is not None]

    def stopped(self) -> list[SimDomain]:
        return [d for d in self.defined() if d.live is None]

    def guests(self) -> list[SimDomain]:
        """Return the VMs that have a vGPU of ours."""
        return [d for d in self.active() if devices_of(str(d.live))]

    def idle(self) -> list[str]:
        """Return the vGPUs of ours that no VM has open."""
        others = self.world.held() | self.world.foreign.keys()
        return sorted(self.world.devices().keys() & self.world.recorded() - others)

    def active(self) -> list[SimDomain]:
        return [d for d in self.world.libvirt.domains.values() if d.live is not None]
