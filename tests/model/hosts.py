"""The simulated hosts that the rules run on, what their domains ask for, what goes wrong."""

from __future__ import annotations

from typing import NamedTuple

from tests.simhost import SimHost


class ModelHost(NamedTuple):
    """A host file, two profiles that fit beside each other, and one that it does not have."""

    file: str
    profiles: tuple[str, str, str]
    vfs_only: bool = False


HOSTS = (
    ModelHost("mtty", ("mtty-1", "mtty-2", "mtty-3")),
    ModelHost("mtty-cdev", ("mtty-1", "mtty-2", "mtty-3")),
    ModelHost("nvidia-two-t4", ("GRID T4-8Q", "nvidia-232", "GRID T4-99Q")),
    ModelHost("l40s", ("NVIDIA L40S-12Q", "1148", "NVIDIA L40S-99Q"), vfs_only=True),
    ModelHost("l40s-two", ("1155", "1148", "9999"), vfs_only=True),
    ModelHost("mixed-mdev-vfio", ("mtty-1", "1148", "nvidia-63")),
)


class Trouble(NamedTuple):
    """A fault of the kernel. `blind`: while it lasts nobody can tell who has what open."""

    operation: str
    path: str
    action: str
    blind: bool = False


TROUBLES = (
    Trouble("write", "sys/*/create", "EIO"),
    Trouble("write", "sys/*/create", "ENOSPC"),
    Trouble("write", "sys/*/create", "EUSERS"),
    Trouble("write", "sys/*/create", "ignore"),
    Trouble("write", "sys/*/create", "slow:0.05"),
    Trouble("write", "sys/*/remove", "EIO"),
    Trouble("write", "sys/*/remove", "EAGAIN"),
    Trouble("write", "sys/*/remove", "ignore"),
    Trouble("write", "sys/*/current_vgpu_type", "EINVAL"),
    Trouble("write", "sys/*/current_vgpu_type", "EIO"),
    Trouble("write", "sys/*/current_vgpu_type", "ENOSPC"),
    Trouble("write", "sys/*/current_vgpu_type", "ignore"),
    Trouble("read", "sys/*/current_vgpu_type", "EIO"),
    Trouble("read", "sys/*/creatable_vgpu_types", "EIO"),
    Trouble("read", "sys/*/available_instances", "EIO"),
    Trouble("readlink", "sys/*/mdev_type", "EIO"),
    Trouble("readlink", "sys/*/iommu_group", "EIO"),
    Trouble("open", "proc/*/fd", "EACCES", blind=True),
    Trouble("readlink", "proc/*/fd/*", "EIO", blind=True),
)


def put_in(sim: SimHost, trouble: Trouble, *, nth: int, lasting: bool) -> None:
    """Have it happen once, at the n-th time, or from now on."""
    if not lasting:
        sim.fault(trouble.operation, trouble.path, trouble.action, nth=nth)
    elif trouble.operation == "write" and "vgpu_type" in trouble.path:
        sim.fault(*trouble[:3], times=4)  # each is tried again after half a second
    else:
        sim.fault(*trouble[:3])


class Free(NamedTuple):
    """Where somebody else could make a vGPU."""

    parent: str
    type: str

    @property
    def is_vf(self) -> bool:
        return self.type.isdecimal()


def free_places(sim: SimHost) -> list[Free]:
    """Return what the kernel has room for, VFs and mdev parents."""
    state = sim.state()
    vfs = state["vfs"].items()
    found = [Free(vf, str(n)) for vf, v in vfs if not v["type"] for n in v["creatable"]]
    for parent, types in state["available"].items():
        if parent not in state["vfs"]:
            found += [Free(parent, kind) for kind, room in types.items() if room]
    return sorted(found)
