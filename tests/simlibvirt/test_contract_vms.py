"""The simulated libvirtd against this machine's: VMs that start and stop, and the hook's calls.

This machine has no VFIO, so that no VM with a vGPU comes up here: what libvirt does with one that
runs (attach and detach while it does) is compared by nobody; tests/testhost has it on the product.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.domains import uuid_of

from .contract import LIVE, MINE, OTHER, OURS, UNDEFINE, Compare, domain, look
from .errors import SimError
from .sides import AnySide, Simulated

NOBODY = uuid_of("nobody")
WAITS = """\
touch began
for n in $(seq 3000); do
    [ -e go ] && break
    sleep 0.02
done
rm -f began go
"""
"""A hook that is at work until the test says so, or for a minute."""


def no_vfio(domain: Any, xml: str) -> None:
    text = "unsupported configuration: Mediated host device assignment requires VFIO support"
    raise SimError(libvirt.VIR_ERR_CONFIG_UNSUPPORTED, text)


def test_start_and_destroy(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS))
        found = side.domain("a")
        side.do("start", side.start, "a")
        side.do("start again", side.start, "a")
        look(side, found, "running")
        side.do("redefine", side.connection.defineXML, domain("a", OURS + OTHER, MINE))
        look(side, found, "redefined")
        side.do("destroy", found.destroy)
        look(side, found, "stopped")
        side.do("destroy again", found.destroy)
        side.do("redefine", side.connection.defineXML, domain("a", OURS))
        side.do("start", side.start, "a")
        side.do("undefine", found.undefineFlags, UNDEFINE)
        side.do("undefine again", found.undefineFlags, UNDEFINE)
        look(side, found, "undefined")
        side.do("destroy", found.destroy)
        side.do("gone", found.isActive)

    compare(scenario)


def test_transient_domains(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.do("create", side.create, domain("t", OURS))
        found = side.domain("t")
        look(side, found, "running")
        side.do("create again", side.create, domain("t"))
        side.do("another's name", side.create, domain("t", uuid=NOBODY))
        side.do("undefine", found.undefineFlags, UNDEFINE)
        side.do("destroy", found.destroy)
        side.do("gone", found.isActive)
        side.do("create", side.create, domain("t"))
        side.do("define", side.connection.defineXML, domain("t", OTHER))
        look(side, found, "defined")
        side.do("destroy", found.destroy)
        look(side, found, "stopped")
        side.do("create what is defined", side.create, domain("t", OURS))
        look(side, found, "created")
        side.do("destroy", found.destroy)
        look(side, found, "stopped again")

    compare(scenario)


@pytest.mark.parametrize("operation", ["prepare", "start", "started"])
def test_a_hook_that_refuses(compare: Compare, operation: str) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS))
        side.hook_does(operation, "echo no >&2; exit 1")
        side.do("start", side.start, "a")
        look(side, side.domain("a"), "refused")
        side.do("create", side.create, domain("t", OURS))
        side.do("lookup", side.connection.lookupByName, "t")

    compare(scenario)


def test_r3_what_the_hook_answers_at_the_end_changes_nothing(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS))
        for operation in ("stopped", "release"):
            side.hook_does(operation, "echo no >&2; echo no; exit 1")
        side.do("start", side.start, "a")
        side.do("destroy", side.domain("a").destroy)
        look(side, side.domain("a"), "stopped")

    compare(scenario)


def test_save_and_restore(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS))
        found = side.domain("a")
        side.do("save what does not run", side.save, "a")
        side.start("a")
        side.do("save", side.save, "a")
        look(side, found, "saved")
        side.connection.defineXML(domain("a", OTHER))
        side.do("restore", side.restore, "a")
        look(side, found, "restored")
        side.do("restore again", side.restore, "a")
        found.destroy()
        side.hook_does("restore", "sed s/mtty-1/mtty-2/")
        side.do("restore other XML", side.restore, "a")
        look(side, found, "restored with other XML")
        found.destroy()
        side.hook_does("restore", "echo no >&2; exit 1")
        side.do("restore refused", side.restore, "a")
        found.undefineFlags(UNDEFINE)
        side.do("restore refused", side.restore, "a")
        side.do("lookup", side.connection.lookupByName, "a")
        side.hook_does("restore", "exit 0")
        side.do("restore what is not defined", side.restore, "a")
        look(side, side.domain("a"), "restored as transient")

    compare(scenario)


def test_managed_save(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS))
        found = side.domain("a")
        side.start("a")
        side.do("managed save", side.managed_save, "a")
        side.do("start", side.start, "a")
        look(side, found, "started")
        side.do("destroy", found.destroy)
        side.do("start anew", side.start, "a")
        side.do("managed save", side.managed_save, "a")
        side.do("undefine", found.undefineFlags, 0)
        side.do("undefine with it", found.undefineFlags, UNDEFINE)

    compare(scenario)


def test_a_crash(compare: Compare) -> None:
    name = f"crash-{os.getpid()}"  # of no other VM on this machine

    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain(name, OURS))
        side.start(name)
        side.do("crash", side.crash, name)
        look(side, side.domain(name), "crashed")

    compare(scenario)


def test_snapshots(compare: Compare, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1M"], check=True)
    devices = (
        "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>"
        f"<source file='{disk}'/><target dev='vda' bus='virtio'/></disk>"
    )

    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS, devices))
        found = side.domain("a")
        side.do("snapshot", side.snapshot, "a")
        side.connection.defineXML(domain("a", OTHER, devices))
        side.do("revert", side.revert, "a")
        look(side, found, "reverted")
        side.start("a")
        side.do("revert while it runs", side.revert, "a")
        look(side, found, "reverted again")

    compare(scenario)


def test_a_vgpu_that_the_host_has_not(compare: Compare) -> None:
    """This machine has no VFIO: libvirt says so after the hook's yes."""

    def scenario(side: AnySide) -> None:
        if isinstance(side, Simulated):
            side.qemu.takes = no_vfio
        side.connection.defineXML(domain("a", OURS, MINE))
        side.do("start", side.start, "a")
        look(side, side.domain("a"), "not started")

    compare(scenario)


