"""attach, detach, release and render against a real libvirtd and its own XML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import Product

Define = Callable[..., None]


def test_attach_writes_request_and_hostdev_and_detach_takes_both(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("vm one")
    before = server.virsh("dumpxml", "--inactive", "vm one").stdout
    answer = hooked.command("attach", "-c", server.uri, "vm one", "--profile", "MTTY-1")
    assert answer == (0, "vGPU 'MTTY-1' attached to domain 'vm one', slot 0.\n", "")
    xml = server.virsh("dumpxml", "--inactive", "vm one").stdout
    assert 'profile="MTTY-1"' in xml
    assert f"<address uuid='{device_of(uuid_of('vm one'))}'/>" in xml
    assert "<alias name='ua-vgpu-0'/>" in xml
    answer = hooked.command("attach", "-c", server.uri, "vm one", "--profile", "2")
    assert "slot 1" in answer.out
    answer = hooked.command("detach", "-c", server.uri, "vm one")
    assert answer.status == 1
    assert "several vGPUs: slots 0, 1" in answer.err
    for slot in ("0", "1"):
        answer = hooked.command("detach", "-c", server.uri, "vm one", "--slot", slot)
        assert answer.status == 0
    after = server.virsh("dumpxml", "--inactive", "vm one").stdout
    assert [line for line in after.splitlines() if "hostdev" in line or "vgpu" in line] == []
    assert _without_pci_ports(after) == _without_pci_ports(before)


def test_attach_keeps_the_guest_address_when_the_profile_changes(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    hostdev = server.virsh("dumpxml", "--inactive", "a").stdout.split("<hostdev")[1]
    hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-2", "--slot", "0")
    xml = server.virsh("dumpxml", "--inactive", "a").stdout
    assert xml.split("<hostdev")[1].split("</hostdev>")[0] == hostdev.split("</hostdev>")[0]
    assert 'profile="mtty-2"' in xml


@pytest.mark.parametrize("name", ["-dash", "with 'quotes' & \"more\"", "Übung ☃", "x;id"])
def test_odd_names_reach_the_hook_and_come_back_in_its_refusal(
    server: LibvirtServer, hooked: Product, define: Define, name: str
) -> None:
    escaped = name.replace("&", "&amp;").replace("'", "&apos;").replace('"', "&quot;")
    define(
        escaped,
        "<v:vgpus xmlns:v='urn:vgpu-hook:domain:1'><v:vgpu profile='mtty-1'/></v:vgpus>",
    )
    done = server.virsh("start", "--domain", name)
    assert done.returncode != 0
    assert "has no hostdev yet; run: vgpu-hook attach" in done.stderr
    assert repr(name) in done.stderr
    assert server.virsh("list", "--name").stdout.strip() == ""


def test_r11_a_start_that_libvirt_refuses_after_prepare_gives_everything_back(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    done = server.virsh("start", "a")
    # This machine has no mdev: libvirt itself refuses, once the hook has made the device.
    assert "requires VFIO support" in done.stderr
    assert [w.outcome for w in hooked.sim.writes("sys/*")] == ["ok", "ok"]
    assert hooked.events()[-1] == "released"
    assert hooked.sim.devices() == []
    assert hooked.rows() == []


def test_r14_a_domain_without_a_request_starts_whatever_is_broken(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    hooked.set_config("]] garbage")
    hooked.state.mkdir()
    (hooked.state / "store.db").mkdir()
    define("plain")
    assert server.virsh("start", "plain").returncode == 0
    assert server.virsh("destroy", "plain").returncode == 0


def test_release_refuses_a_running_domain_and_an_unreachable_libvirt(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    define("a")
    assert server.virsh("start", "a").returncode == 0
    hooked.hook("a", "prepare", domain_xml("a", {"0": "mtty-1"}))
    answer = hooked.command("release", "-c", server.uri, "a")
    assert answer.status == 1
    assert "'a' is running" in answer.err
    assert server.virsh("destroy", "a").returncode == 0
    answer = hooked.command("release", "-c", server.uri, "a")
    assert answer == (0, "Released 1 of 1 vGPUs of domain 'a'.\n", "")
    answer = hooked.command("release", "-c", server.uri, "a")
    assert answer == (0, "Domain 'a' has no vGPU on record.\n", "")
    answer = hooked.command("release", "-c", f"qemu+unix:///system?socket={tmp_path}/none", "a")
    assert answer.status == 1
    assert "can't connect to libvirt" in answer.err


def test_attach_names_what_exists_when_nothing_fits(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "nvidia-9")
    assert answer.status == 1
    assert (
        "profile 'nvidia-9' is not offered by any GPU; there are:"
        " mtty-1 (Single port serial: 24 free), mtty-2 (Dual port serial: 12 free)"
    ) in answer.err
    answer = hooked.command("attach", "-c", server.uri, "nobody", "--profile", "mtty-1")
    assert answer == (
        1,
        "",
        f"error: no domain 'nobody' at {server.uri}; run: virsh list --all\n",
    )


def test_rendered_xml_is_taken_by_libvirt(
    server: LibvirtServer, hooked: Product, tmp_path: Path
) -> None:
    source = tmp_path / "in.xml"
    source.write_text(
        "<domain type='qemu'>\n  <name>r</name>\n  <metadata>"
        "<v:vgpus xmlns:v='urn:vgpu-hook:domain:1'><v:vgpu profile='mtty-2' name='gfx'/></v:vgpus>"
        "</metadata>\n  <memory unit='MiB'>16</memory>\n"
        "  <os><type arch='x86_64' machine='q35'>hvm</type></os>\n</domain>\n"
    )
    answer = hooked.command("render", str(source))
    assert answer.status == 0
    target = tmp_path / "out.xml"
    target.write_text(answer.out)
    assert server.virsh("define", str(target)).returncode == 0
    xml = server.virsh("dumpxml", "r").stdout
    uuid = xml.split("<uuid>")[1].split("<")[0]
    assert f"<address uuid='{device_of(uuid, 'gfx')}'/>" in xml
    assert "<alias name='ua-vgpu-gfx'/>" in xml


def _without_pci_ports(xml: str) -> str:
    """libvirt adds a root port for each device and keeps it."""
    kept = "".join(part.split("</controller>")[-1] for part in xml.split("<controller"))
    return "\n".join(line for line in kept.splitlines() if line.strip())
