"""Definitions that name VFs, against a real libvirtd and a simulated card: which, and until when.

libvirtd can't start a guest on a simulated VF: that a domain runs on one is played by a call of
the hook and a process that has the VF open (the test host does it for real).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.domains import domain_xml, pci_hostdev
from tests.libvirt.server import LibvirtServer
from tests.libvirt.test_listener import Daemon, clone, request
from tests.product import Product
from tests.simhost import SimHost

Define = Callable[..., None]
PROFILE = "NVIDIA L40S-2Q"


@pytest.fixture(scope="module")
def sim() -> Iterator[SimHost]:
    with SimHost.start("l40s") as running:
        yield running


def vf_of(server: LibvirtServer, name: str) -> str | None:
    """The VF that a persistent definition names; None if it names none."""
    xml = server.virsh("dumpxml", "--inactive", name).stdout
    if "type='pci' managed='no'" not in xml:
        return None
    address = xml.split("<source>", 1)[1].split("<address ", 1)[1].split("/>")[0]
    parts = {k: int(v.strip("'"), 16) for k, v in (p.split("=") for p in address.split())}
    return "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}".format(**parts)


def wait_for_vf(server: LibvirtServer, product: Product, name: str, *but: str) -> str:
    """Wait until the definition names a VF other than `but`; return it."""

    def there() -> bool:
        vf = vf_of(server, name)
        return vf is not None and vf not in but

    product.wait_for(f"{name} names a VF other than {but}", there)
    return vf_of(server, name) or ""


def run_on(product: Product, name: str, vf: str) -> int:
    """Play that the domain has started on its VF; return the pid that has it open."""
    xml = domain_xml(name, {"0": PROFILE}, hostdevs=[pci_hostdev(vf)])
    answer = product.hook(name, "prepare", xml)
    assert answer == (0, "", "")
    return product.sim.hold(vf)


def test_more_domains_than_vfs_are_defined_evenly(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    names = [f"d{n}" for n in range(12)]
    for name in names:
        define(name, request(PROFILE))
    vfs = Counter(wait_for_vf(server, hooked, name) for name in names)
    assert len(vfs) == 8
    assert max(vfs.values()) == 2
    assert hooked.sim.writes() == []


def test_a_stopped_domain_is_pointed_away_from_a_vf_that_another_starts_on(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    for n in range(9):
        define(f"d{n}", request(PROFILE))
    named: dict[str, str] = {}
    for n in range(9):
        vf = wait_for_vf(server, hooked, f"d{n}")
        if vf in named:
            break
        named[vf] = f"d{n}"
    first, second = named[vf], f"d{n}"
    run_on(hooked, first, vf)
    assert wait_for_vf(server, hooked, second, vf) != vf
    assert vf_of(server, first) == vf
    history = hooked.command("explain", second).out
    assert f"in place of {vf}" in history


def test_a_full_card_leaves_definitions_until_a_vf_is_free_again(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("big", request("NVIDIA L40S-48Q"))
    vf = wait_for_vf(server, hooked, "big")
    xml = domain_xml("big", {"0": "NVIDIA L40S-48Q"}, hostdevs=[pci_hostdev(vf)])
    assert hooked.hook("big", "prepare", xml).status == 0
    pid = hooked.sim.hold(vf)
    define("small", request(PROFILE))
    named = wait_for_vf(server, hooked, "small")
    refused = hooked.hook(
        "small", "prepare", domain_xml("small", {"0": PROFILE}, hostdevs=[pci_hostdev(named)])
    )
    assert refused.status == 1
    assert "of domain 'big'" in refused.err
    hooked.sim.drop(pid)
    hooked.wait_for("the orphan is released", lambda: hooked.sim.current_types() == {})
    run_on(hooked, "small", wait_for_vf(server, hooked, "small"))


@pytest.mark.parametrize("policy", ["new", "none", "refuse"])
def test_r8_a_clone_gets_a_vf_by_its_policy(
    server: LibvirtServer,
    hooked: Product,
    define: Define,
    daemon: Daemon,
    tmp_path: Path,
    policy: str,
) -> None:
    define("a", request(PROFILE, more=f"fork='{policy}'"))
    parents = wait_for_vf(server, hooked, "a")
    clone(server, tmp_path, "a", "b")
    if policy == "new":
        assert wait_for_vf(server, hooked, "b", parents) != parents
    elif policy == "none":
        hooked.wait_for("the fork has none", lambda: vf_of(server, "b") is None)
    else:
        define("later", request(PROFILE))
        wait_for_vf(server, hooked, "later")
        assert vf_of(server, "b") == parents
    assert vf_of(server, "a") == parents


def test_attach_and_detach_by_command_without_the_daemon(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "1148")
    assert answer.out == "vGPU '1148' attached to domain 'a', slot 0.\n"
    vf = vf_of(server, "a")
    assert vf is not None
    assert hooked.query("SELECT device FROM reservation") == [(vf,)]
    # Once more changes nothing; when the VF is taken, it finds another one.
    hooked.command("attach", "-c", server.uri, "a", "--profile", "1148", "--slot", "0")
    assert vf_of(server, "a") == vf
    hooked.sim.assign(vf, 1148)
    hooked.command("attach", "-c", server.uri, "a", "--profile", "1148", "--slot", "0")
    assert vf_of(server, "a") not in (vf, None)
    assert hooked.command("detach", "-c", server.uri, "a").status == 0
    assert vf_of(server, "a") is None


def test_a_removed_request_takes_its_hostdev_and_reservation_along(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("a", request(PROFILE))
    wait_for_vf(server, hooked, "a")
    uri = "urn:vgpu-hook:domain:1"
    server.virsh("metadata", "a", "--uri", uri, "--config", "--remove")
    hooked.wait_for("the hostdev is gone", lambda: vf_of(server, "a") is None)
    hooked.wait_for(
        "the reservation is gone", lambda: hooked.query("SELECT * FROM reservation") == []
    )


def test_an_undefined_domain_leaves_no_reservation(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("a", request(PROFILE))
    wait_for_vf(server, hooked, "a")
    server.virsh("undefine", "a")
    hooked.wait_for("it is forgotten", lambda: hooked.query("SELECT * FROM reservation") == [])


def test_dirty_a_retained_vf_is_reset_once_it_is_unused_and_an_unknown_one_never(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    foreign, ours = "0000:41:00.4", "0000:41:00.5"
    hooked.sim.assign(foreign, 1148)
    pid = run_on(hooked, "a", ours)

    def reconcile(*more: str) -> set[tuple[str, str]]:
        found = hooked.json("reconcile", "-c", server.uri, *more)["findings"]
        return {(finding["device"], finding["action"]) for finding in found}

    assert reconcile("--dry-run") == {(foreign, "left alone"), (ours, "keep")}
    assert reconcile() == {(foreign, "left alone"), (ours, "kept")}
    assert hooked.rows("reason")[0][0].startswith("in use by")
    hooked.sim.drop(pid)
    assert reconcile() == {(foreign, "left alone"), (ours, "released")}
    assert hooked.sim.current_types() == {foreign: 1148}


def test_lint_names_what_would_break_a_vgpu_host(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    vf = "0000:41:00.4"
    assert hooked.command("lint", "-c", server.uri).out == "Nothing found.\n"
    define("whole", devices=pci_hostdev("0000:41:00.0", None, "yes"))
    define("one", devices=pci_hostdev(vf, None, "yes"))
    define("two", devices=pci_hostdev(vf, None, "no"))
    answer = hooked.command("lint", "-c", server.uri, "--format", "json")
    assert answer.status == 1
    text = hooked.command("lint", "-c", server.uri).out
    assert "it is the GPU itself, and its 8 VFs are in service" in text
    assert "managed='yes'" in text
    assert "domain 'one' names the same VF" in text
    assert "run: virsh edit whole" in text


@pytest.mark.parametrize("policy", ["new", "none", "refuse"])
def test_r8_a_definition_that_comes_back_keeps_its_request(
    server: LibvirtServer,
    hooked: Product,
    define: Define,
    daemon: Daemon,
    tmp_path: Path,
    policy: str,
) -> None:
    """Undefined, and defined again from a backup, while another domain runs on that VF."""
    define("a", request(PROFILE, more=f"fork='{policy}'"))
    vf = wait_for_vf(server, hooked, "a")
    backup = tmp_path / "backup.xml"
    backup.write_text(server.virsh("dumpxml", "--inactive", "a").stdout)
    server.virsh("undefine", "a")
    hooked.wait_for("it is forgotten", lambda: hooked.query("SELECT * FROM reservation") == [])
    run_on(hooked, "other", vf)
    assert server.virsh("define", str(backup)).returncode == 0
    assert wait_for_vf(server, hooked, "a", vf) != vf
    assert PROFILE in server.virsh("dumpxml", "--inactive", "a").stdout


def test_r6_a_vf_that_an_admin_programs_after_our_release_is_left_alone(
    server: LibvirtServer, hooked: Product
) -> None:
    vf = "0000:41:00.4"
    pid = run_on(hooked, "a", vf)
    hooked.sim.drop(pid)
    xml = domain_xml("a", {"0": PROFILE}, hostdevs=[pci_hostdev(vf)])
    hooked.hook("a", "stopped", xml)
    hooked.sim.assign(vf, 1148)
    hooked.sim.reset_writes()
    found = hooked.json("reconcile", "-c", server.uri)["findings"]
    assert [(f["device"], f["action"]) for f in found] == [(vf, "left alone")]
    assert hooked.sim.writes() == []


def test_rendering_and_refused_hotplug_reserve_nothing(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    file = tmp_path / "passing.xml"
    file.write_bytes(domain_xml("passing", {"0": PROFILE}, hostdevs=[]))
    rendered = hooked.command("render", str(file))
    assert rendered.status == 0
    assert "type='pci'" in rendered.out.replace('"', "'")
    define("a")
    server.virsh("start", "a")
    refused = hooked.command("attach", "-c", server.uri, "a", "--profile", "1148", "--live")
    assert refused.status == 1
    assert hooked.query("SELECT * FROM reservation") == []
    assert hooked.rows() == []
    assert hooked.sim.current_types() == {}


def test_attach_to_a_slot_keeps_what_else_its_request_says(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a", request(PROFILE, more="fork='refuse' params='x=1' gpu='0000:41:00.0'"))
    hooked.command("attach", "-c", server.uri, "a", "--profile", "1145", "--slot", "0")
    xml = server.virsh("dumpxml", "--inactive", "a").stdout.replace("'", '"')
    for kept in ('fork="refuse"', 'params="x=1"', 'gpu="0000:41:00.0"', 'profile="1145"'):
        assert kept in xml


def test_the_boot_gate_knows_the_profiles_of_a_full_card(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("big")
    hooked.command("attach", "-c", server.uri, "big", "--profile", "NVIDIA L40S-48Q")
    vf = vf_of(server, "big")
    assert vf is not None
    xml = domain_xml("big", {"0": "NVIDIA L40S-48Q"}, hostdevs=[pci_hostdev(vf)])
    assert hooked.hook("big", "prepare", xml) == (0, "", "")
    hooked.configure(extra="[boot]\ntimeout = 3\n")
    assert hooked.command("boot-gate").status == 0


def test_domains_part_again_when_vfs_become_free(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    """Five definitions that name the one VF that was free do not go on to share it."""
    names = [f"d{n}" for n in range(5)]
    others = [f"0000:41:00.{n}" for n in range(5, 8)] + [f"0000:41:01.{n}" for n in range(4)]
    for vf in others:
        hooked.sim.assign(vf, 1145)
    for name in names:
        define(name, request(PROFILE))
        assert wait_for_vf(server, hooked, name) == "0000:41:00.4"
    for vf in others:
        hooked.sim.assign(vf, 0)
    hooked.wait_for("each has its own", lambda: len({vf_of(server, n) for n in names}) == 5)


def test_a_domain_defined_while_the_vfs_are_off_gets_its_hostdev_later(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    vfs = [f"0000:41:00.{n}" for n in range(4, 8)] + [f"0000:41:01.{n}" for n in range(4)]
    for vf in vfs:
        hooked.sim.fault("read", f"sys/bus/pci/devices/{vf}/nvidia/*", "vanish", times=1)
    hooked.command("status")
    hooked.sim.heal()
    define("a", request(PROFILE))
    hooked.wait_for("it is on record", lambda: hooked.query("SELECT * FROM request") != [])
    for vf in vfs:
        hooked.sim.load(vf)
    wait_for_vf(server, hooked, "a")
