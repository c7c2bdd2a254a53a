"""What a persistent definition should look like: each request with a hostdev of its own. Pure.

For definitions that come from anywhere: virsh define, edit, metadata, virt-install, clones,
snapshots. What is right already is returned as it is, byte for byte, so that putting a
definition in order is never an event that has to be put in order again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vgpu_hook import domain
from vgpu_hook.model import Domain, Hostdev, VgpuRequest, derive_device_uuid


class Settled(NamedTuple):
    """A definition in order, what it asks for, and what was done to it."""

    text: bytes
    name: str
    requests: tuple[VgpuRequest, ...]
    changes: tuple[str, ...]


def settle(
    text: bytes,
    model_of: Callable[[VgpuRequest], str],
    keep: tuple[VgpuRequest, ...] | None = None,
) -> Settled:
    """Return the definition in order. Raises DomainXmlError.

    `model_of` gives a request's device API (libvirt's `model`). `keep`: what stands whatever
    the text asks for, because the text is an old one that a snapshot brought back (R9).
    """
    subject = domain.parse(text)
    wanted = subject.request if keep is None else keep
    changes: list[str] = []
    for slot in _unasked(subject, wanted):
        text = domain.detach(text, slot)
        changes.append(f"took out slot {slot}: nothing asks for it")
    kept = []
    for request in wanted:
        hostdev = own_hostdev(subject, request, model_of(request))
        inherited = _is_inherited(subject, request, hostdev)
        if inherited and request.fork == "none":
            text = domain.detach(text, request.slot)
            changes.append(f"took out slot {request.slot}: a fork gets none")
            continue
        kept.append(request)
        if inherited and request.fork == "refuse":
            continue  # as it is: its start is refused, with the reason
        if not domain.is_attached(text, request, hostdev):
            text = domain.attach(text, request, hostdev)
            what = "a device of its own in place of an inherited one" if inherited else "a hostdev"
            changes.append(f"gave slot {request.slot} {what}")
    return Settled(text, subject.name, tuple(kept), tuple(changes))


def own_hostdev(subject: Domain, request: VgpuRequest, model: str) -> Hostdev:
    """Return the hostdev that serves a request of this domain."""
    device = derive_device_uuid(subject.uuid, request.slot)
    return Hostdev("mdev", device, request.slot, model)


def _unasked(subject: Domain, wanted: tuple[VgpuRequest, ...]) -> list[str]:
    """Return the slots that are there and that nothing asks for.

    A hostdev under our alias with a device that is not derived from this domain is left
    alone if there is no request: it may be the user's own.
    """
    asked = {request.slot for request in wanted}
    slots = [request.slot for request in subject.request if request.slot not in asked]
    for hostdev in subject.hostdevs:
        slot = hostdev.slot
        if slot is not None and slot not in asked and slot not in slots:
            own = hostdev.address == derive_device_uuid(subject.uuid, slot)
            if own or subject.request:
                slots.append(slot)
    return slots


def _is_inherited(subject: Domain, request: VgpuRequest, own: Hostdev) -> bool:
    there = subject.hostdev(request.slot)
    return there is not None and (there.type, there.address) != (own.type, own.address)
