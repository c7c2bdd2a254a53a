"""What a host file describes: the hardware, driver and kernel of a simulated host. Data only.

Read by hostfile.py and gpufile.py, acted on by host.py and the kinds of parents (mdev.py,
vendor.py, plain.py).
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from vgpu_hook.snapshot import Entry

T = TypeVar("T")


@dataclass(frozen=True)
class InstanceConfig:
    """A GPU instance (MIG), as `nvidia-smi mig -cgi` makes it before there are vGPUs."""

    id: int
    types: tuple[str, ...]


@dataclass(frozen=True)
class CapacityConfig:
    total: int | None = None
    one_type: bool = False
    per_parent: int | None = None
    shared: bool = False
    """One pool for all addresses of the parent entry, as for the VFs of one GPU."""
    one_size: bool = False
    """One frame buffer size at a time (NVIDIA's equal-size mode)."""
    instances: tuple[InstanceConfig, ...] | None = None
    """GPU instances of MIG: each carries one device, of the types that it offers."""
    overstated: bool = False
    """available_instances leaves the total out: a create fails although it reads 1 or more."""
    error: str = "ENOSPC"

    @property
    def errno(self) -> int:
        return int(getattr(errnos, self.error))


@dataclass(frozen=True)
class TypeConfig:
    id: str
    name: str | None = None
    description: str | None = None
    cost: int = 1
    max_instances: int | None = None
    device_api: str = "vfio-pci"


@dataclass(frozen=True)
class AttributeConfig:
    path: str
    value: str = ""
    writable: bool = False
    needs_newline: bool = False
    """A write without a newline succeeds and changes nothing (peers.md row 62)."""


@dataclass(frozen=True)
class PciConfig:
    address: str
    vendor: str = "0x10de"
    device: str = "0x1eb8"
    pci_class: str = "0x030200"
    driver: str | None = "nvidia"
    numa_node: int = 0
    bridge: str | None = None
    """The directory below /sys/devices; default pciDDDD:BB."""
    physfn: str | None = None
    virtfn: int | None = None
    """Its number among the VFs of physfn; by default the next one."""
    subsystem_vendor: str | None = None
    subsystem_device: str | None = None
    totalvfs: int | None = None
    """With it the function has sriov_totalvfs, and sriov_numvfs even without VFs."""
    decoy: str = ""
    """What creatable_vgpu_types reads if the function has an nvidia/ without being a VF."""
    sriov_configure: bool = False
    """Its driver makes VFs when sriov_numvfs is written."""
    unbind_lock: int = 0
    """How often sriov-manage fails before it gets its lock."""
    attributes: tuple[AttributeConfig, ...] = ()
    """More files in its directory."""

    @property
    def path(self) -> str:
        domain_and_bus = self.address.rsplit(":", 1)[0]
        return f"{self.bridge or 'pci' + domain_and_bus}/{self.address}"


@dataclass(frozen=True)
class VendorConfig:
    """Vendor-specific VFIO: how NVIDIA's driver answers. Errors by name; "": it does it."""

    header: bool = True
    """creatable_vgpu_types begins with the line `ID    : vGPU Name`."""
    uncreatable: str = "EIO"
    """Setting a type that is not in the list."""
    occupied: str = "EIO"
    """Setting a type while one is set."""
    in_use: str = "EBUSY"
    """0 while the VFIO file is open."""
    nothing: str = "EPERM"
    """0 while no type is set."""
    open: str = "EIO"
    """Opening the VFIO file while no type is set."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            name = getattr(self, entry.name)
            if isinstance(name, str) and name and not hasattr(errnos, name):
                raise ValueError(f"{entry.name}: unknown error {name!r}")


@dataclass(frozen=True)
class ParentConfig:
    name: str
    path: str
    kind: str
    pci: PciConfig | None
    driver: str
    types: tuple[TypeConfig, ...]
    attributes: tuple[AttributeConfig, ...]
    capacity: CapacityConfig
    pool: str
    create_seconds: float = 0.0
    create_error: str = ""
    """What the driver's probe fails with, when the device is on the bus already."""
    leave_seconds: float = 0.0
    """A write of `remove` returns at once, and the device goes that much later."""
    request_seconds: float | None = None
    """The driver asks who has a device open to let go of it, which is done after that time."""
    clean_seconds: float | None = None
    """The driver itself removes a device that was open, so long after it was closed."""
    clean_error: str = "EIO"
    """What a write of `remove` gets meanwhile."""
    appears_after: int = 0
    """Looks that miss before the driver registers the parent."""
    device_after: int = 0
    """Looks that miss before the PCI function itself is there."""
    absent: bool = False
    """Not there at all until the control file says `load`."""
    answers: VendorConfig = field(default_factory=VendorConfig)


@dataclass(frozen=True)
class DeviceConfig:
    """There at boot. A VF has a type and no uuid."""

    parent: str
    type: str
    uuid: str = ""


@dataclass(frozen=True)
class NodeConfig:
    """A NUMA node."""

    id: int
    cpulist: str


@dataclass(frozen=True)
class FaultConfig:
    op: str
    path: str
    action: str
    nth: int | None = None
    times: int | None = None
    data: str | None = None


@dataclass(frozen=True)
class RecordedConfig:
    """What a bundle of `vgpu-hook record` has of a host beyond its hardware (recorded.py)."""

    boot_id: str
    entries: Mapping[str, Entry]
    groups: Mapping[str, int]
    """The IOMMU group of each function and device, by name."""
    cdevs: Mapping[str, int]
    """N of vfio-dev/vfioN."""


@dataclass(frozen=True)
class HostConfig:
    name: str
    kernel: tuple[int, ...] = (6, 1)
    cdev: bool = False
    mdev_bus: bool = True
    vfio_mdev: bool = True
    """Before 6.0: the module that makes a mediated device a VFIO device is loaded."""
    first_group: int = 1
    pci: tuple[PciConfig, ...] = ()
    parents: tuple[ParentConfig, ...] = ()
    devices: tuple[DeviceConfig, ...] = ()
    faults: tuple[FaultConfig, ...] = ()
    nodes: tuple[NodeConfig, ...] = ()
    script: str = ""
    """Commands of the control file, done once when the host starts."""
    recorded: RecordedConfig | None = None


def make(cls: type[T], raw: dict[str, Any]) -> T:
    """One of those classes from a table of a host file. Raises ValueError for an unknown key."""
    known = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    if unknown := set(raw) - known:
        raise ValueError(f"unknown keys of {cls.__name__}: {sorted(unknown)}")
    return cls(**raw)
