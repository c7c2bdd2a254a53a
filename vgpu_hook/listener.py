"""libvirt's events, turned into calls of lifecycle: what happens outside the hook.

Runs in the daemon's worker, one event after the other. An event is only a reason to look: what
is done depends on what libvirt says when asked, since a domain may be starting again by the
time that its STOPPED arrives (facts B3). Records are read before libvirt is asked, and releases
are for those (R12). No lock is held across a call to libvirt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from vgpu_hook import definitions, domain, events, hotplug
from vgpu_hook.events import Event
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.log import Log
from vgpu_hook.model import (
    ALIAS_PREFIX,
    HOSTDEV_TYPE,
    RETAINED,
    VENDOR_VFIO,
    Assignment,
    Domain,
    VgpuError,
    VgpuRequest,
    is_ours,
)
from vgpu_hook.planning import Planner
from vgpu_hook.reconcile import Finding, Reconciler
from vgpu_hook.store import Store

PCI = HOSTDEV_TYPE[VENDOR_VFIO]


class Listener:
    """What is done for one event, with an open store."""

    def __init__(
        self,
        store: Store,
        lifecycle_for: Callable[[], Lifecycle],
        planner_for: Callable[[], Planner],
        log: Log,
        reconciled: Callable[[list[Finding]], None] = lambda found: None,
    ) -> None:
        self._store = store
        self._lifecycle_for = lifecycle_for
        self._planner_for = planner_for
        self._log = log
        self._reconciled = reconciled

    @cached_property
    def _planner(self) -> Planner:
        return self._planner_for()

    def handle(self, libvirt: Libvirt, event: Event) -> bool:
        """Do what the event is a reason for; tell whether it was done.

        What fails is logged: the next event comes.
        """
        try:
            if event.kind == events.RESYNC:
                self.resync(libvirt)
            elif event.kind == events.RECONCILE:
                self.reconcile(libvirt)
            elif event.kind in (events.DEFINED, events.REVERTED):
                self.settle(libvirt, event.domain_uuid, reverted=event.kind == events.REVERTED)
            elif event.kind in (events.STOPPED, events.UNDEFINED):
                self.stopped(libvirt, event.domain_uuid)
            elif event.kind == events.REBALANCE:
                self.rebalance(libvirt)
            elif event.kind == events.UNPLUGGED:
                self.unplugged(libvirt, event.domain_uuid, event.detail)
        except VgpuError as error:
            message = f"{event.kind} {event.domain_uuid}: {error}"
            self._log.event("event-failed", message, level="error", domain_uuid=event.domain_uuid)
            return False
        return True

    def reconcile(self, libvirt: Libvirt) -> list[Finding]:
        """Compare store, kernel and libvirt (R7)."""
        reconciler = Reconciler(self._store, self._lifecycle_for, libvirt.domains, libvirt.live)
        found = reconciler.run()
        self.__dict__.pop("_planner", None)  # it has read what was there before
        self.rebalance(libvirt, thorough=True)
        self._reconciled(found)
        return found

    def rebalance(self, libvirt: Libvirt, *, thorough: bool = False) -> None:
        """Point stopped domains to VFs that they could start on, away from those in use.

        Whenever a start or a release has changed what is free: so more domains can be defined than
        there are VFs. `thorough`: also on a host where no definition names a VF, for those that
        were defined before it had any.
        """
        if not thorough and not self._store.devices.reservations():
            return
        runs = {row.domain_uuid for row in self._store.all() if row.state != RETAINED}
        moved: set[str] = set()
        for domain_uuid, request in self._store.domains.all_requests():
            slot = (domain_uuid, request.slot)
            if domain_uuid not in runs | moved and not self._planner.usable(slot, request):
                moved.add(domain_uuid)
                try:
                    self.settle(libvirt, domain_uuid, planned_anew=True)
                except VgpuError as error:
                    text = f"definition of {domain_uuid} could not be changed: {error}"
                    self._log.event("event-failed", text, level="error", domain_uuid=domain_uuid)

    def resync(self, libvirt: Libvirt) -> None:
        """Look at everything: whatever happened before the connection was not heard of."""
        for domain_uuid in libvirt.domains():
            try:
                self.settle(libvirt, domain_uuid)
            except VgpuError as error:
                self._log.event("event-failed", str(error), level="error", domain_uuid=domain_uuid)
        self.reconcile(libvirt)

    def settle(
        self,
        libvirt: Libvirt,
        domain_uuid: str,
        *,
        reverted: bool = False,
        planned_anew: bool = False,
    ) -> None:
        """Put a definition in order, and give back what it asks for no more.

        R8: an inherited device is replaced by one of the domain's own.
        R9: after a snapshot was reverted to, what the domain asked for before stands.
        What has just what it was given is in order, unless it is to be `planned_anew`.
        R10: one that is being deleted is left alone; changed now, it could come back.
        """
        if self._store.domains.deleting_since(domain_uuid) is not None:
            return
        rows = self._store.of_domain(domain_uuid)
        known = self._store.domains.requests(domain_uuid)
        stands = (
            known if reverted and self._store.domains.name_of(domain_uuid) is not None else None
        )
        try:
            found = libvirt.find_uuid(domain_uuid)
            text = libvirt.definition(found)
        except NoDomain:
            return  # UNDEFINED follows, or has been
        if not is_ours(text) and not known:
            return
        self._store.devices.keep_reservations(domain_uuid, [request.slot for request in known])
        if not planned_anew and self._is_in_order(text, known, rows):
            return
        if libvirt.is_active(found):
            self._hold(domain_uuid, hotplug.live(libvirt, found))
        if libvirt.call(found, found.isPersistent):
            done = self._edit(libvirt, found, stands)
        else:
            done = definitions.settle(text, self._planner)._replace(changes=())
        self._store.domains.set_requests(domain_uuid, done.name, done.requests)
        of_vfs = [h.slot for h in domain.parse(done.text).hostdevs if h.type == PCI]
        self._store.devices.keep_reservations(domain_uuid, [s for s in of_vfs if s is not None])
        for change in done.changes:
            self._store.note(domain_uuid, done.name, "definition", change)
            message = f"definition of {done.name!r}: {change}"
            self._log.event("settled", message, domain_uuid=domain_uuid, domain_name=done.name)
        asked = {request.slot for request in done.requests}
        surplus = frozenset(row.generation for row in rows if row.slot not in asked)
        if surplus and not libvirt.is_active(found):
            self._lifecycle_for().release_all(domain_uuid, surplus)

    def _hold(self, domain_uuid: str, live: Domain) -> None:
        """Plan with the VFs that a running domain has."""
        for hostdev in live.hostdevs:
            if hostdev.type == PCI and hostdev.slot is not None:
                self._planner.hold(domain_uuid, hostdev.slot, hostdev.address)

    def _is_in_order(
        self, text: bytes, known: tuple[VgpuRequest, ...], rows: list[Assignment]
    ) -> bool:
        """Tell, without a look at the host, whether a definition has just what it was given."""
        subject = domain.parse(text)
        slots = {hostdev.slot for hostdev in subject.hostdevs if hostdev.slot is not None}
        return (
            bool(known)
            and subject.request == known
            and self._store.domains.name_of(subject.uuid) == subject.name
            and slots == {request.slot for request in known}
            and slots >= {row.slot for row in rows}
            and all(self._is_own(text, subject, request) for request in known)
        )

    def _is_own(self, text: bytes, subject: Domain, request: VgpuRequest) -> bool:
        """Tell whether the slot has its own mdev, or the VF that was reserved for it."""
        there = subject.hostdev(request.slot)
        if there is None or subject.inherits(there):
            return False
        if there.type == PCI:
            device = self._store.devices.reserved(subject.uuid, request.slot)
            there = there._replace(managed="no")
            return device == there.address and domain.is_attached(text, request, there)
        return domain.is_attached(text, request, there)

    def _edit(
        self, libvirt: Libvirt, found: Any, stands: tuple[VgpuRequest, ...] | None
    ) -> definitions.Settled:
        """Put the persistent definition in order, made anew if somebody changes it meanwhile."""
        settled: list[definitions.Settled] = []
        domain_uuid = found.UUIDString()

        def change(before: bytes) -> bytes:
            done = definitions.settle(before, self._planner, stands)
            settled.append(done)
            # Known even if libvirt refuses the edit: then it is tried again.
            self._store.domains.set_requests(domain_uuid, done.name, done.requests)
            return done.text

        libvirt.edit(found, change)
        return settled[-1]

    def stopped(self, libvirt: Libvirt, domain_uuid: str) -> None:
        """Release what a stopped or undefined domain has left, and forget one that is gone (R4)."""
        generations = frozenset(row.generation for row in self._store.of_domain(domain_uuid))
        gone = False
        try:
            if libvirt.is_active(libvirt.find_uuid(domain_uuid)):
                return
        except NoDomain:
            gone = True
        if generations:
            self._lifecycle_for().release_all(domain_uuid, generations)
        if gone and not self._store.devices.is_arriving(domain_uuid):
            self._store.domains.forget(domain_uuid)

    def unplugged(self, libvirt: Libvirt, domain_uuid: str, alias: str) -> None:
        """Release a vGPU that was taken out of a running domain."""
        slot = alias.removeprefix(ALIAS_PREFIX)
        generations = self._store.generations(domain_uuid, slot)
        found = libvirt.find_uuid(domain_uuid)
        if hotplug.live(libvirt, found).hostdev(slot) is None:
            self._lifecycle_for().release_all(domain_uuid, generations)
            hotplug.note_request(libvirt, found, slot, None)
