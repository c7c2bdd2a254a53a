"""What there is, for `status`, `profiles` and `explain`: plain values, as JSON has them.

Reads only: asking never writes to a device (a `show` command that programmed hardware is
one of the reports in facts/peers.md).
"""

from __future__ import annotations

from typing import Any

from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import Assignment, KernelError, Parent, VgpuError
from vgpu_hook.placement import Candidate, full
from vgpu_hook.store import Store

Value = dict[str, Any]


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


def profiles(parents: tuple[Parent, ...]) -> list[Value]:
    """Return each type of each GPU: what is free now, and why not if nothing is."""
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
                    "why_none": [],
                },
            )
            entry["free"] += vgpu_type.available
            entry["in_use"] += vgpu_type.in_use
            entry["why_none"].append(full(Candidate(parent, vgpu_type)))
    for entry in found.values():
        reasons = dict.fromkeys(entry["why_none"])
        entry["why_none"] = None if entry["free"] else "; ".join(reasons)
    return list(found.values())


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
    except (KernelError, VgpuError) as error:
        return {"action": "keep", "facts": [{"good": False, "text": error.message}]}
    return {"action": verdict.action, "facts": [fact._asdict() for fact in verdict.facts]}
