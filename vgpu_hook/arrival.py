"""The XML of a VM that wakes up here, from a saved image or another host: which devices it gets.

libvirt takes what the `restore` and `migrate` hooks print in place of the XML that they were
given, if the guest would see no difference (facts A6): only what stands behind a hostdev is
changed, in place. What can't be served so is refused, with the way out, and never half edited.
Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from vgpu_hook import definitions, domain
from vgpu_hook.admission import attach_command, detach_command
from vgpu_hook.model import (
    HOSTDEV_TYPE,
    VENDOR_VFIO,
    Domain,
    Hostdev,
    Refused,
    VgpuRequest,
    shell_word,
)


class Plans(definitions.Plans, Protocol):
    """What a host has for a VM that wakes up on it (planning.Planner)."""

    def current(self, subject: Domain, slot: str) -> str | None:
        """Return the VF that the domain's definition was given for the slot."""

    def require_offer(self, request: VgpuRequest) -> None:
        """Raise VgpuError if nothing on the host offers the profile."""

    def same_type(self, one: VgpuRequest, other: VgpuRequest) -> bool:
        """Tell whether two requests are for the same type of vGPU."""


class Arrival(NamedTuple):
    """The XML to go on with, the devices behind its slots, and what was done to it.

    The very text that was given, and no changes, if it is right.
    """

    text: bytes
    devices: tuple[Hostdev, ...]
    changes: tuple[str, ...]


def rewrite(
    text: bytes,
    subject: Domain,
    plan: Plans,
    stands: tuple[VgpuRequest, ...] | None = None,
    *,
    restored: bool = False,
) -> Arrival:
    """Return the XML with a device of this host behind each slot; or raise VgpuError.

    `stands`: what the domain asks for by now, which a saved image can't change (R9); None if
    that is what the XML says. R8: a VM that is `restored` as a fork gets devices of its own. One
    that is migrated is what it was; what it may not have is refused by its start.
    """
    if stands is not None:
        check_saved(subject, stands, plan)
    wanted = {r.slot: r for r in (subject.request if stands is None else stands)}
    served = _served(subject, wanted, restored=restored, on_record=stands is not None)
    for hostdev in served:
        plan.require_offer(wanted[hostdev.slot or ""])
    saved = {request.slot: request for request in subject.request}
    current = _with_current(subject, plan)
    devices, changes = [], []
    if subject.refused:
        text = domain.set_refused(text, "")
    for request in subject.request:
        if subject.hostdev(request.slot) is None:  # it ran without one
            text = domain.detach(text, request.slot)
            changes.append(f"slot {request.slot}: asked for, but the VM has none")
    for there in served:
        request = wanted[there.slot or ""]
        planned, inherited = plan(current, request)
        if planned is None:
            continue  # the start that follows says why
        devices.append(planned)
        asked = _asked(request, saved.get(request.slot))
        if _is_same(there, planned) and not inherited and asked in subject.request:
            continue
        text = domain.repoint(text, asked, planned)
        moved = planned.address != there.address
        old = f"in place of {there.address}" if moved else "as it is asked for now"
        changes.append(f"slot {request.slot}: {planned.address} {old}")
    return Arrival(text, tuple(devices), tuple(changes))


def _served(
    subject: Domain, wanted: Mapping[str, VgpuRequest], *, restored: bool, on_record: bool
) -> list[Hostdev]:
    """Return the hostdevs that a request stands behind; refuse those that a fork may not have."""
    served = []
    for hostdev in subject.hostdevs:
        request = wanted.get(hostdev.slot or "")
        if request is None:
            continue  # refused by the start, if it is ours
        if request.fork == "new" or not subject.inherits(hostdev):
            served.append(hostdev)
        elif restored:
            raise _fork_refused(subject, request, on_record=on_record)
    return served


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
        # If the image doesn't say, QEMU finds out whether its state fits.
        if now is not None and (was is None or plan is None or plan.same_type(was, now)):
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


def _with_current(subject: Domain, plan: Plans) -> Domain:
    """Return the domain as if each slot named the VF that its definition was given, if it was."""

    def named(hostdev: Hostdev) -> Hostdev:
        if hostdev.slot is None or hostdev.type != HOSTDEV_TYPE[VENDOR_VFIO]:
            return hostdev
        return hostdev._replace(address=plan.current(subject, hostdev.slot) or hostdev.address)

    return subject._replace(hostdevs=tuple(named(hostdev) for hostdev in subject.hostdevs))


def _asked(now: VgpuRequest, saved: VgpuRequest | None) -> VgpuRequest:
    """Return the request as it is now, but its profile as the image spells it: it is one type."""
    return now._replace(profile=saved.profile) if saved is not None else now


def _is_same(there: Hostdev, planned: Hostdev) -> bool:
    """Tell whether a hostdev is what was planned; the guest's side of it is not compared."""
    kept = there._replace(model=planned.model)
    return kept == planned


def _profiles(requests: list[VgpuRequest]) -> str:
    return ", ".join(f"{r.profile!r} in slot {r.slot!r}" for r in requests)


def _fork_refused(subject: Domain, request: VgpuRequest, *, on_record: bool) -> Refused:
    policy = "gets none" if request.fork == "none" else "must not start"
    file = f"virsh edit {shell_word(subject.name)}" if on_record else "virsh save-image-edit FILE"
    return Refused(
        f"domain {subject.name!r}: its state is that of another domain, and the request of slot"
        f" {request.slot!r} says that a fork {policy}; a vGPU can't be taken out of a saved guest",
        f"set fork='new' in its <metadata>: {file}",
    )
