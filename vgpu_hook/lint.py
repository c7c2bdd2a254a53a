"""What is wrong with PCI hostdevs that people write by hand. Pure: values in, values out.

Each of these was reported by somebody whose VM, or whose whole host, lost its GPU
(facts/peers.md rows 27 and 61).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vgpu_hook.model import VENDOR_VFIO, Domain, Parent, shell_word


class Finding(NamedTuple):
    """One thing that is wrong, and what to do about it."""

    domain: str
    hostdev: str
    problem: str
    fix: str


def check(domains: Iterable[Domain], parents: Iterable[Parent]) -> list[Finding]:
    """Return what is wrong with the PCI hostdevs of these definitions on this host."""
    domains = tuple(domains)
    vfs = {p.name: p.gpu for p in parents if p.framework == VENDOR_VFIO and not p.state}
    gpus = set(vfs.values())
    named_by: dict[str, list[str]] = {}
    for domain in domains:
        for address in {h.address for h in domain.hostdevs if h.type == "pci"}:
            named_by.setdefault(address, []).append(domain.name)
    found = []
    for domain in domains:
        edit = f"run: virsh edit {shell_word(domain.name)}"
        for hostdev in domain.hostdevs:
            if hostdev.type != "pci":
                continue
            address = hostdev.address
            if address in gpus:
                what = f"it is the GPU itself, and its {_count(vfs, address)} VFs are in service"
                found.append(Finding(domain.name, address, what, f"{edit}, and name a VF"))
            if address in vfs and hostdev.managed != "no":
                what = f"managed='{hostdev.managed}': libvirt would take it from NVIDIA's driver"
                found.append(Finding(domain.name, address, what, f"{edit}, and set managed='no'"))
            others = [name for name in named_by[address] if name != domain.name]
            if address in vfs and others and hostdev.slot is None:
                what = f"domain {', '.join(map(repr, others))} names the same VF"
                fix = f"run: vgpu-hook attach {shell_word(domain.name)} --profile PROFILE"
                found.append(Finding(domain.name, address, what, fix))
    return found


def _count(vfs: dict[str, str], gpu: str) -> int:
    return sum(1 for of in vfs.values() if of == gpu)
