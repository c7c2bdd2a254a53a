"""Saved guests that wake up under a real libvirtd: what our hook says, alone and among others.

The machine has no VFIO, so no guest here ever had a vGPU: what our hook prints for those that have
is tested by simulated/test_arrivals.py, and for real on the test host.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lxml import etree

from tests.libvirt.server import LibvirtServer
from tests.libvirt.test_listener import Daemon, known
from tests.product import Product

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


def saved(server: LibvirtServer, name: str) -> None:
    """Have the guest started, and its state saved."""
    for command in ("start", "managedsave"):
        done = server.virsh(command, name)
        assert done.returncode == 0, done.stderr


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
    told = "domain 'a': its saved state is from before it asked for 'mtty-1' in slot '0'"
    for _ in range(2):  # the image is not used up
        refused = server.virsh(*wake)
        assert refused.returncode == 1
        assert told in refused.stderr
        assert "Traceback" not in refused.stderr
        assert not is_running(server, "a")
    command = refused.stderr.split("to go on from it run: ")[1].split(";")[0]
    assert command == "vgpu-hook detach --slot 0 a"
    arguments = shlex.split(command)[2:]
    assert hooked.command("detach", "-c", server.uri, *arguments).status == 0
    if followed:
        hooked.wait_for("it asks for none", lambda: known(hooked) == [])
    back = server.virsh(*wake)
    assert back.returncode == 0, back.stderr
    assert is_running(server, "a")


def test_r14_i5_a_guest_without_a_request_comes_back_untouched_whatever_is_broken(
    server: LibvirtServer, hooked: Product, define: Define, scripts: Scripts
) -> None:
    scripts.add_recording("90-last")
    hooked.config.write_text("]] garbage")
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
    """Those after it get what libvirt has, as after any script that failed (facts A7)."""
    scripts.add_titling("10-first")
    scripts.add_recording("90-last")
    define("a")
    saved(server, "a")
    attach(server, hooked, "a", "--profile", "mtty-1")
    hooked.wait_for("it is on record", lambda: known(hooked) != [])
    refused = server.virsh("start", "a")
    assert refused.returncode == 1
    assert "its saved state is from before it asked for" in refused.stderr
    assert b"<title>" not in scripts.given("90-last", "restore")
    assert not is_running(server, "a")


def test_a_saved_guest_whose_request_came_while_it_ran_is_refused_too(
    server: LibvirtServer, hooked: Product, define: Define
) -> None:
    """The image asks for a vGPU that its guest never had."""
    define("a")
    assert server.virsh("start", "a").returncode == 0
    asked = "<vgpus><vgpu profile='mtty-1'/></vgpus>"
    uri = ["--uri", "urn:vgpu-hook:domain:1", "--key", "v", "--live", "--set", asked]
    assert server.virsh("metadata", "a", *uri).returncode == 0
    assert server.virsh("managedsave", "a").returncode == 0
    refused = server.virsh("start", "a")
    assert refused.returncode == 1
    assert "vGPU 'mtty-1' (slot '0') is asked for, but has no hostdev" in refused.stderr
    assert hooked.sim.devices() == []
    assert hooked.rows() == []
