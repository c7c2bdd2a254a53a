"""The simulated host: what its kernel knows and does. Pure state, no FUSE, no threads, no locks.

Everything happens inside one call from the outside (a file operation, a control line, a timer that
is due). Something that blocks returns a Completion; run_timers() is to be called when next_timer()
says so. mdev.py, vendor.py and plain.py do the kinds of parents, pci.py the functions, vfio.py and
processes.py the open handles, fs.py the file system.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from . import sriov
from .capacity import Pool
from .faults import Fault, Log, make_fault
from .hostmodel import HostConfig, ParentConfig
from .mdev import MdevDevice, MdevParent
from .pci import PciBus
from .plain import PlainVf
from .processes import Processes
from .script import Watch
from .tree import Dir
from .vendor import VendorVf
from .vfio import Vfio, VfioDevice


class Parent(Protocol):
    """What a parent of any kind has; `registered` is when its driver offers something."""

    name: str
    config: ParentConfig
    registered: bool
    unloading: bool

    def register(self) -> None:
        """The driver takes it. Its PCI function, if it has one, is there."""

    def unregister(self) -> None:
        """The driver lets it go. Raises OSError if it can't."""

    def vanish(self) -> None:
        """It is gone; for a parent of mediated devices: its driver."""

    @property
    def in_use(self) -> bool:
        """Whether somebody has it, or a device of it, open."""


KINDS: dict[str, Callable[[Host, ParentConfig], Parent]] = {
    "mdev": MdevParent,
    "vendor-vfio": VendorVf,
    "plain": PlainVf,
}
"""How a parent offers its vGPUs."""

_OFFERS = {"mdev": "mdev_supported_types", "vendor-vfio": "nvidia"}
"""The name in a parent's directory that somebody looks for who waits for its driver."""


