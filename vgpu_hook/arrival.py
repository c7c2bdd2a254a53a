"""The XML of a VM that wakes up here, from a saved image or another host: which devices it gets.

libvirt takes what the `restore` and `migrate` hooks print in place of the XML that they were
given, if the guest would see no difference (facts A6): only what stands behind a hostdev is
changed, in place. What can't be served so is refused, with the way out, and never half edited.
Pure: text in, text out.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from vgpu_hook import domain
from vgpu_hook.admission import attach_command, detach_command
from vgpu_hook.definitions import Plan
from vgpu_hook.model import Domain, Hostdev, Refused, VgpuRequest, shell_word


class Plans(Protocol):
    """What a host has for a VM that wakes up on it (planning.Planner)."""

    def __call__(self, subject: Domain, request: VgpuRequest) -> Plan:
        """Return the hostdev that serves the request."""

    def current(self, subject: Domain, slot: str) -> str | None:
        """Return the VF that the domain's definition was given for the slot."""

    def same_type(self, one: VgpuRequest, other: VgpuRequest) -> bool:
        """Tell whether two requests are for the same type of vGPU."""


class Arrival(NamedTuple):
    """The XML to go on with, and what was done to it; nothing, if it is as it was given."""

    text: bytes
    changes: tuple[str, ...]


def rewrite(
    text: bytes,
    subject: Domain,
    plan: Plans,
    stands: tuple[VgpuRequest, ...] | None = None,
) -> Arrival:
    """Return the XML with a device of this host behind each slot; or raise Refused.

    `stands`: what the domain asks for by now, which a saved image can't change (R9); None if
    that is what the XML says. R8: a VM that wakes up as a fork gets devices of its own.
    """
    if stands is not None:
        check_saved(subject, stands, plan)
    changes = []
    for request in subject.request if stands is None else stands:
        there = subject.hostdev(request.slot)
        if there is None:
            continue  # refused by the start that follows
        hostdev, inherited = plan(_with_current(subject, there, plan), request)
        if inherited and request.fork != "new":
            raise _fork_refused(subject, request)
        if hostdev is None:
            continue  # the start that follows says why
        if _is_same(there, hostdev) and request in subject.request and not inherited:
            continue
        text = domain.repoint(text, request, hostdev)
        changes.append(f"slot {request.slot}: {hostdev.address} in place of {there.address}")
    return Arrival(text, tuple(changes))


def check_saved(subject: Domain, stands: tuple[VgpuRequest, ...], plan: Plans | None) -> None:
    """Refuse a saved image with other vGPUs than the domain has now: its guest can't change them.

    `plan` tells profiles apart; None if the image has no request at all.
    """
    saved = {request.slot: request for request in subject.request}
    slots = [hostdev.slot for hostdev in subject.hostdevs if hostdev.slot is not None]
    name = shell_word(subject.name)
    afresh = f"to start afresh instead, drop a managed save: virsh managedsave-remove {name}"
    new = [request for request in stands if request.slot not in slots]
    if new:
        commands = " && ".join(detach_command(subject.name, request.slot) for request in new)
        raise Refused(
            f"domain {subject.name!r}: its saved state is from before it asked for"
            f" {_profiles(new)}",
            f"to go on from it run: {commands}; {afresh}",
        )
    asked = {request.slot: request for request in stands}
    for slot in slots:
        was, now = saved.get(slot), asked.get(slot)
        same = was is not None and now is not None and (plan is None or plan.same_type(was, now))
        if same:
            continue
        kind = f"profile {was.profile!r}" if was is not None else "a profile that it doesn't say"
        asks = f"asks for {now.profile!r} there now" if now else "asks for none there now"
        back = VgpuRequest(slot, was.profile) if was is not None else None
        way = f"to go on from it run: {attach_command(subject.name, back)}; " if back else ""
        raise Refused(
            f"domain {subject.name!r}: its saved state has a vGPU of {kind} in slot {slot!r},"
            f" but it {asks}",
            f"{way}{afresh}",
        )


def _with_current(subject: Domain, there: Hostdev, plan: Plans) -> Domain:
    """Return the domain as if the slot named what its definition was given, if that is a VF."""
    current = plan.current(subject, there.slot or "")
    if current is None or there.type != "pci":
        return subject
    named = there._replace(address=current)
    hostdevs = tuple(named if hostdev is there else hostdev for hostdev in subject.hostdevs)
    return subject._replace(hostdevs=hostdevs)


def _is_same(there: Hostdev, planned: Hostdev) -> bool:
    """Tell whether a hostdev is what was planned; the guest's side of it is not compared."""
    kept = there._replace(model=planned.model)
    return kept == planned


def _profiles(requests: list[VgpuRequest]) -> str:
    return ", ".join(f"{r.profile!r} in slot {r.slot!r}" for r in requests)


def _fork_refused(subject: Domain, request: VgpuRequest) -> Refused:
    policy = "gets none" if request.fork == "none" else "must not start"
    return Refused(
        f"domain {subject.name!r}: its state is that of another domain, and the request of slot"
        f" {request.slot!r} says that a fork {policy}; a vGPU can't be taken out of a saved guest",
        "set fork='new' in its <metadata>: virsh save-image-edit FILE",
    )
