"""The product on every simulated host: what hosts.py says must be true of each.

Each host file is a hardware quirk that somebody met. What is particular to one is tested further
in test_hosts.py, test_gpu_states.py and test_vendor_vfio.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.domains import domain_xml, pci_hostdev
from tests.product import Product
from tests.simhost import SimHost
from tests.simhost.hostfile import HOSTS, load
from tests.simulated.hosts import EXPECTED, Expected, Start

NAMES = sorted(path.stem for path in HOSTS.glob("*.toml"))


def on_each_host() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.simhost(name), id=name) for name in NAMES]


def present(sim: SimHost) -> dict[str, str]:
    """All vGPUs that the kernel has, of both frameworks, with the type of each."""
    devices = sim.state()["devices"].items()
    found = {uuid: str(device["type"]) for uuid, device in devices}
    return found | {vf: str(number) for vf, number in sim.current_types().items()}


def xml_of(name: str, start: Start) -> bytes:
    hostdevs = [pci_hostdev(start.vf)] if start.vf else None
    return domain_xml(name, {"0": start.profile}, hostdevs=hostdevs)


def type_ids(host: str, profile: str) -> set[str]:
    """The types that the profile may mean, from the host file."""
    types = [kind for parent in load(host).parents for kind in parent.types]
    return {t.id for t in types if profile in (t.id, t.name, t.id.removeprefix("nvidia-"))}


def test_every_host_file_has_an_expectation() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("host", on_each_host())
def test_what_must_be_true_of_it(product: Product, host: str) -> None:
    expected = EXPECTED[host]
    product.configure(deadline=expected.deadline)
    before = present(product.sim)
    cards = product.json("profiles")["gpus"]
    assert {card["gpu"]: card["state"] for card in cards} == expected.cards
    names = [f"vm{number}" for number in range(len(expected.starts))]
    for name, start in zip(names, expected.starts, strict=True):
        begin(product, host, name, start)
    for name, start in zip(names, expected.starts, strict=True):
        if not start.says:
            assert product.hook(name, "stopped", xml_of(name, start)) == (0, "", "")
    if expected.keeps:
        released_later(product, expected)
    assert product.rows() == [] or expected.for_good
    assert present(product.sim) == before or expected.for_good
    assert before.items() <= present(product.sim).items()
    touched = [write.path for write in product.sim.writes() if any(d in write.path for d in before)]
    assert touched == []  # R6: what was there before us
    assert product.sim.state()["problems"] == []


def begin(product: Product, host: str, name: str, start: Start) -> None:
    """Start it: it has what it asked for, or nothing has changed and it is told why."""
    before = present(product.sim)
    answer = product.hook(name, "prepare", xml_of(name, start))
    assert answer.out == ""
    after = present(product.sim)
    if start.says:
        assert answer.status == 1
        assert start.says in answer.err
        assert name in answer.err
        assert after.items() <= before.items()
        return
    assert (answer.status, answer.err) == (0, "")
    assert before.items() <= after.items()
    ((device, kind),) = after.items() - before.items()
    assert kind in type_ids(host, start.profile)
    assert not start.vf or device == start.vf
    assert product.rows("domain_name, device, state")[-1] == (name, device, "assigned")


def released_later(product: Product, expected: Expected) -> None:
    """R3, R4: it is kept on record, with the reason, and tried again."""
    (row,) = product.rows("state, reason")
    assert row[0] == "retained"
    assert expected.keeps in row[1]
    if not expected.for_good:
        product.wait_for("it is gone", lambda: present(product.sim) == {})
    xml = xml_of("vm0", expected.starts[0])
    assert product.hook("vm0", "release", xml, "destroyed") == (0, "", "")


# --- what is particular to a new one ---


@pytest.mark.simhost("asks-for-it-back")
def test_r6_a_running_vm_keeps_a_device_that_its_driver_would_ask_back(product: Product) -> None:
    """A single write of `remove` would make QEMU unplug it: facts D4."""
    xml = domain_xml("a", {"0": "mtty-1"})
    assert product.hook("a", "prepare", xml).status == 0
    ((device, _),) = present(product.sim).items()
    pid = product.sim.hold(device)
    assert product.hook("a", "stopped", xml) == (0, "", "")
    assert product.command("reconcile").status in (0, 1)
    assert product.sim.writes("*/remove") == []
    assert product.sim.state()["devices"][device]["holders"] == [pid]


@pytest.mark.simhost("cleans-up-itself")
def test_r3_r4_a_driver_that_cleans_up_itself_and_fails_who_is_faster(product: Product) -> None:
    xml = domain_xml("a", {"0": "231"})
    assert product.hook("a", "prepare", xml).status == 0
    ((device, _),) = present(product.sim).items()
    product.sim.drop(product.sim.hold(device))
    assert product.hook("a", "stopped", xml) == (0, "", "")
    if product.rows():  # on a slow machine the driver was faster
        assert product.rows("state") == [("retained",)]
        assert "EIO" in product.rows("reason")[0][0]
    product.wait_for("the driver has removed it", lambda: present(product.sim) == {})
    assert product.hook("a", "release", xml) == (0, "", "")
    assert product.rows() == []


@pytest.mark.simhost("vfs-off-busy")
def test_peers_20_70_the_boot_gate_brings_vfs_whose_lock_is_not_to_be_had_at_once(
    product: Product, tmp_path: Path
) -> None:
    commands = [["sriov-manage", "-e", "ALL"], ["nvidia-smi", "vgpu", "-shm", "1"]]
    product.configure(extra=f"[boot]\ncommands = {commands}\ntimeout = 60")
    tools = Path(HOSTS.parent, "tools")
    path = f"{tools}:{product.environment['PATH']}"
    gate = product.command("boot-gate", PATH=path, SIMHOST=str(product.sim.root))
    assert "unbindLock" in gate.err
    (card,) = product.json("profiles")["gpus"]
    assert card["state"] == "ok"
    begin(product, "vfs-off-busy", "a", Start("1148", "0000:41:00.4"))
    begin(product, "vfs-off-busy", "b", Start("1145", "0000:41:00.5"))  # another size: -shm 1
