"""A `remove` that never returns, under a real libvirtd: everybody else goes on (I3, R3, R7).

The machine has no VFIO: libvirt refuses the start of a VM with an mdev after our `prepare`, and
then calls the hook for the stop, whose `remove` hangs. Other VMs are served meanwhile. libvirt
holds the lock of that one VM until its hook has answered, and a list of all takes each VM's lock:
so `virsh list` waits for the hook's deadline (seen with 9.0), and no longer.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.domains import device_of, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import PATIENCE, Product

Define = Callable[..., None]
Daemon = subprocess.Popen[bytes]
DEADLINE = 10.0
GENEROUS = 60.0
"""Seconds in which what has DEADLINE is done, twice, on the slowest machine."""
DEVICE = device_of(uuid_of("a"))


@pytest.fixture(params=["alone", "daemon"])
def hung(
    request: pytest.FixtureRequest, server: LibvirtServer, hooked: Product, define: Define
) -> Iterator[Product]:
    """The product, on which each `remove` hangs, and a domain `a` with a vGPU."""
    extra = f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = 1\n"
    hooked.configure(deadline=DEADLINE, extra=extra)
    daemon = hooked.daemon() if request.param == "daemon" else None
    define("plain")
    define("a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    assert answer.status == 0, answer.err
    hooked.sim.fault("write", "sys/*/remove", "hang")
    yield hooked
    hooked.sim.heal()
    if daemon is not None:
        daemon.terminate()
        daemon.wait(PATIENCE)


def start_a(server: LibvirtServer) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["virsh", "--connect", server.uri, "start", "a"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def kept_with_a_reason(product: Product) -> None:
    """The daemon may be at another try (R4, R7), which hangs too: until that is given up on."""
    product.wait_for("it is retained", lambda: product.rows() == [("a", "0", "retained")])
    ((reason,),) = product.query("SELECT detail FROM history WHERE event = 'retained' LIMIT 1")
    assert "has not returned within" in reason


def test_i3_r3_r7_libvirt_goes_on_while_a_remove_never_returns(
    server: LibvirtServer, hung: Product
) -> None:
    begun = time.monotonic()
    stopping = start_a(server)
    hung.wait_for("the remove hangs", lambda: hung.rows("state") == [("releasing",)])
    # From other connections, with the hook in the kernel's hands.
    for served in ("version", "dominfo plain", "start plain", "destroy plain"):
        done = server.virsh(*served.split())
        assert done.returncode == 0, done.stderr
    assert stopping.poll() is None, "the hook has answered before it was looked at"
    listed = server.virsh("list", "--all")
    assert listed.returncode == 0, listed.stderr
    assert {line.split()[1] for line in listed.stdout.splitlines()[2:] if line} == {"a", "plain"}
    assert time.monotonic() - begun < GENEROUS, "libvirt hung with the hook"
    _, error = stopping.communicate(timeout=PATIENCE)
    assert time.monotonic() - begun < GENEROUS, "the hook hung"
    assert b"requires VFIO support" in error, error  # libvirt's own reason, not one of ours
    kept_with_a_reason(hung)
    for served in ("start plain", "destroy plain", "undefine a"):
        assert server.virsh(*served.split()).returncode == 0, served
    kept_with_a_reason(hung)
    # And when it no longer hangs, it is got back, though libvirt knows the domain no more.
    hung.sim.heal()
    answer = hung.command("reconcile", "-c", server.uri)
    assert answer.status == 0, answer.err
    hung.wait_for("it is released", lambda: hung.rows() == [])
    hung.wait_for("it is gone", lambda: DEVICE not in hung.sim.devices())
    assert "ok" in [write.outcome for write in hung.sim.writes("sys/*/remove")]
    events = [event for (event,) in hung.query("SELECT event FROM history ORDER BY id")]
    assert events.index("retained") < events.index("released")
