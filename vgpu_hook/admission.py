"""What a start may ask for (R8, R13): the domain's requests against its own hostdevs. Pure.

A device that the XML names counts only if it is derived from this very domain: a fork
carries its parent's, and is refused before anything is touched.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from vgpu_hook.model import (
    Domain,
    Hostdev,
    Refused,
    VgpuRequest,
    derive_device_uuid,
    shell_word,
)

OwnersOf = Callable[[str], list[str]]
"""Given a device, returns the names of the domains whose records name it."""


def admit(domain: Domain, owners_of: OwnersOf) -> tuple[VgpuRequest, ...]:
    """Return the requests to be served, each with a hostdev of its own; or raise Refused.

    Without a request of ours the domain is none of our business, and nor are its hostdevs,
    unless one is known to be a vGPU of ours.
    """
    asked = {request.slot for request in domain.request}
    for hostdev in domain.hostdevs:
        if hostdev.slot is not None and hostdev.slot not in asked:
            _check_unasked(domain, hostdev, owners_of)
    for request in domain.request:
        _check_asked(domain, request, owners_of)
    return domain.request


def _check_unasked(domain: Domain, hostdev: Hostdev, owners_of: OwnersOf) -> None:
    """Refuse a hostdev under our alias that no request stands behind."""
    slot = hostdev.slot or ""
    own = hostdev.address == derive_device_uuid(domain.uuid, slot)
    owners = [] if own else owners_of(hostdev.address)
    if own or owners or domain.request:
        cause = f"which belongs to domain {owners[0]!r}" if owners else "without a request for it"
        raise Refused(
            f"domain {domain.name!r} has the vGPU {hostdev.address} in slot {slot!r}, {cause}",
            f"run: {detach_command(domain.name, slot)}",
        )


def _check_asked(domain: Domain, request: VgpuRequest, owners_of: OwnersOf) -> None:
    """Refuse a request whose hostdev is missing, of an unknown kind, or another domain's."""
    hint = f"run: {attach_command(domain.name, request)}"
    what = f"domain {domain.name!r}: vGPU {request.profile!r} (slot {request.slot!r})"
    hostdev = domain.hostdev(request.slot)
    if hostdev is None:
        raise Refused(f"{what} is asked for, but has no hostdev yet", hint)
    if hostdev.type != "mdev":
        raise Refused(f"{what} has a hostdev of type {hostdev.type!r}: not supported", hint)
    if hostdev.address == derive_device_uuid(domain.uuid, request.slot):
        return
    owners = owners_of(hostdev.address)
    owner = f"domain {owners[0]!r}" if owners else "another domain"
    cause = f"{what} has inherited {hostdev.address} of {owner}, which stays untouched"
    if request.fork == "refuse":
        cause += " (its request says that a fork must not start)"
    elif request.fork == "none":
        hint = f"run: {detach_command(domain.name, request.slot)}"
    raise Refused(cause, hint)


def attach_command(domain_name: str, request: VgpuRequest) -> str:
    """Return the shell command that gives the domain a vGPU of its own in this slot."""
    profile = shlex.quote(request.profile)
    name = shell_word(domain_name)
    return f"vgpu-hook attach --profile {profile} --slot {request.slot} {name}"


def detach_command(domain_name: str, slot: str) -> str:
    """Return the shell command that takes the slot out of the domain's definition."""
    return f"vgpu-hook detach --slot {slot} {shell_word(domain_name)}"
