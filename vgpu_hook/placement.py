"""Which parent a new vGPU goes to, and why none will do. Pure: values in, values out.

The numbers that it is given may be out of date by the time the kernel is asked; the
kernel has the last word, and the caller comes back with what it has learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vgpu_hook.model import VENDOR_VFIO, Parent, VgpuError, VgpuType, plain_name


class Candidate(NamedTuple):
    """A parent and the type on it that a profile names there."""

    parent: Parent
    type: VgpuType


class UnknownProfile(VgpuError):
    """No parent of the host offers the profile, or it may mean several of a parent's types."""


def matching_type(profile: str, parent: Parent) -> VgpuType | None:
    """Return the parent's type that the profile names, in any case.

    By type id (`nvidia-63`), else by the driver's name (`GRID T4-2Q`), else by the number
    that a type id ends in (`63`). Raises UnknownProfile if that fits several types.
    """
    wanted = profile.strip().casefold()
    ways = (
        [t for t in parent.types if t.id.casefold() == wanted],
        [t for t in parent.types if t.name.casefold() == wanted],
        [t for t in parent.types if wanted.isdecimal() and t.id.endswith(f"-{wanted}")],
    )
    fitting: list[VgpuType] = next((way for way in ways if way), [])
    if len(fitting) > 1:
        ids = ", ".join(t.id for t in fitting)
        raise UnknownProfile(f"profile {profile!r} fits several types of {parent.name}: {ids}")
    return fitting[0] if fitting else None


def candidates(parents: Iterable[Parent], profile: str, gpu: str | None) -> list[Candidate]:
    """Return the parents that offer the profile, full ones too, on the pinned GPU if any."""
    found = []
    matched: dict[int, VgpuType | None] = {}  # VFs of a card share their lists
    for parent in parents:
        if parent.problem or not on_gpu(parent, gpu):
            continue
        key = id(parent.types)
        if key not in matched:
            matched[key] = matching_type(profile, parent)
        if (vgpu_type := matched[key]) is not None:
            found.append(Candidate(parent, vgpu_type))
    return found


def on_gpu(parent: Parent, gpu: str | None) -> bool:
    """Tell whether a parent is, or belongs to, the GPU that a request is pinned to."""
    if gpu is None:
        return True
    return plain_name(gpu) in (parent.gpu.casefold(), parent.name.casefold())


class Wishes(NamedTuple):
    """What makes one parent better than another.

    policy: `spread` prefers the GPU that is least loaded, `pack` the one that is most.
    nodes: NUMA nodes that are better than others; empty if none is.
    waiting: by parent, vGPUs that others are making now, and for a VF the definitions that name
        it. It only moves a parent back: the kernel may show those vGPUs already.
    loads: by GPU of VFs, the MiB of framebuffer that count as taken (see `loads`).
    """

    policy: str = "spread"
    nodes: frozenset[int] = frozenset()
    waiting: Mapping[str, int] = MappingProxyType({})
    loads: Mapping[str, int] = MappingProxyType({})


def order(found: Iterable[Candidate], wishes: Wishes) -> list[Candidate]:
    """Return the candidates with room, best first.

    NUMA comes first, then VFs that no other definition names, then the GPU's load: by framebuffer
    for VFs, by free instances of the type for mdev, and then by those of the parent.
    """
    room = [candidate for candidate in found if candidate.type.available > 0]
    waiting = {c.parent.name: wishes.waiting.get(c.parent.name, 0) for c in room}
    free = {c.parent.name: c.type.available - waiting[c.parent.name] for c in room}
    of_gpu: dict[str, int] = {}
    for candidate in room:
        gpu = candidate.parent.gpu
        of_gpu[gpu] = of_gpu.get(gpu, 0) + max(0, free[candidate.parent.name])
    sign = 1 if wishes.policy == "pack" else -1

    def key(candidate: Candidate) -> tuple[bool, int, int, str, int, str]:
        parent = candidate.parent
        away = bool(wishes.nodes) and parent.node not in wishes.nodes
        if parent.framework == VENDOR_VFIO:
            load = -sign * wishes.loads.get(parent.gpu, 0)
            return away, waiting[parent.name], load, parent.gpu, 0, parent.name
        left = free[parent.name]
        return away, int(left <= 0), sign * of_gpu[parent.gpu], parent.gpu, sign * left, parent.name

    return sorted(room, key=key)


