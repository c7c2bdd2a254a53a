"""VFs that are kept for VMs on their way, against a real libvirtd and a simulated card of 8 VFs.

The VMs come by calls of the hook, as libvirt makes them before it lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.domains import domain_xml, pci_hostdev, uuid_of, vgpus_of
from tests.libvirt.server import LibvirtServer
from tests.libvirt.test_listener import Daemon, request
from tests.libvirt.test_vfs import PROFILE, vf_of, wait_for_vf
from tests.product import Product
from tests.simhost import SimHost

Define = Callable[..., None]
RESERVED = "SELECT device FROM reservation"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimHost]:
    with SimHost.start("l40s") as running:
        yield running


def image(name: str, vf: str) -> bytes:
    hostdevs = [pci_hostdev(vf)]
    return domain_xml(name, {"0": PROFILE}, hostdevs=hostdevs, owner=uuid_of(name))


def came(product: Product, seconds: int) -> None:
    """Have the VMs on their way be announced some seconds ago."""
    moment = f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{seconds} seconds')"
    product.query(f"UPDATE reservation SET arriving = {moment} WHERE arriving IS NOT NULL")


def test_i8_no_definition_is_given_a_vf_that_is_kept_until_the_wait_is_over(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    *kept, left = sorted(hooked.sim.state()["vfs"])
    for n, vf in enumerate(kept):
        answer = hooked.hook(f"far{n}", ["restore", "migrate"][n % 2], image(f"far{n}", vf))
        assert answer == (0, "", "")
    # More than the one VF that is left has room for; by the command, and by the daemon.
    for name in ("a", "b"):
        came(hooked, 1)  # however slow this machine is
        define(name)
        attached = hooked.command("attach", "-c", server.uri, name, "--profile", PROFILE)
        assert attached.status == 0, attached.err
        assert vf_of(server, name) == left
        define(f"daemon-{name}", request(PROFILE))
        assert wait_for_vf(server, hooked, f"daemon-{name}") == left
    assert hooked.command("reconcile", "-c", server.uri).status == 0
    assert {vf for (vf,) in hooked.query(RESERVED)} == {*kept, left}
    # One of those on their way gets here: what was kept for it is there.
    assert hooked.hook("far0", "prepare", image("far0", kept[0])) == (0, "", "")
    hooked.sim.hold(kept[0])
    came(hooked, 61)
    # Definitions that shared a VF are now pointed to those that nobody came for.
    names = ["a", "b", "daemon-a", "daemon-b"]

    def spread() -> bool:
        return len({vf_of(server, name) for name in names}) == len(names)

    hooked.wait_for("each names a VF of its own", spread)
    assert kept[0] not in {vf_of(server, name) for name in names}


def test_a_vm_that_comes_later_than_awaited_gets_another_vf(
    hooked: Product,
) -> None:
    """If its VF was taken meanwhile, it is refused, and arrives when it is tried again."""
    vf = min(hooked.sim.state()["vfs"])
    assert hooked.hook("far", "restore", image("far", vf)) == (0, "", "")
    came(hooked, 61)
    assert hooked.hook("near", "prepare", image("near", vf)) == (0, "", "")
    late = hooked.hook("far", "prepare", image("far", vf))
    assert late.status == 1
    assert "domain 'near'" in late.err
    again = hooked.hook("far", "restore", image("far", vf))
    assert (again.status, again.err) == (0, "")
    assert vgpus_of(again.out)["0"][1] != vf
    assert hooked.hook("far", "prepare", again.out.encode()) == (0, "", "")
