"""Saved guests that wake up under a real libvirtd: what our hook says, alone and among others.

What is refused must still be there: libvirt 11.3 removes a managed save when its restore hook
fails, and says that the domain has started. The machine has no VFIO, so no guest here ever had a
vGPU: what our hook prints for those that have is tested by simulated/test_arrivals.py, and for real
on the test host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from lxml import etree

from tests.domains import uuid_of
from tests.libvirt.server import LibvirtServer
from tests.libvirt.test_listener import Daemon, known
from tests.product import Product
from vgpu_hook import store_file

Define = Callable[..., None]
TITLE = "<title>seen by the first</title>"


class Scripts:
    """Scripts of others in qemu.d, before ours and after it."""

    def __init__(self, folder: Path, seen: Path) -> None:
        self.folder, self.seen = folder, seen
        self.made: list[Path] = []

    def add(self, name: str, body: str) -> None:
        script = self.folder / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        self.made.append(script)

    def add_titling(self, name: str) -> None:
        """One that gives a guest that is restored a title."""
        edit = f"s|</uuid>|</uuid>{TITLE}|"
        self.add(name, f'[ "$2" = restore ] && sed {shlex.quote(edit)} || cat >/dev/null')

    def add_recording(self, name: str) -> None:
        """One that keeps what it is given, and prints nothing."""
        self.add(name, f'echo "$*" >>{self.seen}/calls; cat >{self.seen}/{name}-"$2"')

    def given(self, name: str, operation: str) -> bytes:
        return (self.seen / f"{name}-{operation}").read_bytes()


@pytest.fixture
def scripts(server: LibvirtServer, hooked: Product, tmp_path: Path) -> Iterator[Scripts]:
    found = Scripts(server.hooks / "qemu.d", tmp_path)
    yield found
    for script in found.made:
        script.unlink()


def is_running(server: LibvirtServer, name: str) -> bool:
    return server.virsh("domstate", name).stdout.strip() == "running"


def is_saved(server: LibvirtServer, name: str) -> bool:
    """Tell whether the domain has a managed save, in libvirt's mind and on disk."""
    with closing(server.connect()) as connection:
        known = bool(connection.lookupByName(name).hasManagedSaveImage())
    shown = server.virsh("dominfo", name).stdout
    assert re.search(r"^Managed save:\s+(yes|no)$", shown, re.M), shown
    assert known == bool(re.search(r"^Managed save:\s+yes$", shown, re.M))
    file = server.folder / "lib" / "qemu" / "save" / f"{name}.save"
    assert file.exists() == known
    return known


def is_refused(server: LibvirtServer, name: str, told: str, *wake: str) -> str:
    """Have the guest be woken up, which is refused and changes nothing; return what is said."""
    before = server.virsh("dumpxml", "--inactive", name).stdout
    was_saved = is_saved(server, name)
    refused = server.virsh(*(wake or ("start", name)))
    assert refused.returncode == 1
    assert "started" not in refused.stdout
    assert f"vgpu-hook: domain {name!r}: " in refused.stderr
    # Not by its restore: libvirt 9.0 keeps the image then too, but 11.3 does not.
    assert f" {name} prepare begin -" in refused.stderr
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr
    assert server.virsh("domstate", name).stdout.strip() == "shut off"
    assert is_saved(server, name) == was_saved
    assert server.virsh("dumpxml", "--inactive", name).stdout == before
    return refused.stderr


def saved(server: LibvirtServer, name: str) -> None:
    """Have the guest started, and its state saved."""
    for command in ("start", "managedsave"):
        done = server.virsh(command, name)
        assert done.returncode == 0, done.stderr


def save_with_request(server: LibvirtServer) -> None:
    """Save the guest `a` with a request in its XML, as that of one that has a vGPU."""
    assert server.virsh("start", "a").returncode == 0
    asked = "<vgpus><vgpu profile='mtty-1'/></vgpus>"
    uri = ["--uri", "urn:vgpu-hook:domain:1", "--key", "v", "--live"]
    assert server.virsh("metadata", "a", *uri, "--set", asked).returncode == 0
    assert server.virsh("managedsave", "a").returncode == 0


