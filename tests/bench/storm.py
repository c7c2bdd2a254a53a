"""64 VMs that start at once on the machine's cores, each with a vGPU (simulated host)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.calls import NOOP, script
from tests.bench.figures import Figure, of_pairs, spread
from tests.domains import domain_xml
from tests.product import HOOK, Product
from tests.simhost import SimHost
from tests.simulated.daemons import NO_LIBVIRT

VMS = 64
RUNS = 5


def figures() -> Iterator[Figure]:
    with SimHost.start("many") as sim, tempfile.TemporaryDirectory() as folder:
        product = Product(sim, Path(folder), extra=NO_LIBVIRT)
        files = []
        for number in range(VMS):
            path = Path(folder) / f"vm{number}.xml"
            path.write_bytes(domain_xml(f"vm{number}", {"0": "mtty-1"}))
            files.append(path)
        noop = script(Path(folder), "noop", NOOP)
        time.sleep(1.1)
        process = product.daemon()
        found, slowest = [], []
        try:
            for _ in range(RUNS):
                times = _at_once(str(HOOK), "prepare", files, product.environment)
                assert len(product.rows()) == VMS, "a start failed"
                found.append((max(times), max(_at_once(noop, "prepare", files, {}))))
                slowest.append(sorted(times)[int(0.99 * VMS)])
                _at_once(str(HOOK), "stopped", files, product.environment)
                assert product.rows() == []
        finally:
            process.kill()
            process.wait()
    yield of_pairs(
        f"{VMS} prepares with vGPUs at once, until the last is done; none failed",
        found,
        f"{VMS} no-op sh hooks at once",
    )
    yield Figure(f"the slowest but one per cent of {VMS} prepares at once", spread(slowest))


def _at_once(
    hook: str, operation: str, files: list[Path], environment: dict[str, str]
) -> list[float]:
    """Start a call for each file; return the milliseconds from the first start to each end."""
    begin, pids = time.perf_counter(), set()
    variables = environment or {"PATH": os.environ["PATH"]}
    for path in files:
        actions = [(os.POSIX_SPAWN_OPEN, 0, str(path), os.O_RDONLY, 0)]
        argv = [hook, path.stem, operation, "begin", "-"]
        pids.add(os.posix_spawn(hook, argv, variables, file_actions=actions))
    times = []
    while pids:
        pid, status = os.wait()
        if pid in pids:
            pids.remove(pid)
            assert status == 0, f"a call failed with status {status}"
            times.append(1000 * (time.perf_counter() - begin))
    return times
