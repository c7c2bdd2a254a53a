"""/dev/vfio of the simulated host: group and device numbers, the files, who may open them. Pure.

A device of any kind that can be opened (Openable) is added when its driver takes it and removed
when it goes. Who has a file open is in processes.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Protocol

from . import tree
from .hostmodel import HostConfig
from .processes import Processes


class VfioDevice(Protocol):
    """What Vfio needs to know of a device; it sets `cdev`."""

    dir: tree.Dir
    group: int
    """Its IOMMU group, -1 before it has one."""
    cdev: int
    """N of vfio-dev/vfioN, -1 before it has one."""

    @property
    def name(self) -> str:
        """A UUID or a PCI address."""

    @property
    def argument(self) -> str:
        """How QEMU's command line names it."""

    def check_open(self) -> None:
        """Raise OSError if the driver refuses to open it."""


class Vfio:
    def __init__(
        self, sys: tree.Dir, dev: tree.Dir, config: HostConfig, processes: Processes
    ) -> None:
        self.sys = sys
        self.dev = dev
        self.config = config
        self.processes = processes
        self.devices: dict[str, VfioDevice] = {}
        self.on_close: Callable[[], None] = lambda: None
        self._groups: set[int] = set()
        self._cdevs: set[int] = set()

    def boot(self) -> None:
        self.dev.remove("vfio")
        self.devices.clear()
        self._cdevs.clear()
        self._groups = set(range(self.config.first_group))
        if (recorded := self.config.recorded) is not None:  # kept for who had them
            self._groups |= set(recorded.groups.values())
            self._cdevs |= set(recorded.cdevs.values())
        self.dev.dir("vfio").add(tree.Openable("vfio", lambda pid: 0, lambda token: None))
        if self.config.cdev:
            self.dev.dir("vfio/devices")

    @staticmethod
    def _lowest(taken: set[int]) -> int:
        """Numbers are reused, the lowest free one first (ida_alloc)."""
        number = next(n for n in itertools.count() if n not in taken)
        taken.add(number)
        return number

    def new_group(self, name: str, where: tree.Dir) -> int:
        """An IOMMU group of the device in that directory, and the links between the two."""
        recorded = self.config.recorded
        known = recorded.groups.get(name) if recorded is not None else None
        group = self._lowest(self._groups) if known is None else known
        here = self.sys.dir(f"kernel/iommu_groups/{group}")
        here.dir("devices").link(name, where)
        where.link("iommu_group", here)
        return group

    def end_group(self, group: int) -> None:
        if group >= 0:
            self.sys.remove(f"kernel/iommu_groups/{group}")
            self._groups.discard(group)

    def add(self, device: VfioDevice) -> None:
        """Its vfio-dev directory and the files below /dev/vfio. It has a group already."""
        if self.config.kernel >= (6, 0):
            recorded = self.config.recorded
            known = recorded.cdevs.get(device.name) if recorded is not None else None
            device.cdev = self._lowest(self._cdevs) if known is None else known
            number = device.dir.dir(f"vfio-dev/vfio{device.cdev}")
            number.attr("uevent", b"")
            if self.config.cdev:
                number.attr("dev", b"511:%d\n" % device.cdev)
        self.devices[device.name] = device
        for file in self.files(device):
            directory, _, name = file.rpartition("/")
            self.dev.dir(directory).add(self._openable(name, file, device))

    def _openable(self, name: str, file: str, device: VfioDevice) -> tree.Openable:
        def opened(pid: int) -> int:
            device.check_open()
            return self.processes.open_real(pid, file)

        return tree.Openable(name, opened, self._closed)

    def _closed(self, token: int) -> None:
        self.processes.close(token)
        self.on_close()

    def files(self, device: VfioDevice) -> set[str]:
        """Its files below /dev: `vfio/7`, and `vfio/devices/vfio0` where the kernel has it."""
        if device.name not in self.devices:
            return set()
        found = {f"vfio/{device.group}"}
        if self.config.cdev and device.cdev >= 0:
            found.add(f"vfio/devices/vfio{device.cdev}")
        return found

    def remove(self, device: VfioDevice) -> None:
        """Its files go, open or not. The group remains: see end_group."""
        files = self.files(device)
        for file in files:
            self.dev.remove(file)
        self.processes.close_files(files)
        self._cdevs.discard(device.cdev)
        self.devices.pop(device.name, None)
        device.dir.remove("vfio-dev")
        device.cdev = -1

    def close(self, device: VfioDevice) -> None:
        """Whoever has it open lets go of it."""
        self.processes.close_files(self.files(device))
        self.on_close()

    def holders(self, device: VfioDevice) -> list[int]:
        return self.processes.holders(self.files(device))

    def find(self, name: str) -> VfioDevice | None:
        """By UUID or PCI address, or by a path that ends in vfio/N or vfio/devices/vfioN."""
        for device in self.devices.values():
            if name.lower() == device.name:
                return device
            if any(name == file or name.endswith("/" + file) for file in self.files(device)):
                return device
        return None

    def hold(self, device: VfioDevice, name: str, pid: int | None, comm: str) -> int:
        """A process opens it by that name. Raises ValueError if it is open, OSError if refused."""
        files = sorted(self.files(device), key=lambda file: "devices" in file)
        file = next((file for file in files if name.endswith(file)), files[0])
        if self.processes.holders({file}) and "devices" not in file:
            raise ValueError(f"{file} is open already")
        device.check_open()
        words = [comm, "-device", f"vfio-pci,{device.argument}", ""]
        cmdline = b"\0".join(word.encode() for word in words)
        process = self.processes.start(pid or self.processes.free_pid(), comm, cmdline)
        process.fixed = True
        self.processes.open(process, file)
        return process.pid
