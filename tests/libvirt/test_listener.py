"""What the daemon does at libvirt's events: define, edit, clone, rename, undefine, reconnect."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import PATIENCE, Product

Define = Callable[..., None]
Daemon = subprocess.Popen[bytes]
NAMESPACE = "urn:vgpu-hook:domain:1"

pytestmark = pytest.mark.usefixtures("daemon")


def request(*profiles: str, more: str = "") -> str:
    inner = "".join(f"<v:vgpu profile='{profile}' {more}/>" for profile in profiles)
    return f"<v:vgpus xmlns:v='{NAMESPACE}'>{inner}</v:vgpus>"


def hostdevs(server: LibvirtServer, name: str) -> list[str]:
    """The mdev UUIDs in a persistent definition."""
    xml = server.virsh("dumpxml", "--inactive", name).stdout
    found = [part.split("'")[1] for part in xml.split("<address uuid=")[1:]]
    assert xml.count("type='mdev'") == len(found)
    return found


def wait_for_hostdevs(server: LibvirtServer, product: Product, name: str, *wanted: str) -> None:
    def there() -> bool:
        return hostdevs(server, name) == list(wanted)

    product.wait_for(f"{name} has {wanted}", there)


def known(product: Product) -> list[tuple[str, ...]]:
    return product.query("SELECT name, slot, profile FROM request, domain WHERE domain_uuid = uuid")


def clone(server: LibvirtServer, tmp_path: Path, original: str, name: str) -> None:
    """Define a copy of a domain's XML under another name and UUID."""
    xml = server.virsh("dumpxml", "--inactive", original).stdout
    xml = xml.replace(f"<name>{original}<", f"<name>{name}<")
    file = tmp_path / "clone.xml"
    file.write_text(xml.replace(uuid_of(original), uuid_of(name)))
    assert server.virsh("define", str(file)).returncode == 0


def define_with_qcow2(define: Define, tmp_path: Path) -> None:
    """Define `a` with a request and a disk that can be snapshot."""
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1M"], check=True)
    devices = (
        "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>"
        f"<source file='{disk}'/><target dev='vda' bus='virtio'/></disk>"
    )
    define("a", request("mtty-1"), devices)


