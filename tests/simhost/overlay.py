"""Makes a simulated host show what was recorded of a real one, file by file. Pure.

A host whose hardware was guessed from a bundle (recorded.py) mostly reads as the recorded one did.
Where it does not, what was recorded stands, for as long as the simulated host's own answer stays
what it was at the start: so a `create` or a release changes what it would change anyway.
"""

from __future__ import annotations

import errno
import posixpath
import re
from typing import TYPE_CHECKING

from vgpu_hook.snapshot import (
    DEVICE_LINKS,
    FILE,
    FOLDER,
    FUNCTION_FILES,
    FUNCTION_LINKS,
    HANGS,
    LINK,
    NVIDIA_FILES,
    TYPE_FILES,
    Entry,
)

from .faults import make_fault
from .hostmodel import RecordedConfig
from .tree import Attr, Dir, Link, Node, Show, detach

if TYPE_CHECKING:
    from .host import Host

_RECORDED = {*FUNCTION_FILES, *FUNCTION_LINKS, *NVIDIA_FILES, *TYPE_FILES, *DEVICE_LINKS}
"""Names of files and links that a bundle has wherever a host has them."""
_COMING_AND_GOING = re.compile(r"virtfn\d+|vfio\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OPS = {FILE: "read", FOLDER: "read", LINK: "readlink"}


def lay_over(host: Host, recorded: RecordedConfig) -> None:
    """Once, when the host has booted."""
    _take_away(host.sys, recorded)
    for path, entry in sorted(recorded.entries.items()):
        if path.startswith("sys/"):
            _lay_over(host, path, entry)
    _add_processes(host, recorded)


def _take_away(here: Dir, recorded: RecordedConfig) -> None:
    """What would have been recorded, had it been there."""
    for node in list(here.children.values()):
        named = node.name in _RECORDED and not isinstance(node, Dir)
        if _COMING_AND_GOING.fullmatch(node.name):
            named = "iommu_groups" not in node.path
        if named and node.path not in recorded.entries:
            detach(node)
        elif isinstance(node, Dir):
            _take_away(node, recorded)


def _lay_over(host: Host, path: str, entry: Entry) -> None:
    node = host.root.find(path)
    if entry.error:
        if node is None:
            _add(host, path, Entry(entry.kind))
        if not _fails_so(node, entry.error):
            action = "hang" if entry.error == HANGS else entry.error
            host.faults.append(make_fault(_OPS[entry.kind], path, action))
    elif node is None:
        _add(host, path, entry)
    elif isinstance(node, Attr) and node.show is not None and entry.kind == FILE:
        node.show = _standing(entry.text.encode() + b"\n", node.show)
    elif isinstance(node, Link) and _name(node.target) != _name(entry.text):
        node.target = entry.text


def _add(host: Host, path: str, entry: Entry) -> None:
    if entry.kind == FOLDER:
        host.root.dir(path)
    elif entry.kind == LINK:
        host.root.link(path, entry.text)
    else:
        host.root.attr(path, entry.text.encode() + b"\n")


def _fails_so(node: Node | None, error: str) -> bool:
    if not isinstance(node, Attr) or node.show is None:
        return False
    answer = _shown(node.show)
    return isinstance(answer, int) and errno.errorcode.get(answer) == error


def _standing(text: bytes, show: Show) -> Show:
    before = _shown(show)
    if before == text:
        return show

    def shown() -> bytes:
        return text if _shown(show) == before else (show if isinstance(show, bytes) else show())

    return shown


def _shown(show: Show) -> bytes | int | None:
    """What a file reads, or the errno."""
    try:
        return show if isinstance(show, bytes) else show()
    except OSError as error:
        return error.errno


def _name(target: str) -> str:
    return posixpath.basename(target)


def _add_processes(host: Host, recorded: RecordedConfig) -> None:
    files = {file for device in host.vfio.devices.values() for file in host.vfio.files(device)}
    found: dict[int, dict[int, str]] = {}
    for path, entry in recorded.entries.items():
        words = path.split("/")
        if words[0] != "proc" or not words[1].isdecimal() or words[2] != "fd":
            continue
        links = found.setdefault(int(words[1]), {})
        if entry.error:
            op = _OPS[entry.kind]
            action = "hang" if entry.error == HANGS else entry.error
            host.faults.append(make_fault(op, path, action))
        if len(words) == 4:
            links[int(words[3])] = entry.text
    for pid, links in found.items():
        comm = recorded.entries.get(f"proc/{pid}/comm", Entry(FILE, "?")).text
        host.processes.recorded(pid, comm, links, files)
