"""The rules of a vGPU's life, in one place, called by all who act (docs/rules.md).

Never calls libvirt: libvirt waits for this code. Whatever asks the kernel runs in a
bounded child (host.py), and every state is committed before and after (store.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from vgpu_hook import admission, arrival, guard
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.config import Settings
from vgpu_hook.creation import Creation
from vgpu_hook.host import Host
from vgpu_hook.locks import domain_lock, planning_lock
from vgpu_hook.log import Log
from vgpu_hook.model import (
    HOSTDEV_TYPE,
    MDEV,
    RELEASING,
    RETAINED,
    VENDOR_VFIO,
    Assignment,
    DeadlineExceeded,
    Domain,
    Hostdev,
    KernelError,
    Parent,
    Refused,
    Unblamed,
    VgpuError,
    VgpuRequest,
    new_assignment,
    shell_word,
)
from vgpu_hook.planning import Planner
from vgpu_hook.store import Store
from vgpu_hook.store_devices import RESET, failure_of

TAKING_SHARE = 0.7
"""Of a start's time; the rest is kept for giving back what was taken (R11)."""


class Context(NamedTuple):
    """What a call works with; `deadline` is the whole call's."""

    settings: Settings
    host: Host
    store: Store
    log: Log
    deadline: Deadline


class Lifecycle:
    """The rules, for the length of one call."""

    def __init__(self, context: Context) -> None:
        self._settings, self._host, self._store, self._log, self._deadline = context

    # -- start --------------------------------------------------------------------------

    def prepare(self, domain: Domain) -> list[Assignment]:
        """Give the domain the vGPUs that it asks for, all of them, or raise VgpuError.

        R8, R13: nothing is done for a hostdev that is not the domain's own, or not understood.
        """
        requests = admission.admit(domain, records_of(domain, self._store, self._host.boot_id))
        if not requests:
            return []
        taking = Deadline(self._deadline.remaining() * TAKING_SHARE)
        with self._locked(domain.uuid, taking):
            self._note(domain)
            self._refuse_if_deleting(domain)
            self._release_stale(domain, taking)
            creation = self._creation(taking)
            taken: list[Assignment] = []
            try:
                for request, hostdev in requests:
                    taken.append(creation.take(domain, request, hostdev))
                    self._report("assigned", taken[-1])
            except VgpuError as error:
                # R11: all or nothing; what was taken is given back, and only that.
                for row in reversed(taken):
                    self._give_back(row, f"given back: {error.message}")
                raise
            return taken

    def _creation(self, deadline: Deadline) -> Creation:
        policy = self._settings.placement
        return Creation(self._host, self._store, policy, deadline, self._give_back, self._retain)

    def _note(self, domain: Domain) -> None:
        """Record what the domain asks for, if it is new, and which VFs it names.

        What the listener has on record stands: this may be an old definition, with which a
        snapshot's VM is started before anybody hears of the revert (R9).
        """
        if not self._store.domains.requests(domain.uuid):
            self._store.domains.set_requests(domain.uuid, domain.name, domain.request)
        for request in domain.request:
            hostdev = domain.hostdev(request.slot)
            if hostdev is not None and hostdev.type == HOSTDEV_TYPE[VENDOR_VFIO]:
                self._store.devices.reserve(domain.uuid, request.slot, hostdev.address)

    def _refuse_if_deleting(self, domain: Domain) -> None:
        """R10: nobody starts a domain that is being deleted."""
        since = self._store.domains.deleting_since(domain.uuid)
        if since is not None:
            name = shell_word(domain.name)
            raise Refused(
                f"domain {domain.name!r} is being deleted (since {since})",
                f"run: vgpu-hook delete {name}, or with --cancel",
            )

    def _release_stale(self, domain: Domain, deadline: Deadline) -> None:
        """R5: what an earlier run left goes first, and each release is persisted at once.

        A record of another boot proves nothing (I9): whether its device can be used is seen
        when it is taken, and it stands until then.
        """
        named = {hostdev.address for hostdev in domain.hostdevs}
        for row, share in self._shares(self._store.of_domain(domain.uuid), deadline):
            left = self._release(row, share)
            # One that can't be released does not keep the domain from another one.
            if left is not None and row.device in named and left.boot_id == self._host.boot_id:
                raise Refused(
                    f"domain {domain.name!r}: the vGPU {row.device} of an earlier run can't be"
                    f" released: {left.reason}",
                    f"run: vgpu-hook explain {row.device}",
                )

    def arrive(self, domain: Domain, text: bytes, *, restored: bool) -> bytes:
        """Return the XML of a VM that wakes up here, with devices of this host; or raise Refused.

        R9: a saved image (`restored`) comes back on what the domain has by now, never on what is
        embedded in it. R8: as a fork, on devices of its own. Nothing is made: `prepare` follows.
        """
        known = restored and self._store.domains.name_of(domain.uuid) is not None
        stands = self._store.domains.requests(domain.uuid) if known else None
        parents = self.parents()
        with planning_lock(self._settings.runtime, self._deadline):
            policy = self._settings.placement
            planner = Planner(parents, self._store, policy, self._nodes_of, reserve=False)
            done = arrival.rewrite(text, domain, planner, stands, restored=restored)
            for hostdev in done.devices:
                if hostdev.type == HOSTDEV_TYPE[VENDOR_VFIO]:
                    slot, vf = hostdev.slot or "", hostdev.address
                    self._store.devices.reserve(domain.uuid, slot, vf, arriving=True)
        for change in done.changes:
            why = "restored" if restored else "migrated"
            self._store.note(domain.uuid, domain.name, why, change)
        return done.text

    def take(self, domain: Domain, request: VgpuRequest, hostdev: Hostdev) -> Assignment:
        """Give a running domain one more vGPU, for hot-plug; or raise VgpuError."""
        with self._locked(domain.uuid, self._deadline):
            self._refuse_if_deleting(domain)
            rows = self._store.of_slot(domain.uuid, request.slot)
            if any(r.state != RETAINED or r.device == hostdev.address for r in rows):
                raise VgpuError(
                    f"domain {domain.name!r} has a vGPU in slot {request.slot!r} already",
                    f"run: vgpu-hook explain {shell_word(domain.name)}",
                )
            row = self._creation(self._deadline).take(domain, request, hostdev)
            self._report("assigned", row)
            return row

    def adopt(
        self, domain_uuid: str, name: str, request: VgpuRequest, framework: str, device: str
    ) -> Assignment | None:
        """Record a device that is proved to be this slot's (R7); None if it is not free.

        The proof is the caller's: an mdev's UUID, or that the running domain has the VF. Writes
        nothing to it: it may be in use by the very domain, after a lost store.
        """
        with self._locked(domain_uuid, self._deadline):
            found = self._host.find(framework, device, self._deadline)
            if found is None or found.removing or self._store.of_device(device):
                return None
            boot_id = self._host.boot_id
            row = new_assignment(domain_uuid, name, request, found, found.type, boot_id, device)
            row = self._store.adopt(row, f"{found.type} on {found.parent} was not on record")
            self._report("adopted", row)
            return row

    # -- stop, release ------------------------------------------------------------------

    def release_all(
        self,
        domain_uuid: str,
        generations: frozenset[int] | None = None,
        lock_wait: float | None = None,
    ) -> list[Assignment]:
        """Release what the domain has; return what is retained. Persisted when it returns.

        R1, R2: called before libvirt goes on with the teardown, which waits for it.
        R3: a device that can't be released raises nothing: it is retained.
        R4: retained ones of earlier stops are tried again.
        R8: acts on records of this very domain alone; a fork can't reach its parent's.
        R12: acts only on `generations`, if given.
        Raises DeadlineExceeded if others hold the domain's lock for `lock_wait` seconds, or for
        too long.
        """
        wait = self._deadline if lock_wait is None else self._deadline.capped(lock_wait)
        with self._locked(domain_uuid, wait):
            rows = [
                row
                for row in self._store.of_domain(domain_uuid)
                if generations is None or row.generation in generations
            ]
            left = [self._release(row, share) for row, share in self._shares(rows, self._deadline)]
            return [row for row in left if row is not None]

    def _release(self, row: Assignment, deadline: Deadline, why: str = "") -> Assignment | None:
        """Release one vGPU if the guard allows it (R6); return the row if it is retained.

        The guard is asked twice: before the intent is committed, and next to the write.
        """
        try:
            verdict = self.judge(row, deadline)
            if verdict.action == guard.DESTROY:
                row = self._moved(row, RELEASING, "intent to release", why)
                verdict = self._host.destroy(row, self._others(row), deadline)
            if verdict.action == guard.KEEP:
                return self._retain(row, verdict.reason)
            gone = verdict.facts[0].text if verdict.action == guard.GONE else ""
            if not self._store.forget(row, "released", why or gone):
                raise _changed(row)
            if verdict.action == guard.DESTROY:
                self._store.devices.clear_failures(row.device, RESET)
        except VgpuError as error:
            self._note_failure(row, error)
            return self._retain(row, error.message)
        self._report("released", row, why or gone)
        return None

    def _give_back(self, row: Assignment, why: str) -> Assignment | None:
        """Release what this very start took."""
        return self._release(row, self._deadline, why)

    def _retain(self, row: Assignment, reason: str) -> Assignment:
        """Keep the record, with the reason, for another try (R3).

        A store that can't be written keeps the row as it was: nothing is lost.
        """
        self._report("retained", row, reason, level="warning")
        try:
            return self._moved(row, RETAINED, "retained", reason)
        except VgpuError as error:
            self._report("store-failed", row, error.message, level="error")
            return row._replace(reason=f"{reason}; {error.message}")

    def _note_failure(self, row: Assignment, error: VgpuError) -> None:
        """Count a reset that the kernel refused towards the VF's quarantine."""
        if not isinstance(error, KernelError) or isinstance(error, Unblamed):
            return
        if self._host.framework(row.framework).fixed:
            with contextlib.suppress(VgpuError):  # the store's own trouble is told by _retain
                self._store.devices.note_failure(failure_of(row, RESET, error.message))

    # -- questions ----------------------------------------------------------------------

    def judge(self, row: Assignment, deadline: Deadline | None = None) -> guard.Verdict:
        """Return the guard's present answer on the row's device."""
        return self._host.judge(row, self._others(row), deadline or self._deadline)

    def parents(self) -> tuple[Parent, ...]:
        """Return the host's parents as they are now."""
        return completed(self._host.parents(self._deadline), self._store.devices)

    def _nodes_of(self, domain: Domain) -> frozenset[int]:
        return self._host.nodes_of(domain, self._deadline)

    # -- inside -------------------------------------------------------------------------

    def _others(self, row: Assignment) -> tuple[Assignment, ...]:
        rows = self._store.of_device(row.device)
        return tuple(other for other in rows if other.generation != row.generation)

    def _moved(self, row: Assignment, state: str, event: str, reason: str = "") -> Assignment:
        """Commit the row's next state; R12: only if nobody has changed it since."""
        moved = self._store.move(row, state, event, reason)
        if moved is None:
            raise _changed(row)
        return moved

    def _shares(
        self, rows: list[Assignment], deadline: Deadline
    ) -> Iterator[tuple[Assignment, Deadline]]:
        """Yield each row with its fair share of the time: one that hangs costs no other its own."""
        for position, row in enumerate(rows):
            yield row, deadline.capped(deadline.remaining() / (len(rows) - position))

    @contextlib.contextmanager
    def _locked(self, domain_uuid: str, deadline: Deadline) -> Iterator[None]:
        with domain_lock(self._settings.runtime, domain_uuid, deadline) as lock:
            if not deadline.remaining():  # frozen meanwhile: others may have gone on (R12)
                raise DeadlineExceeded(f"no time was left for domain {domain_uuid}")
            self._host.lock = (lock,)
            try:
                yield
            finally:
                self._host.lock = ()

    def _report(self, event: str, row: Assignment, detail: str = "", level: str = "info") -> None:
        text = f"{event} vGPU {row.device} ({row.type} on {row.parent}) of {row.domain_name!r}"
        self._log.event(
            event,
            f"{text}: {detail}" if detail else text,
            level=level,
            domain_uuid=row.domain_uuid,
            domain_name=row.domain_name,
            slot=row.slot,
            device=row.device,
            parent=row.parent,
        )


def _changed(row: Assignment) -> VgpuError:
    return VgpuError(
        f"the record of {row.device} (domain {row.domain_name!r}, generation {row.generation})"
        " was changed by another process",
        f"run: vgpu-hook explain {row.device}",
    )


def records_of(domain: Domain, store: Store, boot_id: str) -> admission.Records:
    """Return what is on record of the domain's devices and of other domains' in this boot."""

    def others(device: str) -> list[str]:
        return [
            row.domain_name
            for row in store.of_device(device)
            if row.domain_uuid != domain.uuid and (row.framework == MDEV or row.boot_id == boot_id)
        ]

    def reserved(slot: str) -> str | None:
        return store.devices.reserved(domain.uuid, slot)

    return admission.Records(others, reserved)
