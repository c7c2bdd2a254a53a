"""Which hostdev a definition should have for each request, on this host as it is now.

mdev: the UUID derived from the domain and the slot, whatever the host holds. Vendor-VFIO: a VF,
reserved in the store; the one that the domain has is kept while it can be used and is its own, or
no other is free. Else another one takes its place, so that more domains can be defined than there
are VFs.
Never calls libvirt and writes nothing but reservations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from vgpu_hook import placement
from vgpu_hook.definitions import Plan
from vgpu_hook.hostdevs import DEFAULT_MODEL
from vgpu_hook.model import (
    FRAMEWORK,
    HOSTDEV_TYPE,
    MDEV,
    RETAINED,
    VENDOR_VFIO,
    Domain,
    Hostdev,
    Parent,
    VgpuRequest,
    derive_device_uuid,
)
from vgpu_hook.placement import Candidate, Wishes
from vgpu_hook.store import Store
from vgpu_hook.store_devices import quarantined

Slot = tuple[str, str]
"""A domain's UUID and the name of a slot."""


class Planner:
    """Plans over one reading of the host and of the store.

    `parents` are those of catalogue.completed. `store` is None if there is none; nothing is
    reserved then, nor if `reserve` is false. `nodes_of` gives the NUMA nodes of a domain.
    """

    def __init__(
        self,
        parents: tuple[Parent, ...],
        store: Store | None,
        policy: str,
        nodes_of: Callable[[Domain], frozenset[int]],
        *,
        reserve: bool = True,
    ) -> None:
        self._parents = parents
        self._store = store if reserve else None
        self._policy = policy
        self._nodes_of = nodes_of
        self._frameworks = {parent.framework for parent in parents}
        self._offers: dict[tuple[str, str | None], list[Candidate]] = {}
        rows = store.all() if store is not None else []
        failures = store.devices.failures() if store is not None else []
        reservations = store.devices.reservations() if store is not None else []
        self._failed = {(f.device, f.domain_uuid, f.slot) for f in failures}
        self._quarantined = quarantined(failures)
        self._owners = {r.device: r for r in rows}
        self._runs_on: dict[Slot, str] = {
            (r.domain_uuid, r.slot): r.device
            for r in rows
            if r.framework == VENDOR_VFIO and r.state != RETAINED
        }
        self._kept = {r.device: (r.domain_uuid, r.slot) for r in reservations if r.is_kept}
        self._named: dict[Slot, str] = {(r.domain_uuid, r.slot): r.device for r in reservations}

    def hold(self, domain_uuid: str, slot: str, device: str) -> None:
        """Know that a running domain has this VF, whether it is on record or not."""
        self._runs_on[domain_uuid, slot] = device

    def __call__(self, subject: Domain, request: VgpuRequest) -> Plan:
        """Return the hostdev that serves the request; it is reserved if it is a VF."""
        there = subject.hostdev(request.slot)
        inherited = there is not None and subject.inherits(there)
        if there is not None and inherited and request.fork != "new":
            return Plan(there, inherited)
        framework = self._framework(there, request)
        if framework is None:
            return Plan(None, inherited)
        if framework == MDEV:
            offers = self._offering(request, MDEV)
            model = next((offer.type.device_api for offer in offers), DEFAULT_MODEL)
            device = derive_device_uuid(subject.uuid, request.slot)
            return Plan(Hostdev(HOSTDEV_TYPE[MDEV], device, request.slot, model), inherited)
        named = there.address if there is not None and there.type == "pci" else None
        device = self._choose(subject, request, None if inherited else named)
        return Plan(Hostdev(HOSTDEV_TYPE[framework], device, request.slot, None, "no"), inherited)

    def owns(self, subject: Domain, hostdev: Hostdev) -> bool:
        """Tell whether a hostdev under our alias is one that this domain was given."""
        slot = hostdev.slot or ""
        if hostdev.type == HOSTDEV_TYPE[MDEV]:
            return hostdev.address == derive_device_uuid(subject.uuid, slot)
        return hostdev.address == self._named.get((subject.uuid, slot))

    def current(self, subject: Domain, slot: str) -> str | None:
        """Return the VF that the domain's definition was given for the slot; None if none was."""
        return self._named.get((subject.uuid, slot))

    def require_offer(self, request: VgpuRequest) -> None:
        """Raise VgpuError if nothing on this host offers the profile, full or not."""
        if not any(self._offering(request, framework) for framework in HOSTDEV_TYPE):
            raise placement.why_not(self._parents, request.profile, request.gpu)

    def same_type(self, one: VgpuRequest, other: VgpuRequest) -> bool:
        """Tell whether two requests are for the same type of vGPU, on some parent here."""
        if one.profile.strip().casefold() == other.profile.strip().casefold():
            return True
        types = [
            {c.type.id for c in placement.candidates(self._parents, request.profile, None)}
            for request in (one, other)
        ]
        return not types[0].isdisjoint(types[1])

    def usable(self, slot: Slot, request: VgpuRequest) -> bool:
        """Tell whether a stopped domain names what it should; if not, planning gives it better.

        A VF that it could start on, and that no other definition names if there are enough.
        """
        offers = self._offering(request, VENDOR_VFIO)
        on_mdev = bool(self._offering(request, MDEV))
        named = self._named.get(slot)
        if named is None:  # an mdev, or it was defined while the host had no such VF
            return not offers or on_mdev or request.fork == "refuse"
        if not offers:  # the host may have changed its framework
            return not on_mdev
        return self._is_good(named, slot, self._room(slot, offers, ()))

    def _is_good(self, device: str, slot: Slot, room: list[Candidate]) -> bool:
        """Tell whether the domain should keep the VF, which others may name too."""
        there = next((c.parent for c in room if c.parent.name == device), None)
        if there is None:
            return not room
        others = self._others(slot)
        # A better one is no farther away, and nobody's.
        near = [c.parent for c in room if there.node in (-1, c.parent.node)]
        return not others[device] or all(others[parent.name] for parent in near)

    def _framework(self, there: Hostdev | None, request: VgpuRequest) -> str | None:
        """Return the framework that serves the request: what is there stays, if it can.

        None if that can't be told now: it may be a type of a card whose VFs are off.
        """
        offering = [f for f in (MDEV, VENDOR_VFIO) if self._offering(request, f)]
        present = FRAMEWORK.get(there.type) if there is not None else None
        if present is not None and (present in offering or not offering):
            return present
        if offering:
            return offering[0]
        return None if self._frameworks == {VENDOR_VFIO} else MDEV

    def _choose(self, subject: Domain, request: VgpuRequest, named: str | None) -> str:
        """Return the VF, and reserve it; raise if the profile is not offered by any."""
        slot = (subject.uuid, request.slot)
        offers = self._offering(request, VENDOR_VFIO)
        siblings = self._siblings(slot, subject)
        room = self._room(slot, offers, siblings)
        known = [vf for vf in (named, self._named.get(slot)) if vf and vf not in siblings]
        device = self._runs_on.get(slot) or next(
            (vf for vf in known if self._is_good(vf, slot, room)), None
        )
        if device is None:
            device = self._best(subject, request, offers, room) or next(iter(known), None)
        if device is None:
            raise placement.why_not(self._parents, request.profile, request.gpu)
        if self._store is not None:
            self._store.devices.reserve(*slot, device)
        self._named[slot] = device
        return device

    def _best(
        self,
        subject: Domain,
        request: VgpuRequest,
        offers: list[Candidate],
        room: list[Candidate],
    ) -> str | None:
        """Return the best VF with room; of a full card one that few definitions name."""
        slot = (subject.uuid, request.slot)
        others = self._others(slot)
        if not room:
            siblings = self._siblings(slot, subject)
            names = [o.parent.name for o in offers if o.parent.name not in siblings]
            return min(names, key=lambda name: (others[name], name), default=None)
        policy = request.placement or self._policy
        wishes = Wishes(policy, self._nodes_of(subject), others, self._loads(offers, others))
        return placement.order(room, wishes)[0].parent.name

    def _room(
        self, slot: Slot, offers: list[Candidate], siblings: Collection[str]
    ) -> list[Candidate]:
        """Return the VFs that the domain could start on now.

        Left out: VFs that anybody has on record (this domain too, if it could not release it), that
        are kept for a VM on its way here, that other slots of the domain name (`siblings`), that
        are in quarantine, or that failed for this very slot.
        """
        siblings = {*siblings, *self._siblings(slot, None)}
        return [offer for offer in offers if self._is_free(offer, slot, siblings)]

    def _is_free(self, offer: Candidate, slot: Slot, siblings: set[str]) -> bool:
        name = offer.parent.name
        if self._runs_on.get(slot) == name:
            return True
        return (
            offer.type.available > 0
            and name not in self._owners
            and name not in siblings
            and name not in self._quarantined
            and self._kept.get(name, slot) == slot
            and (name, *slot) not in self._failed
        )

    def _offering(self, request: VgpuRequest, framework: str) -> list[Candidate]:
        """Return the parents of a framework that offer the profile, full ones too."""
        key = (request.profile, request.gpu)
        if key not in self._offers:
            self._offers[key] = placement.candidates(self._parents, *key)
        return [offer for offer in self._offers[key] if offer.parent.framework == framework]

    def _siblings(self, slot: Slot, subject: Domain | None) -> set[str]:
        """Return the VFs that the domain's other slots were given, or name in its XML."""
        named = {h.address for h in subject.hostdevs if h.slot != slot[1]} if subject else set()
        return named | {
            device
            for (domain_uuid, name), device in self._named.items()
            if domain_uuid == slot[0] and name != slot[1]
        }

    def _others(self, slot: Slot) -> Counter[str]:
        """Return how many other slots name each VF."""
        found = Counter(self._named.values())
        if slot in self._named:
            found[self._named[slot]] -= 1
        return found

    def _loads(self, offers: list[Candidate], others: Counter[str]) -> dict[str, int]:
        """Return the load of each GPU, in MiB.

        A VF that others name, or that is in quarantine, counts as if it were in use.
        """
        size = max((offer.type.framebuffer for offer in offers), default=0)
        idle = {parent.name for parent in self._parents if not parent.devices}
        named = {device for device, count in others.items() if count > 0}
        besides = dict.fromkeys((named | self._quarantined.keys()) & idle, size)
        return placement.loads(self._parents, besides)
