"""NVIDIA's vendor-specific VFIO: SR-IOV VFs with `nvidia/current_vgpu_type` (kernel 6.8 and later).

Reads and writes the files as facts E2 describe them. A vGPU is a VF that carries a type, so
that its device and its parent are the same PCI address. Decides nothing: it neither chooses
a VF nor asks whether one may be reset.
"""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache

from vgpu_hook import sysfs
from vgpu_hook.frameworks import LEFT_OUT, gpus
from vgpu_hook.frameworks.handles import handles
from vgpu_hook.model import (
    VENDOR_VFIO,
    Found,
    KernelError,
    NoCapacity,
    NotAsAsked,
    Parent,
    Unblamed,
    VgpuType,
)
from vgpu_hook.sysfs import Roots

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
LINE = re.compile(r"\s*(\d+)\s*:\s*(.+?)\s*\Z")
"""A line of creatable_vgpu_types. The header, which may be missing, does not match."""

FRAMEBUFFER = re.compile(r"-(\d+)[A-Z]+\Z")
"""NVIDIA's names end in the GiB of framebuffer and the series; 0 is half of one (GRID M60-0B)."""

PREFIX = "nvidia-"
"""Type ids have it as under mdev, so that a profile is named alike on both."""

NONE = "0"
DETAILS = (("gpu_instance_id", "GPU instance"), ("placement_id", "placement"))


class VendorVfio:
    """The vendor-specific VFIO framework of one host."""

    name = VENDOR_VFIO
    fixed = True
    destroy_tries = 10

    def __init__(self, roots: Roots, unused: frozenset[str] = frozenset()) -> None:
        self._roots = roots
        self._unused = unused
        self._devices = os.path.join(roots.sysfs, "bus/pci/devices")

    def parents(self) -> tuple[Parent, ...]:
        """Return every VF, and each GPU that offers none with the reason, in one pass."""
        reading = _Reading(self._devices, self._unused)
        others: list[str] = []
        found = []
        for address in sysfs.entries(self._devices):
            if _is_vf(os.path.join(self._devices, address)):
                found.append(reading.vf(address))
            else:
                others.append(address)
        served = {parent.gpu for parent in found}
        return (*found, *gpus.without_vgpus(self._roots, others, served))

    def names(self) -> list[str]:
        """Return the addresses of the VFs."""
        addresses = sysfs.entries(self._devices)
        return [a for a in addresses if _is_vf(os.path.join(self._devices, a))]

    def parent(self, name: str) -> Parent:
        """Read one VF. What can't be read makes this VF unusable, and no other."""
        return _Reading(self._devices, self._unused).vf(name)

    def find(self, device: str, parent: str | None = None) -> Found | None:
        """Return the VF as a vGPU; None if it carries no type, or is gone with its type."""
        path = sysfs.resolve(self._device(device))
        current = path and sysfs.read_text(os.path.join(path, "nvidia/current_vgpu_type"))
        if not path or current is None:
            sysfs.require_mounted(self._roots.sysfs)
            return None
        if not current.isdecimal():
            raise KernelError(f"{device}: its type was expected to be a number, not {current[:80]}")
        if current == NONE:
            return None
        return Found(
            framework=self.name,
            device=device,
            parent=device,
            type=f"{PREFIX}{current}",
            handles=handles(path),
            detail=_details(path),
        )

    def create(self, device: str, parent: str, type_id: str, params: str | None) -> Found:
        """Write the type's number, and read it back. Never overwrites a type that is there."""
        folder = os.path.join(self._device(device), "nvidia")
        number = type_id.removeprefix(PREFIX)
        if (there := self.find(device)) is not None:
            raise Unblamed(f"{device} carries {there.type} already", code=errno.EEXIST)
        self._require_creatable(folder, device, number)
        try:
            sysfs.write_text(os.path.join(folder, "current_vgpu_type"), number)
        except KernelError:
            # A sibling may have taken the room since: that is no fault of this VF.
            self._require_creatable(folder, device, number)
            raise
        found = self.find(device)
        if found is None:
            raise KernelError(f"{device} took the type {number}, but reads back none")
        if found.type != type_id:
            raise NotAsAsked(f"{device} was to be {type_id}, but is {found.type}", found.type)
        if params is not None:
            try:
                # Without the newline NVIDIA's driver ignores it (oVirt/vdsm PR 92).
                sysfs.write_text(os.path.join(folder, "vgpu_params"), f"{params}\n")
            except KernelError as error:  # the request is at fault, not the VF
                raise Unblamed(error.message, error.hint, error.code) from error
        return found

    def destroy(self, device: str, parent: str) -> None:
        """Write 0 and read it back. The driver may need several tries (Proxmox: up to 10)."""
        attribute = os.path.join(self._device(device), "nvidia/current_vgpu_type")
        try:
            sysfs.write_text(attribute, NONE)
        except KernelError as error:
            if error.code not in sysfs.GONE:
                raise
        if (left := self.find(device)) is not None:
            raise KernelError(f"{device} still carries {left.type} after 0 was written")

    def _require_creatable(self, folder: str, device: str, number: str) -> None:
        text = sysfs.read_text(os.path.join(folder, "creatable_vgpu_types"))
        if text is None:
            raise KernelError(f"{device} is no VF of this framework (any more): no {folder}")
        if number not in (type_number for type_number, _ in _listed(text)):
            raise NoCapacity(f"{device} can't be {PREFIX}{number} now: it is not in its list")

    def _device(self, device: str) -> str:
        """Return the VF's path on the bus; what is no PCI address never becomes a path."""
        if not ADDRESS.match(device):
            raise KernelError(f"{device!r} is not the PCI address of a VF")
        return os.path.join(self._devices, device)


