"""Which open files mean that a VFIO device is in use: its group and its character device."""

from __future__ import annotations

import os

from vgpu_hook import sysfs


def handles(path: str) -> tuple[str, ...]:
    """Return the paths whose open handles mean that the device at `path` is in use (facts D5)."""
    group = sysfs.link_target(os.path.join(path, "iommu_group"))
    found = [f"/dev/vfio/{os.path.basename(group)}"] if group else []
    character = sysfs.entries(os.path.join(path, "vfio-dev"))
    return (*found, *(f"/dev/vfio/devices/{name}" for name in character))
