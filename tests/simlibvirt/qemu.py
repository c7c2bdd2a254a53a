"""Starts and stops the simulated domains as libvirt's QEMU driver does, hook calls included.

In libvirt's order (facts A1 to A6; test_contract.py compares it with the real one). A test that
wants calls that libvirt would not make calls the hook itself, and `started` and `stopped` of
SimLibvirt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import libvirt

from tests.product import Answer

from . import definitions
from .errors import SimError, invalid
from .state import SimDomain, SimLibvirt

Hook = Callable[[list[str], bytes], Answer]
"""Calls the hook with its arguments and its input: tests.product.Product.hook_argv."""

SAYS_WHY = 10_005_000
"""The libvirt that first tells `release` why a VM stopped (facts A2)."""


def no_hook(arguments: list[str], xml: bytes) -> Answer:
    """There is none: all may pass."""
    return Answer(0, "", "")


class Qemu:
    """The VMs of a SimLibvirt. Whatever can't be done raises SimError, as libvirt does.

    `takes(domain, xml)`: libvirt looks for the devices, after `prepare`; `opens(domain, xml)`: QEMU
    comes up and opens them, after `start`. Both may raise SimError. `closes(domain)`: QEMU ends.
    They are called with the domain held.
    """

    def __init__(self, simulated: SimLibvirt, hook: Hook = no_hook) -> None:
        self.libvirt = simulated
        self.hook = hook
        self.takes: Callable[[SimDomain, str], None] = lambda domain, xml: None
        self.opens: Callable[[SimDomain, str], None] = lambda domain, xml: None
        self.closes: Callable[[SimDomain], None] = lambda domain: None
        self._id = 0
        simulated.on_destroy = self.destroy

    def start(self, domain: SimDomain) -> None:
        """`virsh start`: from the managed save, if there is one."""
        with domain.busy:
            if domain.live is not None:
                raise invalid("domain is already running")
            if domain.image is not None:
                self._resume(domain, self._restored(domain.name, domain.image))
                domain.image = None
            else:
                self._start(domain, str(domain.definition))
                booted = libvirt.VIR_DOMAIN_EVENT_STARTED_BOOTED
                self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_STARTED, booted)

    def create(self, xml: str) -> SimDomain:
        """`virsh create`: a transient domain, unless it is defined already."""
        with self._arriving(xml) as domain:
            self._start(domain, xml)
            booted = libvirt.VIR_DOMAIN_EVENT_STARTED_BOOTED
            self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_STARTED, booted)
        return domain

    def destroy(self, domain: SimDomain) -> None:
        """`virsh destroy`."""
        self._stop(domain, "destroyed", libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED)

    def crash(self, domain: SimDomain) -> None:
        """QEMU dies."""
        self._stop(domain, "crashed", libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED)

    def save(self, domain: SimDomain) -> str:
        """`virsh save`; return the XML in the image."""
        with domain.busy:
            if domain.live is None:
                raise invalid("domain is not running")
            image = definitions.at_rest(domain.live)
            paused = libvirt.VIR_DOMAIN_EVENT_SUSPENDED_PAUSED
            self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_SUSPENDED, paused)
            self._stop(domain, "saved", libvirt.VIR_DOMAIN_EVENT_STOPPED_SAVED)
        return image

    def managed_save(self, domain: SimDomain) -> None:
        """`virsh managedsave`."""
        with domain.busy:
            domain.image = self.save(domain)

    def restore(self, image: str) -> SimDomain:
        """`virsh restore`: the hook may give other XML."""
        name = definitions.accept(image).name
        # Before libvirt looks whether the domain runs already.
        xml = self._restored(name, image)
        with self._arriving(xml) as domain:
            self._resume(domain, xml)
        return domain

    def revert(self, domain: SimDomain, definition: str) -> None:
        """`virsh snapshot-revert` to a snapshot of the domain when it did not run."""
        with domain.busy:
            if domain.live is not None:
                detail = libvirt.VIR_DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT
                self._stop(domain, "from snapshot", detail)
            self.libvirt.define(definition, libvirt.VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT)

    # -- libvirt's own steps ------------------------------------------------------------------

    @contextmanager
    def _arriving(self, xml: str) -> Iterator[SimDomain]:
        """Hold the domain of this XML, new or one that does not run; forget it if that fails."""
        domain = self.libvirt.place_for(definitions.accept(xml))
        with domain.busy:
            if domain.live is not None:
                raise invalid(f"domain '{domain.name}' is already active")
            self.libvirt.domains[domain.uuid] = domain
            try:
                yield domain
            finally:
                self.libvirt.forget_if_gone(domain)

    def _restored(self, name: str, image: str) -> str:
        """Return the XML to go on with."""
        answer = self._must_pass(name, "restore", image)
        return answer.out if answer.out.strip() else image

    def _resume(self, domain: SimDomain, xml: str) -> None:
        self._start(domain, xml, resumes=False)
        restored = libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED
        self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_STARTED, restored)
        resumed = libvirt.VIR_DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT
        self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_RESUMED, resumed)

    def _start(self, domain: SimDomain, xml: str, *, resumes: bool = True) -> None:
        """Call the hook and bring QEMU up; on failure all is as before, and no event tells."""
        self._id += 1
        accepted = definitions.accept(xml).xml
        try:
            domain.undefined = accepted
            domain.live = definitions.running(accepted, self._id, aliases=False)
            self._must_pass(domain.name, "prepare", domain.live)
            domain.live = definitions.running(accepted, self._id)
            self.takes(domain, domain.live)
            self._must_pass(domain.name, "start", domain.live)
            self.opens(domain, domain.live)
            if resumes:
                unpaused = libvirt.VIR_DOMAIN_EVENT_RESUMED_UNPAUSED
                self.libvirt.lifecycle(domain, libvirt.VIR_DOMAIN_EVENT_RESUMED, unpaused)
            self._must_pass(domain.name, "started", domain.live)
        except SimError:
            self._end(domain, "failed")
            domain.live = None
            raise

    def _stop(self, domain: SimDomain, reason: str, detail: int) -> None:
        with domain.busy:
            if domain.live is None:
                raise invalid("domain is not running")
            self._end(domain, reason)
            self.libvirt.stopped(domain, detail)

    def _end(self, domain: SimDomain, reason: str) -> None:
        """End QEMU; what the hook then answers changes nothing (R3)."""
        self.closes(domain)
        text = definitions.at_rest(str(domain.live), aliases=True)
        self._call(domain.name, "stopped", text)
        says_why = self.libvirt.version >= SAYS_WHY
        self._call(domain.name, "release", text, reason if says_why else "-")

    def _must_pass(self, name: str, operation: str, xml: str) -> Answer:
        answer = self._call(name, operation, xml)
        if answer.status != 0:
            raise _refused(answer)
        return answer

    def _call(self, name: str, operation: str, xml: str, extra: str = "-") -> Answer:
        sub = "end" if operation in ("stopped", "release") else "begin"
        return self.hook([name, operation, sub, extra], xml.encode())


def _refused(answer: Answer) -> SimError:
    text = f"Hook script execution failed: internal error: Child process: {answer.err}"
    return SimError(libvirt.VIR_ERR_HOOK_SCRIPT_FAILED, text)
