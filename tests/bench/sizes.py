"""What grows with the host: records of the store, processes and open files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import RUNS, Figure, of_pairs, spread
from tests.bench.records import put_domain
from tests.domains import domain_xml
from tests.product import Product
from tests.simhost import SimHost
from tests.simulated.daemons import NO_LIBVIRT
from vgpu_hook import config, operations, store_file, vfio
from vgpu_hook.operations import Means
from vgpu_hook.stores import Stores
from vgpu_hook.workers import Workers

FEW, MANY, DEVICES = 10, 10_000, 512
PROCESSES, FILES = 3000, 100_000


def figures() -> Iterator[Figure]:
    yield _store()
    yield _open_files()


def _store() -> Figure:
    """Prepare's own time with many domains and devices on record, against few."""
    with (
        SimHost.start("mtty") as sim,
        tempfile.TemporaryDirectory() as many,
        tempfile.TemporaryDirectory() as few,
    ):
        hosts = [_filled(sim, Path(many), MANY, DEVICES), _filled(sim, Path(few), FEW, 0)]
        time.sleep(1.1)
        found = []
        for number in range(RUNS + 3):
            times = tuple(_prepare(product, means) for product, means in hosts)
            if number >= 3:
                found.append((times[0], times[1]))
    return of_pairs(
        f"prepare in the daemon, with {MANY:,} domains and {DEVICES} devices on record",
        found,
        f"with {FEW} domains",
        goal="1.2 times at most",
    )


def _filled(sim: SimHost, folder: Path, domains: int, devices: int) -> tuple[Product, Means]:
    product = Product(sim, folder, extra=NO_LIBVIRT)
    settings = config.load({"VGPU_HOOK_CONFIG": str(product.config)})
    store = store_file.open_store(settings.state, "bench", wait=60)
    assert store is not None
    boot_id = settings.roots.boot_id()
    for number in range(domains):
        put_domain(store, f"vm{number}", boot_id, "elsewhere" if number < devices else None)
    store.close()
    return product, Means(lambda: settings, Stores().open, Workers().run)


def _prepare(product: Product, means: Means) -> float:
    """Return the milliseconds of a prepare, whose VM stops again."""
    xml = domain_xml("bench", {"0": "mtty-1"})
    begin = time.perf_counter()
    answer = operations.in_thread(("bench", "prepare", "begin", "-"), xml, 60, means)
    done = 1000 * (time.perf_counter() - begin)
    assert answer == (0, "", b""), answer
    assert operations.in_thread(("bench", "stopped", "end", "-"), xml, 60, means) == (0, "", b"")
    return done


def _open_files() -> Figure:
    """The guard's look at who has a device open, on a simulated /proc in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        proc = Path(folder)
        each = FILES // PROCESSES
        for pid in range(1, PROCESSES + 1):
            handles = proc / str(pid) / "fd"
            handles.mkdir(parents=True)
            (proc / str(pid) / "comm").write_text("daemon\n")
            for number in range(each + (pid <= FILES % PROCESSES)):
                (handles / str(number)).symlink_to(f"socket:[{pid * 100 + number}]")
        asked = ("/dev/vfio/7", "/dev/vfio/devices/vfio3")
        times = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            assert vfio.holders(folder, asked) == ()
            times.append(1000 * (time.perf_counter() - begin))
        for handle in asked:
            (proc / "17" / "fd" / "99").symlink_to(handle)
            assert [holder.path for holder in vfio.holders(folder, asked)] == [handle]
            (proc / "17" / "fd" / "99").unlink()
    what = f"who has a device open, of {PROCESSES:,} processes with {FILES:,} open files"
    return Figure(what, spread(times), goal="20 ms at most")
