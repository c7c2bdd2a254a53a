"""What sriov-manage, nvidia-smi and a write to sriov_numvfs do to a GPU's VFs.

Sources: facts E2 (the sequence, and what a rebind wipes), E4; peers.md row 21 (the mode is lost
with the VFs; exit status 19 while the GPU is busy), row 70 (a lock that is not to be had at once).
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from .gpufile import MODES
from .hostmodel import InstanceConfig, PciConfig

if TYPE_CHECKING:
    from .host import Host, Parent


def vfs_of(host: Host, gpu: str) -> list[Parent]:
    """Its VFs that the host file describes, there or not. Raises ValueError if it has none."""
    found = [
        parent
        for parent in host.parents.values()
        if parent.config.pci is not None and parent.config.pci.physfn == gpu
    ]
    if not found:
        raise ValueError(f"{gpu} is no GPU with VFs")
    return found


def manage(host: Host, gpu: str, on: bool) -> None:
    """sriov-manage -e and -d. To switch on what is on does nothing.

    As the driver is bound anew, MIG's GPU instances are gone, and so is heterogeneous mode.
    """
    vfs = vfs_of(host, gpu)
    _take_lock(host, gpu)
    if on and all(vf.registered for vf in vfs):
        return
    if not on:
        set_count(host, gpu, 0)
    pool = host.pools[vfs[0].config.pool]
    lost = () if pool.config.instances is not None else None
    pool.config = replace(pool.config, instances=lost, one_size=not pool.config.one_type)
    if on:
        set_count(host, gpu, len(vfs))


def _take_lock(host: Host, gpu: str) -> None:
    config = next(pci for pci in host.config.pci if pci.address == gpu)
    if host.lock_failures[gpu] < config.unbind_lock:
        host.lock_failures[gpu] += 1
        raise OSError(errno.EAGAIN, "Cannot obtain unbindLock")


def set_count(host: Host, gpu: str, count: int) -> None:
    """So many VFs are there from now on: the first ones. EBUSY if one that goes is open."""
    vfs = vfs_of(host, gpu)
    if any(vf.in_use for vf in vfs[count:]):
        raise OSError(errno.EBUSY, "a VF is open")
    for vf in vfs[count:]:
        if host.pci.has(vf.name):
            vf.vanish()
    for vf in vfs[:count]:
        if not vf.registered:
            host.load(vf.name)


def write_numvfs(host: Host, pci: PciConfig, present: int, data: bytes) -> None:
    """sriov_numvfs_store. NVIDIA's driver has no sriov_configure: facts E2, refused."""
    if not data.strip().isdigit():
        raise OSError(errno.EINVAL, "not a number")
    count = int(data)
    if count > (pci.totalvfs or 0):
        raise OSError(errno.ERANGE, "more than sriov_totalvfs")
    if count == present:
        return
    if not pci.sriov_configure:
        raise OSError(errno.ENOENT, "no SR-IOV by way of sysfs")
    if count and present:
        raise OSError(errno.EBUSY, "there are VFs: 0 first")
    set_count(host, pci.address, count)


def set_mode(host: Host, gpu: str, mode: str) -> None:
    """nvidia-smi vgpu -shm 1 (heterogeneous) or 0. EBUSY once there is a vGPU."""
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}, one of {', '.join(MODES)}")
    pool = host.pools[vfs_of(host, gpu)[0].config.pool]
    if pool.busy:
        raise OSError(errno.EBUSY, "there are vGPUs")
    pool.config = replace(pool.config, one_type=mode == "same-type", one_size=mode == "equal-size")


def set_instance(host: Host, gpu: str, number: int, types: list[str]) -> None:
    """A GPU instance (nvidia-smi mig -cgi ... -C) that offers those types; without any: gone."""
    pool = host.pools[vfs_of(host, gpu)[0].config.pool]
    if pool.config.instances is None:
        raise ValueError(f"{gpu} is not in MIG mode")
    if pool.has_instance(number):
        raise OSError(errno.EBUSY, "it has a vGPU")
    others = tuple(one for one in pool.config.instances if one.id != number)
    new = (InstanceConfig(number, tuple(types)),) if types else ()
    pool.config = replace(pool.config, instances=(*others, *new))
