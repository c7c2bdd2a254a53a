"""The simulated host: what its kernel knows and does. Pure state, no FUSE, no threads, no locks.

Everything happens inside one call from the outside (a file operation, a control line, a timer that
is due). Something that blocks returns a Completion; run_timers() is to be called when next_timer()
says so. mdev.py does the mediated devices, processes.py the open handles, fs.py the file system.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
import uuid
from collections.abc import Callable

from .capacity import Pool
from .faults import Fault, Log, make_fault
from .hostfile import HostConfig, ParentConfig, PciConfig
from .mdev import MdevDevice, MdevParent
from .processes import Processes
from .tree import Dir, Link, Openable

KINDS = {"mdev": MdevParent}
"""How a parent offers its vGPUs. Vendor-specific VFIO becomes a second entry."""


class Host:
    def __init__(self, config: HostConfig, dev_links: str = "/dev") -> None:
        self.config = config
        self.root = Dir("")
        self.sys = self.root.dir("sys")
        self.dev = self.root.dir("dev")
        self.log = Log()
        self.faults: list[Fault] = [
            make_fault(f.op, f.path, f.action, f.nth, f.times) for f in config.faults
        ]
        self.on_heal: Callable[[], None] = lambda: None
        self.processes = Processes(self.root.dir("proc"), dev_links, self.drop)
        self.pools = {parent.pool: Pool(parent.capacity) for parent in config.parents}
        self.devices: dict[str, MdevDevice] = {}
        self.parents: dict[str, MdevParent] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._looks: dict[str, int] = {}
        self._groups: set[int] = set()
        self._cdevs: set[int] = set()
        self.boot_id = ""
        self.root.attr("proc/sys/kernel/random/boot_id", lambda: self.boot_id.encode() + b"\n")
        self.root.attr("state", lambda: json.dumps(self.state()).encode() + b"\n")
        self.root.attr("writes", self.log.show_writes)
        self.root.attr("reads", self.log.show_reads)
        self.boot()

    # --- boot ---

    def boot(self) -> None:
        self.boot_id = str(uuid.uuid4())
        self._looks.clear()
        for path in ("devices", "kernel/iommu_groups", "bus/pci/devices", "bus/pci/drivers"):
            self.sys.dir(path)
        self.dev.dir("vfio").add(Openable("vfio", lambda pid: 0, lambda token: None))
        if self.config.cdev:
            self.dev.dir("vfio/devices")
        self._groups = set(range(self.config.first_group))
        for pci in self.config.pci:
            self._add_pci(pci)
        if self.config.mdev_bus:
            for path in ("bus/mdev/devices", "bus/mdev/drivers", "class/mdev_bus"):
                self.sys.dir(path)
            self.sys.dir("class/mdev_bus").on_look = self._look_class
        self.sys.dir("bus/pci/devices").on_look = self._look_pci
        for config in self.config.parents:
            parent = KINDS[config.kind](self, config)
            self.parents[config.name] = parent
            self._boot_parent(parent)
        for device in self.config.devices:
            self.make(device.uuid, device.parent, device.type)

    def _boot_parent(self, parent: MdevParent) -> None:
        config = parent.config
        if config.device_after:
            self._looks["pci " + config.name] = config.device_after
        elif config.pci is not None:
            self._add_pci(config.pci, config.name)
        if config.appears_after or config.device_after:
            self._looks[config.name] = config.appears_after
        else:
            parent.register()

    def _add_pci(self, pci: PciConfig, parent: str | None = None) -> None:
        here = self.sys.dir("devices/" + pci.path)
        here.aliases.append(f"sys/bus/pci/devices/{pci.address}")
        values = {"vendor": pci.vendor, "device": pci.device, "class": pci.pci_class}
        for name, value in {**values, "numa_node": str(pci.numa_node)}.items():
            here.attr(name, value.encode() + b"\n")
        if pci.driver is not None and parent is None:
            here.link("driver", self.sys.dir(f"bus/pci/drivers/{pci.driver}"))
        self.sys.dir("bus/pci/devices").link(pci.address, here)
        group = self._lowest(self._groups)
        where = self.sys.dir(f"kernel/iommu_groups/{group}")
        where.dir("devices").link(pci.address, here)
        here.link("iommu_group", where)
        if pci.physfn is not None:
            self._link_vf(pci.physfn, here)
        if parent is not None:
            here.on_look = lambda name: self._look_parent(parent, name)

    def _link_vf(self, physfn: str, here: Dir) -> None:
        entry = self.sys.dir("bus/pci/devices").children[physfn]
        assert isinstance(entry, Link)
        pf = self.sys.find("devices/" + entry.target.split("/devices/", 1)[1])
        assert isinstance(pf, Dir)
        here.link("physfn", pf)

        def count() -> int:
            return sum(name.startswith("virtfn") for name in pf.children)

        if "sriov_numvfs" not in pf.children:
            pf.attr("sriov_numvfs", lambda: b"%d\n" % count())
        pf.link(f"virtfn{count()}", here)

    def reboot(self) -> None:
        """Power cycle: a new boot_id, no devices, no processes. Faults and the log remain."""
        for device in list(self.devices.values()):
            device.vanish()
        self.processes.clear()
        for pool in self.pools.values():
            pool.clear()
        for name in list(self.sys.children):
            self.sys.remove(name)
        self.dev.remove("vfio")
        self._cdevs.clear()
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
        if name == "mdev_supported_types":
            self._look(self.parents[parent])

    def _look(self, parent: MdevParent) -> None:
        """Somebody looks for a parent that is not there yet; after enough looks it is."""
        config = parent.config
        if "pci " + config.name in self._looks:
            if not self._due("pci " + config.name):
                return
            assert config.pci is not None
            self._add_pci(config.pci, config.name)
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

    def _has_pci(self, config: ParentConfig) -> bool:
        return self.sys.find(f"bus/pci/devices/{config.name}") is not None

    # --- VFIO ---

    @staticmethod
    def _lowest(taken: set[int]) -> int:
        """Numbers are reused, the lowest free one first (ida_alloc)."""
        number = next(n for n in itertools.count() if n not in taken)
        taken.add(number)
        return number

    def add_vfio(self, device: MdevDevice) -> None:
        """The device's IOMMU group, its vfio-dev directory and the files below /dev/vfio."""
        device.group = self._lowest(self._groups)
        where = self.sys.dir(f"kernel/iommu_groups/{device.group}")
        where.dir("devices").link(device.uuid, device.dir)
        device.dir.link("iommu_group", where)
        if self.config.kernel >= (6, 0):
            device.cdev = self._lowest(self._cdevs)
            number = device.dir.dir(f"vfio-dev/vfio{device.cdev}")
            number.attr("uevent", b"")
            if self.config.cdev:
                number.attr("dev", b"511:%d\n" % device.cdev)
        for file in self.files(device):
            directory, _, name = file.rpartition("/")
            self.dev.dir(directory).add(self._openable(name, file))

    def _openable(self, name: str, file: str) -> Openable:
        return Openable(name, lambda pid: self.processes.open_real(pid, file), self._closed)

    def _closed(self, token: int) -> None:
        self.processes.close(token)
        self._finish_removals()

    def files(self, device: MdevDevice) -> set[str]:
        """Its files below /dev: `vfio/7`, and `vfio/devices/vfio0` where the kernel has it."""
        found = {f"vfio/{device.group}"} if device.group >= 0 else set()
        if self.config.cdev and device.cdev >= 0:
            found.add(f"vfio/devices/vfio{device.cdev}")
        return found

    def remove_vfio(self, device: MdevDevice) -> None:
        for file in self.files(device):
            self.dev.remove(file)
        self.processes.close_files(self.files(device))
        if device.group >= 0:
            self.sys.remove(f"kernel/iommu_groups/{device.group}")
            self._groups.discard(device.group)
            self._cdevs.discard(device.cdev)

    def in_use(self, device: MdevDevice) -> bool:
        return bool(self.processes.holders(self.files(device)))

    def _finish_removals(self) -> None:
        for device in list(self.devices.values()):
            if device.state == "removing" and not self.in_use(device):
                device.finish_removal()

    # --- commands of the control file ---

    def find_device(self, name: str) -> MdevDevice:
        """By UUID or by a path that ends in vfio/N or vfio/devices/vfioN."""
        for device in self.devices.values():
            if name.lower() == device.uuid:
                return device
            if any(name == file or name.endswith("/" + file) for file in self.files(device)):
                return device
        raise ValueError(f"no device {name}")

    def hold(self, name: str, pid: int | None = None, comm: str = "qemu-system-x86") -> int:
        device = self.find_device(name)
        files = sorted(self.files(device), key=lambda file: "devices" in file)
        if not files:
            raise ValueError(f"{name} cannot be opened yet")
        file = next((file for file in files if name.endswith(file)), files[0])
        if self.processes.holders({file}) and "devices" not in file:
            raise ValueError(f"{file} is open already")
        argument = f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{device.uuid}"
        cmdline = b"\0".join([comm.encode(), b"-device", argument.encode(), b""])
        process = self.processes.start(pid or self.processes.free_pid(), comm, cmdline)
        process.fixed = True
        self.processes.open(process, file)
        return process.pid

    def drop(self, pid: int) -> None:
        if pid not in self.processes.by_pid:
            raise ValueError(f"no process {pid}")
        self.processes.end(pid)
        self._finish_removals()

    def process(self, pid: int, comm: str, links: list[str]) -> None:
        process = self.processes.start(pid, comm)
        process.fixed = True
        for target in links:
            self.processes.add_link(process, target)

    def make(self, name: str, parent: str, kind: str) -> None:
        """A device made by somebody else; not in the write log. OSError as from `create`."""
        owner = self.find_parent(parent)
        for config in owner.config.types:
            if config.id == kind:
                owner.create(config, name.encode())
                return
        raise ValueError(f"no type {kind} of {parent}")

    def find_parent(self, name: str) -> MdevParent:
        if name not in self.parents:
            raise ValueError(f"no parent {name}")
        return self.parents[name]

    def load(self, name: str) -> None:
        parent = self.find_parent(name)
        self._looks.pop(name, None)
        self._looks.pop("pci " + name, None)
        if parent.registered or parent.unloading:
            raise ValueError(f"{name} is loaded")
        if parent.config.pci is not None and not self._has_pci(parent.config):
            self._add_pci(parent.config.pci, name)
        parent.register()

    def heal(self) -> None:
        self.faults.clear()
        self.on_heal()

    def fault(self, op: str, paths: list[str]) -> Fault | None:
        """The first fault that this call hits."""
        return next((f for f in self.faults if f.op == op and f.hit(paths)), None)

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
                "holders": self.processes.holders(self.files(device)),
            }
            for device in self.devices.values()
        }
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
            "available": available,
            "processes": sorted(self.processes.by_pid),
        }
