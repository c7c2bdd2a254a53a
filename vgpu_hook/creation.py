"""Takes one vGPU for a slot: chooses a parent, commits the intent, makes it, commits the result.

A part of lifecycle (R6, R11, R13), which calls it under the domain's lock. The kernel has
the last word on what fits: a parent that refuses is tried again once, since others may
have been quicker, and then left out.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from vgpu_hook import placement
from vgpu_hook.admission import attach_command
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.host import Host
from vgpu_hook.model import (
    ASSIGNED,
    FRAMEWORK,
    RETAINED,
    Assignment,
    Domain,
    Found,
    Hostdev,
    KernelError,
    NoCapacity,
    NotAsAsked,
    Parent,
    Refused,
    VgpuError,
    VgpuRequest,
    new_assignment,
)
from vgpu_hook.placement import Candidate, Wishes
from vgpu_hook.store import Store
from vgpu_hook.store_devices import CREATE, failure_of

TRIES_PER_PARENT = 2


class Wanted(NamedTuple):
    """One vGPU to be taken: `device` is what the domain's hostdev names, an mdev's UUID or a VF."""

    domain: Domain
    request: VgpuRequest
    framework: str
    device: str

    def refused(self, cause: str, hint: str = "") -> Refused:
        """Return the refusal of the domain's start for this vGPU."""
        return Refused(
            f"domain {self.domain.name!r} (slot {self.request.slot!r}): {cause}",
            hint or f"run: vgpu-hook explain {self.device}",
        )

    def elsewhere(self, cause: str) -> Refused:
        """Return the refusal for a VF that can't be used while others can."""
        hint = f"run: {attach_command(self.domain.name, self.request)}"
        return self.refused(
            f"{cause}; another VF is free", f"{hint} (vgpu-hookd does so by itself)"
        )