@pytest.fixture(autouse=True)
def no_image_is_left(server: LibvirtServer, hooked: Product) -> Iterator[None]:
    """libvirt undefines no domain that has one."""
    yield
    for name in server.virsh("list", "--name", "--inactive", "--with-managed-save").stdout.split():
        server.virsh("managedsave-remove", name)


def attach(server: LibvirtServer, product: Product, *arguments: str) -> None:
    done = product.command("attach", "-c", server.uri, *arguments)
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("to", "followed"), [("managed save", True), ("file", True), ("file", False)]
)
def test_r9_a_guest_saved_before_its_domain_asked_comes_back_by_the_way_out(
    server: LibvirtServer,
    hooked: Product,
    define: Define,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    to: str,
    followed: bool,
) -> None:
    """With the daemon, which `followed` what was asked for, and with the command alone."""
    if followed:
        request.getfixturevalue("daemon")
    define("a")
    assert server.virsh("start", "a").returncode == 0
    image = str(tmp_path / "image")
    save, wake = (["managedsave", "a"], ["start", "a"])
    if to == "file":
        save, wake = (["save", "a", image], ["restore", image])
    assert server.virsh(*save).returncode == 0
    attach(server, hooked, "a", "--profile", "mtty-1")
    if followed:
        hooked.wait_for("it is on record", lambda: known(hooked) == [("a", "0", "mtty-1")])
    told = "its saved state is from before it asked for 'mtty-1' in slot '0'"
    for _ in range(2):  # the image is not used up
        refused = is_refused(server, "a", told, *wake)
        assert is_saved(server, "a") == (to == "managed save")
    command = refused.split("to go on from it run: ")[1].split(";")[0]
    assert command == "vgpu-hook detach --slot 0 a"
    arguments = shlex.split(command)[2:]
    assert hooked.command("detach", "-c", server.uri, *arguments).status == 0
    if followed:
        hooked.wait_for("it asks for none", lambda: known(hooked) == [])
    back = server.virsh(*wake)
    assert back.returncode == 0, back.stderr
    assert is_running(server, "a")
    assert not is_saved(server, "a")
    for which in ([], ["--inactive"]):
        assert "refused=" not in server.virsh("dumpxml", *which, "a").stdout


def test_r9_to_start_afresh_is_the_other_way_out(
    server: LibvirtServer, hooked: Product, define: Define, daemon: Daemon
) -> None:
    define("a")
    saved(server, "a")
    attach(server, hooked, "a", "--profile", "mtty-1")
    hooked.wait_for("it is on record", lambda: known(hooked) != [])
    refused = is_refused(server, "a", "from before it asked for")
    command = refused.split("drop a managed save: ")[1].splitlines()[0]
    assert command == "virsh managedsave-remove a"
    assert server.virsh(*shlex.split(command)[1:]).returncode == 0
    started = server.virsh("start", "a")  # as far as this machine can: it has no VFIO
    assert "vgpu-hook" not in started.stderr
    assert "saved state" not in started.stderr


def test_r14_i5_a_guest_without_a_request_comes_back_untouched_whatever_is_broken(
    server: LibvirtServer, hooked: Product, define: Define, scripts: Scripts
) -> None:
    scripts.add_recording("90-last")
    hooked.set_config("]] garbage")
    hooked.state.write_text("no folder")
    define("plain")
    saved(server, "plain")
    assert server.virsh("start", "plain").returncode == 0
    assert is_running(server, "plain")
    assert "plain restore begin -" in (scripts.seen / "calls").read_text().splitlines()
    # libvirt says so in the guest's log when it goes on with XML of a script (facts A6).
    log = (server.folder / "log" / "qemu" / "plain.log").read_text()
    assert "starting up" in log
    assert "hook-script" not in log


def test_what_a_script_before_ours_prints_goes_on_to_the_next(
    server: LibvirtServer, hooked: Product, define: Define, scripts: Scripts
) -> None:
    scripts.add_titling("10-first")
    scripts.add_recording("90-last")
    define("a", "<o:x xmlns:o='urn:o'>kept</o:x>")
    saved(server, "a")
    assert server.virsh("start", "a").returncode == 0
    assert TITLE.encode() in scripts.given("90-last", "restore")
    live = etree.fromstring(server.virsh("dumpxml", "a").stdout)
    assert live.findtext("title") == "seen by the first"
    assert live.findtext("metadata/{urn:o}x") == "kept"


