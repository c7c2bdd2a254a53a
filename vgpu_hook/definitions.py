"""What a persistent definition should look like: each request with a hostdev of its own. Pure.

For definitions that come from anywhere: virsh define, edit, metadata, virt-install, clones,
snapshots. What is right already is returned as it is, byte for byte, so that putting a
definition in order is never an event that has to be put in order again.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from vgpu_hook import domain
from vgpu_hook.model import Domain, Hostdev, VgpuRequest


class Plan(NamedTuple):
    """The hostdev that serves a request; `inherited` if the one that is there is another's.

    No hostdev if the host can't tell now which one it will be.
    """

    hostdev: Hostdev | None
    inherited: bool


class Plans(Protocol):
    """What a host has for definitions (planning.Planner)."""

    def __call__(self, subject: Domain, request: VgpuRequest) -> Plan:
        """Return the hostdev that serves the request."""

    def owns(self, subject: Domain, hostdev: Hostdev) -> bool:
        """Tell whether a hostdev under our alias is one that this domain was given."""


class Settled(NamedTuple):
    """A definition in order, what it asks for, and what was done to it."""

    text: bytes
    name: str
    requests: tuple[VgpuRequest, ...]
    changes: tuple[str, ...]


def settle(
    text: bytes,
    plan: Plans,
    keep: tuple[VgpuRequest, ...] | None = None,
) -> Settled:
    """Return the definition in order. Raises DomainXmlError.

    `plan` gives a request's hostdev on this host (planning.py). `keep`: what stands whatever the
    text asks for, because the text is an old one that a snapshot brought back (R9).
    """
    subject = domain.parse(text)
    wanted = subject.request if keep is None else keep
    changes: list[str] = []
    for slot in _unasked(subject, wanted, plan):
        text = domain.detach(text, slot)
        changes.append(f"took out slot {slot}: nothing asks for it")
    kept = []
    for request in wanted:
        hostdev, inherited = plan(subject, request)
        if inherited and request.fork == "none":
            text = domain.detach(text, request.slot)
            changes.append(f"took out slot {request.slot}: a fork gets none")
            continue
        kept.append(request)
        if inherited and request.fork == "refuse":
            continue  # as it is: its start is refused, with the reason
        if hostdev is None:
            continue  # a start is refused with the reason; planned again when the host has changed
        if not domain.is_attached(text, request, hostdev):
            text = domain.attach(text, request, hostdev)
            changes.append(f"gave slot {request.slot} {_what(subject, hostdev, inherited)}")
    return Settled(text, subject.name, tuple(kept), tuple(changes))


def _unasked(subject: Domain, wanted: tuple[VgpuRequest, ...], plan: Plans) -> list[str]:
    """Return the slots that are there and that nothing asks for.

    A hostdev under our alias with a device that this domain was not given is left alone if there
    is no request: it may be the user's own.
    """
    asked = {request.slot for request in wanted}
    slots = [request.slot for request in subject.request if request.slot not in asked]
    for hostdev in subject.hostdevs:
        slot = hostdev.slot
        if slot is None or slot in asked or slot in slots:
            continue
        if subject.request or plan.owns(subject, hostdev):
            slots.append(slot)
    return slots


def _what(subject: Domain, hostdev: Hostdev, inherited: bool) -> str:
    there = subject.hostdev(hostdev.slot or "")
    if there is None or there.address == hostdev.address:
        return "a hostdev"
    if inherited:
        return "a device of its own in place of an inherited one"
    return f"{hostdev.address} in place of {there.address}"
