"""A large host as an ordinary directory tree, for benchmarks: no FUSE, no root, no behaviour.

The tree is that of a simulated host with vendor-specific VFIO, written out once: what a scan of it
costs is the reader's own time. Writes change the one file that they go to and nothing else.
"""

from __future__ import annotations

from pathlib import Path

from .gpufile import GpuConfig, GpuTypeConfig, expand
from .host import Host
from .hostmodel import HostConfig, NodeConfig
from .tree import Attr, Dir, Link, Node


def plain_tree(path: Path, gpus: int = 16, vfs: int = 32, types: int = 30) -> Path:
    """Write `sys`, `proc` and `dev` of such a host below `path`, which is made; return it.

    The GPUs are half on NUMA node 0, half on node 1. A file that the kernel refuses to read
    (gpu_instance_id and placement_id of a VF without a type) is not there.
    """
    host = Host(large_host(gpus, vfs, types))
    for name in ("sys", "proc", "dev"):
        _write(host.root.children[name], path / name)
    return path


def large_host(gpus: int, vfs: int, types: int) -> HostConfig:
    """As a host file would describe it. At most 31 GPUs of 256 VFs fit on the buses."""
    kinds = tuple(
        GpuTypeConfig(1145 + number, f"NVIDIA L40S-{number + 1}Q", 1024 * (number + 1))
        for number in range(types)
    )
    functions, parents = [], []
    for number in range(gpus):
        gpu = GpuConfig(
            address=f"0000:{8 * number + 1:02x}:00.0",
            numa_node=2 * number // max(gpus, 1),
            vfs=vfs,
            types=kinds,
        )
        physical, virtual = expand(gpu)
        functions.append(physical)
        parents += virtual
    return HostConfig(
        name="large",
        kernel=(6, 8),
        mdev_bus=False,
        pci=tuple(functions),
        parents=tuple(parents),
        nodes=(NodeConfig(0, "0-63"), NodeConfig(1, "64-127")),
    )


def _write(node: Node, where: Path) -> None:
    match node:
        case Dir():
            where.mkdir(parents=True)
            for child in node.children.values():
                _write(child, where / child.name)
        case Link():
            where.symlink_to(node.target)
        case Attr():
            try:
                content = node.read()
            except OSError:
                return
            where.write_bytes(content)
            where.chmod(node.mode & 0o777)
