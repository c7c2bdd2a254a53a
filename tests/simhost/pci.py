"""PCI functions in the simulated host's /sys: their attributes, PFs and VFs, NUMA nodes. Pure.

What a function offers (types, VFIO files) is the business of the kind of parent that it is.
"""

from __future__ import annotations

import errno

from .hostmodel import NodeConfig, PciConfig
from .tree import Dir, Link, detach
from .vfio import Vfio


class PciBus:
    def __init__(self, sys: Dir, vfio: Vfio) -> None:
        self.sys = sys
        self.vfio = vfio
        self.groups: dict[str, int] = {}
        """The IOMMU group of each function, by address."""

    def boot(self, nodes: tuple[NodeConfig, ...]) -> None:
        self.groups.clear()
        for path in ("devices", "kernel/iommu_groups", "bus/pci/devices", "bus/pci/drivers"):
            self.sys.dir(path)
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
            self._add_numvfs(here, pci.totalvfs)
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
            self._add_numvfs(physical, None)
        number = pci.virtfn if pci.virtfn is not None else _count(physical)
        physical.link(f"virtfn{number}", here)

    @staticmethod
    def _add_numvfs(physical: Dir, total: int | None) -> None:
        """Written to, it does what sriov_numvfs_store does for a driver without sriov_configure.

        Facts E2: a raw write is refused, sriov-manage is the way.
        """

        def store(data: bytes) -> None:
            if not data.strip().isdigit():
                raise OSError(errno.EINVAL, "not a number")
            if int(data) > (total or 0):
                raise OSError(errno.ERANGE, "more than sriov_totalvfs")
            if int(data) != _count(physical):
                raise OSError(errno.ENOENT, "no SR-IOV by way of sysfs")

        physical.attr("sriov_numvfs", lambda: b"%d\n" % _count(physical), store)


def _count(physical: Dir) -> int:
    return sum(name.startswith("virtfn") for name in physical.children)


def _refuse(data: bytes) -> None:
    raise OSError(errno.EIO, "not a VF")
