"""What a start may ask for (R8, R13): the domain's requests against its own hostdevs. Pure.

A device that the XML names counts only if it was given to this very domain: a fork carries its
parent's, and is refused before anything is touched.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

from vgpu_hook.model import (
    FRAMEWORK,
    Domain,
    Hostdev,
    Refused,
    VgpuRequest,
    derive_device_uuid,
    shell_word,
)


class Records(NamedTuple):
    """What is on record: the names of the other domains that have a device, and the VF that a slot
    of this domain was given."""

    others: Callable[[str], list[str]]
    reserved: Callable[[str], str | None]


def admit(domain: Domain, records: Records) -> list[tuple[VgpuRequest, Hostdev]]:
    """Return the requests to be served, each with the domain's own hostdev; or raise Refused.

    Without a request of ours the domain is none of our business, and nor are its hostdevs,
    unless one is known to be a vGPU of ours.
    """
    if domain.refused:  # by the hook `restore`, which must not fail itself (operations.failure)
        raise Refused(domain.refused)
    asked = {request.slot for request in domain.request}
    for hostdev in domain.hostdevs:
        if hostdev.slot is not None and hostdev.slot not in asked:
            check_unasked(domain, hostdev, records)
    return [(request, hostdev_for(domain, request, records)) for request in domain.request]


def check_unasked(domain: Domain, hostdev: Hostdev, records: Records) -> None:
    """Refuse a hostdev under our alias that no request stands behind."""
    slot = hostdev.slot or ""
    own = hostdev.address in (derive_device_uuid(domain.uuid, slot), records.reserved(slot))
    owners = [] if own else records.others(hostdev.address)
    if own or owners or domain.request:
        cause = f"which belongs to domain {owners[0]!r}" if owners else "without a request for it"
        raise Refused(
            f"domain {domain.name!r} has the vGPU {hostdev.address} in slot {slot!r}, {cause}",
            f"run: {detach_command(domain.name, slot)}",
        )


def hostdev_for(domain: Domain, request: VgpuRequest, records: Records) -> Hostdev:
    """Return the request's hostdev; refuse one that is missing, unknown, or another domain's."""
    hint = f"run: {attach_command(domain.name, request)}"
    what = f"domain {domain.name!r}: vGPU {request.profile!r} (slot {request.slot!r})"
    hostdev = domain.hostdev(request.slot)
    if hostdev is None:
        raise Refused(f"{what} is asked for, but has no hostdev yet", hint)
    if hostdev.type not in FRAMEWORK:
        raise Refused(f"{what} has a hostdev of type {hostdev.type!r}: not supported", hint)
    if hostdev.type == "pci" and hostdev.managed != "no":
        raise Refused(
            f"{what}: its hostdev {hostdev.address} is managed={hostdev.managed!r}, with which"
            " libvirt would take the VF from NVIDIA's driver",
            hint,
        )
    if not domain.inherits(hostdev):
        return hostdev  # of a VF that another domain runs on: that is seen when it is taken
    owners = records.others(hostdev.address)
    if hostdev.type == "pci" and not owners and request.fork == "new":
        return hostdev  # a VF is nobody's while nobody runs on it
    owner = f"domain {owners[0]!r}" if owners else "another domain"
    cause = f"{what} has inherited {hostdev.address} of {owner}, which stays untouched"
    if request.fork == "refuse":
        cause += " (its request says that a fork must not start)"
    elif request.fork == "none":
        hint = f"run: {detach_command(domain.name, request.slot)}"
    raise Refused(cause, hint)


def attach_command(domain_name: str, request: VgpuRequest) -> str:
    """Return the shell command that gives the domain a vGPU of its own in this slot.

    What else the request says stays as it is.
    """
    profile = shlex.quote(request.profile)
    name = shell_word(domain_name)
    return f"vgpu-hook attach --profile {profile} --slot {request.slot} {name}"


def detach_command(domain_name: str, slot: str) -> str:
    """Return the shell command that takes the slot out of the domain's definition."""
    return f"vgpu-hook detach --slot {slot} {shell_word(domain_name)}"