def test_a_defined_request_becomes_a_hostdev_once(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a", request("mtty-1", "mtty-2"))
    own = [device_of(uuid_of("a"), slot) for slot in ("0", "1")]
    wait_for_hostdevs(server, hooked, "a", *own)
    hooked.wait_for("it is on record", lambda: len(known(hooked)) == 2)
    define("b", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "b", device_of(uuid_of("b")))
    changes = [event for event in hooked.events() if event == "definition"]
    assert len(changes) == 3  # one for each vGPU: no loop of redefinitions
    assert hooked.sim.writes() == []


def test_metadata_set_and_removed_with_virsh(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    metadata = ["metadata", "a", "--uri", NAMESPACE, "--config"]
    inner = "<vgpus><vgpu profile='mtty-1'/></vgpus>"
    assert server.virsh(*metadata, "--key", "vgpu", "--set", inner).returncode == 0
    wait_for_hostdevs(server, hooked, "a", device_of(uuid_of("a")))
    assert server.virsh(*metadata, "--remove").returncode == 0
    wait_for_hostdevs(server, hooked, "a")
    hooked.wait_for("it is forgotten", lambda: known(hooked) == [])


def test_a_users_own_hostdev_and_edit_stay(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    foreign = uuid_of("foreign")
    theirs = (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
        f"<address uuid='{foreign}'/></source><alias name='ua-mine'/></hostdev>"
    )
    define("a", "<o:x xmlns:o='urn:o'>kept</o:x>" + request("mtty-1"), theirs)
    wait_for_hostdevs(server, hooked, "a", foreign, device_of(uuid_of("a")))
    xml = server.virsh("dumpxml", "--inactive", "a").stdout
    assert "kept" in xml
    assert "ua-mine" in xml


@pytest.mark.parametrize("policy", ["new", "none", "refuse"])
def test_r8_a_fork_gets_what_its_policy_says(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path, policy: str
) -> None:
    define("a", request("mtty-1", more=f"fork='{policy}'"))
    parent = device_of(uuid_of("a"))
    wait_for_hostdevs(server, hooked, "a", parent)
    clone(server, tmp_path, "a", "b")
    expected = {"new": [device_of(uuid_of("b"))], "none": [], "refuse": [parent]}[policy]
    if policy == "refuse":
        define("later", request("mtty-1"))
        wait_for_hostdevs(server, hooked, "later", device_of(uuid_of("later")))
        assert "says that a fork must not start" in server.virsh("start", "b").stderr
    wait_for_hostdevs(server, hooked, "b", *expected)
    assert ('"mtty-1"' in server.virsh("dumpxml", "b").stdout) == (policy != "none")
    assert hostdevs(server, "a") == [parent]


def test_r8_a_fork_of_a_domain_with_a_retained_vgpu_inherits_nothing(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    define("a", request("mtty-1"))
    parent = device_of(uuid_of("a"))
    wait_for_hostdevs(server, hooked, "a", parent)
    xml = domain_xml("a", {"0": "mtty-1"})
    hooked.hook("a", "prepare", xml)
    pid = hooked.sim.hold(parent)
    hooked.hook("a", "stopped", xml)
    clone(server, tmp_path, "a", "b")
    wait_for_hostdevs(server, hooked, "b", device_of(uuid_of("b")))
    assert hooked.rows() == [("a", "0", "retained")]
    assert hooked.sim.writes("sys/*/remove") == []
    hooked.sim.drop(pid)
    hooked.wait_for("r7: the timer gets it back", lambda: hooked.rows() == [])
    assert hooked.sim.devices() == []


def test_rename_keeps_the_device_and_the_record_follows(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("old", request("mtty-1"))
    own = device_of(uuid_of("old"))
    wait_for_hostdevs(server, hooked, "old", own)
    assert server.virsh("domrename", "old", "new").returncode == 0
    hooked.wait_for("the new name", lambda: [row[0] for row in known(hooked)] == ["new"])
    assert hostdevs(server, "new") == [own]


def test_undefine_forgets_the_domain_and_releases_what_was_retained(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", device_of(uuid_of("a")))
    xml = domain_xml("a", {"0": "mtty-1"})
    hooked.hook("a", "prepare", xml)
    hooked.sim.fault("write", "sys/*/remove", "EIO")
    hooked.hook("a", "stopped", xml)
    assert server.virsh("undefine", "a").returncode == 0
    hooked.wait_for("the domain is forgotten", lambda: known(hooked) == [])
    assert hooked.rows("state") == [("retained",)]  # on record, without its domain
    hooked.sim.heal()
    hooked.wait_for("it is got back", lambda: hooked.rows() == [])
    assert hooked.sim.devices() == []


def test_a_request_taken_out_of_a_stopped_domain_gives_its_vgpu_back(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """harvester/harvester#7398: taken out of the configuration, and still in use."""
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", device_of(uuid_of("a")))
    hooked.configure(extra=f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = 3600\n")
    hooked.hook("a", "prepare", domain_xml("a", {"0": "mtty-1"}))
    define("a")
    wait_for_hostdevs(server, hooked, "a")
    hooked.wait_for("it is released", lambda: hooked.rows() == [])


def test_r9_a_reverted_snapshot_keeps_the_current_request(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    own = device_of(uuid_of("a"))
    define_with_qcow2(define, tmp_path)
    wait_for_hostdevs(server, hooked, "a", own)
    assert server.virsh("snapshot-create-as", "a", "s1").returncode == 0
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-2", "--slot", "0")
    assert answer.status == 0
    hooked.wait_for("the new one", lambda: known(hooked) == [("a", "0", "mtty-2")])
    assert server.virsh("snapshot-revert", "a", "s1").returncode == 0
    hooked.wait_for(
        "what was asked for last stands",
        lambda: 'profile="mtty-2"' in server.virsh("dumpxml", "--inactive", "a").stdout,
    )
    assert hostdevs(server, "a") == [own]
    assert known(hooked) == [("a", "0", "mtty-2")]
    server.virsh("snapshot-delete", "a", "s1", "--metadata")


def test_r9_a_reverted_snapshot_brings_no_request_back_that_was_taken_out(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    define_with_qcow2(define, tmp_path)
    wait_for_hostdevs(server, hooked, "a", device_of(uuid_of("a")))
    assert server.virsh("snapshot-create-as", "a", "s1").returncode == 0
    assert hooked.command("detach", "-c", server.uri, "a").status == 0
    hooked.wait_for("it is forgotten", lambda: known(hooked) == [])
    assert server.virsh("snapshot-revert", "a", "s1").returncode == 0
    wait_for_hostdevs(server, hooked, "a")
    assert "mtty-1" not in server.virsh("dumpxml", "--inactive", "a").stdout
    server.virsh("snapshot-delete", "a", "s1", "--metadata")


def test_a_domain_that_is_named_like_anothers_uuid_is_not_taken_for_it(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", device_of(uuid_of("a")))
    hooked.hook("a", "prepare", domain_xml("a", {"0": "mtty-1"}))
    define(uuid_of("a"))
    server.virsh("start", uuid_of(uuid_of("a")))
    assert server.virsh("undefine", "a").returncode == 0
    hooked.wait_for("it is released all the same", lambda: hooked.rows() == [])


def test_no_event_is_lost_over_ten_reconnects(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    for number in range(10):
        define(f"before{number}", request("mtty-1"))
        server.restart()
        define(f"after{number}", request("mtty-2"))
    for number in range(10):
        for name in (f"before{number}", f"after{number}"):
            wait_for_hostdevs(server, hooked, name, device_of(uuid_of(name)))


def test_the_daemon_comes_before_libvirt_and_outlives_it(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("a", request("mtty-1"))
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    define("b", request("mtty-1"))
    again = hooked.daemon()
    try:
        for name in ("a", "b"):
            wait_for_hostdevs(server, hooked, name, device_of(uuid_of(name)))
    finally:
        again.terminate()
        assert again.wait(PATIENCE) == 0
