"""vGPUs into and out of running domains: `attach --live` and `detach --live`.

There is no hook for hot-plug (facts B2), so the commands call lifecycle themselves, and never
hold its lock while they call libvirt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import libvirt

from vgpu_hook import domain
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import (
    ALIAS_PREFIX,
    ASSIGNED,
    NAMESPACE,
    RETAINED,
    Assignment,
    Domain,
    Hostdev,
    VgpuError,
    VgpuRequest,
    shell_word,
)
from vgpu_hook.store import YOUNG, Store, is_young

UNPLUG_WAIT = 20.0
"""Seconds that a guest is given to let go of the device."""


def plug(
    libvirt_: Libvirt,
    found: Any,
    store: Store,
    lifecycle_for: Callable[[], Lifecycle],
    request: VgpuRequest,
    hostdev: Hostdev,
) -> bool:
    """Make the vGPU and put it into the running domain; give it back if that fails.

    False if it has it already: a command that was killed got that far.
    """
    subject = live(libvirt_, found)
    rows = store.of_slot(subject.uuid, request.slot)
    if subject.hostdev(request.slot) is not None:
        if _has(subject, request, rows):
            return False
    elif any(row.state != RETAINED for row in rows):
        raise _under_way(subject, request.slot)
    row = lifecycle_for().take(subject, request, hostdev)
    xml = domain.hostdev_xml(request, hostdev).decode()
    flags = libvirt.VIR_DOMAIN_AFFECT_LIVE
    try:
        libvirt_.call(found, found.attachDeviceFlags, xml, flags)
    except VgpuError:
        # With a deadline of its own: libvirt may have taken long to refuse.
        lifecycle_for().release_all(subject.uuid, frozenset([row.generation]))
        raise
    return True


def _has(subject: Domain, request: VgpuRequest, rows: list[Assignment]) -> bool:
    """Tell whether the running domain has what is asked for, and is on record with it.

    Before its metadata says what it has, only the profile can be compared.
    """
    there = subject.hostdev(request.slot)
    noted = next((r for r in subject.request if r.slot == request.slot), request)
    mine = (ASSIGNED, there and there.address, request.profile)
    return noted == request and any((r.state, r.device, r.profile) == mine for r in rows)


def _under_way(subject: Domain, slot: str) -> VgpuError:
    """Return the error for a slot whose record is there and whose vGPU is not in the domain."""
    return VgpuError(
        f"domain {subject.name!r} is on record with a vGPU in slot {slot!r} that it does not run"
        " with: it is being plugged in or out, or a command that did so was killed",
        f"if none is at work: wait for {YOUNG / 60:.0f} minutes, then run: vgpu-hook reconcile",
    )


def unplug(
    libvirt_: Libvirt,
    found: Any,
    store: Store,
    lifecycle_for: Callable[[], Lifecycle],
    slot: str,
) -> list[Assignment] | None:
    """Ask the guest to let go of the vGPU, and release it; None if it has not let go yet.

    The daemon then releases it when it does. Returns what had to be retained. Only what is on
    record now is released (R12). If the domain runs without it, what a command that was killed has
    left is done.
    """
    subject = live(libvirt_, found)
    rows = store.of_slot(subject.uuid, slot)
    if subject.hostdev(slot) is not None:
        libvirt_.call(found, found.detachDeviceAlias, ALIAS_PREFIX + slot, 0)
        end = time.monotonic() + UNPLUG_WAIT
        while live(libvirt_, found).hostdev(slot) is not None:
            if time.monotonic() > end:
                return None
            time.sleep(0.2)
    elif any(row.state != RETAINED and is_young(row) for row in rows):
        raise _under_way(subject, slot)
    elif not rows and not _asks(libvirt_, found, slot):
        raise VgpuError(
            f"domain {subject.name!r} runs without a vGPU in slot {slot!r}",
            f"run: vgpu-hook explain {shell_word(subject.name)}",
        )
    left = lifecycle_for().release_all(subject.uuid, frozenset(row.generation for row in rows))
    note_request(libvirt_, found, slot, None)
    return left


def _asks(libvirt_: Libvirt, found: Any, slot: str) -> bool:
    """Tell whether the definition asks for a vGPU in this slot."""
    subject = domain.parse(libvirt_.definition(found))
    return slot in {request.slot for request in subject.request}


def note_request(libvirt_: Libvirt, found: Any, slot: str, request: VgpuRequest | None) -> None:
    """Have the running domain's own metadata say what it has in the slot; None: nothing.

    libvirt keeps it apart from the definition's (facts C5), and it is what a saved image and a
    migration carry along.
    """
    text = _live_xml(libvirt_, found)
    subject = domain.parse(text)
    there = subject.hostdev(slot)
    if request is None:
        if slot not in {r.slot for r in subject.request}:
            return
        after = domain.detach(text, slot)
    elif there is not None and request not in subject.request:
        after = domain.repoint(text, request, there)
    else:
        return
    kind, flags = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_LIVE
    xml = domain.request_xml(after)
    libvirt_.call(found, found.setMetadata, kind, xml, "vgpu", NAMESPACE, flags)


def live(libvirt_: Libvirt, found: Any) -> Domain:
    """Return what the running domain has."""
    return domain.parse(_live_xml(libvirt_, found))


def _live_xml(libvirt_: Libvirt, found: Any) -> bytes:
    return str(libvirt_.call(found, found.XMLDesc)).encode()
