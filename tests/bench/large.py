"""A large host: a reconcile, the choice of a VF; and the daemon while nothing happens."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import RUNS, Figure, spread
from tests.bench.plain import PLAIN
from tests.bench.records import put_domain
from tests.domains import device_of
from tests.libvirt.server import LibvirtServer
from tests.product import Product
from tests.simhost import SimHost
from tests.simhost.plaintree import plain_tree
from vgpu_hook import config, domain, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.frameworks.vendor_vfio import VendorVfio
from vgpu_hook.host import Host
from vgpu_hook.libvirtd import Known
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.log import JournalLog
from vgpu_hook.model import VgpuRequest
from vgpu_hook.planning import Planner
from vgpu_hook.reconcile import Reconciler
from vgpu_hook.sysfs import Roots

IDLE_SECONDS = 60


def figures() -> Iterator[Figure]:
    yield _reconcile()
    yield _choosing()
    yield _idle_daemon()


def _reconcile() -> Figure:
    """Time a reconcile of 1,000 stopped domains and 512 devices of 512 running ones."""
    with SimHost.start("many") as sim, tempfile.TemporaryDirectory() as folder:
        product = Product(sim, Path(folder))
        settings = config.load({"VGPU_HOOK_CONFIG": str(product.config)})
        store = store_file.open_store(settings.state, "bench", wait=60)
        assert store is not None
        boot_id = settings.roots.boot_id()
        domains = {}
        for number in range(1512):
            name = f"vm{number}"
            active = number < 512
            own = put_domain(store, name, boot_id, "mtty" if active else None)
            domains[own] = Known(name, active)
            if active:
                sim.make(device_of(own), "mtty", "mtty-1")
        host = Host(settings, boot_id)
        log = JournalLog("/nonexistent", "bench")

        def lifecycle() -> Lifecycle:
            return Lifecycle(Context(settings, host, store, log, Deadline(60)))

        times = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            findings = Reconciler(store, lifecycle, lambda: domains, lambda _: None).run()
            times.append(1000 * (time.perf_counter() - begin))
            assert findings == []
    what = "reconcile of 1,000 stopped domains and 512 devices in use (simulated host)"
    return Figure(what, spread(times))


def _choosing() -> Figure:
    """Time the choice of a VF among 16 GPUs x 32 VFs x 30 types; count the files that it reads."""
    opened: list[str] = []

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and counting:
            opened.append(str(arguments[0]))

    counting = False
    sys.addaudithook(audit)
    with tempfile.TemporaryDirectory() as folder:
        tree = plain_tree(Path(folder) / "host", gpus=16, vfs=32, types=30)
        roots = Roots(str(tree / "sys"), str(tree / "proc"), str(tree / "dev"))
        settings = config.Settings(roots=roots, state=f"{folder}/state")
        store = store_file.open_store(settings.state, "bench", wait=60)
        text = PLAIN.read_bytes()
        (asked,) = (VgpuRequest("0", "nvidia-1148"),)
        subject = domain.parse(text)
        times = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            parents = Host(settings, "boot").parents(Deadline(60))
            assert store is not None
            planner = Planner(
                completed(parents, store.devices), store, "spread", lambda _: frozenset()
            )
            planner(subject, asked)
            times.append(1000 * (time.perf_counter() - begin))
        counting = True
        found = VendorVfio(roots).parents()
        counting = False
        assert len(found) == 16 * 32
        most = max(Counter(opened).values())
    what = "choice of a VF among 16 GPUs of 32 VFs and 30 types (plain tree)"
    return Figure(
        what, spread(times), note=f"{len(opened)} files read, each at most {most} times a pass"
    )


def _idle_daemon() -> Figure:
    """Measure the daemon's CPU and memory while nothing happens, with a libvirtd."""
    with (
        SimHost.start("mtty") as sim,
        tempfile.TemporaryDirectory() as folder,
        LibvirtServer(Path(folder) / "libvirt") as server,
    ):
        product = Product(sim, Path(folder), extra=f"[daemon]\nlibvirt = '{server.uri}'\n")
        process = product.daemon()
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            time.sleep(5)
            before = stat.read_text().split()
            time.sleep(IDLE_SECONDS)
            after = stat.read_text().split()
            ticks = sum(int(after[n]) - int(before[n]) for n in (13, 14))
            status = Path(f"/proc/{process.pid}/status").read_text()
            memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
        finally:
            process.terminate()
            process.wait()
    what = f"CPU time of vgpu-hookd in {IDLE_SECONDS} s of nothing"
    used = 1000 * ticks / os.sysconf("SC_CLK_TCK")
    return Figure(what, spread([used]), note=f"{memory:.0f} MB")
