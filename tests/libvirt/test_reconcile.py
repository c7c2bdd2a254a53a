"""reconcile, delete and the boot gate, against a real libvirtd and a simulated host."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import PATIENCE, Product
from tests.simhost import SimHost
from vgpu_hook import hotplug
from vgpu_hook.libvirtd import Libvirt

Define = Callable[..., None]
A = domain_xml("a", {"0": "mtty-1"})
DEVICE = device_of(uuid_of("a"))
STEPS = ["starts blocked", "stopped", "vGPU released", "undefined", "volume removed", "done"]


def reconcile(product: Product, uri: str, *more: str) -> list[tuple[str, str, str]]:
    found = product.json("reconcile", "-c", uri, *more)["findings"]
    return [(finding["device"], finding["domain"], finding["action"]) for finding in found]


def test_r7_an_orphan_is_released_a_foreign_device_and_a_running_domains_are_left(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    foreign = uuid_of("foreign")
    hooked.sim.make(foreign, "mtty", "mtty-1")
    hooked.hook("a", "prepare", A)  # libvirt has no such domain
    define("run")
    server.virsh("start", "run")
    hooked.hook("run", "prepare", domain_xml("run", {"0": "mtty-1"}))
    expected = [(foreign, "", "left alone"), (DEVICE, "a", "release")]
    assert reconcile(hooked, server.uri, "--dry-run") == expected
    assert len(hooked.sim.devices()) == 3
    expected[1] = (DEVICE, "a", "released")
    assert reconcile(hooked, server.uri) == expected
    assert hooked.sim.devices() == sorted([foreign, device_of(uuid_of("run"))])
    assert hooked.rows() == [("run", "0", "assigned")]


def test_r7_a_reload_makes_the_next_reconcile_as_soon_as_the_settings_say(
    server: LibvirtServer, hooked: Product
) -> None:
    daemon = f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = "
    hooked.configure(extra=f"{daemon}86400\n")
    hooked.hook("a", "prepare", A)  # libvirt has no such domain
    process = hooked.daemon()
    try:
        hooked.wait_for("the one at the start", lambda: hooked.rows() == [])
        hooked.hook("a", "prepare", A)
        hooked.configure(extra=f"{daemon}1\n")
        process.send_signal(signal.SIGHUP)
        hooked.wait_for("the next one", lambda: hooked.rows() == [])
    finally:
        process.kill()
        process.wait()


def test_r7_i2_libvirt_unreachable_keeps_everything(hooked: Product, tmp_path: Path) -> None:
    hooked.hook("a", "prepare", A)
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    assert reconcile(hooked, uri) == [(DEVICE, "a", "kept")]
    assert hooked.rows() == [("a", "0", "assigned")]


def test_r7_a_device_is_adopted_by_its_derived_uuid_when_the_record_was_lost(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    assert answer.status == 0
    hooked.hook("a", "prepare", A)
    hooked.query("DELETE FROM assignment")
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "adopted"), (DEVICE, "a", "released")]
    assert hooked.sim.devices() == []


def test_r7_i9_after_a_reboot_old_records_are_no_proof(
    server: LibvirtServer, hooked: Product
) -> None:
    hooked.hook("a", "prepare", A)
    hooked.sim.reboot()
    hooked.sim.make(DEVICE, "mtty", "mtty-1")
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "kept")]
    assert hooked.sim.devices() == [DEVICE]
    hooked.sim.reboot()
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "released")]
    assert hooked.rows() == []


def test_r7_a_vgpu_that_a_running_vm_no_longer_has_is_got_back_when_it_is_not_young(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """The event of its unplugging was missed."""
    define("a")
    server.virsh("start", "a")  # without the hostdev
    hooked.hook("a", "prepare", A)
    assert reconcile(hooked, server.uri) == []
    hooked.query("UPDATE assignment SET changed = '2026-01-01T00:00:00.000Z'")
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "released")]
    assert hooked.sim.devices() == []


@pytest.mark.parametrize("command", ["reconcile", "release a", "delete a", "attach a --profile 1"])
def test_another_hosts_libvirt_is_refused_and_changes_nothing(
    hooked: Product, command: str
) -> None:
    hooked.hook("a", "prepare", A)
    answer = hooked.command(*command.split(), "--connect", "test:///default")
    assert "is not the system libvirt of this host's QEMU" in answer.err
    assert hooked.rows() == [("a", "0", "assigned")]
    assert hooked.query("SELECT name, deleting_since FROM domain") == [("a", None)]
    assert len(hooked.sim.devices()) == 1


def test_r7_a_parent_that_hangs_holds_up_no_other_release(
    server: LibvirtServer, hooked: Product
) -> None:
    hooked.hook("a", "prepare", A)
    hooked.configure(deadline=2)
    hooked.sim.fault("read", "sys/*/available_instances", "hang")
    found = hooked.json("reconcile", "-c", server.uri)["findings"]
    hooked.sim.heal()
    assert [(f["device"], f["action"]) for f in found][-1] == (DEVICE, "released")
    assert hooked.sim.devices() == []


def test_r7_a_call_under_way_is_no_orphan(server: LibvirtServer, hooked: Product) -> None:
    hooked.configure(deadline=4)
    hooked.sim.fault("write", "sys/*/create", "hang", times=1)
    call = hooked.popen("a", "prepare", A)
    hooked.wait_for("it is being made", lambda: hooked.rows("state") == [("creating",)])
    hooked.configure(deadline=1)
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "kept")]
    assert call.wait(PATIENCE) == 1
    hooked.sim.heal()


def define_with_disk(server: LibvirtServer, hooked: Product, define: Define, folder: Path) -> Path:
    """Define `a` with a vGPU and a disk in a storage pool."""
    pool = folder / "pool"
    pool.mkdir()
    disk = pool / "a.raw"
    disk.write_bytes(bytes(1 << 20))
    server.virsh("pool-create-as", "pool", "dir", "--target", str(pool))
    define(
        "a",
        devices=f"<disk type='file' device='disk'><source file='{disk}'/>"
        "<target dev='vda' bus='virtio'/></disk>",
    )
    hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    hooked.hook("a", "prepare", A)
    hooked.sim.fault("write", "sys/*/remove", "EIO", times=1)
    hooked.hook("a", "stopped", A)
    assert hooked.rows("state") == [("retained",)]
    return disk


@pytest.mark.parametrize("killed_after", [None, *STEPS[:-1]])
def test_r1_r10_delete_killed_after_any_step_ends_the_same(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path, killed_after: str | None
) -> None:
    disk = define_with_disk(server, hooked, define, tmp_path)
    arguments = ["delete", "-c", server.uri, "a", "--remove-storage"]
    try:
        if killed_after is not None:
            kill_after(hooked, arguments, killed_after)
            assert "is being deleted (since" in hooked.hook("a", "prepare", A).err
        answer = hooked.command(*arguments)
        assert answer.status == 0, answer.err
        assert answer.out.splitlines()[-1] == "done"
    finally:
        server.virsh("pool-destroy", "pool")
    assert server.virsh("dominfo", "a").returncode != 0
    assert not disk.exists()
    assert hooked.rows() == []
    assert hooked.sim.devices() == []
    assert hooked.query("SELECT * FROM domain") == []
    events = hooked.events()
    order = [events.index("released"), events.index("delete: undefined")]
    order += [events.index("delete: volume removed"), events.index("delete: done")]
    assert events.index("delete: starts blocked") < order[0]
    assert order == sorted(order)


def test_a_deletion_can_be_called_off(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    arguments = ["delete", "-c", server.uri, "a"]
    answer = hooked.command(*arguments, "--cancel")
    assert "'a' is not being deleted" in answer.err
    kill_after(hooked, arguments, "starts blocked")
    assert "or with --cancel" in hooked.hook("a", "prepare", A).err
    assert hooked.command(*arguments, "--cancel").status == 0
    assert hooked.hook("a", "prepare", A) == (0, "", "")


def test_delete_removes_only_what_this_run_was_asked_to(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    disk = define_with_disk(server, hooked, define, tmp_path)
    other = disk.with_name("other.raw")
    other.write_bytes(b"kept")
    try:
        kill_after(hooked, ["delete", "-c", server.uri, "a", "--remove-storage"], "stopped")
        assert hooked.command("delete", "-c", server.uri, "a").status == 0
        assert disk.exists()
    finally:
        server.virsh("pool-destroy", "pool")
    assert other.read_bytes() == b"kept"


def kill_after(product: Product, arguments: list[str], step: str) -> None:
    """Run the command; it is killed when it has done the step, before it can show it."""
    script = Path(__file__).parents[1] / "killed_at.py"
    done = subprocess.run(
        [sys.executable, "-I", str(script), step, *arguments],
        env=product.environment,
        stdout=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    assert done.returncode == -signal.SIGKILL


def test_r3_delete_goes_on_when_the_vgpu_cannot_be_released(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    hooked.hook("a", "prepare", A)
    pid = hooked.sim.hold(DEVICE)
    answer = hooked.command("delete", "-c", server.uri, "a")
    assert answer.status == 0
    assert f"vGPU retained: {DEVICE}: in use by" in answer.out
    assert server.virsh("dominfo", "a").returncode != 0
    assert hooked.rows() == [("a", "0", "retained")]
    hooked.sim.drop(pid)
    assert reconcile(hooked, server.uri) == [(DEVICE, "a", "released")]


def test_r10_a_running_domain_is_stopped_by_delete_and_a_typing_mistake_deletes_nothing(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    server.virsh("start", "a")
    answer = hooked.command("delete", "-c", server.uri, "aa")
    assert answer.status == 1
    assert "no domain 'aa'" in answer.err
    assert hooked.command("delete", "-c", server.uri, "a").status == 0
    assert server.virsh("dominfo", "a").returncode != 0


def test_live_attach_gives_back_what_libvirt_does_not_take(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """This machine has no VFIO: libvirt refuses, after the device was made."""
    define("a")
    server.virsh("start", "a")
    answer = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1", "--live")
    assert answer.status == 1
    assert "domain 'a': libvirt: " in answer.err
    assert [w.outcome for w in hooked.sim.writes("sys/*")] == ["ok", "ok"]
    assert hooked.sim.devices() == []
    assert hooked.rows() == []
    assert "hostdev" not in server.virsh("dumpxml", "--inactive", "a").stdout


def test_the_boot_gate_runs_commands_in_order_and_waits_for_late_parents(
    make_simhost: Callable[..., SimHost], tmp_path: Path
) -> None:
    product = Product(make_simhost("late-parent"), tmp_path)
    log = tmp_path / "log"
    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {log}\n[ "$(wc -l < {log})" -ge 3 ] || exit 19\n')
    tool.chmod(0o755)
    product.configure(extra=f"[boot]\ncommands = [['{tool}', '-e'], ['{tool}', '-shm']]\n")
    product.hook("seed", "prepare", domain_xml("seed", {"0": "none"}))  # makes the store
    product.query("DELETE FROM request")
    product.query(
        "INSERT INTO request (domain_uuid, slot, device, profile, fork)"
        f" VALUES ('{uuid_of('a')}', '0', '{DEVICE}', 'nvidia-222', 'new')"
    )
    answer = product.command("boot-gate")
    assert answer.status == 0, answer.out
    assert log.read_text().split() == ["-e", "-e", "-e", "-shm"]
    product.query("UPDATE request SET profile = 'never'")
    product.configure(extra="[boot]\ntimeout = 2\n")
    answer = product.command("boot-gate")
    assert answer.status == 1
    assert "still missing: profile 'never'" in answer.out


def test_a_running_domain_s_own_metadata_says_what_it_has(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """What a saved image and a migration carry along (facts C5)."""
    define("noted")
    server.virsh("start", "noted")
    asked = "<vgpus><vgpu name='x' profile='p &amp; q'/><vgpu name='y' profile='r'/></vgpus>"
    uri = "urn:vgpu-hook:domain:1"
    server.virsh("metadata", "noted", "--live", uri, "--key", "vgpu", "--set", asked)
    libvirt_ = Libvirt(server.uri)
    found = libvirt_.find("noted")
    assert [r.slot for r in hotplug.live(libvirt_, found).request] == ["x", "y"]
    for slot, left in (("y", ["x"]), ("y", ["x"]), ("x", [])):
        hotplug.note_request(libvirt_, found, slot, None)
        request = hotplug.live(libvirt_, found).request
        assert [r.slot for r in request] == left
        assert all(r.profile == "p & q" for r in request)
    assert libvirt_.definition(found).count(b"vgpu") == 0
    libvirt_.connection.close()
