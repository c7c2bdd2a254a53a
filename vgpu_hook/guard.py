"""The guard (R6): may this device be destroyed? One place for all who ask.

It may only if everything is proved: the record is of this boot, no other record names the
device, the kernel has it as it was made, and nobody has its VFIO handle open. What can't
be told counts against it (I2). The guard reads and never writes; its facts are what
`vgpu-hook explain` shows.
"""

from __future__ import annotations

from typing import NamedTuple

from vgpu_hook import vfio
from vgpu_hook.frameworks import Framework
from vgpu_hook.model import Assignment, Found, KernelError
from vgpu_hook.sysfs import Roots

GONE = "gone"
DESTROY = "destroy"
KEEP = "keep"


class Fact(NamedTuple):
    """One thing that the guard looked at; `good` if it speaks for destroying."""

    good: bool
    text: str


class Verdict(NamedTuple):
    """What the guard answers, from which facts."""

    action: str
    facts: tuple[Fact, ...]

    @property
    def reason(self) -> str:
        """Say why the device is kept; empty if it is not."""
        return "; ".join(fact.text for fact in self.facts if not fact.good)


def judge(
    row: Assignment,
    others: tuple[Assignment, ...],
    boot_id: str,
    framework: Framework,
    roots: Roots,
) -> Verdict:
    """Return the verdict on the device of `row`. `others` are other rows that name it.

    May block in the kernel: callers bound it.
    """
    if framework.fixed and row.boot_id != boot_id:  # whatever it carries now is another vGPU (I9)
        return Verdict(GONE, (Fact(True, "a VF loses its type when its host goes down"),))
    try:
        found = framework.find(row.device, row.parent)
    except KernelError as error:
        return Verdict(KEEP, (Fact(False, f"can't tell whether it exists: {error.message}"),))
    if found is None:
        return Verdict(GONE, (Fact(True, "the kernel has no such device"),))
    facts = (
        _of_this_boot(row, boot_id),
        _named_once(others),
        _as_made(row, found),
        _settled(found),
        _not_open(found, roots),
    )
    return Verdict(DESTROY if all(fact.good for fact in facts) else KEEP, facts)


def unused(found: Found, roots: Roots) -> Fact:
    """Tell whether nobody holds the device open, and nothing is taking it down."""
    settled = _settled(found)
    return _not_open(found, roots) if settled.good else settled


def _of_this_boot(row: Assignment, boot_id: str) -> Fact:
    if row.boot_id == boot_id:
        return Fact(True, "the record was made in this boot")
    return Fact(False, "the record is of another boot of the host and proves nothing")


def _named_once(others: tuple[Assignment, ...]) -> Fact:
    if not others:
        return Fact(True, "no other record names it")
    names = ", ".join(f"{row.domain_name!r} slot {row.slot} ({row.state})" for row in others)
    return Fact(False, f"another record names it too: {names}")


def _as_made(row: Assignment, found: Found) -> Fact:
    if found.type and (found.type, found.parent) == (row.type, row.parent):
        where = f"{row.parent} ({found.detail})" if found.detail else row.parent
        return Fact(True, f"it is {row.type} on {where}, as recorded")
    return Fact(
        False,
        f"it is {found.type or 'of no known type'} on {found.parent},"
        f" not {row.type} on {row.parent} as recorded",
    )


def _settled(found: Found) -> Fact:
    if found.removing:
        return Fact(False, "the kernel has begun to remove it and waits for its user")
    return Fact(True, "the kernel is not removing it")


def _not_open(found: Found, roots: Roots) -> Fact:
    if not found.handles:
        return Fact(False, "it has no IOMMU group, so who uses it can't be told")
    try:
        holders = vfio.holders(roots.proc, found.handles)
    except KernelError as error:
        return Fact(False, f"can't tell who uses it: {error.message}")
    if holders:
        users = ", ".join(f"{h.command} (pid {h.pid}, {h.path})" for h in holders)
        return Fact(False, f"in use by {users}")
    return Fact(True, f"nobody has {' or '.join(found.handles)} open")