class _Reading:
    """One pass over VFs: what they share is read, and parsed, once."""

    def __init__(self, devices: str, unused: frozenset[str]) -> None:
        self._devices = devices
        self._unused = unused
        self._cards: dict[str, tuple[str, int]] = {}

    def vf(self, address: str) -> Parent:
        path = os.path.join(self._devices, address)
        gpu, card, node = address, "", -1
        types: tuple[VgpuType, ...] = ()
        devices: tuple[str, ...] = ()
        problem = ""
        try:
            gpu = os.path.basename(sysfs.link_target(os.path.join(path, "physfn")) or address)
            if gpu not in self._cards:
                self._cards[gpu] = gpus.card_and_node(os.path.join(self._devices, gpu))
            card, node = self._cards[gpu]
            if {address, gpu} & self._unused:
                raise KernelError(LEFT_OUT)
            current = sysfs.read_text(os.path.join(path, "nvidia/current_vgpu_type")) or ""
            if not current.isdecimal():
                raise KernelError(f"{address}: current_vgpu_type reads {current[:80]!r}")
            listed = sysfs.read_text(os.path.join(path, "nvidia/creatable_vgpu_types")) or ""
            types = _types(listed, current)
            devices = (address,) if current != NONE else ()
        except KernelError as error:
            problem = error.message
        return Parent(
            VENDOR_VFIO, address, gpu, types, devices, problem=problem, card=card, node=node
        )


def framebuffer(name: str) -> int:
    """Return the MiB that a type of this name takes; 0 if the name does not tell."""
    match = FRAMEBUFFER.search(name)
    return (int(match[1]) * 1024 or 512) if match else 0


def _is_vf(path: str) -> bool:
    return os.path.lexists(os.path.join(path, "nvidia/current_vgpu_type")) and os.path.lexists(
        os.path.join(path, "physfn")
    )


@lru_cache(maxsize=256)
def _listed(text: str) -> tuple[tuple[str, str], ...]:
    """Return (number, name) of each type of a list."""
    matches = (LINE.match(line) for line in text.splitlines())
    return tuple((match[1], match[2]) for match in matches if match)


@lru_cache(maxsize=256)
def _types(listed: str, current: str) -> tuple[VgpuType, ...]:
    """Return what a VF can be now, and what it is; siblings share the same value."""
    types = [_type(number, name, free=int(current == NONE)) for number, name in _listed(listed)]
    if current != NONE:
        named = dict(_listed(listed))
        types = [t for t in types if t.id != f"{PREFIX}{current}"]
        types.append(_type(current, named.get(current, ""), in_use=1))
    return tuple(types)


def _type(number: str, name: str, *, free: int = 0, in_use: int = 0) -> VgpuType:
    return VgpuType(f"{PREFIX}{number}", name, "", "vfio-pci", free, in_use, framebuffer(name))


def _details(path: str) -> str:
    """Return what the driver says of the vGPU's place on the card; these files answer ENXIO."""
    found = []
    for name, title in DETAILS:
        try:
            value = sysfs.read_text(os.path.join(path, "nvidia", name))
        except KernelError:
            continue
        if value and value.isdecimal():
            found.append(f"{title} {value}")
    return ", ".join(found)
