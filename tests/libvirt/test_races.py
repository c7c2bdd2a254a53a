"""Starts and deletions of one domain at once, under a real libvirtd (R10, R11, I8).

Whoever is first: in the end the domain is gone, and with it its vGPU and every record of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.domains import domain_xml
from tests.libvirt.server import LibvirtServer
from tests.product import PATIENCE, Product

Define = Callable[..., None]
A = domain_xml("a", {"0": "mtty-1"})
MOMENTS = {
    "as it comes": "",
    "in the create": "fault write sys/*/create slow:1 times=1",
    "before the create": "fault read sys/*/available_instances slow:1 times=1",
    "after the create": "after 1 write sys/*/create outcome=ok fault readlink * slow:1 times=1",
}


def delete(server: LibvirtServer, product: Product) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "vgpu_hook", "delete", "-c", server.uri, "a"],
        env={**product.environment, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def gone(server: LibvirtServer, product: Product) -> None:
    assert server.virsh("dominfo", "a").returncode != 0
    assert product.rows() == []
    assert product.sim.devices() == []
    assert product.query("SELECT * FROM domain") == []


@pytest.fixture
def a(server: LibvirtServer, hooked: Product, define: Define) -> Product:
    define("a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    assert answer.status == 0, answer.err
    return hooked


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_r10_a_start_by_libvirt_while_its_domain_is_deleted(
    server: LibvirtServer, a: Product, moment: str
) -> None:
    a.sim.control(moment)
    starting = subprocess.Popen(
        ["virsh", "--connect", server.uri, "start", "a"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if moment:
        a.wait_for("the hook is at work", lambda: a.sim.reads() != {})
    deleting = delete(server, a)
    _, error = deleting.communicate(timeout=PATIENCE)
    starting.wait(PATIENCE)
    assert deleting.returncode == 0, error
    gone(server, a)


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_r10_r11_a_hook_in_flight_while_its_domain_is_deleted(
    server: LibvirtServer, a: Product, moment: str
) -> None:
    """As on a host where libvirt then starts it: here the hook is called by itself."""
    a.sim.control(moment)
    starting = a.popen("a", "prepare", A)
    if moment:
        a.wait_for("the hook is at work", lambda: a.rows() != [] or a.sim.reads() != {})
    deleting = delete(server, a)
    _, error = deleting.communicate(timeout=PATIENCE)
    assert deleting.returncode == 0, error
    _, said = starting.communicate(timeout=PATIENCE)
    if starting.returncode:
        assert b"is being deleted (since" in said or b"no longer" in said, said
    else:  # libvirt goes on with it, finds no domain, and stops it
        assert a.hook("a", "stopped", A) == (0, "", "")
    assert a.rows() == []
    assert a.sim.devices() == []


def test_r10_once_a_deletion_has_begun_no_start_gets_a_vgpu(
    server: LibvirtServer, a: Product
) -> None:
    a.query("UPDATE domain SET deleting_since = '2026-01-01T00:00:00.000Z'")
    calls = [a.popen("a", "prepare", A) for _ in range(4)]
    deleting = delete(server, a)
    for call in calls:
        _, said = call.communicate(timeout=PATIENCE)
        assert (call.returncode == 1) == (b"is being deleted" in said)
    assert deleting.wait(PATIENCE) == 0
    a.hook("a", "stopped", A)
    assert server.virsh("dominfo", "a").returncode != 0
    assert a.rows() == []
    assert a.sim.devices() == []
