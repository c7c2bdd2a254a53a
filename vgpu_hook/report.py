"""What there is, for `status`, `profiles` and `explain`: plain values, as JSON has them.

Reads only: asking never writes to a device (a `show` command that programmed hardware is
one of the reports in facts/peers.md).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import VENDOR_VFIO, Assignment, Parent, VgpuError, VgpuType
from vgpu_hook.placement import Candidate, full
from vgpu_hook.store import Store
from vgpu_hook.store_devices import Failure, quarantined

Value = dict[str, Any]

MIG = re.compile(r"-\d+-\d+[A-Z]+\Z")
"""Names of types that are slices of a MIG instance: NVIDIA A100-1-5C."""

HINTS = {
    "no-instances": "no type can be made, though none is in use: a card in MIG mode needs GPU"
    " instances first; run: nvidia-smi mig -lgi"
}


def gpus(parents: tuple[Parent, ...], rows: list[Assignment]) -> list[Value]:
    """Return each GPU with its parents, and on them the devices and whose they are."""
    found: dict[str, Value] = {}
    for parent in parents:
        gpu = found.setdefault(
            parent.gpu, {"gpu": parent.gpu, "framework": parent.framework, "parents": []}
        )
        gpu["parents"].append(
            {
                "name": parent.name,
                "problem": parent.problem or None,
                "types": [vgpu_type._asdict() for vgpu_type in parent.types],
                "devices": [_device(device, rows) for device in parent.devices],
            }
        )
    return list(found.values())


def assignments(rows: list[Assignment]) -> list[Value]:
    """Return the records, without what only the store needs."""
    return [{key: value for key, value in row._asdict().items() if value} for row in rows]


def profiles(
    parents: tuple[Parent, ...], rows: list[Assignment], states: list[Value]
) -> list[Value]:
    """Return each type of each GPU: what is free now, and why not if nothing is.

    `states` are those of gpu_states for the same parents.
    """
    found: dict[tuple[str, str], Value] = {}
    for parent in parents:
        for vgpu_type in parent.types:
            entry = found.setdefault(
                (parent.gpu, vgpu_type.id),
                {
                    "gpu": parent.gpu,
                    "id": vgpu_type.id,
                    "name": vgpu_type.name,
                    "framework": parent.framework,
                    "description": vgpu_type.description,
                    "free": 0,
                    "in_use": 0,
                    "framebuffer": vgpu_type.framebuffer or None,
                    "candidates": [],
                },
            )
            entry["free"] += vgpu_type.available
            entry["in_use"] += vgpu_type.in_use
            entry["candidates"].append(Candidate(parent, vgpu_type))
    by_gpu = _by_gpu(parents)
    holders = {row.device: row.domain_name for row in rows}
    room = {gpu["gpu"]: gpu["free"] for gpu in states}
    for entry in found.values():
        those = entry.pop("candidates")
        size, left = entry["framebuffer"], room[entry["gpu"]]
        if entry["framework"] == VENDOR_VFIO and size and left is not None:
            entry["free"] = min(entry["free"], left // size)  # each VF counts alone
        entry["why_none"] = None
        if not entry["free"]:
            # All VFs of a GPU have one reason.
            some = those[:1] if entry["framework"] == VENDOR_VFIO else those
            reasons = (full(c, by_gpu[entry["gpu"]], holders) for c in some)
            entry["why_none"] = "; ".join(dict.fromkeys(reasons))
    return list(found.values())


def gpu_states(parents: tuple[Parent, ...]) -> list[Value]:
    """Return what each GPU can do now: its state, and its framebuffer in MiB if that is known.

    States: `ok`, `mig` (its types are slices of GPU instances), `full` (in use, and no type fits),
    `no-instances` (unused, and yet no type fits), `unreadable`, and those of model.GPU_STATES.
    `total` is the largest type that the card is known to have. `stranded` is what is free and no
    type that can be made now could use.
    """
    return [_gpu_state(gpu, those) for gpu, those in _by_gpu(parents).items()]


def _by_gpu(parents: tuple[Parent, ...]) -> dict[str, list[Parent]]:
    found: dict[str, list[Parent]] = {}
    for parent in parents:
        found.setdefault(parent.gpu, []).append(parent)
    return found


def _gpu_state(gpu: str, parents: list[Parent]) -> Value:
    usable = [parent for parent in parents if not parent.problem]
    types = [t for parent in usable for t in parent.types]
    available = Counter({t.id: 0 for t in types})
    for vgpu_type in types:
        available[vgpu_type.id] += vgpu_type.available
    sizes = {t.id: t.framebuffer for t in types}
    state = next((p.state for p in parents if p.state), "") or _state(types, usable)
    total = max(sizes.values(), default=0)
    used = sum(t.in_use * t.framebuffer for t in types)
    free = max(0, total - used)
    usable_now = {sizes[i]: count for i, count in available.items() if count and sizes[i]}
    mixed = any(t.in_use for t in types) and bool(usable_now.keys() - _sizes_in_use(types))
    known = bool(total)
    return {
        "gpu": gpu,
        "framework": parents[0].framework,
        "state": state,
        "why": "; ".join(parent.problem for parent in parents if parent.problem)
        or HINTS.get(state),
        "total": total if known else None,
        "used": used if known else None,
        "free": free if known else None,
        "stranded": free - _usable(usable_now, free, mixed=mixed) if known else None,
    }


def _sizes_in_use(types: list[VgpuType]) -> set[int]:
    return {t.framebuffer for t in types if t.in_use}


def _usable(counts: dict[int, int], free: int, *, mixed: bool) -> int:
    """Return how many of the free MiB vGPUs could take: of one size, or of several if `mixed`.

    `counts` says how many of each size could be made, were there no others.
    """
    if not mixed:
        return max((min(count, free // size) * size for size, count in counts.items()), default=0)
    places, left = max(counts.values(), default=0), free
    for size in sorted(counts, reverse=True):
        number = min(places, left // size)
        places, left = places - number, left - number * size
    return free - left


def _state(types: list[VgpuType], usable: list[Parent]) -> str:
    if not usable:
        return "unreadable"
    if not any(t.available for t in types):
        return "full" if any(t.in_use for t in types) else "no-instances"
    return "mig" if any(MIG.search(t.name) for t in types if t.available) else "ok"


def quarantine(failures: list[Failure]) -> list[Value]:
    """Return the failures of the VFs that are set aside for them."""
    return [f._asdict() for those in quarantined(failures).values() for f in those]


def device_lines(
    parents: tuple[Parent, ...], rows: list[Assignment], aside: set[str]
) -> list[tuple[str, ...]]:
    """Return the lines of a table: GPU, parent, vGPU, domain. Free VFs are only counted.

    `aside` are VFs that do not count as free.
    """
    owners = {row.device: row.domain_name for row in rows}
    free: dict[str, int] = {}
    lines = []
    for parent in parents:
        if parent.framework == VENDOR_VFIO and not parent.devices:
            usable = not parent.problem and parent.name not in aside
            if not parent.state:
                free[parent.gpu] = free.get(parent.gpu, 0) + int(usable)
            continue
        for device in parent.devices or ("",):
            owner = owners.get(device, "(not ours)") if device else "-"
            name = next((t.name or t.id for t in parent.types if t.in_use), "?")
            shown = name if parent.framework == VENDOR_VFIO else device
            lines.append((parent.gpu, parent.name, shown, owner))
    lines += [(gpu, f"{count} VFs free", "", "-") for gpu, count in free.items()]
    return sorted(lines, key=lambda line: line[0])


def explanation(lifecycle: Lifecycle, store: Store, subject: str, uuids: list[str]) -> Value:
    """Return what is on record of a device or of domains, and the guard's present answer."""
    rows = store.of_device(subject)
    history = store.history(subject, uuids)
    for domain_uuid in uuids:
        rows += [row for row in store.of_domain(domain_uuid) if row not in rows]
    return {
        "subject": subject,
        "deleting_since": next(filter(None, map(store.domains.deleting_since, uuids)), None),
        "assignments": [
            {**value, "guard": _guard(lifecycle, row)}
            for row, value in zip(rows, assignments(rows), strict=True)
        ],
        "history": [entry._asdict() for entry in history],
    }


def _device(device: str, rows: list[Assignment]) -> Value:
    owner = next((row for row in rows if row.device == device), None)
    if owner is None:
        return {"device": device, "domain": None}
    return {
        "device": device,
        "domain": owner.domain_name,
        "slot": owner.slot,
        "state": owner.state,
    }


def _guard(lifecycle: Lifecycle, row: Assignment) -> Value:
    try:
        verdict = lifecycle.judge(row)
    except VgpuError as error:
        return {"action": "keep", "facts": [{"good": False, "text": error.message}]}
    return {"action": verdict.action, "facts": [fact._asdict() for fact in verdict.facts]}
