"""Store, kernel and libvirt compared (R7): what is orphaned and proved ours is released.

Whatever can't be told is kept and reported (I2): libvirt that does not answer, calls that are
under way, devices that nobody of ours is proved to have made. Rows are read before libvirt is
asked, and each release is for the generations that were read (R12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vgpu_hook import guard
from vgpu_hook.libvirtd import Known
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import (
    MDEV,
    VENDOR_VFIO,
    Assignment,
    Domain,
    Hostdev,
    Parent,
    VgpuError,
    VgpuRequest,
    derive_device_uuid,
)
from vgpu_hook.store import Store, is_young

Domains = Mapping[str, Known]

LOCK_WAIT = 0.5
"""Seconds. Who holds a domain's lock is at work on it: there is another pass."""


class Finding(NamedTuple):
    """What was found about one device, and what was done (or, in a dry run, would be)."""

    device: str
    domain: str
    action: str
    reason: str


class Owner(NamedTuple):
    """Whose a device is proved to be."""

    domain_uuid: str
    name: str
    request: VgpuRequest


class Reconciler:
    """One comparison.

    `ask_libvirt` returns the domains, and `ask_live` what a running one has; None if that can't be
    told.
    """

    def __init__(
        self,
        store: Store,
        lifecycle_for: Callable[[], Lifecycle],
        ask_libvirt: Callable[[], Domains | None],
        ask_live: Callable[[str], Domain | None],
        *,
        dry_run: bool = False,
    ) -> None:
        self._store = store
        self._lifecycle_for = lifecycle_for
        self._ask_libvirt = ask_libvirt
        self._ask_live = ask_live
        self._seen: dict[str, Domain | None] = {}
        self._dry_run = dry_run

    def run(self) -> list[Finding]:
        """Compare everything once."""
        names = self._store.domains.names()
        rows = self._store.all()
        reservations = self._store.devices.reservations()
        domains = self._ask_libvirt()
        found = [*self._unrecorded(rows, domains), *self._recorded(rows, domains)]
        if domains is not None and not self._dry_run:
            # libvirt may not list yet what is on its way here.
            kept = {r.domain_uuid for r in reservations if r.is_kept}
            for gone in names.keys() - domains.keys() - kept:
                self._store.domains.forget(gone)
            for domain_uuid in {r.domain_uuid for r in reservations} - domains.keys() - kept:
                self._store.devices.keep_reservations(domain_uuid, ())
        return found

    def _recorded(self, rows: list[Assignment], domains: Domains | None) -> list[Finding]:
        """Release the records of domains that do not run."""
        if domains is None:
            cause = "libvirt can't be asked whether its domain runs"
            return [Finding(row.device, row.domain_name, "kept", cause) for row in rows]
        orphans: dict[str, list[Assignment]] = {}
        for row in rows:
            known = domains.get(row.domain_uuid)
            if known is None or not known.active or self._was_unplugged(row):
                orphans.setdefault(row.domain_uuid, []).append(row)
        found = []
        for domain_uuid, mine in orphans.items():
            found += self._judge(mine) if self._dry_run else self._release(domain_uuid, mine)
        return found

    def _was_unplugged(self, row: Assignment) -> bool:
        """Tell of a running domain's vGPU that it no longer has: the event was missed."""
        if is_young(row):
            return False
        live = self._live(row.domain_uuid)
        return live is not None and row.device not in {h.address for h in live.hostdevs}

    def _judge(self, rows: list[Assignment]) -> list[Finding]:
        lifecycle = self._lifecycle_for()
        found = []
        for row in rows:
            verdict = lifecycle.judge(row)
            keeps = verdict.action == guard.KEEP
            action, reason = ("keep", verdict.reason) if keeps else ("release", "")
            found.append(Finding(row.device, row.domain_name, action, reason))
        return found

    def _release(self, domain_uuid: str, rows: list[Assignment]) -> list[Finding]:
        generations = frozenset(row.generation for row in rows)
        try:
            left = self._lifecycle_for().release_all(domain_uuid, generations, LOCK_WAIT)
        except VgpuError as error:
            return [Finding(r.device, r.domain_name, "kept", error.message) for r in rows]
        retained = {row.generation: row.reason for row in left}
        return [
            Finding(
                row.device,
                row.domain_name,
                "kept" if row.generation in retained else "released",
                retained.get(row.generation, ""),
            )
            for row in rows
        ]

    def _unrecorded(self, rows: list[Assignment], domains: Domains | None) -> list[Finding]:
        """Adopt devices whose derived UUID proves their owner; report all others."""
        recorded = {row.device for row in rows}
        found = []
        try:
            parents = self._lifecycle_for().parents()
        except VgpuError as error:
            return [Finding("", "", "kept", error.message)]
        for parent in parents:
            for device in parent.devices:
                if device not in recorded:
                    adopt = self._adopt if parent.framework == MDEV else self._adopt_vf
                    found.append(adopt(device, parent, domains, rows))
        return found

    def _adopt(
        self, device: str, parent: Parent, domains: Domains | None, rows: list[Assignment]
    ) -> Finding:
        owner = self._store.domains.owner_of(device)
        if owner is None:
            return Finding(device, "", "left alone", f"not made by vgpu-hook (on {parent.name})")
        name = self._store.domains.name_of(owner) or owner
        requests = self._store.domains.requests(owner)
        derived = (r for r in requests if derive_device_uuid(owner, r.slot) == device)
        request = next(derived, None)
        if request is None:
            return Finding(device, name, "kept", "its domain is changing")
        proof = f"its UUID is derived for slot {request.slot}"
        if domains is None:
            return Finding(device, name, "kept", "libvirt can't be asked about its domain")
        return self._record(Owner(owner, name, request), MDEV, device, proof, rows)

    def _adopt_vf(
        self, device: str, parent: Parent, domains: Domains | None, rows: list[Assignment]
    ) -> Finding:
        """Adopt a VF that a running domain of ours has; report any other that carries a type."""
        if domains is None:
            return Finding(device, "", "kept", "libvirt can't be asked who has it")
        unknown = None
        for uuid, known in domains.items():
            live = self._live(uuid) if known.active else None
            if known.active and live is None:
                unknown = known.name
            for hostdev in live.hostdevs if live is not None else ():
                if live is not None and hostdev.address == device:
                    return self._adopt_from(live, hostdev, rows)
        if unknown is not None:
            return Finding(device, unknown, "kept", "can't tell whether its domain has it")
        kind = parent.current or "a type"
        why = f"it carries {kind}, and is on nobody's record"
        return Finding(device, "", "left alone", why)

    def _live(self, domain_uuid: str) -> Domain | None:
        """Return what a running domain has, asked once; None if that can't be told."""
        if domain_uuid not in self._seen:
            self._seen[domain_uuid] = self._ask_live(domain_uuid)
        return self._seen[domain_uuid]

    def _adopt_from(self, live: Domain | None, hostdev: Hostdev, rows: list[Assignment]) -> Finding:
        """Adopt a VF that a running domain has for a request of its own."""
        assert live is not None
        request = next((r for r in live.request if r.slot == hostdev.slot), None)
        if request is None:
            return Finding(hostdev.address, live.name, "left alone", "its domain asks for no vGPU")
        owner = Owner(live.uuid, live.name, request)
        proof = f"the running domain has it in slot {request.slot}"
        return self._record(owner, VENDOR_VFIO, hostdev.address, proof, rows)

    def _record(
        self, owner: Owner, framework: str, device: str, proof: str, rows: list[Assignment]
    ) -> Finding:
        if self._dry_run:
            return Finding(device, owner.name, "adopt", proof)
        try:
            row = self._lifecycle_for().adopt(*owner, framework, device)
        except VgpuError as error:
            return Finding(device, owner.name, "kept", error.message)
        if row is None:
            return Finding(device, owner.name, "kept", "it was taken or went meanwhile")
        rows.append(row)
        return Finding(device, owner.name, "adopted", proof)
