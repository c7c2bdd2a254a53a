"""The [[gpu]] entries of a host file: an SR-IOV GPU, its VFs and what they offer.

Turns each into the PCI function of the GPU and one parent for each VF. Nothing of behaviour is
here: vendor.py and plain.py have that.

    address = "0000:41:00.0"    the PF; vendor, device (vf_device), pci_class, subsystem_vendor,
                                subsystem_device, numa_node and bridge are those of its VFs too
    kind = "vendor-vfio"        NVIDIA's vendor-specific VFIO; "plain": VFs and no more
    driver = "nvidia"           "": the driver is missing, so there are no VFs
    vf_driver                   of the VFs, default the PF's
    sriov = true                false: the GPU cannot have VFs, there is no sriov_totalvfs
    vfs = 8                     VFs there are; totalvfs: VFs there can be, default vfs
    enabled = true              false: no VFs (sriov_numvfs 0) until `load` of the control file
    vf_offset = 4               from the PF's routing id to the first VF's
    framebuffer = 49152         MiB for all vGPUs together
    mode = "heterogeneous"      "same-type": the first vGPU's type only; "equal-size": its size only
    mig = false                 true: types come from [[gpu.instance]] (id, types), none without one
    pf_nvidia = false           true: the PF has an nvidia/ directory as well
    sriov_configure = false     true: the driver makes VFs when sriov_numvfs is written
    unbind_lock = 0             how often sriov-manage fails first
    [[gpu.attribute]]           more files of the PF: path, value, writable
    device_after, appears_after looks that miss before the VFs, and then their driver, are there
    [gpu.answers]               header, uncreatable, occupied, in_use, nothing, open: hostmodel.py
    [[gpu.type]]                id, name, framebuffer (MiB), max_instances
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .hostmodel import (
    AttributeConfig,
    CapacityConfig,
    InstanceConfig,
    ParentConfig,
    PciConfig,
    TypeConfig,
    VendorConfig,
    make,
)

MODES = ("heterogeneous", "same-type", "equal-size")


@dataclass(frozen=True)
class GpuTypeConfig:
    id: int
    name: str
    framebuffer: int
    max_instances: int | None = None


@dataclass(frozen=True)
class GpuConfig:
    address: str
    kind: str = "vendor-vfio"
    vendor: str = "0x10de"
    device: str = "0x26b9"
    vf_device: str | None = None
    subsystem_vendor: str = "0x10de"
    subsystem_device: str = "0x1851"
    pci_class: str = "0x030200"
    numa_node: int = 0
    bridge: str | None = None
    driver: str = "nvidia"
    vf_driver: str | None = None
    sriov: bool = True
    vfs: int = 8
    totalvfs: int | None = None
    enabled: bool = True
    vf_offset: int = 4
    framebuffer: int = 49152
    mode: str = "heterogeneous"
    mig: bool = False
    pf_nvidia: bool = False
    sriov_configure: bool = False
    unbind_lock: int = 0
    device_after: int = 0
    appears_after: int = 0
    attributes: tuple[AttributeConfig, ...] = ()
    instances: tuple[InstanceConfig, ...] = ()
    types: tuple[GpuTypeConfig, ...] = ()
    answers: VendorConfig = field(default_factory=VendorConfig)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}, one of {', '.join(MODES)}")
        if self.instances and not self.mig:
            raise ValueError("GPU instances without mig = true")


def read_gpu(raw: dict[str, Any]) -> tuple[PciConfig, list[ParentConfig]]:
    """The PF and its VFs. Raises ValueError for what is not understood."""
    tables = {
        "instances": tuple(_instance(entry) for entry in raw.pop("instance", [])),
        "types": tuple(make(GpuTypeConfig, entry) for entry in raw.pop("type", [])),
        "attributes": tuple(make(AttributeConfig, entry) for entry in raw.pop("attribute", [])),
        "answers": make(VendorConfig, raw.pop("answers", {})),
    }
    return expand(make(GpuConfig, {**raw, **tables}))


def _instance(raw: dict[str, Any]) -> InstanceConfig:
    types = tuple(str(kind) for kind in raw.pop("types"))
    return make(InstanceConfig, {**raw, "types": types})


def expand(gpu: GpuConfig) -> tuple[PciConfig, list[ParentConfig]]:
    """The PCI function of the GPU, and a parent for each VF; without VFs none."""
    common: dict[str, Any] = {
        "vendor": gpu.vendor,
        "pci_class": gpu.pci_class,
        "numa_node": gpu.numa_node,
        "bridge": gpu.bridge or f"pci{gpu.address.rsplit(':', 1)[0]}",
        "subsystem_vendor": gpu.subsystem_vendor,
        "subsystem_device": gpu.subsystem_device,
    }
    total = gpu.totalvfs if gpu.totalvfs is not None else gpu.vfs
    physical = PciConfig(
        address=gpu.address,
        device=gpu.device,
        driver=gpu.driver or None,
        totalvfs=total if gpu.sriov else None,
        decoy=creatable(gpu) if gpu.pf_nvidia else "",
        sriov_configure=gpu.sriov_configure,
        unbind_lock=gpu.unbind_lock,
        attributes=gpu.attributes,
        **common,
    )
    virtual = [
        PciConfig(
            address=vf_address(gpu.address, gpu.vf_offset + number),
            device=gpu.vf_device or gpu.device,
            driver=gpu.vf_driver or gpu.driver,
            physfn=gpu.address,
            virtfn=number,
            **common,
        )
        for number in range(gpu.vfs if gpu.sriov and gpu.driver else 0)
    ]
    return physical, [_parent(gpu, pci) for pci in virtual]


def _parent(gpu: GpuConfig, pci: PciConfig) -> ParentConfig:
    types = tuple(
        TypeConfig(str(kind.id), kind.name, None, kind.framebuffer, kind.max_instances)
        for kind in gpu.types
    )
    capacity = CapacityConfig(
        total=None if gpu.mig else gpu.framebuffer,
        one_type=gpu.mode == "same-type",
        one_size=gpu.mode == "equal-size",
        per_parent=1,
        shared=True,
        instances=gpu.instances if gpu.mig else None,
        error=gpu.answers.uncreatable,
    )
    return ParentConfig(
        name=pci.address,
        path=pci.path,
        kind=gpu.kind,
        pci=pci,
        driver=pci.driver or "",
        types=types,
        attributes=(),
        capacity=capacity,
        pool=gpu.address,
        appears_after=gpu.appears_after,
        device_after=gpu.device_after,
        absent=not gpu.enabled,
        answers=gpu.answers,
    )


def creatable(gpu: GpuConfig) -> str:
    """creatable_vgpu_types of the whole GPU, empty."""
    return "".join(["ID    : vGPU Name\n", *(f"{t.id:<5} : {t.name}\n" for t in gpu.types)])


def vf_address(physfn: str, offset: int) -> str:
    """The address that lies `offset` routing ids behind: 0000:41:00.0 and 4 make 0000:41:00.4."""
    domain, bus, rest = physfn.split(":")
    device, _, function = rest.partition(".")
    number = (int(bus, 16) << 8 | int(device, 16) << 3 | int(function)) + offset
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"
