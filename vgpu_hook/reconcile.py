"""Store, kernel and libvirt compared (R7): what is orphaned and proved ours is released.

Whatever can't be told is kept and reported (I2): libvirt that does not answer, calls that are
under way, devices that nobody of ours is proved to have made. Who asked libvirt must have done
so after reading nothing of the store: rows are read here, before libvirt's answer is used, and
each release is for the generations that were read (R12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vgpu_hook import guard
from vgpu_hook.libvirtd import Known
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import Assignment, DeadlineExceeded, VgpuError, derive_device_uuid
from vgpu_hook.store import Store

Domains = Mapping[str, Known]


class Finding(NamedTuple):
    """What was found about one device, and what was done (or, in a dry run, would be)."""

    device: str
    domain: str
    action: str
    reason: str


class Reconciler:
    """One comparison. `ask_libvirt` returns the domains, or None if it can't be asked."""

    def __init__(
        self,
        store: Store,
        lifecycle_for: Callable[[], Lifecycle],
        ask_libvirt: Callable[[], Domains | None],
        *,
        dry_run: bool = False,
    ) -> None:
        self._store = store
        self._lifecycle_for = lifecycle_for
        self._ask_libvirt = ask_libvirt
        self._dry_run = dry_run

    def run(self) -> list[Finding]:
        """Compare everything once."""
        names = self._store.domains.names()
        rows = self._store.all()
        domains = self._ask_libvirt()
        found = [*self._unrecorded(rows, domains), *self._recorded(rows, domains)]
        if domains is not None and not self._dry_run:
            for gone in names.keys() - domains.keys():
                if not self._store.domains.deleting_since(gone):  # a deletion ends its own
                    self._store.domains.forget(gone)
        return found

    def _recorded(self, rows: list[Assignment], domains: Domains | None) -> list[Finding]:
        """Release the records of domains that do not run."""
        if domains is None:
            cause = "libvirt can't be asked whether its domain runs"
            return [Finding(row.device, row.domain_name, "kept", cause) for row in rows]
        idle: dict[str, list[Assignment]] = {}
        for row in rows:
            known = domains.get(row.domain_uuid)
            if known is None or not known.active:
                idle.setdefault(row.domain_uuid, []).append(row)
        found = []
        for domain_uuid, mine in idle.items():
            found += self._judge(mine) if self._dry_run else self._release(domain_uuid, mine)
        return found

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
            left = self._lifecycle_for().release_all(domain_uuid, generations)
        except DeadlineExceeded as error:
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
        for parent in self._lifecycle_for().parents():
            for device in parent.devices:
                if device not in recorded:
                    found.append(self._adopt(device, parent.name, domains, rows))
        return found

    def _adopt(
        self, device: str, parent: str, domains: Domains | None, rows: list[Assignment]
    ) -> Finding:
        owner = self._store.domains.owner_of(device)
        if owner is None:
            return Finding(device, "", "left alone", f"not made by vgpu-hook (on {parent})")
        name = self._store.domains.names().get(owner, owner)
        request = next(
            request
            for request in self._store.domains.requests(owner)
            if derive_device_uuid(owner, request.slot) == device
        )
        proof = f"its UUID is derived for slot {request.slot}"
        if domains is None:
            return Finding(device, name, "kept", "libvirt can't be asked about its domain")
        if self._dry_run:
            return Finding(device, name, "adopt", proof)
        try:
            row = self._lifecycle_for().adopt(owner, name, request, device)
        except VgpuError as error:
            return Finding(device, name, "kept", error.message)
        if row is None:
            return Finding(device, name, "kept", "it was taken or went meanwhile")
        rows.append(row)
        return Finding(device, name, "adopted", proof)