def test_r9_a_refusal_of_ours_stands_among_other_scripts(
    server: LibvirtServer, hooked: Product, define: Define, scripts: Scripts, daemon: Daemon
) -> None:
    """Those after it get its XML, with the reason in it and what those before it have changed."""
    scripts.add_titling("10-first")
    scripts.add_recording("90-last")
    define("a")
    saved(server, "a")
    attach(server, hooked, "a", "--profile", "mtty-1")
    hooked.wait_for("it is on record", lambda: known(hooked) != [])
    is_refused(server, "a", "its saved state is from before it asked for")
    for operation in ("restore", "prepare"):
        given = etree.fromstring(scripts.given("90-last", operation))
        assert given.findtext("title") == "seen by the first"
        noted = given.find("metadata/{urn:vgpu-hook:domain:1}vgpus").get("refused")
        assert "its saved state is from before it asked for" in noted
    assert hooked.command("detach", "-c", server.uri, "a", "--slot", "0").status == 0
    hooked.wait_for("it asks for none", lambda: known(hooked) == [])
    assert server.virsh("start", "a").returncode == 0
    assert is_running(server, "a")


def test_a_saved_guest_comes_back_without_the_request_that_came_while_it_ran(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """The image asks for a vGPU that its guest never had."""
    define("a")
    save_with_request(server)
    assert server.virsh("start", "a").returncode == 0
    assert is_running(server, "a")
    assert not is_saved(server, "a")
    assert "vgpu" not in server.virsh("dumpxml", "a").stdout
    assert hooked.sim.devices() == []
    assert hooked.rows() == []


@pytest.mark.parametrize("what", ["configuration", "store", "python"])
def test_a_saved_guest_with_a_request_stays_saved_whatever_is_broken(
    server: LibvirtServer, hooked: Product, define: Define, tmp_path: Path, what: str
) -> None:
    """It comes back when that is mended."""
    define("a")
    save_with_request(server)
    hook = server.hooks / "qemu.d" / "50-vgpu-hook"
    mended, configuration = hook.read_text(), hooked.config.read_text()
    if what == "configuration":
        hooked.set_config("]] garbage")
        told = "configuration"
    elif what == "store":
        hooked.state.write_text("no folder")
        told = "can't be used"
    else:
        edited, count = re.subn(r"VGPU_HOOK_PYTHON=\S+", "VGPU_HOOK_PYTHON=/bin/false", mended)
        assert count == 1
        hook.write_text(edited)
        told = "reinstall the package vgpu-hook"
    refused = server.virsh("start", "a")
    assert refused.returncode == 1
    assert told in refused.stderr
    assert is_saved(server, "a")
    hook.write_text(mended)
    hooked.set_config(configuration)
    if what == "store":
        hooked.state.unlink()
    back = server.virsh("start", "a")
    assert back.returncode == 0, back.stderr
    assert is_running(server, "a")


def test_i8_reconcile_leaves_what_is_kept_for_a_guest_that_libvirt_does_not_list(
    server: LibvirtServer, hooked: Product
) -> None:
    kept, gone = (uuid_of("kept"), "0", "0000:41:00.4"), (uuid_of("gone"), "0", "0000:41:00.5")
    opened = store_file.open_store(str(hooked.state), "test", wait=60)
    assert opened is not None
    with closing(opened):
        opened.devices.reserve(*kept, arriving=True)
        opened.devices.reserve(*gone)
    reserved = "SELECT domain_uuid, slot, device FROM reservation"
    assert hooked.command("reconcile", "-c", server.uri, "--dry-run").status == 0
    assert sorted(hooked.query(reserved)) == sorted([kept, gone])
    assert hooked.command("reconcile", "-c", server.uri).status == 0
    assert hooked.query(reserved) == [kept]
    hooked.query("UPDATE reservation SET arriving = '2026-01-01T00:00:00.000Z'")
    assert hooked.command("reconcile", "-c", server.uri).status == 0
    assert hooked.query(reserved) == []
