"""Reads host files (hosts/*.toml): which hardware, driver and kernel the simulated host has.

Only the description. What the kernel does with it is in host.py and mdev.py. An unknown key is an
error, so that a misspelt quirk cannot be silently absent.

    kernel = "6.1"            5.x has no vfio-dev directory
    cdev = false              /dev/vfio/devices/vfioN (6.6 and later, CONFIG_VFIO_DEVICE_CDEV)
    mdev_bus = true           false: the mdev module is not loaded, no /sys/class/mdev_bus
    [[pci]]                   PCI functions that are no parents: address, vendor, device, ...
    [[parent]]                kind, addresses (PCI) or path (below /sys/devices), driver, ...
    [parent.capacity]         see capacity.py
    [[parent.type]]           id, name, description, cost, max_instances
    [[parent.attribute]]      files in each device's directory: path, value, writable
    [[device]]                devices that are there at boot: uuid, parent, type
    [[fault]]                 faults from the start: op, path, action, nth, times
"""

from __future__ import annotations

import errno as errnos
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

HOSTS = Path(__file__).parent / "hosts"


@dataclass(frozen=True)
class CapacityConfig:
    total: int | None = None
    one_type: bool = False
    per_parent: int | None = None
    shared: bool = False
    """One pool for all addresses of the parent entry, as for the VFs of one GPU."""
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

    @property
    def path(self) -> str:
        domain_and_bus = self.address.rsplit(":", 1)[0]
        return f"{self.bridge or 'pci' + domain_and_bus}/{self.address}"


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
    appears_after: int = 0
    """Looks that miss before the driver registers the parent."""
    device_after: int = 0
    """Looks that miss before the PCI function itself is there."""


@dataclass(frozen=True)
class DeviceConfig:
    uuid: str
    parent: str
    type: str


@dataclass(frozen=True)
class FaultConfig:
    op: str
    path: str
    action: str
    nth: int | None = None
    times: int | None = None


@dataclass(frozen=True)
class HostConfig:
    name: str
    kernel: tuple[int, ...] = (6, 1)
    cdev: bool = False
    mdev_bus: bool = True
    first_group: int = 1
    pci: tuple[PciConfig, ...] = ()
    parents: tuple[ParentConfig, ...] = ()
    devices: tuple[DeviceConfig, ...] = ()
    faults: tuple[FaultConfig, ...] = field(default=())


T = TypeVar("T")


def host_path(host: str | Path) -> Path:
    """The file of a host given by name (`nvidia-t4`) or by path."""
    path = HOSTS / f"{host}.toml"
    return path if path.exists() else Path(host)


def load(host: str | Path) -> HostConfig:
    """Raises ValueError, naming the file, for anything in it that is not understood."""
    path = host_path(host)
    try:
        return _host(path.stem, tomllib.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _host(name: str, raw: dict[str, Any]) -> HostConfig:
    parents: list[ParentConfig] = []
    for number, entry in enumerate(raw.pop("parent", [])):
        parents += _parents(number, dict(entry))
    lists = {
        "pci": tuple(_make(PciConfig, entry) for entry in raw.pop("pci", [])),
        "devices": tuple(_make(DeviceConfig, entry) for entry in raw.pop("device", [])),
        "faults": tuple(_make(FaultConfig, entry) for entry in raw.pop("fault", [])),
    }
    kernel = tuple(int(part) for part in raw.pop("kernel", "6.1").split("."))
    plain = {"name": name, "kernel": kernel, "parents": tuple(parents), **lists}
    return _make(HostConfig, {**plain, **raw})


def _parents(number: int, raw: dict[str, Any]) -> list[ParentConfig]:
    """One entry may stand for several alike: its `addresses`."""
    types = tuple(_make(TypeConfig, entry) for entry in raw.pop("type", []))
    attributes = tuple(_make(AttributeConfig, entry) for entry in raw.pop("attribute", []))
    capacity = _make(CapacityConfig, raw.pop("capacity", {}))
    common: dict[str, Any] = {"kind": raw.pop("kind", "mdev"), "driver": raw.pop("driver")}
    for key in ("create_seconds", "appears_after", "device_after"):
        if key in raw:
            common[key] = raw.pop(key)
    addresses = raw.pop("addresses", [])
    places: list[tuple[str, str, PciConfig | None]] = []
    if addresses:
        pci_raw = raw.pop("pci", {})
        for address in addresses:
            pci = _make(PciConfig, {**pci_raw, "address": address})
            places.append((address, pci.path, pci))
    else:
        path = raw.pop("path")
        places.append((path.rsplit("/", 1)[-1], path, None))
    if raw:
        raise ValueError(f"unknown keys of a parent: {sorted(raw)}")
    return [
        ParentConfig(
            name=name,
            path=path,
            pci=pci,
            types=types,
            attributes=attributes,
            capacity=capacity,
            pool=f"pool{number}" if capacity.shared else name,
            **common,
        )
        for name, path, pci in places
    ]


def _make(cls: type[T], raw: dict[str, Any]) -> T:
    known = {entry.name for entry in fields(cls)}  # type: ignore[arg-type]  # all are dataclasses
    if unknown := set(raw) - known:
        raise ValueError(f"unknown keys of {cls.__name__}: {sorted(unknown)}")
    return cls(**raw)
