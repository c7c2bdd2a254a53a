"""Mediated devices: NVIDIA up to kernel 6.7, Intel GVT-g, mtty.

Reads and writes the interface of Documentation/driver-api/vfio-mediated-device.rst, as
facts D describe it. Decides nothing: it neither chooses a parent nor asks whether a device
may be destroyed.
"""

from __future__ import annotations

import errno
import os
import re

from vgpu_hook import sysfs
from vgpu_hook.frameworks import LEFT_OUT
from vgpu_hook.frameworks.handles import handles
from vgpu_hook.model import MDEV, Found, KernelError, NoCapacity, NotAsAsked, Parent, VgpuType
from vgpu_hook.sysfs import Roots

FULL = (errno.ENOSPC, errno.EUSERS)
"""ENOSPC is the drivers' own answer at the limit, EUSERS the mdev core's (facts D2)."""

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")

FRAMEBUFFER = re.compile(r"framebuffer=(\d+)M")
"""In the description of NVIDIA's types (facts E1)."""


class Mdev:
    """The mdev framework of one host."""

    name = MDEV
    fixed = False
    destroy_tries = 1

    def __init__(self, roots: Roots, unused: frozenset[str] = frozenset()) -> None:
        self._roots = roots
        self._unused = unused
        self._bus = os.path.join(roots.sysfs, "class/mdev_bus")
        self._devices = os.path.join(roots.sysfs, "bus/mdev/devices")

    def parents(self) -> tuple[Parent, ...]:
        """Return every parent with its types, as the kernel shows them at this moment."""
        return tuple(self.parent(name) for name in self.names())

    def names(self) -> list[str]:
        """Return the names of the parents, as in /sys/class/mdev_bus."""
        return sysfs.entries(self._bus)

    def find(self, device: str, parent: str | None = None) -> Found | None:
        """Return the device; `removing` if the bus has dropped it but its parent has not."""
        path = sysfs.resolve(self._device(device))
        removing = path is None
        if removing and parent is not None:
            path = sysfs.resolve(os.path.join(self._bus, sysfs.name(parent), device))
        if path is None:
            sysfs.require_mounted(self._roots.sysfs)
            return None
        type_link = sysfs.link_target(os.path.join(path, "mdev_type"))
        return Found(
            framework=self.name,
            device=device,
            parent=os.path.basename(os.path.dirname(path)),
            type=os.path.basename(type_link or ""),
            handles=handles(path),
            removing=removing,
        )

    def create(self, device: str, parent: str, type_id: str, params: str | None) -> Found:
        """Make the device of that type on that parent, with NVIDIA's vgpu_params if given."""
        supported = os.path.join(self._bus, sysfs.name(parent), "mdev_supported_types")
        folder = os.path.join(supported, sysfs.name(type_id))
        self._device(device)
        try:
            sysfs.write_text(os.path.join(folder, "create"), device)
        except KernelError as error:
            if error.code in FULL:
                raise NoCapacity(error.message, error.hint, error.code) from error
            raise
        found = self.find(device, parent)
        if found is None:
            raise KernelError(f"{folder}/create took {device}, but the device is not there")
        if (found.parent, found.type) != (parent, type_id):
            raise NotAsAsked(
                f"{device} was to be {type_id} on {parent}, but is {found.type} on {found.parent}",
                found.type,
            )
        if params is not None:
            # Without the newline NVIDIA's driver ignores it (oVirt/vdsm PR 92).
            attribute = os.path.join(self._device(device), "nvidia/vgpu_params")
            sysfs.write_text(attribute, f"{params}\n")
        return found

    def destroy(self, device: str, parent: str) -> None:
        """Write `remove`, which blocks for as long as somebody holds the device open."""
        try:
            sysfs.write_text(os.path.join(self._device(device), "remove"), "1")
        except KernelError as error:
            if error.code not in sysfs.GONE:
                raise
        if (left := self.find(device, parent)) is not None:
            state = "is still being removed" if left.removing else "is still there"
            raise KernelError(f"{device} on {parent} {state} after `remove` was written")

    def _device(self, device: str) -> str:
        """Return the device's path on the bus; what is no UUID never becomes a path."""
        if not UUID.match(device):
            raise KernelError(f"{device!r} is not the UUID of a mediated device")
        return os.path.join(self._devices, device)

    def parent(self, name: str) -> Parent:
        """Read one parent. What can't be read makes this parent unusable, and no other."""
        gpu = name
        types: tuple[VgpuType, ...] = ()
        devices: tuple[str, ...] = ()
        try:
            folder = sysfs.resolve(os.path.join(self._bus, name))
            if folder is None:
                raise KernelError(f"{name}: its link in {self._bus} leads nowhere")
            physical = sysfs.link_target(os.path.join(folder, "physfn"))
            gpu = os.path.basename(physical) if physical else name
            if {name.casefold(), gpu.casefold()} & self._unused:
                raise KernelError(LEFT_OUT)
            supported = os.path.join(folder, "mdev_supported_types")
            types = tuple(
                vgpu_type
                for entry in sysfs.entries(supported)
                if (vgpu_type := _vgpu_type(supported, entry)) is not None
            )
            devices = tuple(entry for entry in sysfs.entries(folder) if UUID.match(entry))
        except KernelError as error:
            return Parent(self.name, name, gpu, types, devices, problem=error.message)
        return Parent(self.name, name, gpu, types, devices)


def _vgpu_type(supported: str, type_id: str) -> VgpuType | None:
    """Read one type directory. `name` and `description` are optional (facts D1)."""
    folder = os.path.join(supported, type_id)
    available = sysfs.read_count(os.path.join(folder, "available_instances"))
    if available is None:
        return None
    description = sysfs.read_text(os.path.join(folder, "description")) or ""
    return VgpuType(
        id=type_id,
        name=sysfs.read_text(os.path.join(folder, "name")) or "",
        description=description,
        device_api=sysfs.read_text(os.path.join(folder, "device_api")) or "vfio-pci",
        available=available,
        in_use=len(sysfs.entries(os.path.join(folder, "devices"))),
        framebuffer=int(match[1]) if (match := FRAMEBUFFER.search(description)) else 0,
    )
