"""Reads host files (hosts/*.toml): which hardware, driver and kernel the simulated host has.

Only the description. What the kernel does with it is in host.py and the kinds of parents. An
unknown key is an error, so that a misspelt quirk cannot be silently absent.

    kernel = "6.1"            5.x has no vfio-dev directory
    cdev = false              /dev/vfio/devices/vfioN (6.6 and later, CONFIG_VFIO_DEVICE_CDEV)
    mdev_bus = true           false: the mdev module is not loaded, no /sys/class/mdev_bus
    vfio_mdev = true          5.x: false: the module of that name is not loaded
    [[node]]                  NUMA nodes: id, cpulist
    [[pci]]                   PCI functions that are no parents: address, vendor, device, ...
    [[parent]]                kind, addresses (PCI) or path (below /sys/devices), driver, and
                              what ParentConfig of hostmodel.py has from create_seconds on
    [parent.capacity]         see capacity.py
    [[parent.type]]           id, name, description, cost, max_instances
    [[parent.attribute]]      files in each device's directory: path, value, writable
    [[gpu]]                   an SR-IOV GPU and its VFs, see gpufile.py
    script = ""               commands of control.py, done once at the start: scripts of faults
    [[device]]                devices that are there at boot: uuid (not for VFs), parent, type
    [[fault]]                 faults from the start: op, path, action, nth, times, data
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from .gpufile import read_gpu
from .hostmodel import (
    AttributeConfig,
    CapacityConfig,
    DeviceConfig,
    FaultConfig,
    HostConfig,
    NodeConfig,
    ParentConfig,
    PciConfig,
    TypeConfig,
    make,
)

HOSTS = Path(__file__).parent / "hosts"
BUNDLE = ".tar.gz"
_PARENT_KEYS = {
    *("create_seconds", "create_error", "leave_seconds", "request_seconds"),
    *("clean_seconds", "clean_error", "appears_after", "device_after", "absent"),
}


def host_path(host: str | Path) -> Path:
    """The file of a host given by name (`nvidia-t4`) or by path."""
    path = HOSTS / f"{host}.toml"
    return path if path.exists() else Path(host)


def load(host: str | Path) -> HostConfig:
    """Raises ValueError, naming the file, for anything in it that is not understood.

    A bundle of `vgpu-hook record` (.tar.gz) is a host too.
    """
    path = host_path(host)
    try:
        if path.name.endswith(BUNDLE):
            from . import bundle, recorded  # they import the product, which takes its time

            return recorded.host_of(bundle.read(path))
        return _host(path.stem, tomllib.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _host(name: str, raw: dict[str, Any]) -> HostConfig:
    functions = [make(PciConfig, entry) for entry in raw.pop("pci", [])]
    parents: list[ParentConfig] = []
    for number, entry in enumerate(raw.pop("parent", [])):
        parents += _parents(number, dict(entry))
    for entry in raw.pop("gpu", []):
        physical, virtual = read_gpu(dict(entry))
        functions.append(physical)
        parents += virtual
    lists = {
        "pci": tuple(functions),
        "devices": tuple(make(DeviceConfig, entry) for entry in raw.pop("device", [])),
        "faults": tuple(make(FaultConfig, entry) for entry in raw.pop("fault", [])),
        "nodes": tuple(make(NodeConfig, entry) for entry in raw.pop("node", [])),
    }
    kernel = tuple(int(part) for part in raw.pop("kernel", "6.1").split("."))
    plain = {"name": name, "kernel": kernel, "parents": tuple(parents), **lists}
    return make(HostConfig, {**plain, **raw})


def _parents(number: int, raw: dict[str, Any]) -> list[ParentConfig]:
    """One entry may stand for several alike: its `addresses`."""
    types = tuple(make(TypeConfig, entry) for entry in raw.pop("type", []))
    attributes = tuple(make(AttributeConfig, entry) for entry in raw.pop("attribute", []))
    capacity = make(CapacityConfig, raw.pop("capacity", {}))
    common: dict[str, Any] = {"kind": raw.pop("kind", "mdev"), "driver": raw.pop("driver")}
    for key in _PARENT_KEYS & set(raw):
        common[key] = raw.pop(key)
    addresses = raw.pop("addresses", [])
    places: list[tuple[str, str, PciConfig | None]] = []
    if addresses:
        pci_raw = raw.pop("pci", {})
        for address in addresses:
            pci = make(PciConfig, {**pci_raw, "address": address})
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
