"""PCI functions in the simulated host's /sys: their attributes, PFs and VFs, NUMA nodes. Pure.

What a function offers (types, VFIO files) is the business of the kind of parent that it is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from .hostmodel import AttributeConfig, NodeConfig, PciConfig
from .tree import Dir, Link, detach
from .vfio import Vfio


class PciBus:
    def __init__(self, sys: Dir, vfio: Vfio) -> None:
        self.sys = sys
        self.vfio = vfio
        self.groups: dict[str, int] = {}
        """The IOMMU group of each function, by address."""
        self.on_numvfs: Callable[[PciConfig, int, bytes], None] = lambda pci, present, data: None
        """What a write to sriov_numvfs does, given how many VFs there are."""

    def boot(self, nodes: tuple[NodeConfig, ...]) -> None:
        self.groups.clear()
        for path in ("devices", "kernel/iommu_groups", "bus/pci/devices", "bus/pci/drivers"):
            self.sys.dir(path)
        self.sys.dir("kernel/iommu_groups").lasting = False
        for node in nodes:
            here = self.sys.dir(f"devices/system/node/node{node.id}")
            here.attr("cpulist", node.cpulist.encode() + b"\n")

    def has(self, address: str) -> bool:
        return self.sys.find(f"bus/pci/devices/{address}") is not None

    def add(self, pci: PciConfig, bound: bool) -> Dir:
        """The function's directory and the links to it. bound: its driver has it already."""
        here = self.sys.dir("devices/" + pci.path)
        here.aliases.append(f"sys/bus/pci/devices/{pci.address}")
        values = {
            "vendor": pci.vendor,
            "device": pci.device,
            "class": pci.pci_class,
            "numa_node": str(pci.numa_node),
            "subsystem_vendor": pci.subsystem_vendor,
            "subsystem_device": pci.subsystem_device,
        }
        for name, value in values.items():
            if value is not None:
                here.attr(name, value.encode() + b"\n")
        if bound:
            self.bind(pci, here)
        self.sys.dir("bus/pci/devices").link(pci.address, here)
        self.groups[pci.address] = self.vfio.new_group(pci.address, here)
        if pci.totalvfs is not None:
            here.attr("sriov_totalvfs", b"%d\n" % pci.totalvfs)
            self._add_numvfs(here, pci)
        for entry in pci.attributes:
            add_attribute(here, entry)
        if pci.decoy:
            here.attr("nvidia/creatable_vgpu_types", pci.decoy.encode())
            here.attr("nvidia/current_vgpu_type", b"0\n", _refuse)
        if pci.physfn is not None:
            self._link_vf(pci, pci.physfn, here)
        return here

    def bind(self, pci: PciConfig, here: Dir) -> None:
        if pci.driver is not None and "driver" not in here.children:
            here.link("driver", self.sys.dir(f"bus/pci/drivers/{pci.driver}"))

    def remove(self, pci: PciConfig) -> None:
        """The function is gone, as a VF is when sriov_numvfs becomes 0."""
        if pci.physfn is not None and self.has(pci.physfn):
            physical = self._find(pci.physfn)
            for link in list(physical.children.values()):
                if isinstance(link, Link) and link.target.endswith("/" + pci.address):
                    detach(link)
        self.sys.remove(f"bus/pci/devices/{pci.address}")
        node = self.sys.find("devices/" + pci.path)
        if node is not None:
            detach(node)
        self.vfio.end_group(self.groups.pop(pci.address, -1))

    def _find(self, address: str) -> Dir:
        entry = self.sys.dir("bus/pci/devices").children[address]
        assert isinstance(entry, Link)
        node = self.sys.find("devices/" + entry.target.split("/devices/", 1)[1])
        assert isinstance(node, Dir)
        return node

    def _link_vf(self, pci: PciConfig, physfn: str, here: Dir) -> None:
        physical = self._find(physfn)
        here.link("physfn", physical)
        if "sriov_numvfs" not in physical.children:
            self._add_numvfs(physical, PciConfig(physfn))
        number = pci.virtfn if pci.virtfn is not None else _count(physical)
        physical.link(f"virtfn{number}", here)

    def _add_numvfs(self, physical: Dir, pci: PciConfig) -> None:
        def store(data: bytes) -> None:
            self.on_numvfs(pci, _count(physical), data)

        physical.attr("sriov_numvfs", lambda: b"%d\n" % _count(physical), store)


def add_attribute(here: Dir, entry: AttributeConfig) -> None:
    """A file that keeps what is written to it, if it can be written to."""
    value = [entry.value.encode()]

    def show() -> bytes:
        return value[0] + b"\n" if value[0] else b""

    def store(data: bytes) -> None:
        if entry.needs_newline and not data.endswith(b"\n"):
            return
        value[0] = data.strip()

    here.attr(entry.path, show, store if entry.writable else None)


def _count(physical: Dir) -> int:
    return sum(name.startswith("virtfn") for name in physical.children)


def _refuse(data: bytes) -> None:
    raise OSError(errno.EIO, "not a VF")
