"""Which hostdev a definition should have for each request, on this host as it is now.

mdev: the UUID derived from the domain and the slot, whatever the host holds. Vendor-VFIO: a VF,
reserved in the store; the one that the domain has is kept for as long as it can be used, else
another one that is free takes its place, so that more domains can be defined than there are VFs.
Never calls libvirt and writes nothing but reservations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from vgpu_hook import placement
from vgpu_hook.definitions import Plan
from vgpu_hook.model import (
    FRAMEWORK,
    HOSTDEV_TYPE,
    MDEV,
    RETAINED,
    VENDOR_VFIO,
    Assignment,
    Domain,
    Hostdev,
    Parent,
    VgpuRequest,
    derive_device_uuid,
)
from vgpu_hook.placement import Candidate, Wishes
from vgpu_hook.store import Store
from vgpu_hook.store_devices import Reservation, quarantined

DEFAULT_MODEL = "vfio-pci"


class Planner:
    """Plans over one reading of the host and of the store.

    `parents` are those of catalogue.completed; `store` is None if there is none (then nothing is
    reserved). `nodes_of` gives the NUMA nodes of a domain.
    """

    def __init__(
        self,
        parents: tuple[Parent, ...],
        store: Store | None,
        policy: str,
        nodes_of: Callable[[Domain], frozenset[int]],
    ) -> None:
        self._parents = parents
        self._store = store
        self._policy = policy
        self._nodes_of = nodes_of
        self._rows: list[Assignment] = store.all() if store is not None else []
        failures = store.devices.failures() if store is not None else []
        self._failed = {(f.device, f.domain_uuid, f.slot) for f in failures}
        self._quarantined = quarantined(failures)
        self._owners = {row.device: (row.domain_uuid, row.slot) for row in self._rows}
        self._offers: dict[tuple[str, str | None], list[Candidate]] = {}
        self._held: dict[tuple[str, str], str] = {}

    def hold(self, domain_uuid: str, slot: str, device: str) -> None:
        """Know that a running domain has this VF, whether it is on record or not."""
        self._held[domain_uuid, slot] = device

    def __call__(self, subject: Domain, request: VgpuRequest) -> Plan:
        """Return the hostdev that serves the request."""
        offers = self._offering(request)
        framework = self._framework(subject, request, offers)
        if framework == MDEV:
            model = next((o.type.device_api for o in offers), DEFAULT_MODEL)
            device = derive_device_uuid(subject.uuid, request.slot)
            own = Hostdev(HOSTDEV_TYPE[MDEV], device, request.slot, model)
            there = subject.hostdev(request.slot)
            inherited = there is not None and (there.type, there.address) != own[:2]
            return Plan(own, inherited and not self._was_a_vf(subject, request))
        return self._plan_vf(subject, request, offers)

    def owns(self, subject: Domain, hostdev: Hostdev) -> bool:
        """Tell whether a hostdev under our alias is one that this domain was given."""
        slot = hostdev.slot or ""
        if hostdev.type == HOSTDEV_TYPE[MDEV] or self._store is None:
            return hostdev.address == derive_device_uuid(subject.uuid, slot)
        return hostdev.address == self._store.devices.reserved(subject.uuid, slot)

    def usable(self, reservation: Reservation, request: VgpuRequest) -> bool:
        """Tell whether a stopped domain could start on the VF that its definition names."""
        offers = self._offering(request)
        room = self._room(reservation.domain_uuid, request.slot, offers)
        return reservation.device in {c.parent.name for c in room} or not room

    def _framework(self, subject: Domain, request: VgpuRequest, offers: list[Candidate]) -> str:
        """Return the framework that serves the request: what is there stays, if it can."""
        there = subject.hostdev(request.slot)
        frameworks = [offer.parent.framework for offer in offers]
        present = FRAMEWORK.get(there.type) if there is not None else None
        if present is not None and (present in frameworks or not frameworks):
            return present
        return frameworks[0] if frameworks else MDEV

    def _plan_vf(self, subject: Domain, request: VgpuRequest, offers: list[Candidate]) -> Plan:
        there = subject.hostdev(request.slot)
        named = there.address if there is not None and there.type == "pci" else None
        reserved = self._reserved(subject, request)
        inherited = named is not None and named != reserved and self._is_anothers(subject, named)
        inherited = inherited or self._inherited_mdev(subject, request)
        if there is not None and inherited and request.fork != "new":
            return Plan(there, inherited)
        current = reserved or (None if inherited else named)
        device = self._choose(subject, request, offers, current)
        own = Hostdev(HOSTDEV_TYPE[VENDOR_VFIO], device, request.slot, None, "no")
        return Plan(own, inherited)

    def _choose(
        self,
        subject: Domain,
        request: VgpuRequest,
        offers: list[Candidate],
        current: str | None,
    ) -> str:
        """Return the VF, and reserve it; raise if the profile is not offered by any."""
        room = self._room(subject.uuid, request.slot, offers)
        names = {candidate.parent.name for candidate in room}
        runs_on = self._held.get((subject.uuid, request.slot)) or next(
            (r.device for r in self._rows if self._is_live(r, subject.uuid, request.slot)), None
        )
        waiting, loads = self._taken(subject.uuid, request.slot, offers)
        wishes = Wishes(request.placement or self._policy, self._nodes_of(subject), waiting, loads)
        best = placement.order(room, wishes)
        if runs_on is not None:
            device = runs_on
        elif current is not None and (current in names or not best):
            device = current
        elif best:
            device = best[0].parent.name
        elif offers:  # full: it names one of those that will be free, and is re-pointed then
            device = min(offers, key=lambda o: (waiting.get(o.parent.name, 0), o.parent.name))[
                0
            ].name
        else:
            raise placement.why_not(self._parents, request.profile, request.gpu)
        if self._store is not None:
            self._store.devices.reserve(subject.uuid, request.slot, device)
        return device

    def _room(self, domain_uuid: str, slot: str, offers: list[Candidate]) -> list[Candidate]:
        """Return the VFs that the domain could start on now.

        Left out: VFs that another domain has on record, that are in quarantine, or that failed for
        this very slot.
        """
        mine = (domain_uuid, slot)
        return [
            offer
            for offer in offers
            if (owner := self._owners.get(offer.parent.name)) in (None, mine)
            and (offer.type.available > 0 or owner == mine)
            and offer.parent.name not in self._quarantined
            and (offer.parent.name, *mine) not in self._failed
        ]

    def _offering(self, request: VgpuRequest) -> list[Candidate]:
        """Return the parents that offer the profile, full ones too."""
        key = (request.profile, request.gpu)
        if key not in self._offers:
            self._offers[key] = placement.candidates(self._parents, *key)
        return self._offers[key]

    def _taken(
        self, domain_uuid: str, slot: str, offers: list[Candidate]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many other definitions name each VF, and the load of each GPU.

        A reserved VF counts as if it were in use, and so does one in quarantine.
        """
        reserved = self._store.devices.reservations() if self._store is not None else []
        others = Counter(
            r.device for r in reserved if (r.domain_uuid, r.slot) != (domain_uuid, slot)
        )
        size = max((offer.type.framebuffer for offer in offers), default=0)
        idle = {p.name for p in self._parents if not p.devices}
        besides = dict.fromkeys((others.keys() | self._quarantined.keys()) & idle, size)
        return dict(others), placement.loads(self._parents, besides)

    @staticmethod
    def _is_live(row: Assignment, domain_uuid: str, slot: str) -> bool:
        mine = (row.domain_uuid, row.slot) == (domain_uuid, slot)
        return mine and row.framework == VENDOR_VFIO and row.state != RETAINED

    def _reserved(self, subject: Domain, request: VgpuRequest) -> str | None:
        if self._store is None:
            return None
        return self._store.devices.reserved(subject.uuid, request.slot)

    def _is_anothers(self, subject: Domain, device: str) -> bool:
        """Tell whether a VF belongs to, or is named by, another domain that we know."""
        if any(r.device == device and r.domain_uuid != subject.uuid for r in self._rows):
            return True
        reserved = self._store.devices.reservations() if self._store is not None else []
        return any(r.device == device and r.domain_uuid != subject.uuid for r in reserved)

    def _was_a_vf(self, subject: Domain, request: VgpuRequest) -> bool:
        """Tell whether the host has changed its framework under a definition of our own."""
        there = subject.hostdev(request.slot)
        return there is not None and there.address == self._reserved(subject, request)

    @staticmethod
    def _inherited_mdev(subject: Domain, request: VgpuRequest) -> bool:
        there = subject.hostdev(request.slot)
        own = derive_device_uuid(subject.uuid, request.slot)
        return there is not None and there.type == "mdev" and there.address != own
