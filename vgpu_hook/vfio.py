"""Who holds a VFIO device open: the question that the guard asks before it destroys.

Looks at the file handles of every process, since the kernel offers no count: a handle on
the device's group (/dev/vfio/N) or its character device (/dev/vfio/devices/vfioN) means
in use (facts D5). The `driver` link in sysfs says nothing: it is there on idle devices.
Opening the group to probe it would make QEMU's own open fail.

A link in /proc/<pid>/fd shows the path in the mount namespace of who opened it, and libvirt
gives each QEMU a /dev of its own: once that namespace has ended, what was /dev/vfio/0 reads
/vfio/0, and a node that was removed reads "/dev/vfio/0 (deleted)" (seen on Debian 13). So
paths are compared by their ends.

A process that has a VFIO device's own handle (anon_inode:[vfio-device]) and neither group
nor character device open can't be told what it holds: it counts as a holder of any device.

What it can't see: processes outside this PID namespace; a process that keeps the device's
own handle, closes its group, and has another group open; and files of a thread that has a
table of its own (unshare(2), CLONE_FILES) while the first thread lives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from vgpu_hook import sysfs
from vgpu_hook.model import Holder

ANONYMOUS = "anon_inode:[vfio-device]"
VFIO = "vfio"
GROUP_OR_DEVICE = re.compile(r".*/vfio/(?:(?:noiommu-)?[0-9]+|devices/vfio[0-9]+)")
"""Not /dev/vfio/vfio: whoever has that has no device by it."""
DELETED = " (deleted)"


def holders(proc: str, handles: tuple[str, ...]) -> tuple[Holder, ...]:
    """Return the processes that hold one of the `handles`, such as /dev/vfio/7.

    Raises KernelError when a process's handles can't be read, which is to be taken for
    "in use". A process that ends meanwhile holds nothing.
    """
    ends = tuple(end for handle in handles for end in _ends(handle))
    found = []
    for entry in sysfs.entries(proc):
        if not entry.isdecimal():
            continue
        target = _held(f"{proc}/{entry}", ends)
        if target is not None:
            command = sysfs.read_text(os.path.join(proc, entry, "comm")) or "?"
            found.append(Holder(int(entry), command, target))
    return tuple(found)


def _ends(handle: str) -> tuple[str, str]:
    """Return what the path of a handle ends in, and what is left of it if it was mounted alone."""
    folder, name = os.path.split(handle)
    return f"/{os.path.basename(folder)}/{name}", f"\0/{name}"


def open_files(process: str, names: Callable[[str], list[str]]) -> Iterator[str]:
    """Yield the links that stand for a process's open files; `names` lists a folder.

    A first thread that has exited shows none, while others, such as one that hangs in the kernel,
    keep them open: then each thread's own are looked at. Kernel threads have none at all.
    """
    folder = f"{process}/fd"
    numbers = names(folder)
    yield from (f"{folder}/{number}" for number in numbers)
    if not numbers:
        for thread in names(f"{process}/task"):
            folder = f"{process}/task/{thread}/fd"
            yield from (f"{folder}/{number}" for number in names(folder))


def _held(process: str, ends: tuple[str, ...]) -> str | None:
    """Return which handle is open among a process's that ends in one of the `ends`, if any.

    A host has a hundred thousand of them: one that can't matter costs little but the call.
    """
    anonymous = told_apart = False
    alone = tuple(end.removeprefix("\0") for end in ends if end.startswith("\0"))
    for link in open_files(process, sysfs.entries):
        try:
            target = os.readlink(link)
        except OSError:
            target = sysfs.link_target(link) or ""
        if VFIO not in target and not target.startswith(alone):
            continue
        path = target.removesuffix(DELETED)
        if f"\0{path}".endswith(ends):
            return target
        if path == ANONYMOUS:
            anonymous = True
        elif GROUP_OR_DEVICE.fullmatch(path):
            told_apart = True
    return ANONYMOUS if anonymous and not told_apart else None
