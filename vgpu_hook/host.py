"""The host's vGPU devices, asked and changed in bounded children.

Knows which frameworks there are. Decides nothing: what may be destroyed is the guard's
answer, what is wanted is lifecycle's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vgpu_hook import bounded, guard
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.frameworks import Framework
from vgpu_hook.frameworks.mdev import Mdev
from vgpu_hook.model import Assignment, DeadlineExceeded, Found, Parent, VgpuError

T = TypeVar("T")


class Host:
    """One host in this boot. Every method but `framework` raises DeadlineExceeded too."""

    def __init__(self, settings: Settings, boot_id: str) -> None:
        self._settings = settings
        self.boot_id = boot_id
        self.lock: tuple[int, ...] = ()
        """The lock under which the calls are made: a child that outlives us keeps it."""
        mdev = Mdev(settings.roots)
        self._frameworks: dict[str, Framework] = {mdev.name: mdev}

    def framework(self, name: str) -> Framework:
        """Return the framework; raise VgpuError for one that is not known (R13)."""
        if name not in self._frameworks:
            raise VgpuError(f"the framework {name!r} is not known to this version")
        return self._frameworks[name]

    def parents(self, deadline: Deadline) -> tuple[Parent, ...]:
        """Return the parents, without the GPUs that the configuration leaves out."""
        found: list[Parent] = []
        for framework in self._frameworks.values():
            doing = f"reading the {framework.name} parents"
            try:
                share = deadline.capped(deadline.remaining() / 2)
                found += self._ask(doing, share, framework.parents)
            except DeadlineExceeded:
                found += self._parents_one_by_one(framework, deadline)
        return tuple(parent for parent in found if not self._left_out(parent))

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
        return self._ask(
            f"creating {row.device} ({row.type} on {row.parent})",
            deadline,
            self.framework(row.framework).create,
            row.device,
            row.parent,
            row.type,
            params,
        )

    def destroy(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        """Destroy the row's device if the guard still allows it right before the write.

        The intent must have been committed. Returns what the guard said.
        """
        doing = f"removing {row.device} from {row.parent}"
        return self._ask(doing, deadline, self._judge_and_destroy, row, others, deadline)

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

    def _judge(self, row: Assignment, others: tuple[Assignment, ...]) -> guard.Verdict:
        framework = self.framework(row.framework)
        return guard.judge(row, others, self.boot_id, framework, self._settings.roots)

    def _judge_and_destroy(
        self, row: Assignment, others: tuple[Assignment, ...], deadline: Deadline
    ) -> guard.Verdict:
        verdict = self._judge(row, others)
        if not deadline.remaining():  # frozen meanwhile: others may have gone on (R12)
            raise DeadlineExceeded(f"no time was left for removing {row.device}")
        if verdict.action == guard.DESTROY:
            self.framework(row.framework).destroy(row.device, row.parent)
        return verdict

    def _left_out(self, parent: Parent) -> bool:
        unused = self._settings.unused_gpus
        return parent.gpu.casefold() in unused or parent.name.casefold() in unused

    def _ask(self, doing: str, deadline: Deadline, call: Callable[..., T], *args: Any) -> T:
        return bounded.run(call, *args, deadline=deadline, doing=doing, keep=self.lock)
