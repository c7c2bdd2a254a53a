"""Types that a driver no longer lists: known by name from siblings, or from when they were seen.

A vendor-VFIO VF lists only what it can be now, and nothing once it has a type, so that a full
card would look as if it offered no profile at all (facts E2). Pure, but for the store that
`known` comes from and `learn` writes to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from vgpu_hook.frameworks.vendor_vfio import framebuffer
from vgpu_hook.model import VENDOR_VFIO, Parent, StoreError, VgpuType
from vgpu_hook.store_devices import DeviceRecords

Names = dict[tuple[str, str], str]
"""Names of types by card and type id: the ids of one card say nothing of another's."""


def completed(parents: Iterable[Parent], records: DeviceRecords | None) -> tuple[Parent, ...]:
    """Return the parents with all types that their cards are known to have.

    Names that are new go into the store, if there is one.
    """
    parents = tuple(parents)
    if not any(parent.framework == VENDOR_VFIO for parent in parents):
        return parents
    known = records.types() if records is not None else {}
    seen = _seen(parents)
    if records is not None and (news := dict(seen.items() - known.items())):
        with contextlib.suppress(StoreError):  # a full disk is told by who has something to lose
            records.learn_types(news)
    by_card: dict[str, dict[str, VgpuType]] = {}
    for (card, type_id), name in (known | seen).items():
        full = VgpuType(type_id, name, "", "vfio-pci", 0, 0, framebuffer(name))
        by_card.setdefault(card, {})[type_id] = full
    # Siblings have the same types: each list is completed once.
    done: dict[tuple[str, tuple[VgpuType, ...]], tuple[VgpuType, ...]] = {}
    found = []
    for parent in parents:
        if parent.framework == VENDOR_VFIO and not parent.problem:
            key = (parent.card, parent.types)
            if key not in done:
                done[key] = _complete(parent.types, by_card.get(parent.card, {}))
            parent = parent._replace(types=done[key])
        found.append(parent)
    return tuple(found)


def _seen(parents: tuple[Parent, ...]) -> Names:
    lists = {(p.card, p.types) for p in parents if p.framework == VENDOR_VFIO and p.types}
    return {(card, t.id): t.name for card, types in lists for t in types if t.name}


def _complete(
    types: tuple[VgpuType, ...], all_of_card: dict[str, VgpuType]
) -> tuple[VgpuType, ...]:
    there = {t.id for t in types}
    named = [
        t
        if t.name or t.id not in all_of_card
        else all_of_card[t.id]._replace(available=t.available, in_use=t.in_use)
        for t in types
    ]
    missing = [t for type_id, t in all_of_card.items() if type_id not in there]
    return tuple(sorted((*named, *missing), key=lambda t: (len(t.id), t.id)))
