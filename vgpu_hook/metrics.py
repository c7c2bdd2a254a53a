"""What vgpu-hookd counts and measures, as Prometheus's samples. Where they go: publishing.py.

No label names a domain or a device, so that their number is bounded by the hardware: types times
GPUs at the most. Counters begin at 0 with each start of the daemon, and the calls that a hook did
itself while there was no daemon are not in them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

from vgpu_hook import __version__, report
from vgpu_hook.exposition import COUNTER, GAUGE, HISTOGRAM, Family, Sample, number
from vgpu_hook.hook import ARRIVALS, START, STOPS
from vgpu_hook.model import ASSIGNED, RETAINED, Assignment, Parent
from vgpu_hook.reconcile import Finding
from vgpu_hook.store_devices import Failure, quarantined

OPERATIONS = (START, *STOPS, *ARRIVALS)
OTHER = "other"
OUTCOMES = ("done", "refused", "failed")
RUNS = ("done", "failed")
ACTIONS = ("released", "adopted", "kept", "left alone")
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds."""

IN_USE, PENDING, KEPT, UNRECORDED = "in_use", "pending", "retained", "unrecorded"
MIB = 1 << 20
USABLE = ("ok", "mig", "full")
WHOLE = "passthrough"
"""A GPU that a VM may have as a whole: that it carries no vGPUs is nothing to alert of."""

FAMILIES = {
    "vgpu_hook_build_info": Family(GAUGE, "1, with the version of vgpu-hookd."),
    "vgpu_hook_start_time_seconds": Family(GAUGE, "When vgpu-hookd started, in Unix time."),
    "vgpu_hook_calls_total": Family(
        COUNTER, "Calls of the libvirt hook that vgpu-hookd has done, by what became of them."
    ),
    "vgpu_hook_call_duration_seconds": Family(
        HISTOGRAM, "How long calls of the libvirt hook took in vgpu-hookd."
    ),
    "vgpu_hook_libvirt_connected": Family(
        GAUGE, "Whether vgpu-hookd is connected to libvirt and follows its events."
    ),
    "vgpu_hook_events_total": Family(
        COUNTER, "Events that vgpu-hookd has handled, libvirt's and its own."
    ),
    "vgpu_hook_reconcile_runs_total": Family(
        COUNTER, "Comparisons of store, kernel and libvirt that have ended."
    ),
    "vgpu_hook_reconcile_last_success_timestamp_seconds": Family(
        GAUGE, "When store, kernel and libvirt were last compared, in Unix time."
    ),
    "vgpu_hook_reconcile_interval_seconds": Family(
        GAUGE, "How often store, kernel and libvirt are to be compared."
    ),
    "vgpu_hook_reconcile_findings": Family(
        GAUGE, "What the last comparison has found and done, in devices."
    ),
    "vgpu_hook_vgpus": Family(
        GAUGE,
        "vGPUs: in_use, pending (being made or released), retained (could not be released),"
        " unrecorded (in the kernel, and on no record of vgpu-hook).",
    ),
    "vgpu_hook_orphaned_vgpus": Family(
        GAUGE, "vGPUs without a running VM that the last comparison could not release."
    ),
    "vgpu_hook_quarantined_vfs": Family(GAUGE, "VFs that are set aside because they failed."),
    "vgpu_hook_free_vgpus": Family(
        GAUGE, "How many more vGPUs of a profile a GPU has room for, were no other made."
    ),
    "vgpu_hook_gpu_usable": Family(
        GAUGE, "Whether a GPU can carry vGPUs; 1 also if it is full. None of a GPU on vfio-pci."
    ),
    "vgpu_hook_gpu_framebuffer_bytes": Family(
        GAUGE,
        "Framebuffer of a GPU: used, free, and stranded (the part of free that no profile fits).",
    ),
    "vgpu_hook_store_usable": Family(GAUGE, "Whether the store of assignments can be read."),
    "vgpu_hook_collections_total": Family(COUNTER, "How often the values were collected."),
    "vgpu_hook_collection_timestamp_seconds": Family(
        GAUGE, "When the values of vGPUs, VFs and GPUs were last collected, in Unix time."
    ),
    "vgpu_hook_collection_interval_seconds": Family(
        GAUGE, "How often these values are to be collected, and the textfile is written."
    ),
}


