"""`vgpu-hook record`: what a bundle shows of a host, and that the host can be made of it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, uuid_of
from tests.product import Product
from tests.simhost import SimHost
from tests.simhost.bundle import Bundle, read, restore_store, settings_of

from . import recorded
from .errors import SimError
from .simulation import Simulation

VF, OTHER_VF = "0000:41:00.4", "0000:41:00.5"
BROKEN_VF = "0000:41:00.7"


class Case(NamedTuple):
    host: str
    profile: str
    vfs: tuple[str, ...] = ()
    """The VFs of the two domains; none for mediated devices."""
    broken: str = ""
    """A VF that takes no type."""


CASES = (
    Case("mtty", "mtty-2"),
    Case("mtty-cdev", "mtty-2"),
    Case("old-kernel", "mtty-2"),
    Case("gvtg", "i915-GVTg_V5_8"),
    Case("nvidia-two-t4", "nvidia-222"),
    Case("nvidia-ampere-vf", "nvidia-558"),
    Case("mixed-mdev-vendors", "nvidia-222"),
    Case("l40s", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("l40s-same-type", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("l40s-cdev", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("mig-h200", "1414", (VF, OTHER_VF), BROKEN_VF),
    Case("no-header", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("vf-unreadable", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("mixed-mdev-vfio", "1148", (VF, OTHER_VF), "0000:41:00.6"),
    Case("mixed-vendors", "1148", (VF, OTHER_VF)),
)


def on_each(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(c, marks=pytest.mark.simhost(c.host), id=c.host) for c in cases]


@pytest.fixture
def case(request: pytest.FixtureRequest, simulation: Simulation) -> Case:
    """A host in trouble: a running VM, a retained vGPU, a VF in quarantine, and their history."""
    wanted: Case = request.param
    sim = simulation.product.sim
    start(simulation, "running", wanted, 0)
    start(simulation, "retained", wanted, 1)
    sim.fault("write", "sys/*/remove", "EBUSY")
    sim.fault("write", "sys/*/current_vgpu_type", "EIO", data="0")
    simulation.qemu.destroy(simulation.libvirt.find(name="retained"))
    sim.heal()
    if wanted.broken:
        path = f"sys/bus/pci/devices/{wanted.broken}/nvidia/current_vgpu_type"
        sim.fault("write", path, "EIO", data="[1-9]*")
        for name in ("first", "second"):
            xml = domain_xml(name, {"0": wanted.profile}, hostdevs=[pci_hostdev(wanted.broken)])
            with pytest.raises(SimError):
                simulation.qemu.start(simulation.libvirt.define(xml.decode()))
        sim.heal()
        assert simulation.product.json("quarantine")["quarantine"] != []
    states = dict(simulation.product.query("SELECT domain_name, state FROM assignment"))
    assert states == {"running": "assigned", "retained": "retained"}
    return wanted


def start(simulation: Simulation, name: str, case: Case, number: int) -> None:
    device = case.vfs[number] if case.vfs else device_of(uuid_of(name))
    element = pci_hostdev(device) if case.vfs else hostdev(device)
    xml = domain_xml(name, {"0": case.profile}, hostdevs=[element], owner=uuid_of(name))
    simulation.qemu.start(simulation.libvirt.define(xml.decode()))


def bundle_of(simulation: Simulation, *options: str) -> Path:
    path = simulation.product.state.parent / "host.tar.gz"
    done = simulation.command("record", "--output", str(path), *options)
    assert (done.status, done.err) == (0, "")
    assert str(path) in done.out
    return path


Shown = dict[tuple[str, ...], tuple[int, str, str]]


def shown(simulation: Simulation, names: list[str], *roots: Path) -> Shown:
    """What the commands say, without where simulated hosts are."""
    found = {}
    words = [("status",), ("profiles",), ("quarantine",), ("reconcile", "--dry-run")]
    for command in (*words, *(("explain", name) for name in names)):
        for form in ("table", "json"):
            answer = simulation.command(*command, "--format", form)
            texts = [answer.out, answer.err]
            for root in roots:
                texts = [text.replace(str(root), "") for text in texts]
            found[(*command, form)] = (answer.status, texts[0], texts[1])
    return found


@pytest.fixture
def replay(
    make_simhost: Callable[..., SimHost], tmp_path: Path
) -> Callable[[Path], tuple[Product, Bundle]]:
    """Makes a host of a bundle, with its store and settings."""

    def make(path: Path) -> tuple[Product, Bundle]:
        folder = tmp_path / "again"
        folder.mkdir()
        bundle = read(path)
        product = Product(make_simhost(path), folder)
        product.configure(extra=settings_of(bundle))
        restore_store(bundle, product.state)
        return product, bundle

    return make


Replay = Callable[[Path], tuple[Product, Bundle]]


@pytest.mark.parametrize("case", on_each(CASES), indirect=True)
def test_a_recorded_host_says_the_same_when_it_is_replayed(
    simulation: Simulation, case: Case, replay: Replay, tmp_path: Path
) -> None:
    names = ["running", "retained", uuid_of("retained"), *case.vfs, case.broken or "running"]
    root = simulation.product.sim.root
    before = shown(simulation, names, root)
    path = bundle_of(simulation)
    assert shown(simulation, names, root) == before  # recording changes nothing
    product, bundle = replay(path)
    with Simulation(product, tmp_path / "again", case.profile) as again:
        libvirt = f"[daemon]\nlibvirt = '{again.server.uri}'\n"
        product.configure(extra=settings_of(bundle) + libvirt)
        recorded.fill(again.libvirt, bundle)
        after = shown(again, names, root, product.sim.root)
        assert product.sim.state()["problems"] == []
    assert before["explain", "retained", "table"][0] == 0
    assert "in use by qemu-system-x86 (pid 4000" in before["explain", "running", "table"][1]
    for command, said in before.items():
        assert after[command] == said, command