class Host:
    def __init__(self, config: HostConfig, dev_links: str = "/dev") -> None:
        self.config = config
        self.root = Dir("")
        self.sys = self.root.dir("sys")
        self.sys.lasting = True
        self.log = Log()
        self.faults: list[Fault] = [
            make_fault(f.op, f.path, f.action, f.nth, f.times, f.data) for f in config.faults
        ]
        self.watches: list[Watch] = []
        self.problems: list[str] = []
        """What a script could not do."""
        self.lock_failures: Counter[str] = Counter()
        self.on_heal: Callable[[], None] = lambda: None
        self.processes = Processes(self.root.dir("proc"), dev_links, self.drop)
        self.vfio = Vfio(self.sys, self.root.dir("dev"), config, self.processes)
        self.vfio.on_close = self._closed
        self.pci = PciBus(self.sys, self.vfio)
        self.pci.on_numvfs = lambda pci, now, data: sriov.write_numvfs(self, pci, now, data)
        self.pools = {parent.pool: Pool(parent.capacity) for parent in config.parents}
        self.devices: dict[str, MdevDevice] = {}
        self.parents: dict[str, Parent] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._looks: dict[str, int] = {}
        self.boot_id = ""
        self.root.attr("proc/sys/kernel/random/boot_id", lambda: self.boot_id.encode() + b"\n")
        self.root.attr("state", lambda: json.dumps(self.state()).encode() + b"\n")
        self.root.attr("writes", self.log.show_writes)
        self.root.attr("reads", self.log.show_reads)
        self.boot()
        if config.recorded is not None:
            from . import overlay  # it imports the product, which takes its time

            self.boot_id = config.recorded.boot_id
            overlay.lay_over(self, config.recorded)

    # --- boot ---

    def boot(self) -> None:
        self.boot_id = str(uuid.uuid4())
        self._looks.clear()
        self.vfio.boot()
        self.pci.boot(self.config.nodes)
        for pci in self.config.pci:
            self.pci.add(pci, bound=True)
        if self.config.mdev_bus:
            for path in ("bus/mdev/devices", "bus/mdev/drivers", "class/mdev_bus"):
                self.sys.dir(path)
            self.sys.dir("bus/mdev/devices").lasting = False
            self.sys.dir("class/mdev_bus").on_look = self._look_class
        self.sys.dir("bus/pci/devices").on_look = self._look_pci
        for config in self.config.parents:
            parent = KINDS[config.kind](self, config)
            self.parents[config.name] = parent
            self._boot_parent(parent)
        for device in self.config.devices:
            if device.uuid:
                self.make(device.uuid, device.parent, device.type)
            else:
                self.find_vf(device.parent).assign(device.type)

    def _boot_parent(self, parent: Parent) -> None:
        config = parent.config
        if config.absent:
            return
        if config.device_after:
            self._looks["pci " + config.name] = config.device_after
        else:
            self._add_pci(config)
        if config.appears_after or config.device_after:
            self._looks[config.name] = config.appears_after
        else:
            parent.register()

    def _add_pci(self, config: ParentConfig) -> None:
        if config.pci is not None:
            here = self.pci.add(config.pci, bound=False)
            here.on_look = lambda name: self._look_parent(config.name, name)

    def reboot(self) -> None:
        """Power cycle: a new boot_id, no devices, no processes. Faults and the log remain."""
        for device in list(self.devices.values()):
            device.vanish()
        self.processes.clear()
        for pool in self.pools.values():
            pool.clear()
        for name in list(self.sys.children):
            self.sys.remove(name)
        self.boot()

    # --- what comes late ---

    def _look_class(self, name: str | None) -> None:
        for parent in self.parents.values():
            if name in (None, parent.name):
                self._look(parent)

    def _look_pci(self, name: str | None) -> None:
        for parent in self.parents.values():
            if name in (None, parent.name) and "pci " + parent.name in self._looks:
                self._look(parent)

    def _look_parent(self, parent: str, name: str | None) -> None:
        found = self.parents[parent]
        if name == _OFFERS.get(found.config.kind):
            self._look(found)

    def _look(self, parent: Parent) -> None:
        """Somebody looks for a parent that is not there yet; after enough looks it is."""
        config = parent.config
        if "pci " + config.name in self._looks:
            if not self._due("pci " + config.name):
                return
            self._add_pci(config)
        if self._due(config.name):
            parent.register()

    def _due(self, key: str) -> bool:
        """Count one look; true once, when enough have missed."""
        left = self._looks.get(key)
        if left is None:
            return False
        if left > 0:
            self._looks[key] = left - 1
            return False
        del self._looks[key]
        return True

    def _closed(self) -> None:
        for device in list(self.devices.values()):
            if not self.vfio.holders(device):
                device.closed()

    # --- commands of the control file ---

    def find_device(self, name: str) -> VfioDevice:
        """By UUID or PCI address, or by a path that ends in vfio/N or vfio/devices/vfioN."""
        if (device := self.vfio.find(name)) is not None:
            return device
        if name.lower() in self.devices:
            raise ValueError(f"{name} cannot be opened yet")
        raise ValueError(f"no device {name}")

    def hold(self, name: str, pid: int | None = None, comm: str = "qemu-system-x86") -> int:
        return self.vfio.hold(self.find_device(name), name, pid, comm)

    def drop(self, pid: int) -> None:
        if pid not in self.processes.by_pid:
            raise ValueError(f"no process {pid}")
        self.processes.end(pid)
        self._closed()

    def process(self, pid: int, comm: str, links: list[str]) -> None:
        process = self.processes.start(pid, comm)
        process.fixed = True
        for target in links:
            self.processes.add_link(process, target)

    def make(self, name: str, parent: str, kind: str) -> None:
        """A device made by somebody else; not in the write log. OSError as from `create`."""
        owner = self.find_parent(parent)
        for config in owner.config.types:
            if config.id == kind and isinstance(owner, MdevParent):
                owner.create(config, name.encode())
                return
        raise ValueError(f"no type {kind} of {parent} for a mediated device")

    def find_vf(self, name: str) -> VendorVf:
        found = self.find_parent(name)
        if not isinstance(found, VendorVf):
            raise ValueError(f"{name} is no VF with vendor-specific VFIO")
        return found

    def find_parent(self, name: str) -> Parent:
        if name not in self.parents:
            raise ValueError(f"no parent {name}")
        return self.parents[name]

    def load(self, name: str) -> None:
        parent = self.find_parent(name)
        self._looks.pop(name, None)
        self._looks.pop("pci " + name, None)
        if parent.registered or parent.unloading:
            raise ValueError(f"{name} is loaded")
        if not self.pci.has(name):
            self._add_pci(parent.config)
        parent.register()

    def vanish(self, name: str) -> None:
        """A device, a parent (a VF; of mediated devices: its driver) or a process is gone."""
        if name.lower() in self.devices:
            self.devices[name.lower()].vanish()
        elif name.isdigit():
            self.drop(int(name))
        else:
            self.find_parent(name).vanish()

    def heal(self) -> None:
        self.faults.clear()
        self.on_heal()

    def fault(self, op: str, paths: list[str], data: bytes = b"") -> Fault | None:
        """The first fault that this call hits."""
        return next((f for f in self.faults if f.op == op and f.hit(paths, data)), None)

    # --- time ---

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        due = time.monotonic() + seconds
        heapq.heappush(self._timers, (due, next(self._order), action))

    def next_timer(self) -> float | None:
        """Seconds until something is due, None if nothing is."""
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def state(self) -> dict[str, object]:
        """All of it, for tests that want to look without being counted as a reader."""
        devices = {
            device.uuid: {
                "parent": device.parent.name,
                "type": device.kind.id,
                "state": device.state,
                "group": device.group,
                "cdev": device.cdev,
                "holders": self.vfio.holders(device),
            }
            for device in self.devices.values()
        }
        vfs = {vf.name: vf.state() for vf in self.parents.values() if isinstance(vf, VendorVf)}
        available = {
            parent.name: {
                kind.id: self.pools[parent.config.pool].available(parent.name, kind)
                for kind in parent.config.types
            }
            for parent in self.parents.values()
            if parent.registered
        }
        return {
            "boot_id": self.boot_id,
            "devices": devices,
            "vfs": vfs,
            "available": available,
            "processes": sorted(self.processes.by_pid),
            "problems": self.problems,
        }
