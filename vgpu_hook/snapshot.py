"""What the kernel shows of the host's vGPUs, file by file, for `vgpu-hook record`.

Reads what the frameworks and the guard read, and nothing else: no serial numbers, no other PCI
functions, no command lines. Knows which files there are, and not what they mean. All of it is read
in bounded children: first in one; if that does not answer, each GPU apart; and what hangs then,
file by file, so that the very file is known.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vgpu_hook import bounded, sysfs, vfio
from vgpu_hook.bounded import Deadline
from vgpu_hook.frameworks.gpus import GPU_CLASSES
from vgpu_hook.frameworks.mdev import UUID
from vgpu_hook.model import DeadlineExceeded, KernelError
from vgpu_hook.sysfs import Roots

FILE = "file"
LINK = "link"
FOLDER = "folder"
HANGS = "hangs"

FUNCTION_FILES = (
    *("class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
    *("numa_node", "sriov_totalvfs", "sriov_numvfs"),
)
FUNCTION_LINKS = ("driver", "physfn", "iommu_group")
NVIDIA_FILES = (
    *("creatable_vgpu_types", "current_vgpu_type"),
    *("gpu_instance_id", "placement_id", "vgpu_params"),
)
TYPE_FILES = ("name", "description", "device_api", "available_instances")
DEVICE_LINKS = ("mdev_type", "iommu_group", "driver")
MODULES = ("nvidia", "nvidia_vgpu_vfio", "mdev", "vfio", "vfio_pci", "i915", "kvmgt", "xe")

HANDLE = re.compile(
    r"anon_inode:\[vfio[\w-]*\]\Z"
    r"|(?P<folder>.*)"
    r"(?P<end>(/vfio/(vfio|(noiommu-)?\d+)|/devices/vfio\d+)( \(deleted\))?)\Z"
    r"|/(vfio|noiommu-)?\d+( \(deleted\))?\Z",
    re.DOTALL,
)
"""Links in /proc/<pid>/fd that may stand for a VFIO handle: those that vfio.py compares."""

USUAL = re.compile(r"(/dev)?(/vfio)?\Z")
ELSEWHERE = "/elsewhere"
"""Where a handle's file is says nothing if it is not /dev, and may name what is somebody's."""

FILE_WAIT = 2.0
"""Seconds for one file, when all files of a GPU are read one by one."""


class Entry(NamedTuple):
    """What is at a path. `text` is a file's contents, or where a link leads to.

    `error` is the name of the errno if it can't be read (EIO), or HANGS.
    """

    kind: str
    text: str = ""
    error: str = ""


Entries = dict[str, Entry]
"""By path below the roots: sys/devices/..., proc/4711/fd/12. No links on the way."""


class Snapshot(NamedTuple):
    """What was read, and what could not be, as sentences."""

    entries: Entries
    problems: tuple[str, ...]


def take(roots: Roots, deadline: Deadline) -> Snapshot:
    """Read all of it. Never raises because of what the kernel does."""
    try:
        share = deadline.capped(deadline.remaining() / 8)
        return Snapshot(_in_child(_read_all, roots, deadline=share), ())
    except DeadlineExceeded:
        return _in_parts(roots, deadline)


def _read_all(roots: Roots) -> Entries:
    reading = _Reading(roots, _at_once)
    reading.common()
    for part, name in reading.parts():
        part(reading, name)
    reading.processes()
    return reading.found


def _in_parts(roots: Roots, deadline: Deadline) -> Snapshot:
    """Read each GPU apart, then what hangs file by file: one must not hide the others."""
    problems: list[str] = []

    def patiently(call: Callable[..., Any], *args: Any) -> Any:
        if not deadline.remaining():  # then nothing is known of this file
            raise _TimeOver
        return _in_child(call, *args, deadline=deadline.capped(FILE_WAIT))

    slow = _Reading(roots, patiently)
    try:
        slow.common()
        try:
            slow.found |= _in_child(_read_processes, roots, deadline=_share(deadline))
        except DeadlineExceeded:
            problems.append("who has VFIO devices open could not be read in time")
        for part, name in slow.parts():
            try:
                slow.found |= _in_child(_read_part, roots, part, name, deadline=_share(deadline))
            except DeadlineExceeded:
                part(slow, name)
    except _TimeOver:
        problems.append("the time was over before all files of the GPUs were read")
    problems += [f"{p} does not answer" for p, e in slow.found.items() if e.error == HANGS]
    return Snapshot(slow.found, tuple(problems))


class _TimeOver(Exception):
    """No time is left for reading on."""


def _share(deadline: Deadline) -> Deadline:
    return deadline.capped(max(FILE_WAIT, deadline.remaining() / 8))


def _read_part(roots: Roots, part: Part, name: str) -> Entries:
    reading = _Reading(roots, _at_once)
    part(reading, name)
    return reading.found


def _read_processes(roots: Roots) -> Entries:
    reading = _Reading(roots, _at_once)
    reading.processes()
    return reading.found


def _in_child(call: Callable[..., Any], *args: Any, deadline: Deadline) -> Any:
    return bounded.run(call, *args, deadline=deadline, doing="reading the kernel's files")


def _at_once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


class _Reading:
    """One pass. `ask` does each question to the kernel: here, or in a child that may be late."""

    def __init__(self, roots: Roots, ask: Callable[..., Any]) -> None:
        self.found: Entries = {}
        self._sys = roots.sysfs
        self._proc = roots.proc
        self._ask = ask

    # -- what there is ------------------------------------------------------------------

    def common(self) -> None:
        """Read what belongs to no GPU: this boot, NUMA nodes, drivers."""
        self.file("proc/sys/kernel/random/boot_id")
        for node in self.names("sys/devices/system/node"):
            if node.startswith("node") and node[4:].isdecimal():
                self.file(f"sys/devices/system/node/{node}/cpulist")
        for module in MODULES:
            self.file(f"sys/module/{module}/version")
        for folder in ("sys/bus", "sys/bus/pci/devices", "sys/bus/mdev/devices"):
            self.folder(folder)
        self.folder("sys/class/mdev_bus")

    def parts(self) -> Iterator[tuple[Part, str]]:
        """Yield each PCI function and each mdev parent, with what reads it."""
        for address in self.names("sys/bus/pci/devices"):
            yield _Reading.function, address
        for name in self.names("sys/class/mdev_bus"):
            yield _Reading.parent, name

    def function(self, address: str) -> None:
        """Read a PCI function, if it is a GPU or may carry vGPUs."""
        link = f"sys/bus/pci/devices/{address}"
        here = self._place(link) if self._may_matter(link) else None
        if here is None:
            return
        for name in FUNCTION_FILES:
            self.file(f"{here}/{name}")
        vfs = [name for name in self.names(here) if name.startswith("virtfn")]
        for name in (*FUNCTION_LINKS, *vfs):
            self.link(f"{here}/{name}")
        self.handles(here)
        for name in NVIDIA_FILES:
            self.file(f"{here}/nvidia/{name}")

    def parent(self, name: str) -> None:
        """Read a parent of mediated devices, its types and its devices."""
        here = self._place(f"sys/class/mdev_bus/{name}")
        if here is None:
            return
        for link in ("physfn", "driver"):
            self.link(f"{here}/{link}")
        types = f"{here}/mdev_supported_types"
        for type_id in self.folder(types):
            self.folder(f"{types}/{type_id}")
            for file in TYPE_FILES:
                self.file(f"{types}/{type_id}/{file}")
            for device in self.folder(f"{types}/{type_id}/devices"):
                self.link(f"{types}/{type_id}/devices/{device}")
        for device in self.names(here):
            if UUID.match(device):
                self.link(f"sys/bus/mdev/devices/{device}")
                self.folder(f"{here}/{device}")
                for link in DEVICE_LINKS:
                    self.link(f"{here}/{device}/{link}")
                self.handles(f"{here}/{device}")
                self.file(f"{here}/{device}/nvidia/vgpu_params")

    def _may_matter(self, link: str) -> bool:
        kind = self._read(f"{link}/class", FILE)
        if kind is None or kind.error or kind.text.startswith(GPU_CLASSES):
            return True
        return any(self._is_there(f"{link}/{name}") for name in ("nvidia", "mdev_supported_types"))

    def handles(self, here: str) -> None:
        """Read the names of a device's character devices."""
        for name in self.folder(f"{here}/vfio-dev"):
            self.folder(f"{here}/vfio-dev/{name}")

    def processes(self) -> None:
        """Read who has a VFIO handle open, by name; and whose handles can't be read."""
        for pid in self.names("proc"):
            if not pid.isdecimal():
                continue
            try:
                paths = list(vfio.open_files(f"proc/{pid}", self._listed))
            except (KernelError, DeadlineExceeded) as error:
                self.found[f"proc/{pid}/fd"] = Entry(FOLDER, error=_error(error))
                continue
            links = {path: self._target(path) for path in paths}
            shown = {path: _handle(entry) for path, entry in links.items()}
            held = {path: entry for path, entry in shown.items() if entry is not None}
            if held:
                self.file(f"proc/{pid}/comm")
                self.found |= held

    def _target(self, path: str) -> Entry:
        return self._read(path, LINK) or Entry(LINK)

    # -- elements -----------------------------------------------------------------------

    def file(self, path: str) -> None:
        """Read a file, if there is one."""
        self._keep(path, FILE)

    def link(self, path: str) -> None:
        """Read a link, if there is one."""
        self._keep(path, LINK)

    def folder(self, path: str) -> list[str]:
        """Note a folder if there is one; return the names in it."""
        if not self._is_there(path):
            return []
        try:
            found = self._listed(path)
        except (KernelError, DeadlineExceeded) as error:
            self.found[path] = Entry(FOLDER, error=_error(error))
            return []
        self.found[path] = Entry(FOLDER)
        return found

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, without noting it; none if it can't be read."""
        try:
            return self._listed(path)
        except (KernelError, DeadlineExceeded):
            return []

    def _listed(self, path: str) -> list[str]:
        found: list[str] = self._ask(sysfs.entries, self._real(path))
        return found

    def _keep(self, path: str, kind: str) -> None:
        entry = self._read(path, kind)
        if entry is not None:
            self.found[path] = entry

    def _read(self, path: str, kind: str) -> Entry | None:
        read = sysfs.read_text if kind == FILE else sysfs.link_target
        try:
            text = self._ask(read, self._real(path))
        except (KernelError, DeadlineExceeded) as error:
            return Entry(kind, error=_error(error))
        return None if text is None else Entry(kind, text)

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self._ask(os.path.lexists, self._real(path)))
        except DeadlineExceeded:
            return False

    def _place(self, link: str) -> str | None:
        """Note a link of a bus or class; return the path of what it leads to."""
        self.link(link)
        try:
            top = self._ask(sysfs.resolve, self._sys)
            real = self._ask(sysfs.resolve, self._real(link))
        except (KernelError, DeadlineExceeded):
            return None
        if real is None or top is None or not real.startswith(f"{top}/"):
            return None
        return f"sys/{real[len(top) + 1 :]}"

    def _real(self, path: str) -> str:
        root, _, rest = path.partition("/")
        return os.path.join(self._sys if root == "sys" else self._proc, rest)


Part = Callable[[_Reading, str], None]


def _handle(link: Entry) -> Entry | None:
    """Return what is recorded of an open file; None if it is no VFIO handle."""
    match = HANDLE.match(link.text)
    if match is None or match["folder"] is None or USUAL.match(match["folder"]):
        return link if match is not None else None
    return link._replace(text=f"{ELSEWHERE}{match['end']}")


def _error(error: KernelError | DeadlineExceeded) -> str:
    if isinstance(error, DeadlineExceeded):
        return HANGS
    return errno.errorcode.get(error.code, "EIO")
