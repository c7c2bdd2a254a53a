"""The simulated host: /sys, /proc and /dev/vfio of a host with vGPUs, as a FUSE file system.

For tests: the real hook, daemon and commands run against it as ordinary processes. It has the
errnos and the blocking of the kernel's mdev core; it has no VMs, no libvirt and no graphics.

    with SimHost.start("nvidia-t4") as sim:
        sim.make(uuid, "0000:3b:00.0", "nvidia-231")
        sim.hold(uuid)                                  # now a write of `remove` blocks
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import SimHost, Write

__all__ = ["SimHost", "Write"]


def __getattr__(name: str) -> object:
    """Load the client when it is asked for: the server starts 15 ms sooner without it."""
    if name not in __all__:
        raise AttributeError(name)
    from . import client

    return getattr(client, name)
