"""vGPUs into and out of running domains: `attach --live` and `detach --live`.

There is no hook for hot-plug (facts B2), so the commands call lifecycle themselves, and never
hold its lock while they call libvirt.
"""

from __future__ import annotations

import time
from typing import Any

import libvirt

from vgpu_hook import domain
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import ALIAS_PREFIX, Domain, Hostdev, VgpuError, VgpuRequest

UNPLUG_WAIT = 20.0
"""Seconds that a guest is given to let go of the device."""


def plug(
    libvirt_: Libvirt,
    found: Any,
    lifecycle: Lifecycle,
    request: VgpuRequest,
    hostdev: Hostdev,
) -> None:
    """Make the vGPU and put it into the running domain; give it back if that fails."""
    subject = live(libvirt_, found)
    row = lifecycle.take(subject, request)
    xml = domain.hostdev_xml(request, hostdev).decode()
    flags = libvirt.VIR_DOMAIN_AFFECT_LIVE
    try:
        libvirt_.call(found, found.attachDeviceFlags, xml, flags)
    except VgpuError:
        lifecycle.release_all(subject.uuid, frozenset([row.generation]))
        raise


def unplug(libvirt_: Libvirt, found: Any, lifecycle: Lifecycle, slot: str) -> bool:
    """Ask the guest to let go of the vGPU, and release it; False if it has not let go yet.

    The daemon then releases it when it does.
    """
    subject = live(libvirt_, found)
    if subject.hostdev(slot) is None:
        raise VgpuError(f"domain {subject.name!r} runs without a vGPU in slot {slot!r}")
    libvirt_.call(found, found.detachDeviceAlias, ALIAS_PREFIX + slot, 0)
    end = time.monotonic() + UNPLUG_WAIT
    while live(libvirt_, found).hostdev(slot) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    lifecycle.release_slot(subject.uuid, slot)
    return True


def live(libvirt_: Libvirt, found: Any) -> Domain:
    """Return what the running domain has."""
    return domain.parse(str(libvirt_.call(found, found.XMLDesc)).encode())
