"""Why a start can't have the vGPU that it wants, with what to do about it. Pure.

What holds the cards is said when nothing is free; when another VF would do, the remedy is to
have the definition name that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vgpu_hook import placement
from vgpu_hook.admission import attach_command
from vgpu_hook.frameworks import LEFT_OUT
from vgpu_hook.model import VENDOR_VFIO, Assignment, Domain, Parent, Refused, VgpuRequest


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


def unusable(
    wanted: Wanted,
    cause: str,
    parents: tuple[Parent, ...],
    rows: Iterable[Assignment],
    avoided: frozenset[str],
) -> Refused:
    """Return the refusal of the VF that a definition names, for a cause that is about that VF.

    `avoided` are VFs that planning would not give to it.
    """
    holders = {row.device: row.domain_name for row in rows}
    if _others(wanted, parents, avoided.union(holders)):
        return _elsewhere(wanted, cause)
    why = placement.why_not(parents, wanted.request.profile, wanted.request.gpu, holders)
    return wanted.refused(f"{cause}; {why.message}", why.hint)


def no_room(
    wanted: Wanted,
    parents: tuple[Parent, ...],
    rows: Iterable[Assignment],
    tried: Iterable[str],
    avoided: frozenset[str],
    own: Parent | None,
) -> Refused:
    """Return the refusal when no parent will do.

    `tried` are the kernel's answers so far; `own` is the VF that the definition names, if it does.
    """
    request = wanted.request
    holders = {row.device: row.domain_name for row in rows}
    why = placement.why_not(parents, request.profile, request.gpu, holders)
    answers = "; ".join(dict.fromkeys(tried))
    text = why.message
    if answers and _with_room(wanted, parents):
        text = f"no vGPU of profile {request.profile!r} could be made: {answers}"
    if wanted.framework == VENDOR_VFIO:
        text = _about_vf(wanted, parents, own) or text
        if _others(wanted, parents, avoided.union(holders)):
            return _elsewhere(wanted, text)
    return wanted.refused(text, why.hint)


def taken(row: Assignment) -> str:
    """Say who has a VF that is on record."""
    if row.state == "retained":
        return f"{row.device} could not be released by domain {row.domain_name!r}"
    return f"{row.device} is in use by domain {row.domain_name!r}"


def _elsewhere(wanted: Wanted, cause: str) -> Refused:
    command = attach_command(wanted.domain.name, wanted.request)
    return wanted.refused(
        f"{cause}; another VF is free",
        f"vgpu-hookd has the domain name it, so start it again; without vgpu-hookd run: {command}",
    )


def _about_vf(wanted: Wanted, parents: tuple[Parent, ...], own: Parent | None) -> str:
    """Say what is wrong with the VF itself; empty if it is not the VF."""
    if own is not None and own.problem == LEFT_OUT:
        return f"{wanted.device} can't be used: {LEFT_OUT}"
    vf = next((p for p in parents if p.name == wanted.device and not p.state), None)
    if vf is None or vf.framework != wanted.framework:
        return f"its hostdev names {wanted.device}, which is no VF that can be a vGPU here"
    return f"{wanted.device} can't be used: {vf.problem}" if vf.problem else ""


def _with_room(wanted: Wanted, parents: tuple[Parent, ...]) -> list[str]:
    """Return the parents that the vGPU would fit on."""
    offers = placement.candidates(parents, wanted.request.profile, wanted.request.gpu)
    return [
        offer.parent.name
        for offer in offers
        if offer.parent.framework == wanted.framework and offer.type.available
    ]


def _others(wanted: Wanted, parents: tuple[Parent, ...], but: frozenset[str]) -> list[str]:
    """Return the other VFs that are free and that it would fit on."""
    own = {hostdev.address for hostdev in wanted.domain.hostdevs}
    names = _with_room(wanted, parents)
    return [name for name in names if name not in own and name not in but]
