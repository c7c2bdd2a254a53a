"""Who holds a VFIO device open: the question that the guard asks before it destroys.

Looks at the file handles of every process, since the kernel offers no count: a handle on
the device's group (/dev/vfio/N) or its character device (/dev/vfio/devices/vfioN) means
in use (facts D5). The `driver` link in sysfs says nothing: it is there on idle devices.
Opening the group to probe it would make QEMU's own open fail.

A process that has a VFIO device's own handle (anon_inode:[vfio-device]) and neither group
nor character device open can't be told what it holds: it counts as a holder of any device.

What it can't see: processes outside this PID namespace; and a process that keeps the
device's own handle, closes its group, and has another group open.
"""

from __future__ import annotations

import os

from vgpu_hook import sysfs
from vgpu_hook.model import Holder

ANONYMOUS = "anon_inode:[vfio-device]"
VFIO_FOLDER = "/dev/vfio/"
CONTAINER = "/dev/vfio/vfio"


def holders(proc: str, handles: tuple[str, ...]) -> tuple[Holder, ...]:
    """Return the processes that hold one of the `handles` (paths as the kernel names them).

    Raises KernelError when a process's handles can't be read, which is to be taken for
    "in use". A process that ends meanwhile holds nothing.
    """
    wanted = frozenset(handles)
    found = []
    for entry in sysfs.entries(proc):
        if not entry.isdecimal():
            continue
        target = _held(os.path.join(proc, entry, "fd"), wanted)
        if target is not None:
            command = sysfs.read_text(os.path.join(proc, entry, "comm")) or "?"
            found.append(Holder(int(entry), command, target))
    return tuple(found)


def _held(folder: str, wanted: frozenset[str]) -> str | None:
    """Return which of the wanted handles is open among a process's, if any."""
    anonymous = told_apart = False
    for number in sysfs.entries(folder):
        target = sysfs.link_target(os.path.join(folder, number)) or ""
        if target in wanted:
            return target
        if target == ANONYMOUS:
            anonymous = True
        elif target.startswith(VFIO_FOLDER) and target != CONTAINER:
            told_apart = True
    return ANONYMOUS if anonymous and not told_apart else None
