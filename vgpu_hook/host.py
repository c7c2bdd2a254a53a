"""The host's vGPU devices, asked and changed in bounded children.

Knows which frameworks there are. Decides nothing: what may be destroyed is the guard's
answer, what is wanted is lifecycle's business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from vgpu_hook import bounded, guard, sysfs
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.frameworks import Framework
from vgpu_hook.frameworks.mdev import Mdev
from vgpu_hook.frameworks.vendor_vfio import VendorVfio
from vgpu_hook.locks import device_lock
from vgpu_hook.model import (
    Assignment,
    DeadlineExceeded,
    Domain,
    Found,
    KernelError,
    Parent,
    VgpuError,
)
from vgpu_hook.ranges import numbers

T = TypeVar("T")

TRY_PAUSE = 0.5
"""Seconds between tries to destroy a device."""

LASTING = errno.EIO
LASTING_TRIES = 3
"""What drivers answer while they clean up after QEMU is not documented (facts E2; Proxmox tries
again whatever it is). EIO is also what a VF says that is broken: it gets fewer tries."""

TRYING_ENDS = 0.5
"""Of the deadline: what must be left for another try, so that the answer is never late."""


class Host:
    """One host in this boot. Every method but `framework` raises DeadlineExceeded too.

    `run` does the calls in children, by the contract of bounded.run, which does where it is None.
    """

    def __init__(
        self, settings: Settings, boot_id: str, run: Callable[..., Any] | None = None
    ) -> None:
        self._settings = settings
        self._run = run or bounded.run
        self.boot_id = boot_id
        self.lock: tuple[int, ...] = ()
        """The lock under which the calls are made: a child that outlives us keeps it."""
        unused = settings.unused_gpus
        frameworks: tuple[Framework, ...] = (
            Mdev(settings.roots, unused),
            VendorVfio(settings.roots, unused),
        )
        self._frameworks = {framework.name: framework for framework in frameworks}

    def framework(self, name: str) -> Framework:
        """Return the framework; raise VgpuError for one that is not known (R13)."""
        if name not in self._frameworks:
            raise VgpuError(f"the framework {name!r} is not known to this version")
        return self._frameworks[name]

    def parents(self, deadline: Deadline) -> tuple[Parent, ...]:
        """Return the parents, without the GPUs that the configuration leaves out."""
        found: list[Parent] = []
        try:
            share = deadline.capped(deadline.remaining() / 2)
            found += self._ask("reading the parents", share, self._all_parents)
        except DeadlineExceeded:
            for framework in self._frameworks.values():
                share = deadline.capped(deadline.remaining() / 2)
                found += self._parents_one_by_one(framework, share)
        return tuple(parent for parent in found if not self._left_out(parent))

    def parent(self, framework: str, name: str, deadline: Deadline) -> Parent:
        """Return one parent, without reading any other."""
        return self._ask(f"reading {name}", deadline, self.framework(framework).parent, name)

    def find(self, framework: str, device: str, deadline: Deadline) -> Found | None:
        """Return the device as the kernel has it now; None only if it is surely absent."""
        return self._ask(f"looking for {device}", deadline, self.framework(framework).find, device)

    def unused(self, found: Found, deadline: Deadline) -> guard.Fact:
        """Tell whether nobody uses the device."""
        doing = f"looking who uses {found.device}"
        return self._ask(doing, deadline, guard.unused, found, self._settings.roots)

    def judge(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        """Return the guard's present answer on the row's device."""
        return self._ask(f"looking at {row.device}", deadline, self._judge, row, others)

    def create(self, row: Assignment, params: str | None, deadline: Deadline) -> Found:
        """Make the row's device and read it back. Its intent must have been committed."""
        doing = f"creating {row.device} ({row.type} on {row.parent})"
        return self._ask(doing, deadline, self._create, row, params)

    def destroy(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        """Destroy the row's device if the guard still allows it right before the write.

        The intent must have been committed. Returns what the guard said.
        """
        doing = f"removing {row.device} from {row.parent}"
        return self._ask(doing, deadline, self._judge_and_destroy, row, others, deadline)

    def nodes_of(self, domain: Domain, deadline: Deadline) -> frozenset[int]:
        """Return the NUMA nodes that the domain is bound to; none if it is not."""
        if domain.nodes or not domain.cpus:
            return domain.nodes
        return self._ask("reading the NUMA nodes", deadline, self._nodes_of, domain.cpus)

    def _nodes_of(self, cpus: frozenset[int]) -> frozenset[int]:
        top = os.path.join(self._settings.roots.sysfs, "devices/system/node")
        found = set()
        for entry in sysfs.entries(top):
            if entry.startswith("node") and entry[4:].isdecimal():
                text = sysfs.read_text(os.path.join(top, entry, "cpulist")) or ""
                if cpus & numbers(text):
                    found.add(int(entry[4:]))
        return frozenset(found)

    def _all_parents(self) -> list[Parent]:
        return [p for framework in self._frameworks.values() for p in framework.parents()]

    def _parents_one_by_one(self, framework: Framework, deadline: Deadline) -> list[Parent]:
        """Read each parent apart: one that hangs must not hide the others."""
        names = self._ask(f"listing the {framework.name} parents", deadline, framework.names)
        found = []
        for position, name in enumerate(names):
            share = deadline.capped(deadline.remaining() / (len(names) - position + 1))
            try:
                found.append(self._ask(f"reading {name}", share, framework.parent, name))
            except DeadlineExceeded as error:
                found.append(Parent(framework.name, name, name, (), (), error.message))
        return found

    def _create(self, row: Assignment, params: str | None) -> Found:
        with self._device(row):
            framework = self.framework(row.framework)
            return framework.create(row.device, row.parent, row.type, params)

    def _device(self, row: Assignment) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of a VF, on which another assignment may follow; in the child only."""
        if self.framework(row.framework).fixed:
            return device_lock(self._settings.runtime, row.device)
        return contextlib.nullcontext()

    def _judge(self, row: Assignment, others: tuple[Assignment, ...]) -> guard.Verdict:
        try:
            with self._device(row):
                return self._judged(row, others)
        except KernelError as error:
            return guard.Verdict(guard.KEEP, (guard.Fact(False, error.message),))

    def _judged(self, row: Assignment, others: tuple[Assignment, ...]) -> guard.Verdict:
        framework = self.framework(row.framework)
        return guard.judge(row, others, self.boot_id, framework, self._settings.roots)

    def _judge_and_destroy(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        with self._device(row):
            return self._destroy_tried(row, others, deadline)

    def _destroy_tried(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        framework = self.framework(row.framework)
        tries = framework.destroy_tries
        while True:
            verdict = self._judged(row, others)
            if not deadline.remaining():  # frozen meanwhile: others may have gone on (R12)
                raise DeadlineExceeded(f"no time was left for removing {row.device}")
            if verdict.action != guard.DESTROY:
                return verdict
            try:
                framework.destroy(row.device, row.parent)
                return verdict
            except KernelError as error:
                tries = min(tries, LASTING_TRIES) if error.code == LASTING else tries
                tries -= 1
                if tries <= 0 or deadline.remaining() < deadline.seconds * TRYING_ENDS:
                    raise
            time.sleep(TRY_PAUSE)

    def _left_out(self, parent: Parent) -> bool:
        unused = self._settings.unused_gpus
        return parent.gpu.casefold() in unused or parent.name.casefold() in unused

    def _ask(self, doing: str, deadline: Deadline, call: Callable[..., T], *args: Any) -> T:
        found: T = self._run(call, *args, deadline=deadline, doing=doing, keep=self.lock)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """What a child needs of it, that a call is sent to."""
        return {**self.__dict__, "_run": None, "lock": ()}