def loads(parents: Iterable[Parent], besides: Mapping[str, int]) -> dict[str, int]:
    """Return by GPU the MiB that its VFs have taken; `besides` adds MiB by VF."""
    found: dict[str, int] = {}
    for parent in parents:
        taken = besides.get(parent.name, 0)
        if parent.devices:
            taken += sum(t.in_use * t.framebuffer for t in parent.types)
        found[parent.gpu] = found.get(parent.gpu, 0) + taken
    return found


def why_not(
    parents: Iterable[Parent],
    profile: str,
    gpu: str | None,
    holders: Mapping[str, str] | None = None,
) -> VgpuError:
    """Return the error for a profile that nothing has room for: what exists, what is free.

    `holders` are the names of domains by device.
    """
    parents = tuple(parents)
    mine = tuple(parent for parent in parents if on_gpu(parent, gpu))
    hint = "run: vgpu-hook profiles"
    if all(parent.state for parent in parents):
        reasons = "".join(f"; {parent.name}: {parent.problem}" for parent in parents)
        return UnknownProfile(f"this host has no device that offers vGPUs{reasons}", hint)
    if not mine:
        gpus = ", ".join(sorted({parent.gpu for parent in parents}))
        return UnknownProfile(f"GPU {gpu!r} is not one that offers vGPUs (there are: {gpus})", hint)
    offered = candidates(mine, profile, None)
    if not offered:
        where = f"GPU {gpu}" if gpu else "any GPU"
        return UnknownProfile(
            f"profile {profile!r} is not offered by {where}; there are: {_offers(mine)}", hint
        )
    reasons = "; ".join(dict.fromkeys(full(c, parents, holders or {}) for c in offered))
    return VgpuError(f"no free instance of profile {profile!r}: {reasons}", hint)


def full(
    candidate: Candidate, parents: Iterable[Parent] = (), holders: Mapping[str, str] | None = None
) -> str:
    """Say why a candidate has no room, or how much it has. `parents` are all of the host."""
    parent, vgpu_type = candidate
    if parent.framework == VENDOR_VFIO:
        siblings = [p for p in parents if p.gpu == parent.gpu]
        return _full_gpu(parent, vgpu_type, siblings, holders or {})
    if vgpu_type.available > 0:
        return f"{parent.name} has {vgpu_type.available} of {vgpu_type.id} free"
    others = [f"{t.in_use} of {t.id}" for t in parent.types if t.in_use and t.id != vgpu_type.id]
    if others and not vgpu_type.in_use:
        return f"{parent.name} is taken by another type ({', '.join(others)} in use)"
    users = ", ".join([f"{vgpu_type.in_use} of {vgpu_type.id}", *others])
    return f"{parent.name} has 0 of {vgpu_type.id} free ({users} in use)"


def _full_gpu(
    parent: Parent, vgpu_type: VgpuType, siblings: list[Parent], holders: Mapping[str, str]
) -> str:
    """Say what holds the VFs of a GPU, as one text for all of them."""
    free = sum(1 for p in siblings if not p.devices and not p.problem)
    can = sum(1 for p in siblings if any(t.available for t in p.types if t.id == vgpu_type.id))
    if can:
        return f"{parent.gpu} has {can} VFs that can be {vgpu_type.id}"
    users = [
        f"{p.name} is {t.id}" + (f" of domain {holders[p.name]!r}" if p.name in holders else "")
        for p in siblings
        for t in p.types
        if p.devices and t.in_use
    ]
    broken = [p.name for p in siblings if p.problem]
    parts = [f"{free} of {len(siblings)} VFs free, none of them can be {vgpu_type.id} now"]
    parts += [", ".join(users)] if users else []
    parts += [f"unreadable: {', '.join(broken)}"] if broken else []
    return f"{parent.gpu} has {'; '.join(parts)}"


def _offers(parents: tuple[Parent, ...]) -> str:
    """List the types of these parents with what is free of each, host-wide."""
    free: dict[str, int] = {}
    names: dict[str, str] = {}
    for parent in parents:
        for vgpu_type in parent.types:
            free[vgpu_type.id] = free.get(vgpu_type.id, 0) + vgpu_type.available
            names.setdefault(vgpu_type.id, vgpu_type.name)
    offers = [
        f"{type_id} ({names[type_id]}: {count} free)"
        if names[type_id]
        else f"{type_id} ({count} free)"
        for type_id, count in sorted(free.items())
    ]
    problems = [parent.problem for parent in parents if parent.problem]
    return ", ".join(offers + [f"unreadable: {problem}" for problem in problems]) or "none"