def test_devices_that_can_not_be_attached_or_detached(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        if isinstance(side, Simulated):
            side.simulated.on_attach = no_vfio
        side.connection.defineXML(domain("a", OURS))
        found = side.domain("a")
        side.do("attach to a stopped one", found.attachDeviceFlags, MINE, LIVE)
        side.do("detach what is not there", found.detachDeviceAlias, "ua-vgpu-0", 0)
        side.connection.defineXML(domain("a", OURS, MINE))
        side.do("detach from a stopped one", found.detachDeviceAlias, "ua-vgpu-0", 0)
        side.do("then", found.XMLDesc, 2)
        side.do("start", side.start, "a")
        side.do("attach", found.attachDeviceFlags, MINE, LIVE)
        side.do("then", found.XMLDesc, 0)
        side.do("detach what is not there", found.detachDeviceAlias, "ua-vgpu-0", 0)

    compare(scenario)


def test_what_waits_while_a_hook_is_at_work(compare: Compare) -> None:
    """Calls on its domain, and lists; not those on others (facts A10)."""

    def scenario(side: AnySide) -> None:
        for name in ("a", "b"):
            side.connection.defineXML(domain(name, OURS))
        found = side.domain("a")
        side.hook_does("prepare", WAITS)
        other, third = side.connect(), side.connect()
        starting = threading.Thread(target=side.start, args=("a",))
        starting.start()
        side.wait((side.hooks / "began").exists)
        answers: dict[str, Any] = {}

        def ask() -> None:
            answers["isActive"] = found.isActive()

        def list_all() -> None:
            answers["active"] = sorted(d.name() for d in other.listAllDomains(1))

        asking = [threading.Thread(target=call) for call in (ask, list_all)]
        for thread in asking:
            thread.start()
        side.seen.append(("meanwhile", third.lookupByName("b").isActive(), [], []))
        asking[0].join(0.3)
        side.seen.append(("not yet", dict(answers), [], []))
        (side.hooks / "go").touch()
        for thread in (*asking, starting):
            thread.join()
        side.do("then", lambda: answers)

    compare(scenario)
