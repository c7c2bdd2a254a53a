"""What a VM with a request pays: each call, with the daemon and without it.

On the simulated host, whose kernel is a process: its part is the same files opened, read, listed
and written again by a loop, in the same run, and it is taken off.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.calls import script, timed
from tests.bench.figures import RUNS, Figure, of_pairs
from tests.domains import device_of, domain_xml, uuid_of
from tests.product import HOOK, Product
from tests.simhost import SimHost
from tests.simulated.daemons import NO_LIBVIRT
from vgpu_hook import config

OPERATIONS = ("prepare", "stopped", "release")
WARM = 3
NAME = "a"
OTHER = device_of(uuid_of("other"))
BARE = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]
CIRCULATED = """\
#!/bin/bash
# As they are passed around: no state, no check, one parent.
xml=$(cat)
uuid=$(echo "$xml" | grep -o "address uuid=['\\"][^'\\"]*" | cut -c15-)
[ -n "$uuid" ] || exit 0
case "$2" in
prepare) echo "$uuid" > {sys}/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create ;;
release) echo 1 > {sys}/bus/mdev/devices/$uuid/remove ;;
esac
"""


AS_THEY_COME = """\
import sys
sys.argv.remove("-c")
at = sys.argv.index("-c")
code = sys.argv[at + 1]
sys.argv[:] = ["-c", *sys.argv[at + 2:]]
from vgpu_hook.config import Roots, Settings
Settings.__new__.__defaults__ = {settings}
exec(code)
"""
"""Python's program, with the simulated host's settings for the default ones."""


def figures() -> Iterator[Figure]:
    with _product() as (product, xml):
        kernel = _kernel(product, xml)
        ours = {**product.environment, "VGPU_HOOK_PYTHON": sys.executable}
        process = product.daemon()
        try:
            yield from _against_bare(ours, xml, kernel, "vgpu-hookd runs", "1.6 times at most")
        finally:
            process.kill()
            process.wait()
        (product.runtime / "hook.sock").unlink()
        default = _with_default_settings(product, xml.parent)
        yield from _against_bare(default, xml, kernel, "no daemon", "150 ms at most")
        how = "no daemon, settings in the file"
        yield from _against_bare(ours, xml, kernel, how, "150 ms at most")
        yield _against_circulated(product, xml)


def _with_default_settings(product: Product, folder: Path) -> dict[str, str]:
    """Return an environment in which the file sets nothing, as most hosts' does."""
    settings = config.load({"VGPU_HOOK_CONFIG": str(product.config)})
    program = AS_THEY_COME.format(settings=repr(settings))
    command = shlex.join([sys.executable, "-I", "-B", "-X", "utf8", "-c", program])
    python = script(folder, "python", f'#!/bin/sh\nexec {command} "$@"\n')
    return {
        **product.environment,
        "VGPU_HOOK_PYTHON": python,
        "VGPU_HOOK_CONFIG": os.devnull,
    }


@contextmanager
def _product() -> Iterator[tuple[Product, Path]]:
    with SimHost.start("mtty") as sim, tempfile.TemporaryDirectory() as folder:
        product = Product(sim, Path(folder), extra=NO_LIBVIRT)
        time.sleep(1.1)  # settings are kept when their file is older than that
        xml = Path(folder) / "a.xml"
        xml.write_bytes(domain_xml(NAME, {"0": "mtty-1"}))
        yield product, xml


def _against_bare(
    environment: dict[str, str], xml: Path, kernel: dict[str, float], how: str, goal: str
) -> Iterator[Figure]:
    found: dict[str, list[tuple[float, float]]] = {operation: [] for operation in OPERATIONS}
    for number in range(WARM + RUNS):
        for operation in OPERATIONS:
            call = timed([str(HOOK), NAME, operation, "begin", "-"], xml, environment)
            bare = timed(BARE, xml)
            if number >= WARM:
                found[operation].append((call - kernel[operation], bare))
    for operation, values in found.items():
        note = f"less the kernel's own {kernel[operation]:.1f} ms"
        what = f"{operation} of a VM with a vGPU, {how}"
        yield of_pairs(what, values, "python3 -I -S -c pass", goal=goal, note=note)


def _against_circulated(product: Product, xml: Path) -> Figure:
    """All three calls, with a hook as in circulation; both with the kernel's part."""
    environment = {**product.environment, "VGPU_HOOK_PYTHON": sys.executable}
    process = product.daemon()
    found = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            other = script(Path(folder), "hook", CIRCULATED.format(sys=product.sim.sys))
            for number in range(WARM + RUNS):
                pair = [
                    sum(
                        timed([hook, NAME, operation, "begin", "-"], xml, environment)
                        for operation in OPERATIONS
                    )
                    for hook in (str(HOOK), other)
                ]
                if number >= WARM:
                    found.append((pair[0], pair[1]))
    finally:
        process.kill()
        process.wait()
    what = "prepare + stopped + release, vgpu-hookd runs, the kernel's part included"
    return of_pairs(what, found, "a hook script as in circulation")


def _kernel(product: Product, xml: Path) -> dict[str, float]:
    """Return the milliseconds of each operation that are the kernel's."""
    found = {}
    for operation in OPERATIONS:
        product.sim.reset_reads()
        timed([str(HOOK), NAME, operation, "begin", "-"], xml, product.environment)
        reads = product.sim.reads()
        times = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            for path, counts in reads.items():
                _again(str(product.sim.root / path), counts)
            times.append(1000 * (time.perf_counter() - begin))
        found[operation] = sorted(times)[RUNS // 2] + _write(product, operation)
    return found


def _again(path: str, counts: dict[str, int]) -> None:
    """Do with a file what was done with it; one that has gone meanwhile is looked for."""
    with suppress(OSError):
        for _ in range(counts.get("open", 0)):
            fd = os.open(path, os.O_RDONLY)
            for _ in range(bool(counts.get("read", 0))):
                os.read(fd, 4096)
            os.close(fd)
        for _ in range(counts.get("readdir", 0)):
            os.listdir(path)
        for _ in range(counts.get("readlink", 0)):
            os.readlink(path)


def _write(product: Product, operation: str) -> float:
    """Return the milliseconds of the operation's own write."""
    create = product.sim.sys / "class/mdev_bus/mtty/mdev_supported_types/mtty-1/create"
    remove = product.sim.sys / "bus/mdev/devices" / OTHER / "remove"
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        create.write_text(OTHER)
        middle = time.perf_counter()
        remove.write_text("1")
        end = time.perf_counter()
        times.append((middle - begin, end - middle))
    position = {"prepare": 0, "stopped": 1}.get(operation)
    if position is None:
        return 0.0
    return 1000 * sorted(pair[position] for pair in times)[RUNS // 2]
