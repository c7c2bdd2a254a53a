"""Public reports for which libvirt has to say what is defined and what runs (docs/reports.md).

The others are in tests/reports.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, uuid_of
from tests.libvirt import recorded_daemon
from tests.libvirt.server import LibvirtServer
from tests.libvirt.test_listener import (
    Daemon,
    clone,
    hostdevs,
    known,
    request,
    wait_for_hostdevs,
)
from tests.product import PATIENCE, Product

Define = Callable[..., None]
A = domain_xml("a", {"0": "mtty-1"})
DEVICE = device_of(uuid_of("a"))
FOREIGN = uuid_of("foreign")
BUS = "sys/class/mdev_bus"


def runs(server: LibvirtServer, product: Product, define: Define, name: str) -> int:
    """Have a domain run with a vGPU that has QEMU's handle; return the pid that holds it.

    Without VFIO QEMU can't have the device: libvirt's domain runs without it.
    """
    define(name)
    assert server.virsh("start", name).returncode == 0
    assert product.hook(name, "prepare", domain_xml(name, {"0": "mtty-1"})) == (0, "", "")
    return product.sim.hold(device_of(uuid_of(name)))


@contextmanager
def vgpu_hookd(server: LibvirtServer, product: Product, interval: int) -> Iterator[Daemon]:
    """vgpu-hookd that compares everything each so many seconds."""
    product.configure(extra=f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = {interval}\n")
    process = product.daemon(WATCHDOG_USEC="200000")  # else it looks at the time each 5 s
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture
def sweeping(server: LibvirtServer, hooked: Product) -> Iterator[Daemon]:
    with vgpu_hookd(server, hooked, 1) as process:
        yield process


@pytest.fixture
def listening(server: LibvirtServer, hooked: Product) -> Iterator[Daemon]:
    """vgpu-hookd that acts on events alone once it is connected."""
    hooked.sim.reset_reads()
    with vgpu_hookd(server, hooked, 86400) as process:
        hooked.wait_for("it has compared once", lambda: bool(hooked.sim.reads().get(BUS)))
        yield process


def reconciled(product: Product, server: LibvirtServer) -> dict[str, tuple[str, str]]:
    """Reconcile; return what was done to each device, and why."""
    found = product.json("reconcile", "-c", server.uri)["findings"]
    return {finding["device"]: (finding["action"], finding["reason"]) for finding in found}


def wait_for_passes(product: Product, count: int) -> None:
    """Wait until the daemon has compared everything some times more (its timer is 1 s)."""
    product.sim.reset_reads()

    def looked() -> bool:
        return product.sim.reads().get(BUS, {}).get("readdir", 0) > count

    product.wait_for(f"{count} passes are over", looked)


def test_lxd_11520_a_vm_whose_end_nobody_heard_of_gives_its_vgpu_back_once(
    server: LibvirtServer, hooked: Product, define: Define, sweeping: Daemon
) -> None:
    define("a")  # it does not run, and no hook call has said so
    assert hooked.hook("a", "prepare", A) == (0, "", "")
    hooked.wait_for("it is released", lambda: hooked.rows() == [])
    wait_for_passes(hooked, 2)
    assert [write.outcome for write in hooked.sim.writes("sys/*/remove")] == ["ok"]
    assert hooked.sim.devices() == []


def test_hypeman_pr_110_orphans_go_and_what_is_not_ours_is_reported(
    server: LibvirtServer, hooked: Product
) -> None:
    hooked.sim.make(FOREIGN, "mtty", "mtty-1")
    assert hooked.hook("a", "prepare", A) == (0, "", "")  # libvirt has no such domain
    found = reconciled(hooked, server)
    assert found[DEVICE][0] == "released"
    assert found[FOREIGN] == ("left alone", "not made by vgpu-hook (on mtty)")
    assert hooked.sim.devices() == [FOREIGN]


def test_kubevirt_9037_devices_of_others_stay_though_they_are_of_our_type(
    server: LibvirtServer, hooked: Product, define: Define, sweeping: Daemon
) -> None:
    hooked.sim.make(FOREIGN, "mtty", "mtty-1")
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    assert hooked.hook("a", "prepare", A) == (0, "", "")
    assert hooked.hook("a", "stopped", A) == (0, "", "")
    assert server.virsh("undefine", "a").returncode == 0
    hooked.wait_for("it is forgotten", lambda: known(hooked) == [])
    wait_for_passes(hooked, 2)
    assert hooked.sim.devices() == [FOREIGN]


def test_kubevirt_pr_19099_a_running_vm_keeps_its_vgpu_whatever_is_taken_out_of_the_configuration(
    server: LibvirtServer, hooked: Product, define: Define, sweeping: Daemon
) -> None:
    pid = runs(server, hooked, define, "a")
    settings = f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = 1\n[gpu.mtty]\nuse = false\n"
    hooked.configure(extra=settings)
    wait_for_passes(hooked, 2)
    assert hooked.rows() == [("a", "0", "assigned")]
    server.virsh("destroy", "a")  # libvirt says that it has ended; QEMU's handle says otherwise
    hooked.wait_for("it was tried", lambda: hooked.rows("state") == [("retained",)])
    assert f"in use by qemu-system-x86 (pid {pid}" in hooked.rows("reason")[0][0]
    assert hooked.sim.devices() == [DEVICE]
    assert hooked.sim.writes("sys/*/remove") == []
    hooked.sim.drop(pid)
    hooked.wait_for("it is released", lambda: hooked.rows() == [])


@pytest.mark.simhost("vfio-ap")
def test_kubevirt_pr_19099_devices_of_other_drivers_are_left_alone(
    server: LibvirtServer, product: Product
) -> None:
    product.sim.make(FOREIGN, "matrix", "vfio_ap-passthrough")
    assert reconciled(product, server)[FOREIGN][0] == "left alone"
    assert product.sim.writes() == []


def test_kubevirt_pr_8422_only_what_is_taken_out_of_a_request_changes(
    server: LibvirtServer, hooked: Product, define: Define, listening: Daemon
) -> None:
    define("a", request("mtty-1", "mtty-2"))
    define("b", request("mtty-2"))
    own = [device_of(uuid_of("a"), slot) for slot in "01"]
    wait_for_hostdevs(server, hooked, "a", *own)
    wait_for_hostdevs(server, hooked, "b", device_of(uuid_of("b")))
    two = domain_xml("a", {"0": "mtty-1", "1": "mtty-2"})
    assert hooked.hook("a", "prepare", two) == (0, "", "")
    pid = hooked.sim.hold(own[0])  # what is kept is in use
    assert hooked.command("detach", "-c", server.uri, "a", "--slot", "1").status == 0
    hooked.wait_for("what was taken out is gone", lambda: own[1] not in hooked.sim.devices())
    assert hooked.sim.devices() == [own[0]]
    assert [write.path.split("/")[-2] for write in hooked.sim.writes("sys/*/remove")] == [own[1]]
    assert hostdevs(server, "a") == [own[0]]
    assert hostdevs(server, "b") == [device_of(uuid_of("b"))]
    hooked.sim.drop(pid)


def test_hypeman_pr_321_an_assignment_that_is_being_made_is_no_orphan(
    server: LibvirtServer, hooked: Product
) -> None:
    hooked.sim.fault("write", "sys/*/create", "hang", times=1)
    call = hooked.popen("a", "prepare", A)
    hooked.wait_for("it is being made", lambda: hooked.rows("state") == [("creating",)])
    ((action, _),) = reconciled(hooked, server).values()
    assert action == "kept"
    assert hooked.rows("state") == [("creating",)]
    hooked.sim.heal()
    assert call.communicate(timeout=PATIENCE) == (b"", b"")
    assert call.returncode == 0
    assert hooked.sim.devices() == [DEVICE]
    assert hooked.rows("state") == [("assigned",)]


def test_harvester_5293_the_vgpu_of_a_running_vm_is_not_released_and_the_vm_is_named(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    runs(server, hooked, define, "a")
    answer = hooked.command("release", "-c", server.uri, "a")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: domain 'a' is running: ")
    assert "run: virsh shutdown a" in answer.err
    assert hooked.command("release", "-c", server.uri, "--force", "a").status == 2
    assert reconciled(hooked, server) == {}
    assert hooked.rows() == [("a", "0", "assigned")]
    assert hooked.sim.writes("sys/*/remove") == []


def test_mdevctl_53_an_event_that_comes_ten_times_does_nothing_ten_times(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon, tmp_path: Path
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    for _ in range(10):
        clone(server, tmp_path, "a", "a")  # the same once more
    define("later", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "later", device_of(uuid_of("later")))
    assert hooked.events().count("definition") == 2
    assert hostdevs(server, "a") == [DEVICE]
    assert hooked.sim.writes() == []


def test_rancher_dashboard_10947_two_vgpus_are_not_both_the_boot_display(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a", devices="<graphics type='vnc'/>")
    both = ["attach", "-c", server.uri, "a", "--profile", "mtty-1", "--display", "on", "--ramfb"]
    assert hooked.command(*both, "on").status == 0
    before = server.virsh("dumpxml", "--inactive", "a").stdout
    answer = hooked.command(*both, "on")
    assert answer.status == 1
    assert "ramfb" in answer.err
    assert "'a'" in answer.err
    assert server.virsh("dumpxml", "--inactive", "a").stdout == before
    assert hooked.command(*both, "off").status == 0
    after = server.virsh("dumpxml", "--inactive", "a").stdout
    assert after.count(" ramfb='on'") == after.count(" ramfb='off'") == 1


def test_ravada_1965_a_clone_gets_a_device_of_its_own(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon, tmp_path: Path
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    for name in ("clone1", "clone2"):
        clone(server, tmp_path, "a", name)
        wait_for_hostdevs(server, hooked, name, device_of(uuid_of(name)))
        assert hooked.hook(name, "prepare", domain_xml(name, {"0": "mtty-1"})) == (0, "", "")
    assert hostdevs(server, "a") == [DEVICE]


def test_proxmox_vgpu_installer_22_a_copied_device_is_noticed_when_it_is_defined(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon, tmp_path: Path
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    clone(server, tmp_path, "a", "copy")
    wait_for_hostdevs(server, hooked, "copy", device_of(uuid_of("copy")))
    said = "in place of an inherited one"
    hooked.wait_for("it says so", lambda: said in hooked.command("explain", "copy").out)
    assert hostdevs(server, "a") == [DEVICE]


def test_kubevirt_194_what_happens_while_the_connection_is_lost_is_made_good(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    daemon.send_signal(signal.SIGSTOP)
    server.restart()
    define("gap", request("mtty-1"))  # its event goes to nobody
    daemon.send_signal(signal.SIGCONT)
    wait_for_hostdevs(server, hooked, "gap", device_of(uuid_of("gap")))
    define("after", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "after", device_of(uuid_of("after")))


def test_kubevirt_pr_1630_the_event_loop_is_there_before_the_connection_and_runs(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path
) -> None:
    hooked.configure(extra=f"[daemon]\nlibvirt = '{server.uri}'\n")
    log = tmp_path / "calls"
    process = subprocess.Popen(
        [sys.executable, "-I", str(Path(recorded_daemon.__file__)), str(log)],
        env=hooked.environment,
    )
    try:
        define("a", request("mtty-1"))
        wait_for_hostdevs(server, hooked, "a", DEVICE)
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    calls = log.read_text().splitlines()
    assert calls.count("virEventRegisterDefaultImpl") == 1
    assert calls.count("virEventRunDefaultImpl") > 1
    first = [calls.index(name) for name in ("virEventRegisterDefaultImpl", "open", "setKeepAlive")]
    assert first == sorted(first)
    # Registered before anything is listed: what happens in between is heard of, and so seen.
    assert calls.index("domainEventRegisterAny") < calls.index("listAllDomains")


def test_harvester_7398_a_device_that_was_taken_out_of_the_definition_is_free_and_it_says_why(
    server: LibvirtServer, hooked: Product, define: Define, listening: Daemon
) -> None:
    define("a", request("mtty-1"))
    wait_for_hostdevs(server, hooked, "a", DEVICE)
    assert hooked.hook("a", "prepare", A) == (0, "", "")
    pid = hooked.sim.hold(DEVICE)
    assert hooked.hook("a", "stopped", A) == (0, "", "")
    hooked.sim.drop(pid)
    define("a")  # the whole request is out of it
    hooked.wait_for("it is released", lambda: hooked.rows() == [])
    assert hooked.sim.devices() == []
    events = [entry["event"] for entry in hooked.json("explain", "a")["history"]]
    assert events[-1] == "released"
    assert "retained" in events


# -- looked for, and not found as a public report ----------------------------------------


def test_the_hook_runs_after_libvirtd_was_restarted(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    define("a")
    attach = hooked.command("attach", "-c", server.uri, "a", "--profile", "mtty-1")
    assert attach.status == 0
    for _ in range(2):
        server.restart()
        assert server.virsh("start", "a").returncode != 0  # no VFIO here: after our hook
        assert "assigned" in hooked.events()
        assert hooked.rows() == []
        assert hooked.sim.devices() == []
        hooked.query("DELETE FROM history")
