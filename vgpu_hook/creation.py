"""Takes one vGPU for a slot: chooses a parent, commits the intent, makes it, commits the result.

A part of lifecycle (R6, R11, R13), which calls it under the domain's lock. The kernel has
the last word on what fits: a parent that refuses is tried again once, since others may
have been quicker, and then left out.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable

from vgpu_hook import placement, refusals
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.host import Host
from vgpu_hook.model import (
    ASSIGNED,
    FRAMEWORK,
    Assignment,
    DeadlineExceeded,
    Domain,
    Found,
    Hostdev,
    KernelError,
    NotAsAsked,
    Parent,
    Refused,
    Unblamed,
    VgpuError,
    VgpuRequest,
    new_assignment,
)
from vgpu_hook.placement import Candidate, Wishes
from vgpu_hook.refusals import Wanted
from vgpu_hook.store import Store
from vgpu_hook.store_devices import CREATE, failure_of, quarantined

TRIES_PER_PARENT = 2


class _Taken(Exception):
    """The device has come on record since it was looked at."""


class _NoRoom(Exception):
    """No parent will do."""


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
                raise self._unusable(wanted, refusals.taken(row))
        found = self._find(wanted)
        rows = self._store.of_device(wanted.device)
        if rows and fixed:  # another start was quicker, meanwhile
            raise self._unusable(wanted, refusals.taken(rows[0]))
        if found is not None and fixed:
            dirty = f"{found.device} carries {found.type}, which is not on record"
            raise self._unusable(wanted, dirty)
        if found is not None:
            return self._adopt(wanted, found)
        for row in rows:  # of another boot; it can't be judged
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
            return self._host.find(wanted.framework, wanted.device, self._share(wanted))
        except (KernelError, DeadlineExceeded) as error:
            if self._host.framework(wanted.framework).fixed:
                cause = f"{wanted.device} can't be read: {error.message}"
                raise self._unusable(wanted, cause) from error
            raise

    def _intend(self, wanted: Wanted, failures: dict[str, list[str]]) -> Assignment:
        """Choose a parent and commit the intent; raise Refused if none will do."""
        request = wanted.request
        serving = self._serving(wanted)
        found = [
            candidate
            for candidate in placement.candidates(serving, request.profile, request.gpu)
            if candidate.parent.framework == wanted.framework
            and len(failures.get(candidate.parent.name, ())) < TRIES_PER_PARENT
        ]
        policy, nodes = request.placement or self._policy, self._nodes_of(wanted.domain)

        def choose(pending: list[Assignment]) -> Assignment:
            if any(self._store.of_device(wanted.device)):  # another start was quicker
                raise _Taken
            wishes = Wishes(policy, nodes, Counter(row.parent for row in pending))
            best = placement.order(found, wishes)
            if not best:
                raise _NoRoom
            return self._row(wanted, best[0])

        try:
            return self._store.intend(self._host.boot_id, choose)
        except _NoRoom:
            tried = (text for texts in failures.values() for text in texts)
            fixed = self._host.framework(wanted.framework).fixed
            parents = self._parents() if fixed else serving
            own = serving[0] if fixed else None
            rows, avoided = self._store.all(), self._avoided(wanted)
            raise refusals.no_room(wanted, parents, rows, tried, avoided, own) from None
        except _Taken:
            rows = self._store.of_device(wanted.device)
            raise self._unusable(wanted, refusals.taken(rows[0])) from None

    def _share(self, wanted: Wanted) -> Deadline:
        """Return the time for reading one VF: one that hangs must leave some to say what to do."""
        fixed = self._host.framework(wanted.framework).fixed
        return self._deadline.capped(self._deadline.remaining() / 4) if fixed else self._deadline

    def _serving(self, wanted: Wanted) -> tuple[Parent, ...]:
        """Return the one VF that the hostdev names, or for an mdev the parents of the host."""
        if self._host.framework(wanted.framework).fixed:
            share = self._share(wanted)
            one = self._host.parent(wanted.framework, wanted.device, share)
            return completed((one,), self._store.devices)
        return self._parents()

    def _avoided(self, wanted: Wanted) -> frozenset[str]:
        """Return the VFs that planning would not give to this slot."""
        failures = self._store.devices.failures()
        slot = (wanted.domain.uuid, wanted.request.slot)
        mine = {f.device for f in failures if (f.domain_uuid, f.slot) == slot}
        return frozenset(mine | quarantined(failures).keys())

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
        if self._host.framework(row.framework).fixed and not isinstance(error, Unblamed):
            self._store.devices.note_failure(failure_of(row, CREATE, error.message))

    def _unusable(self, wanted: Wanted, cause: str) -> Refused:
        rows = self._store.all()
        try:
            parents = self._parents()
        except DeadlineExceeded:
            return wanted.refused(cause)
        return refusals.unusable(wanted, cause, parents, rows, self._avoided(wanted))

    def _parents(self) -> tuple[Parent, ...]:
        return completed(self._host.parents(self._deadline), self._store.devices)

    def _nodes_of(self, domain: Domain) -> frozenset[int]:
        return self._host.nodes_of(domain, self._deadline)
