"""Guesses the hardware of a host from a bundle of `vgpu-hook record`. Pure.

So that a host from a bundle does not only look like the recorded one (overlay.py) but goes on like
it: vGPUs can be made and released there. What a bundle can't tell is guessed: a type of mediated
devices has as many places as were free and in use together; a GPU with VFs has the framebuffer of
its largest type, and takes types of any size.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from vgpu_hook.frameworks.vendor_vfio import ADDRESS, LINE, framebuffer
from vgpu_hook.snapshot import Entry

from .bundle import Bundle
from .hostmodel import (
    CapacityConfig,
    DeviceConfig,
    HostConfig,
    NodeConfig,
    ParentConfig,
    PciConfig,
    RecordedConfig,
    TypeConfig,
)

_FUNCTIONS = "sys/bus/pci/devices/"
_PARENTS = "sys/class/mdev_bus/"
_DEVICES = "sys/bus/mdev/devices/"


def host_of(bundle: Bundle) -> HostConfig:
    """The host that the bundle was recorded on."""
    return _Reading(bundle).host()


class _Reading:
    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.entries = bundle.entries

    def host(self) -> HostConfig:
        functions = {a: self.function(a, p) for a, p in self.places(_FUNCTIONS).items()}
        mdev = [self.mdev_parent(n, p, functions) for n, p in self.places(_PARENTS).items()]
        vfs = [self.vf(pci, functions) for pci in functions.values() if self.is_vf(pci)]
        taken = {parent.name for parent in (*mdev, *vfs)}
        rest = [pci for address, pci in functions.items() if address not in taken]
        release = re.match(r"(\d+)\.(\d+)", self.bundle.parts["versions"]["kernel"])
        return HostConfig(
            name=self.bundle.name,
            kernel=(int(release[1]), int(release[2])) if release else (6, 1),
            cdev=any("/vfio/devices/" in entry.text for entry in self.entries.values()),
            mdev_bus=_PARENTS.rstrip("/") in self.entries,
            pci=tuple(sorted(rest, key=lambda pci: pci.physfn is not None)),
            parents=(*mdev, *vfs),
            devices=(*self.devices(), *self.vf_devices(vfs)),
            nodes=tuple(self.nodes()),
            recorded=RecordedConfig(
                self.text("proc/sys/kernel/random/boot_id"),
                self.entries,
                self.numbers("iommu_group", r"(\d+)"),
                self.numbers("vfio-dev", r"vfio(\d+)"),
            ),
        )

    # --- what was recorded ---

    def text(self, path: str) -> str:
        return self.entries.get(path, Entry("file")).text

    def value(self, path: str) -> str | None:
        """A file's text; None if it is not there or could not be read."""
        entry = self.entries.get(path)
        return None if entry is None or entry.error else entry.text

    def target(self, path: str) -> str:
        return posixpath.basename(self.text(path))

    def places(self, folder: str) -> dict[str, str]:
        """By name, where the links in a folder of a bus or class lead to."""
        found = {}
        for path, entry in self.entries.items():
            if path.startswith(folder) and "/" not in path[len(folder) :] and entry.text:
                place = posixpath.normpath(posixpath.join(folder, entry.text))
                found[path[len(folder) :]] = place
        return found

    def below(self, path: str) -> list[str]:
        """The names right below a path."""
        start = path + "/"
        found = (p[len(start) :].split("/")[0] for p in self.entries if p.startswith(start))
        return list(dict.fromkeys(found))

    def numbers(self, name: str, pattern: str) -> dict[str, int]:
        """By device, the number of its IOMMU group or of its character device."""
        found = {}
        for path, entry in self.entries.items():
            words = path.split("/")
            if name not in words[2:]:
                continue
            at = words.index(name)
            text = posixpath.basename(entry.text) if name == "iommu_group" else words[-1]
            if match := re.fullmatch(pattern, text):
                found[words[at - 1]] = int(match[1])
        return found

    # --- hardware ---

    def function(self, address: str, place: str) -> PciConfig:
        total = self.value(f"{place}/sriov_totalvfs")
        physfn = self.target(f"{place}/physfn") or None
        return PciConfig(
            address=address,
            vendor=self.text(f"{place}/vendor"),
            device=self.text(f"{place}/device"),
            pci_class=self.text(f"{place}/class"),
            driver=self.target(f"{place}/driver") or None,
            numa_node=int(self.text(f"{place}/numa_node") or -1),
            bridge=posixpath.dirname(place.removeprefix("sys/devices/")),
            physfn=physfn,
            virtfn=self.virtfn(physfn, address) if physfn else None,
            subsystem_vendor=self.value(f"{place}/subsystem_vendor"),
            subsystem_device=self.value(f"{place}/subsystem_device"),
            totalvfs=int(total) if total is not None and total.isdecimal() else None,
        )

    def virtfn(self, physfn: str, address: str) -> int | None:
        place = self.places(_FUNCTIONS).get(physfn, "")
        for name in self.below(place) if place else ():
            if name.startswith("virtfn") and self.target(f"{place}/{name}") == address:
                return int(name.removeprefix("virtfn"))
        return None

    def nodes(self) -> list[NodeConfig]:
        top = "sys/devices/system/node"
        names = self.below(top)
        return [NodeConfig(int(n[4:]), self.text(f"{top}/{n}/cpulist")) for n in names]

    def mdev_parent(self, name: str, place: str, functions: dict[str, PciConfig]) -> ParentConfig:
        types = f"{place}/mdev_supported_types"
        return ParentConfig(
            name=name,
            path=place.removeprefix("sys/devices/"),
            kind="mdev",
            pci=functions.get(name),
            driver=self.target(f"{place}/driver") or name,
            types=tuple(self.mdev_type(f"{types}/{t}", t) for t in self.below(types)),
            attributes=(),
            capacity=CapacityConfig(),
            pool=name,
        )

    def mdev_type(self, path: str, type_id: str) -> TypeConfig:
        free = self.text(f"{path}/available_instances")
        used = len(self.below(f"{path}/devices"))
        return TypeConfig(
            id=type_id,
            name=self.value(f"{path}/name"),
            description=self.value(f"{path}/description"),
            max_instances=(int(free) if free.isdecimal() else 0) + used,
            device_api=self.value(f"{path}/device_api") or "vfio-pci",
        )

    def devices(self) -> list[DeviceConfig]:
        places = self.places(_DEVICES)
        found = []
        for device, place in places.items():
            parent = posixpath.basename(posixpath.dirname(place))
            if kind := self.target(f"{place}/mdev_type"):
                found.append(DeviceConfig(parent, kind, device))
        return found

    def is_vf(self, pci: PciConfig) -> bool:
        path = f"sys/devices/{pci.path}/nvidia/current_vgpu_type"
        return path in self.entries and pci.physfn is not None and bool(ADDRESS.match(pci.address))

    def vf(self, pci: PciConfig, functions: dict[str, PciConfig]) -> ParentConfig:
        siblings = [f for f in functions.values() if f.physfn == pci.physfn and self.is_vf(f)]
        types = self.vendor_types(siblings)
        used = sum(t.cost for vf in siblings for t in types if t.id == self.current(vf))
        largest = max((t.cost for t in types), default=0)
        capacity = CapacityConfig(total=max(used, largest), per_parent=1, shared=True, error="EIO")
        return ParentConfig(
            name=pci.address,
            path=pci.path,
            kind="vendor-vfio",
            pci=pci,
            driver=pci.driver or "",
            types=types,
            attributes=(),
            capacity=capacity,
            pool=str(pci.physfn),
        )

    def vendor_types(self, siblings: list[PciConfig]) -> tuple[TypeConfig, ...]:
        """What the VFs of a GPU list and are, by number; names from the store if no VF has them."""
        names: dict[str, str] = {}
        for vf in siblings:
            current = self.current(vf)
            names.setdefault(current, "")
            listed = self.text(f"sys/devices/{vf.path}/nvidia/creatable_vgpu_types")
            names |= {m[1]: m[2] for line in listed.splitlines() if (m := LINE.match(line))}
        names.pop("0", None)
        known = {row["id"].removeprefix("nvidia-"): row["name"] for row in self.rows("vgpu_type")}
        full = {number: name or known.get(number, "unknown") for number, name in names.items()}
        by_number = sorted(full.items(), key=lambda item: int(item[0]))
        return tuple(TypeConfig(i, name, None, framebuffer(name) or 1) for i, name in by_number)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table of the store."""
        store = self.bundle.parts["store"] or {"tables": {}}
        found = store["tables"].get(table, {"columns": [], "rows": []})
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    def current(self, vf: PciConfig) -> str:
        text = self.text(f"sys/devices/{vf.path}/nvidia/current_vgpu_type")
        return text if text.isdecimal() else "0"

    def vf_devices(self, vfs: list[ParentConfig]) -> list[DeviceConfig]:
        typed = [(vf.name, self.current(vf.pci)) for vf in vfs if vf.pci is not None]
        return [DeviceConfig(name, kind) for name, kind in typed if kind != "0"]
