"""GPUs that offer no vGPU, each with the reason; and what identifies a card.

What is not understood is named and never guessed (R13): plain SR-IOV VFs of other vendors
are a framework that this version does not serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vgpu_hook import sysfs
from vgpu_hook.model import VENDOR_VFIO, KernelError, Parent
from vgpu_hook.sysfs import Roots

NVIDIA = "0x10de"
GPU_CLASSES = ("0x03", "0x12")
"""PCI classes of display controllers and of processing accelerators (pci.ids)."""

PASSTHROUGH = ("vfio-pci", "nvgrace-gpu-vfio-pci", "pci-stub")
"""Drivers that hold a whole GPU for a VM: it is meant to offer no vGPUs."""

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
"""Where NVIDIA's packages put it: on nobody's PATH."""

IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")


def card_and_node(path: str) -> tuple[str, int]:
    """Return what names the model of the GPU at `path`, and its NUMA node (-1: none)."""
    ids = [(sysfs.read_text(os.path.join(path, name)) or "-").removeprefix("0x") for name in IDS]
    node = sysfs.read_text(os.path.join(path, "numa_node")) or "-1"
    return ":".join(ids), int(node) if node.removeprefix("-").isdecimal() else -1


def without_vgpus(roots: Roots, addresses: Iterable[str], served: set[str]) -> list[Parent]:
    """Return the GPUs among `addresses` that no framework can use now, with the reason.

    `served` are GPUs that have VFs with vGPUs.
    """
    devices = os.path.join(roots.sysfs, "bus/pci/devices")
    mdev = set(sysfs.entries(os.path.join(roots.sysfs, "class/mdev_bus")))
    found = []
    for address in addresses:
        path = os.path.join(devices, address)
        try:
            state, why = "", ""
            if _may_offer(path) and address not in served | mdev:
                state, why = _reason(roots, path, mdev)
        except KernelError as error:
            state, why = "unsupported", error.message
        if state:
            found.append(Parent(VENDOR_VFIO, address, address, (), (), why, state))
    return found


def _may_offer(path: str) -> bool:
    """Tell whether it is a whole GPU, and not one of its VFs nor anything else."""
    kind = sysfs.read_text(os.path.join(path, "class")) or ""
    return kind.startswith(GPU_CLASSES) and not os.path.lexists(os.path.join(path, "physfn"))


def _reason(roots: Roots, path: str, mdev: set[str]) -> tuple[str, str]:
    """Return the state of a GPU without vGPUs and why; empty if it is none of our business."""
    driver = os.path.basename(sysfs.link_target(os.path.join(path, "driver")) or "")
    vendor = sysfs.read_text(os.path.join(path, "vendor"))
    vfs = [name for name in sysfs.entries(path) if name.startswith("virtfn")]
    targets = {os.path.basename(sysfs.link_target(os.path.join(path, vf)) or "") for vf in vfs}
    if targets & mdev:
        return "", ""  # an mdev GPU: its VFs are the parents
    if vendor != NVIDIA:
        if not vfs:
            return "", ""
        return "unsupported", f"plain SR-IOV VFs of driver {driver or 'none'} are not supported"
    if driver in PASSTHROUGH:
        return "passthrough", f"it is bound to {driver}, which gives it to a VM as a whole"
    if driver != "nvidia":
        what = f"bound to {driver}" if driver else "bound to no driver"
        return "driver-missing", f"it is {what}, not to NVIDIA's vGPU driver"
    total = sysfs.read_text(os.path.join(path, "sriov_totalvfs")) or "0"
    if total == "0":
        return "unsupported", "it has neither mdev types nor SR-IOV VFs on this kernel"
    if not vfs:
        name = os.path.basename(path)
        return "vfs-off", f"its {total} VFs are off; run: {SRIOV_MANAGE} -e {name}"
    return "unsupported", "its VFs have no nvidia/current_vgpu_type"
