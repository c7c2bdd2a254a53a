"""Figures, not tests: `make bench`.

What hooks/qemu costs a VM that asks for no vGPU; what a reconcile costs on a large host; what the
daemon takes while nothing happens.

The hook is run in turn with a no-op one that only reads its stdin, with the same real domain XML,
as whole processes. Prints the median and the spread of RUNS pairs, and the median of the ratio pair
by pair, which holds when the machine's speed drifts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.domains import device_of, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import HOOK, Product
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
from vgpu_hook.model import Found, VgpuRequest, new_assignment
from vgpu_hook.planning import Planner
from vgpu_hook.reconcile import Reconciler
from vgpu_hook.sysfs import Roots

RUNS = 30
REPEATS = 10
"""Calls that make up one timed run: a single one takes a millisecond."""

IDLE_SECONDS = 60

NOOP = "#!/bin/sh\ncat >/dev/null\n"
PLAIN = Path(__file__).parents[1] / "data" / "plain-domain.xml"


def seconds(hook: str, operation: str, xml: Path) -> float:
    """Time REPEATS calls of a hook, process start and end included; return one's seconds."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(xml), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    environment = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    arguments = [hook, "plain", operation, "begin", "-"]
    begin = time.perf_counter()
    for _ in range(REPEATS):
        pid = os.posix_spawn(hook, arguments, environment, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        assert status == 0
    return (time.perf_counter() - begin) / REPEATS


def compare(operation: str, noop: str, xml: Path) -> None:
    pairs = [
        (seconds(str(HOOK), operation, xml), seconds(noop, operation, xml)) for _ in range(RUNS)
    ]
    for label, values in (("hooks/qemu", [p[0] for p in pairs]), ("no-op", [p[1] for p in pairs])):
        ms = [1000 * value for value in values]
        print(
            f" {operation:9} {label:11} median {statistics.median(ms):6.2f} ms"
            f"   min {min(ms):6.2f}   max {max(ms):6.2f}"
        )
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f" {operation:9} ratio, median of {RUNS} pairs: {ratio:.2f}\n")


def reconcile() -> None:
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
            own = uuid_of(name)
            request = VgpuRequest("0", "mtty-1")
            store.domains.set_requests(own, name, (request,))
            domains[own] = Known(name, number < 512)
            if number < 512:
                sim.make(device_of(own), "mtty", "mtty-1")
                found = Found("mdev", device_of(own), "mtty", "mtty-1", ())
                row = new_assignment(own, name, request, found, found.type, boot_id)
                store.adopt(row, "bench")
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
        spread = f"median {statistics.median(times):.0f} ms   max {max(times):.0f}"
        print(f" reconcile: 1,000 stopped domains, 512 devices in use (simulated): {spread}")


def choosing() -> None:
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
        print(
            f" choosing among 16 GPUs x 32 VFs x 30 types (plain tree): median"
            f" {statistics.median(times):.0f} ms   max {max(times):.0f};"
            f" {len(opened)} files read, each at most {most} times"
        )


def idle_daemon() -> None:
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
            cpu = 100 * ticks / os.sysconf("SC_CLK_TCK") / IDLE_SECONDS
            status = Path(f"/proc/{process.pid}/status").read_text()
            memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
            print(f" vgpu-hookd idle for {IDLE_SECONDS} s: {cpu:.2f} % of a core, {memory:.0f} MB")
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    size = PLAIN.stat().st_size
    print(f"a domain without a request ({size} bytes of XML), {RUNS} pairs of {REPEATS} calls\n")
    with tempfile.TemporaryDirectory() as folder:
        noop = Path(folder) / "noop"
        noop.write_text(NOOP)
        noop.chmod(0o755)
        for operation in ("prepare", "start", "stopped"):
            compare(operation, str(noop), PLAIN)
    reconcile()
    choosing()
    idle_daemon()
    return 0


if __name__ == "__main__":
    sys.exit(main())
