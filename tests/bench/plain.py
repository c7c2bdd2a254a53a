"""What a VM without a request pays: the hook's filter, and its share of a start and a stop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.calls import NOOP, script, timed
from tests.bench.figures import RUNS, Figure, of_pairs, pairs
from tests.libvirt.server import LibvirtServer
from tests.product import HOOK

PLAIN = Path(__file__).parents[1] / "data" / "plain-domain.xml"
REPEATS = 10
"""Calls that make up one timed run: a single one takes a millisecond."""

OPERATIONS = ("prepare", "start", "started", "stopped", "release")
GUEST = """<domain type='qemu'><name>bench</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices>
<emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>
"""


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        noop = script(Path(folder), "noop", NOOP)

        def run(hook: str, operation: str) -> float:
            return timed([hook, "plain", operation, "begin", "-"], PLAIN, repeats=REPEATS)

        for operation in ("prepare", "stopped", "start"):
            yield pairs(
                f"{operation} of a VM without a request",
                lambda: run(str(HOOK), operation),  # noqa: B023 - called before it changes
                "no-op sh hook",
                lambda: run(noop, operation),  # noqa: B023
                goal="1.3 times at most",
            )
        yield _share(run)
        yield _in_libvirt()


def _share(run: Callable[[str, str], float]) -> Figure:
    """All five calls against a start and a destroy without any hook."""
    with tempfile.TemporaryDirectory() as folder, LibvirtServer(Path(folder)) as server:
        found = []
        _define(server, Path(folder))
        for _ in range(RUNS):
            calls = sum(run(str(HOOK), operation) for operation in OPERATIONS)
            found.append((calls, _cycle(server)))
    return of_pairs(
        "all five calls of a VM without a request",
        found,
        "virsh start + destroy, no hook",
        goal="0.02 at most",
    )


def _in_libvirt() -> Figure:
    """The same domain started and destroyed by libvirt with and without the hook."""
    with tempfile.TemporaryDirectory() as folder:
        hooked, bare = Path(folder) / "hooked", Path(folder) / "bare"
        hook = hooked / "etc" / "hooks" / "qemu.d" / "50-vgpu-hook"
        hook.parent.mkdir(parents=True)
        hook.write_bytes(HOOK.read_bytes())
        hook.chmod(0o755)
        with LibvirtServer(hooked) as with_hook, LibvirtServer(bare) as without:
            _define(with_hook, Path(folder))
            _define(without, Path(folder))
            return pairs(
                "virsh start + destroy of a VM without a request, with vgpu-hook",
                lambda: _cycle(with_hook),
                "without",
                lambda: _cycle(without),
            )


def _define(server: LibvirtServer, folder: Path) -> None:
    """Define the guest."""
    path = folder / "guest.xml"
    path.write_text(GUEST)
    done = server.virsh("define", str(path))
    assert done.returncode == 0, done.stderr


def _cycle(server: LibvirtServer) -> float:
    """Milliseconds of a start and a destroy."""
    begin = time.perf_counter()
    for command in ("start", "destroy"):
        done = server.virsh(command, "bench")
        assert done.returncode == 0, done.stderr
    return 1000 * (time.perf_counter() - begin)