class Tally:
    """What one process has counted. For many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.time()
        self._calls = Counter({(o, out): 0 for o in OPERATIONS for out in OUTCOMES})
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds = dict.fromkeys(OPERATIONS, 0.0)
        self._events: Counter[tuple[str, str]] = Counter()
        self._runs = Counter(dict.fromkeys(RUNS, 0))
        self._collections = Counter(dict.fromkeys(RUNS, 0))
        self._last_collection: float | None = None
        self._last_run: float | None = None
        self._findings: Counter[str] = Counter()

    def call(self, operation: str, outcome: str, seconds: float) -> None:
        """Count a call of the hook; `outcome` is one of OUTCOMES."""
        known = operation if operation in OPERATIONS else OTHER
        with self._lock:
            self._calls[known, outcome] += 1
            self._seconds[known] = self._seconds.get(known, 0.0) + seconds
            self._buckets.update((known, limit) for limit in BUCKETS if seconds <= limit)

    def event(self, kind: str, *, done: bool) -> None:
        """Count an event of events.py."""
        with self._lock:
            self._events[kind, RUNS[not done]] += 1

    def reconciled(self, found: list[Finding]) -> None:
        """Count a comparison that has ended, and what it has found."""
        with self._lock:
            self._runs["done"] += 1
            self._last_run = time.time()
            self._findings = Counter(finding.action for finding in found)

    def reconcile_failed(self) -> None:
        """Count a comparison that could not be done."""
        with self._lock:
            self._runs["failed"] += 1

    def collected(self, *, done: bool) -> None:
        """Count a look at the host and the store."""
        with self._lock:
            self._collections[RUNS[not done]] += 1
            if done:
                self._last_collection = time.time()

    def samples(self, *, connected: bool) -> list[Sample]:
        """Return all that was counted, as it is now."""
        with self._lock:
            found = [
                _sample("build_info", 1, version=__version__),
                _sample("start_time_seconds", self._started),
                _sample("libvirt_connected", connected),
                *(
                    _sample("calls_total", n, operation=o, outcome=out)
                    for (o, out), n in self._calls.items()
                ),
                *self._durations(),
                *(
                    _sample("events_total", n, kind=kind, outcome=out)
                    for (kind, out), n in self._events.items()
                ),
                *(_sample("reconcile_runs_total", n, outcome=out) for out, n in self._runs.items()),
                *(
                    _sample("collections_total", n, outcome=out)
                    for out, n in self._collections.items()
                ),
            ]
            if self._last_collection is not None:
                found.append(_sample("collection_timestamp_seconds", self._last_collection))
            if self._last_run is not None:
                findings = {action: self._findings[action] for action in ACTIONS}
                found += [
                    _sample("reconcile_last_success_timestamp_seconds", self._last_run),
                    _sample("orphaned_vgpus", findings["kept"]),
                    *(
                        _sample("reconcile_findings", n, action=action.replace(" ", "_"))
                        for action, n in findings.items()
                    ),
                ]
        return found

    def _durations(self) -> list[Sample]:
        name = "vgpu_hook_call_duration_seconds"
        found = []
        for operation, seconds in self._seconds.items():
            labels = (("operation", operation),)
            count = sum(n for (known, _), n in self._calls.items() if known == operation)
            for limit in BUCKETS:
                those = self._buckets[operation, limit]
                found.append(Sample(name, (*labels, ("le", number(limit))), those, "_bucket"))
            found.append(Sample(name, (*labels, ("le", "+Inf")), count, "_bucket"))
            found.append(Sample(name, labels, seconds, "_sum"))
            found.append(Sample(name, labels, count, "_count"))
        return found


def of_host(
    parents: tuple[Parent, ...], rows: list[Assignment], failures: list[Failure]
) -> list[Sample]:
    """Return what the host and the store show: vGPUs, VFs and GPUs."""
    recorded = {row.device for row in rows}
    unrecorded = sum(d not in recorded for parent in parents for d in parent.devices)
    states = Counter({IN_USE: 0, PENDING: 0, KEPT: 0, UNRECORDED: unrecorded})
    states.update({ASSIGNED: IN_USE, RETAINED: KEPT}.get(row.state, PENDING) for row in rows)
    found = [_sample("vgpus", count, state=state) for state, count in states.items()]
    gpus = report.gpu_states(parents)
    found += _quarantined(parents, failures, (gpu["gpu"] for gpu in gpus))
    for profile in report.profiles(parents, rows, gpus):
        labels = {"gpu": profile["gpu"], "profile": profile["id"], "name": profile["name"]}
        found.append(_sample("free_vgpus", profile["free"], **labels))
    for gpu in gpus:
        if gpu["state"] != WHOLE:
            found.append(_sample("gpu_usable", gpu["state"] in USABLE, gpu=gpu["gpu"]))
        for use in ("used", "free", "stranded"):
            if gpu[use] is not None:
                labels = {"gpu": gpu["gpu"], "use": use}
                found.append(_sample("gpu_framebuffer_bytes", gpu[use] * MIB, **labels))
    return found


def of_settings(reconcile: float, collection: float) -> list[Sample]:
    """Return how often (in seconds) is done what the alerts wait for."""
    return [
        _sample("reconcile_interval_seconds", reconcile),
        _sample("collection_interval_seconds", collection),
    ]


def of_store(*, usable: bool) -> Sample:
    """Return whether the store can be read."""
    return _sample("store_usable", usable)


def _quarantined(
    parents: tuple[Parent, ...], failures: list[Failure], gpus: Iterable[str]
) -> list[Sample]:
    """Return how many VFs of each GPU are set aside; 0 of all others."""
    gpu_of = {parent.name: parent.gpu for parent in parents}
    counts = Counter(dict.fromkeys(gpus, 0))
    counts.update(gpu_of.get(device, "gone") for device in quarantined(failures))
    return [_sample("quarantined_vfs", count, gpu=gpu) for gpu, count in counts.items()]


def _sample(name: str, value: float, /, **labels: str) -> Sample:
    return Sample(f"vgpu_hook_{name}", tuple(labels.items()), value)
