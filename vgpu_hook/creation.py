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
from vgpu_hook.bounded import Deadline
from vgpu_hook.host import Host
from vgpu_hook.model import (
    ASSIGNED,
    Assignment,
    Domain,
    Found,
    KernelError,
    Parent,
    Refused,
    VgpuError,
    VgpuRequest,
    derive_device_uuid,
    new_assignment,
)
from vgpu_hook.placement import Candidate
from vgpu_hook.store import Store

TRIES_PER_PARENT = 2


class Wanted(NamedTuple):
    """One vGPU to be taken: `device` is the UUID derived from the domain and the slot."""

    domain: Domain
    request: VgpuRequest
    device: str

    def refused(self, cause: str, hint: str = "") -> Refused:
        """Return the refusal of the domain's start for this vGPU."""
        return Refused(
            f"domain {self.domain.name!r} (slot {self.request.slot!r}): {cause}",
            hint or f"run: vgpu-hook explain {self.device}",
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

    def take(self, domain: Domain, request: VgpuRequest) -> Assignment:
        """Return the slot's assignment, its device made or adopted; or raise VgpuError."""
        device = derive_device_uuid(domain.uuid, request.slot)
        wanted = Wanted(domain, request, device)
        found = self._host.find("mdev", device, self._deadline)
        if found is not None:
            return self._adopt(wanted, found)
        for row in self._store.of_device(device):  # of another boot, and it could not be judged
            raise wanted.refused(f"{device} is on record ({row.state}): {row.reason}")
        failures: dict[str, list[str]] = {}
        while True:
            row = self._intend(wanted, failures)
            try:
                return self._create(wanted, row)
            except KernelError as error:
                failures.setdefault(row.parent, []).append(error.message)

    def _intend(self, wanted: Wanted, failures: dict[str, list[str]]) -> Assignment:
        """Choose a parent and commit the intent; raise Refused if none will do."""
        request = wanted.request
        parents = self._host.parents(self._deadline)
        found = [
            candidate
            for candidate in placement.candidates(parents, request.profile, request.gpu)
            if len(failures.get(candidate.parent.name, ())) < TRIES_PER_PARENT
        ]

        def choose(pending: list[Assignment]) -> Assignment:
            waiting = Counter(row.parent for row in pending)
            best = placement.order(found, self._policy, waiting)
            if not best:
                self._refuse(wanted, parents, failures)
            return self._row(wanted, best[0])

        return self._store.intend(self._host.boot_id, choose)

    def _create(self, wanted: Wanted, row: Assignment) -> Assignment:
        """Make the device of a committed intent, and commit the result.

        Raises KernelError if it is surely not there and another parent may be tried.
        """
        try:
            self._host.create(row, wanted.request.params, self._deadline)
        except KernelError as error:
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
            for candidate in placement.candidates(
                self._host.parents(self._deadline), request.profile, request.gpu
            )
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
        domain, request, _ = wanted
        return new_assignment(
            domain.uuid,
            domain.name,
            request,
            candidate.parent,
            candidate.type.id,
            self._host.boot_id,
        )

    def _refuse(
        self, wanted: Wanted, parents: tuple[Parent, ...], failures: dict[str, list[str]]
    ) -> NoReturn:
        """Raise the refusal for lack of room, with what exists and what was tried."""
        request = wanted.request
        cause = placement.why_not(parents, request.profile, request.gpu)
        text = cause.message
        room = placement.candidates(parents, request.profile, request.gpu)
        if failures and placement.order(room, self._policy):
            tried = "; ".join(dict.fromkeys(text for texts in failures.values() for text in texts))
            text = f"no vGPU of profile {request.profile!r} could be made: {tried}"
        raise wanted.refused(text, cause.hint)
