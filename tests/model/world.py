"""What is around the product: VMs, QEMUs, who has which device open, what somebody else has made.

Believes only what it does itself and what the kernel shows. `check` is called after each step; a
Violation says which invariant (docs/rules.md) does not hold.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.domains import device_of
from tests.product import PATIENCE, Answer
from tests.simhost import SimHost
from tests.simhost.client import Write
from tests.simlibvirt.state import SimDomain, SimLibvirt, devices_of

from .drivers import KILLED, Driver, Violation, settled
from .texts import besides_ours, is_removal, is_vf, named_by, own_devices

SEEN: Counter[str] = Counter()
"""What the product did, over all runs of this process: a run that refuses all proves nothing."""

DELIBERATE = ("prepare", "migrate")
"""The operations that may be refused."""

STOP = ("stopped", "release")


class Device(NamedTuple):
    """A vGPU as the kernel has it."""

    type: str
    holders: tuple[int, ...]


@dataclass
class World:
    """One host with its VMs."""

    sim: SimHost
    libvirt: SimLibvirt
    driver: Driver
    running: dict[str, int] = field(default_factory=dict)
    """The pid of each VM's QEMU, by the domain's UUID."""
    opened: dict[int, dict[str, str]] = field(default_factory=dict)
    """What each QEMU has open, as it was then: device -> type."""
    foreign: dict[str, str] = field(default_factory=dict)
    """Devices that somebody else has made: device -> type."""
    unrecorded: set[str] = field(default_factory=set)
    """Devices whose record was lost with the store, or that somebody made under a name of ours."""
    deleting: set[str] = field(default_factory=set)
    """Domains whose `vgpu-hook delete` has begun and not ended."""
    impostors: set[str] = field(default_factory=set)
    """Of the foreign ones those that have the name of one of ours, which is on record."""
    faults: bool = False
    """Whether the kernel, the configuration or the store is not well; nothing need be released."""
    broken: bool = False
    """Whether the configuration or the store can't be read, so that nothing can be marked."""
    blind: bool = False
    """Whether nobody can tell who has what open."""
    hanging: bool = False
    """Whether the kernel does not answer some writes."""
    pids: int = 4000
    problems: list[Violation] = field(default_factory=list)
    """What was seen in a thread that nobody waits for."""
    _before: set[str] = field(default_factory=set)
    """What was open, or somebody else's, at the last look."""

    # -- looking ------------------------------------------------------------------------------

    def devices(self) -> dict[str, Device]:
        """Return every vGPU of the host."""
        state = self.sim.state()
        found = {}
        for name, device in state["devices"].items():
            if device["state"] != "removing":
                found[name] = Device(device["type"], tuple(device["holders"]))
        for name, vf in state["vfs"].items():
            if vf["type"]:
                found[name] = Device(str(vf["type"]), tuple(vf["holders"]))
        return found

    def recorded(self) -> set[str]:
        """Return the devices that the store has a record of."""
        return {row[0] for row in self.driver.product.rows("device")}

    def held(self) -> set[str]:
        """Return the devices that VMs have open."""
        return {device for opened in self.opened.values() for device in opened}

    # -- libvirt's side -----------------------------------------------------------------------

    def hook(self, domain: SimDomain, operation: str, xml: str, extra: str = "-") -> Answer:
        """Call the hook, and check what holds for every call of it."""
        before = self._rows()
        number = len(self.sim.writes())
        blind = self.blind and any(self.opened.values())
        sub = "end" if operation in STOP else "begin"
        answer = self.driver.hook([domain.name, operation, sub, extra], xml.encode())
        where = f"{operation} of {domain.name}: {answer}"
        outcome = "refused" if answer.status else "rewritten" if answer.out else "done"
        SEEN[f"{operation} {'killed' if answer == KILLED else outcome}"] += 1
        if not self.driver.concurrent:
            self._check_call(domain, before, self.sim.writes()[number:], blind)
        if answer != KILLED:
            _check_answer(operation, xml, answer, where)
        return answer

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return the records of this boot; older ones prove nothing (I9)."""
        columns = "device, domain_uuid, slot, state, generation, boot_id"
        boot = self.sim.state()["boot_id"]
        return [row for row in self.driver.product.rows(columns) if row[5] == boot]

    def _check_call(
        self, domain: SimDomain, before: list[tuple[Any, ...]], writes: list[Write], blind: bool
    ) -> None:
        """A call for one domain writes to nothing that is on another's record (I1, R8)."""
        others = [row for row in before if row[1] != domain.uuid]
        for write in writes:
            if blind and is_removal(write) and write.outcome == "ok":
                raise Violation(f"I2 nobody can tell who has it open: {write}")
            for row in others:
                if named_by(write, row[0]):
                    raise Violation(f"I1 {write} for {domain.name}, but it is of {row}")
        if others != [row for row in self._rows() if row[1] != domain.uuid]:
            raise Violation(f"R8 a call for {domain.name} changed what others have: {others}")

    def start(
        self,
        domain: SimDomain,
        xml: str,
        detail: int = 0,
        *,
        fails: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
        after: tuple[str, ...] = STOP,
    ) -> bool:
        """Start a VM as libvirt does; `fails`: QEMU does not come up for another reason.

        `meanwhile` is between the hook's answer and QEMU; `after` is called if it comes to nothing.
        """
        with domain.busy:
            before = self._rows()
            answer = self.hook(domain, "prepare", xml)
            taken = [row for row in self._rows() if row[1] == domain.uuid and row not in before]
            if answer.status == 1 and any(row[3] == "assigned" for row in taken):
                raise Violation(f"R11 {domain.name} was refused, and has {taken}")
            meanwhile()
            if answer.status == 0 and not fails and self._open(domain, xml):
                self.hook(domain, "start", xml)
                self.hook(domain, "started", xml)
                self.libvirt.started(domain, xml, detail)
                SEEN["VMs with a vGPU" if devices_of(xml) else "VMs without"] += 1
                return True
            answers = [self.hook(domain, operation, xml, "failed") for operation in after]
            done = answer.status == 0 and after == STOP and KILLED not in answers
            if done and not self.faults:
                self._must_have_gone(domain, xml)
            return False

    def _open(self, domain: SimDomain, xml: str) -> bool:
        """QEMU opens what its XML names; whatever is ours must be there for it alone (I8)."""
        devices, ours = self.devices(), devices_of(xml)
        for slot, device in ours.items():
            if device not in devices:
                raise Violation(f"prepare of {domain.name} let slot {slot} pass: no {device}")
            if devices[device].holders:
                raise Violation(f"I8 {device} of {domain.name} is open: {devices[device]}")
            if device in self.foreign:
                raise Violation(f"I1 {device} of {domain.name} is somebody else's")
            owners = [row[1] for row in self._rows() if row[0] == device]
            if owners != [domain.uuid]:
                raise Violation(f"I8 {device} of {domain.name} is on record of {owners}")
            if not is_vf(device) and device != device_of(domain.uuid, slot):
                raise Violation(f"R8 {device} of {domain.name} was inherited")
        own = own_devices(xml)
        if any(device not in devices or devices[device].holders for device in own):
            return False  # QEMU says that it is not there, or busy
        self.pids += 1
        self._hold(self.pids, {d: devices[d].type for d in {*ours.values(), *own}})
        self.running[domain.uuid] = self.pids
        return True

    def _hold(self, pid: int, devices: dict[str, str]) -> None:
        for device in devices:
            self.sim.hold(device, pid)
        self.opened[pid] = devices

    def quit(self, domain: SimDomain) -> None:
        """End its QEMU; libvirt has not noticed yet."""
        pid = self.running.pop(domain.uuid, None)
        if pid is not None:
            self._before -= self.opened[pid].keys()
            if self.opened.pop(pid):
                self.sim.drop(pid)

    def stop(self, domain: SimDomain, operations: tuple[str, ...] = STOP, detail: int = 0) -> None:
        """Stop a VM as libvirt does, with these calls of the hook."""
        with domain.busy:
            xml = str(domain.live)
            self.quit(domain)
            answers = [self.hook(domain, operation, xml, "shutdown") for operation in operations]
            if "stopped" in operations and not self.faults and KILLED not in answers:
                self._must_have_gone(domain, xml)
            heard = "stopped" in operations and bool(devices_of(xml)) and not self.broken
            if heard and KILLED not in answers:
                self._must_be_retained(domain)
            self.libvirt.stopped(domain, detail)

    def unplug(self, domain: SimDomain, slot: str) -> None:
        """The guest lets go of one device; QEMU keeps the others."""
        pid, device = self.running[domain.uuid], devices_of(str(domain.live))[slot]
        left = {other: kind for other, kind in self.opened[pid].items() if other != device}
        self.sim.drop(pid)
        self._hold(pid, left)
        self.libvirt.unplugged(domain, slot)

    def somebody_removes(self, device: str) -> None:
        """By hand: it is not in the write log."""
        if is_vf(device):
            self.sim.assign(device, 0)
        else:
            self.sim.control(f"vanish {device}")
        self.foreign.pop(device, None)
        self.impostors.discard(device)

    def replaced(self, device: str, kind: str) -> None:
        """Somebody has made another one under the name of one of ours.

        It is theirs if a record of this boot tells the two apart. Without one its name proves that
        it is ours (docs/architecture.md, Identity), but a VF's address proves nothing.
        """
        known = self.driver.product.rows("device, boot_id")
        if is_vf(device) or (device, self.sim.state()["boot_id"]) in known:
            self.foreign[device] = kind
            self.impostors.add(device)
        else:
            self.unrecorded.add(device)

    def lose_records(self) -> None:
        """The store has gone: of what is under a name of ours nobody can tell who made it."""
        for device in self.impostors:
            self.foreign.pop(device, None)
        self.impostors.clear()
        self.unrecorded |= self.devices().keys() - self.foreign.keys()

    def _must_have_gone(self, domain: SimDomain, xml: str) -> None:
        """R1: a stop that nothing stands against has released its vGPUs when it answers."""
        left = set(devices_of(xml).values()) & self.devices().keys()
        for device in left - self.foreign.keys() - self.unrecorded - self.held():
            raise Violation(f"R1 {device} of {domain.name} is there after its stop")

    def _must_be_retained(self, domain: SimDomain) -> None:
        """R3: what a stop could not release is marked, for others to try again."""

        def left() -> list[Any]:
            return [row for row in self._rows() if row[1] == domain.uuid and row[3] != "retained"]

        if left() and not (self.driver.concurrent and settled(lambda: not left())):
            raise Violation(f"R3 {domain.name} has stopped: {left()}")

    def power_cycle(self) -> None:
        """Pull the plug: nothing that ran is there, and no event told of it."""
        self.driver.kill_daemon()
        for domain in list(self.libvirt.domains.values()):
            domain.live = None
            if domain.definition is None:
                del self.libvirt.domains[domain.uuid]
        self.libvirt.pending.clear()
        self.running.clear()
        self.opened.clear()
        self.foreign.clear()
        self.impostors.clear()
        self.unrecorded.clear()
        self.sim.reboot()

    def ask(self, *arguments: str) -> Answer:
        """Run the command; whatever it answers must be for people."""
        answer = self.driver.command(*arguments)
        if answer == KILLED:
            return answer
        if answer.status not in (0, 1) or "Traceback" in answer.err:
            raise Violation(f"vgpu-hook {arguments}: {answer}")
        if answer.status == 1 and not answer.err.strip():
            raise Violation(f"vgpu-hook {arguments} does not say why: {answer}")
        SEEN[f"vgpu-hook {arguments[0]}{' refused' if answer.status else ''}"] += 1
        return answer

    # -- what must hold after each step ---------------------------------------------------------

    def check(self) -> None:
        """Raise Violation if an invariant does not hold now."""
        if self.problems:
            raise self.problems[0]
        devices = self.devices()
        for pid, opened in self.opened.items():
            for device, kind in opened.items():
                found = devices.get(device)
                if found is None or found.type != kind or pid not in found.holders:
                    raise Violation(f"I1 {device} ({kind}) of the VM {pid} is {found}")
        for device, kind in self.foreign.items():
            if device not in devices or devices[device].type != kind:
                raise Violation(f"I1 somebody else's {device} is {devices.get(device)}")
        self._check_writes()
        self._check_records(devices)

    def _check_writes(self) -> None:
        """I1: nothing was written to what a VM has had open since the last look, nor to others'."""
        now = self.held() | self.foreign.keys()
        kept, self._before = now & self._before, now
        for write in self.sim.writes():
            for device in kept:
                if named_by(write, device):
                    raise Violation(f"I1 {write} to {device}")
            if write.outcome == "blocked" and not self.hanging:
                raise Violation(f"I3 {write}")
        self.sim.reset_writes()

    def _check_records(self, devices: dict[str, Device]) -> None:
        """I6: what is there is on record, or not ours. I8: a device has one owner, a slot one.

        Beside it a slot may have one that could not be released: retained, or being tried again
        when its hook was killed.
        """
        boot = self.sim.state()["boot_id"]
        rows = self.driver.product.rows("device, boot_id, domain_uuid, slot, state")
        names = [row[0] for row in rows if row[1] == boot]
        slots = [
            (row[2], row[3])
            for row in rows
            if row[1] == boot and row[4] in ("creating", "assigned")
        ]
        if len(set(names)) < len(names) or len(set(slots)) < len(slots):
            raise Violation(f"I8 {rows}")
        ours = devices.keys() - self.foreign.keys() - self.unrecorded
        lost = ours - {row[0] for row in rows}
        end = time.monotonic() + PATIENCE
        while lost and self.driver.concurrent and time.monotonic() < end:
            time.sleep(0.05)  # it may have been released between the two looks
            lost &= self.devices().keys() - self.recorded()
        if lost:
            raise Violation(f"I6 on nobody's record: {lost}")


def _check_answer(operation: str, xml: str, answer: Answer, where: str) -> None:
    """I4, I5, I10: the exit status, and what is said."""
    if answer.status not in ((0, 1) if operation in DELIBERATE else (0,)):
        raise Violation(f"I4 {where}")
    if answer.status == 1 and not answer.err.startswith("vgpu-hook: "):
        raise Violation(f"I4 no reason given: {where}")
    if answer.status == 0 and answer.err:
        raise Violation(f"I4 {where}")
    if "Traceback" in answer.err or "internal error" in answer.err + answer.out:
        raise Violation(f"I4 {where}")
    if answer.out and (
        operation not in ("restore", "migrate") or answer.out.strip() == xml.strip()
    ):
        raise Violation(f"I5 {where}")
    if answer.out and besides_ours(answer.out) != besides_ours(xml):
        raise Violation(f"I5 more than ours was changed: {where}")
    if "vgpu" not in xml and operation != "restore" and answer != (0, "", ""):
        raise Violation(f"I10 {where}")  # an image may be older than the request (R9)