class Creation:
    """Takes vGPUs for one start, by `deadline`.

    `give_back` releases a row and returns it if it had to be retained; `retain` keeps it.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        policy: str,
        deadline: Deadline,
        give_back: Callable[[Assignment, str], Assignment | None],
        retain: Callable[[Assignment, str], Assignment],
    ) -> None:
        self._host = host
        self._store = store
        self._policy = policy
        self._deadline = deadline
        self._give_back = give_back
        self._retain = retain

    def take(self, domain: Domain, request: VgpuRequest, hostdev: Hostdev) -> Assignment:
        """Return the slot's assignment, its device made or adopted; or raise VgpuError."""
        wanted = Wanted(domain, request, FRAMEWORK[hostdev.type], hostdev.address)
        fixed = self._host.framework(wanted.framework).fixed
        for row in self._store.of_device(wanted.device):
            if fixed and row.boot_id != self._host.boot_id:
                # Of whichever domain: its VF has lost the type with the host's last boot.
                self._store.forget(row, "released", "a VF loses its type when its host goes down")
            elif fixed:
                self._refuse_taken(wanted, row)
        found = self._find(wanted)
        if found is not None and fixed:
            self._refuse_dirty(wanted, found)
        elif found is not None:
            return self._adopt(wanted, found)
        for row in self._store.of_device(wanted.device):  # of another boot; it can't be judged
            raise wanted.refused(f"{wanted.device} is on record ({row.state}): {row.reason}")
        failures: dict[str, list[str]] = {}
        while True:
            row = self._intend(wanted, failures)
            try:
                return self._create(wanted, row)
            except KernelError as error:
                failures.setdefault(row.parent, []).append(error.message)

    def _find(self, wanted: Wanted) -> Found | None:
        try:
            return self._host.find(wanted.framework, wanted.device, self._deadline)
        except KernelError as error:
            if self._host.framework(wanted.framework).fixed:
                self._refuse_vf(wanted, f"{wanted.device} can't be read: {error.message}")
            raise

    def _intend(self, wanted: Wanted, failures: dict[str, list[str]]) -> Assignment:
        """Choose a parent and commit the intent; raise Refused if none will do."""
        request = wanted.request
        parents = self._parents()
        found = [
            candidate
            for candidate in placement.candidates(parents, request.profile, request.gpu)
            if len(failures.get(candidate.parent.name, ())) < TRIES_PER_PARENT
            and self._serves(wanted, candidate)
        ]
        policy, nodes = request.placement or self._policy, self._nodes_of(wanted.domain)

        def choose(pending: list[Assignment]) -> Assignment:
            wishes = Wishes(policy, nodes, Counter(row.parent for row in pending))
            best = placement.order(found, wishes)
            if not best:
                self._refuse(wanted, parents, failures)
            return self._row(wanted, best[0])

        return self._store.intend(self._host.boot_id, choose)

    def _serves(self, wanted: Wanted, candidate: Candidate) -> bool:
        """Tell whether the candidate can carry the device that the hostdev names."""
        parent = candidate.parent
        if parent.framework != wanted.framework:
            return False
        fixed = self._host.framework(wanted.framework).fixed
        return not fixed or parent.name == wanted.device

    def _create(self, wanted: Wanted, row: Assignment) -> Assignment:
        """Make the device of a committed intent, and commit the result.

        Raises KernelError if it is surely not there and another parent may be tried.
        """
        try:
            self._host.create(row, wanted.request.params, self._deadline)
        except NotAsAsked as error:
            self._failed(row, error)
            self._give_back(self._store.correct_type(row, error.type), error.message)
            raise wanted.refused(error.message) from error
        except KernelError as error:
            self._failed(row, error)
            if error.code == errno.EEXIST:  # somebody else made it: not ours to remove
                self._store.forget(row, "create failed", error.message)
                raise wanted.refused(error.message) from error
            left = self._give_back(row, f"create failed: {error.message}")
            if left is not None:
                raise wanted.refused(f"{error.message}; what is there: {left.reason}") from error
            raise
        except VgpuError as error:
            self._retain(row, error.message)
            raise wanted.refused(error.message) from error
        self._store.devices.clear_failures(row.device, CREATE)
        assigned = self._store.move(row, ASSIGNED, "assigned")
        if assigned is None:
            raise wanted.refused(f"the record of {row.device} was changed by another process")
        return assigned

    def _adopt(self, wanted: Wanted, found: Found) -> Assignment:
        """Take a device that is there already: its UUID proves that it is this slot's.

        Nothing is written to it. It must be what is asked for, and nobody may use it.
        """
        request = wanted.request
        fitting = [
            candidate
            for candidate in placement.candidates(self._parents(), request.profile, request.gpu)
            if (candidate.parent.name, candidate.type.id) == (found.parent, found.type)
        ]
        fact = self._host.unused(found, self._deadline)
        if not fitting or not fact.good:
            cause = f"it is {found.type} on {found.parent}" if fact.good else fact.text
            raise wanted.refused(
                f"vGPU {found.device} exists already and can't be used for profile"
                f" {request.profile!r}: {cause}"
            )
        row = self._row(wanted, fitting[0])
        return self._store.adopt(row, f"{found.type} on {found.parent} was there already")

    def _row(self, wanted: Wanted, candidate: Candidate) -> Assignment:
        domain, request = wanted.domain, wanted.request
        return new_assignment(
            domain.uuid,
            domain.name,
            request,
            candidate.parent,
            candidate.type.id,
            self._host.boot_id,
            wanted.device,
        )

    def _failed(self, row: Assignment, error: KernelError) -> None:
        """Count what is a fault of the VF, and not a lack of room, towards its quarantine."""
        if self._host.framework(row.framework).fixed and not isinstance(error, NoCapacity):
            self._store.devices.note_failure(failure_of(row, CREATE, error.message))

    def _refuse_taken(self, wanted: Wanted, row: Assignment) -> None:
        """Refuse a VF that is on record, with what holds all of them if none is free."""
        if row.domain_uuid == wanted.domain.uuid and row.slot == wanted.request.slot:
            raise wanted.refused(f"{row.device} is on record ({row.state}): {row.reason}")
        cause = f"{row.device} is in use by domain {row.domain_name!r}"
        if row.state == RETAINED:
            cause = f"{row.device} could not be released by domain {row.domain_name!r}"
        self._refuse_vf(wanted, cause)

    def _refuse_dirty(self, wanted: Wanted, found: Found) -> None:
        """Refuse a VF that carries a type and is on nobody's record: it may be anybody's."""
        self._refuse_vf(wanted, f"{found.device} carries {found.type}, which is not on record")

    def _refuse_vf(self, wanted: Wanted, cause: str) -> NoReturn:
        request = wanted.request
        parents = self._parents()
        rows = self._store.all()
        taken = {row.device for row in rows}
        room = placement.candidates(parents, request.profile, request.gpu)
        if any(c.type.available and c.parent.name not in taken for c in room):
            raise wanted.elsewhere(cause)
        holders = {row.device: row.domain_name for row in rows}
        why = placement.why_not(parents, request.profile, request.gpu, holders)
        raise wanted.refused(f"{cause}; {why.message}", why.hint)

    def _parents(self) -> tuple[Parent, ...]:
        return completed(self._host.parents(self._deadline), self._store.devices)

    def _nodes_of(self, domain: Domain) -> frozenset[int]:
        return self._host.nodes_of(domain, self._deadline)

    def _refuse(
        self, wanted: Wanted, parents: tuple[Parent, ...], failures: dict[str, list[str]]
    ) -> NoReturn:
        """Raise the refusal for lack of room, with what exists and what was tried."""
        request = wanted.request
        holders = {row.device: row.domain_name for row in self._store.all()}
        cause = placement.why_not(parents, request.profile, request.gpu, holders)
        text = cause.message
        offers = placement.candidates(parents, request.profile, request.gpu)
        room = [
            c for c in placement.order(offers, Wishes()) if c.parent.framework == wanted.framework
        ]
        if failures and room:
            tried = "; ".join(dict.fromkeys(text for texts in failures.values() for text in texts))
            text = f"no vGPU of profile {request.profile!r} could be made: {tried}"
        if self._host.framework(wanted.framework).fixed:
            text = self._about_vf(wanted, parents, text if failures else "") or text
            if any(c.parent.name not in {wanted.device, *holders} for c in room):
                raise wanted.elsewhere(text)
        raise wanted.refused(text, cause.hint)

    def _about_vf(self, wanted: Wanted, parents: tuple[Parent, ...], failed: str) -> str:
        """Say what is wrong with the VF itself; empty if it is only that the card is full."""
        vf = next((p for p in parents if p.name == wanted.device and not p.state), None)
        if vf is None or vf.framework != wanted.framework:
            return f"its hostdev names {wanted.device}, which is no VF that can be a vGPU here"
        if vf.problem:
            return f"{wanted.device} can't be used: {vf.problem}"
        return failed
