"""The hook script under what should never reach it: arguments, XML, environment, broken parts."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import HOOK, PATIENCE, Product
from tests.simulated.arrivals import ARRIVALS, does_not_arrive, noted

A = domain_xml("a", {"0": "mtty-1"})
PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])
OPERATIONS = ["prepare", "start", "started", "stopped", "release", "migrate", "restore"]
OPERATIONS += ["reconnect", "attach", "unheard-of"]
ODD_NAMES = ["with space", "quo'te\"s", "-leading", "--help", "Übung ☃", "$(id);`id`", "a\\nb", ""]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_r14_i10_no_request_no_output_whatever_is_broken(product: Product, operation: str) -> None:
    product.set_config("]] garbage")
    product.state.write_text("not a folder")
    assert product.hook("plain", operation, PLAIN) == (0, "", "")


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("xml", [b"", A, b"<broken", b"\x00\xff\xfe"], ids=repr)
def test_i4_i5_any_number_of_arguments(product: Product, count: int, xml: bytes) -> None:
    arguments = ["a", "stopped", "end", "-", "more"][:count]
    assert product.hook_argv(arguments, xml) == (0, "", "")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(product: Product, name: str) -> None:
    xml = domain_xml(name, {"0": "mtty-1"})
    assert product.hook(name, "prepare", xml) == (0, "", "")
    assert product.rows("domain_name") == [(name,)]
    refused = product.hook(name, "prepare", domain_xml(name, {"0": "no such"}))
    assert refused.status == 1
    assert len(refused.err.splitlines()) == 1
    assert repr(name) in refused.err
    assert product.hook(name, "release", xml) == (0, "", "")
    assert product.rows() == []


@pytest.mark.parametrize("environment", [{}, {"LC_ALL": "C"}, {"PATH": ""}], ids=repr)
def test_an_almost_empty_environment(product: Product, environment: dict[str, str]) -> None:
    needed = {"VGPU_HOOK_CONFIG": str(product.config), "VGPU_HOOK_PYTHON": sys.executable}
    for operation in ("prepare", "stopped"):
        done = subprocess.run(
            [str(HOOK), "a", operation, "begin", "-"],
            input=A,
            env={**environment, **needed},
            capture_output=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert product.events()[-1] == "released"


@pytest.mark.parametrize(
    ("xml", "text"),
    [
        (A[:-20], "XML can't be read"),
        (A.replace(b"domain", b"demesne"), "a <domain> was expected"),
        (b"<!DOCTYPE domain [<!ENTITY x 'y'>]>" + A, "has a DTD"),
        (A.replace(uuid_of("a").encode(), b"nonsense"), "no valid <uuid>"),
        (A.replace(b"'0'", b"'../0'").replace(b'"0"', b'"../0"'), "is not allowed"),
        (A.replace(b'"mtty-1"', b'"../../x"'), "is not allowed"),
        (A.replace(b'"mtty-1"', b'""'), "is not allowed"),
        (domain_xml("a", {"0": "mtty-1"}, attributes="fork='sometimes'"), "is not allowed"),
        (domain_xml("a", {"0": "mtty-1"}, attributes="colour='red'"), "is not allowed"),
        (domain_xml("a", {"0": "mtty-1"}, attributes="gpu='a b'"), "is not allowed"),
    ],
)
def test_a_start_with_xml_that_is_not_understood_is_refused_in_one_line(
    product: Product, xml: bytes, text: str
) -> None:
    answer = product.hook("a", "prepare", xml)
    assert answer.status == 1
    assert answer.out == ""
    assert text in answer.err
    assert len(answer.err.splitlines()) == 1
    assert product.sim.writes() == []
    for operation in ("stopped", "release"):
        assert product.hook("a", operation, xml) == (0, "", "")


def test_entities_are_not_resolved(product: Product, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mtty-1")
    xml = f"<!DOCTYPE domain [<!ENTITY x SYSTEM 'file://{secret}'>]>".encode() + A
    assert "has a DTD" in product.hook("a", "prepare", xml).err


@pytest.mark.parametrize(
    "hostdevs",
    [
        [],
        [hostdev(device_of(uuid_of("a"))).replace("type='mdev'", "type='usb'")],
        [hostdev(device_of(uuid_of("a"))), hostdev(device_of(uuid_of("a"), "7"), "7")],
    ],
    ids=["none", "unknown type", "one more"],
)
def test_r13_a_request_that_does_not_fit_its_hostdevs_is_refused(
    product: Product, hostdevs: list[str]
) -> None:
    answer = product.hook("a", "prepare", domain_xml("a", {"0": "mtty-1"}, hostdevs=hostdevs))
    assert answer.status == 1
    assert "run: vgpu-hook " in answer.err
    assert product.sim.devices() == []


def test_a_hostdev_under_our_alias_without_a_request_is_refused_if_it_is_ours(
    product: Product,
) -> None:
    own = domain_xml("a", hostdevs=[hostdev(device_of(uuid_of("a")))])
    assert "run: vgpu-hook detach --slot 0 a" in product.hook("a", "prepare", own).err
    foreign = domain_xml("a", hostdevs=[hostdev(uuid_of("whatever"))])
    assert product.hook("a", "prepare", foreign) == (0, "", "")


def test_a_configuration_that_is_wrong_names_the_key_and_refuses_only_vgpu_starts(
    product: Product,
) -> None:
    product.set_config("[deadlines]\nhook = 'soon'\n")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert f"configuration {product.config}: deadlines.hook" in answer.err
    assert product.hook("a", "stopped", A) == (0, "", "")
    status = product.command("status")
    assert status.status == 1
    assert status.err.startswith(f"error: configuration {product.config}: deadlines.hook")


def test_what_is_wrong_with_a_store_as_json(product: Product) -> None:
    product.hook("a", "prepare", A)
    told = product.json("store", "check")
    assert told == {"version": 1, "store": str(product.state), "damage": []}


def test_a_dry_run_makes_nothing_not_even_a_store(product: Product) -> None:
    answer = product.command("reconcile", "--dry-run", "--connect", "none:///")
    assert answer.status == 0, answer.err
    assert not product.state.exists()


def test_a_broken_store_is_reported_kept_and_set_aside_by_command(product: Product) -> None:
    product.hook("a", "prepare", A)
    store = product.state / "store.db"
    for leftover in product.state.glob("store.db-*"):
        leftover.unlink()
    store.write_bytes(b"this is not a database" * 100)
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert f"store {store} can't be used" in answer.err
    assert "vgpu-hook store set-aside" in answer.err
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert store.read_bytes() == b"this is not a database" * 100
    status = product.command("status")
    assert status.status == 1
    assert "can't be used" in status.err
    aside = product.command("store", "set-aside")
    assert aside.status == 0
    assert [f.read_bytes()[:7] for f in product.state.glob("*set-aside*")] == [b"this is"]
    # The device is still there, and proved to be this domain's by its UUID.
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.events() == ["adopted"]


@pytest.mark.parametrize("kind", ["folder", "newer", "empty", "no permission"])
def test_a_store_that_cannot_be_used_refuses_the_start(product: Product, kind: str) -> None:
    product.state.mkdir()
    store = product.state / "store.db"
    if kind == "folder":
        store.mkdir()
    elif kind == "newer":
        connection = sqlite3.connect(store)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif kind == "empty":
        store.touch()
    else:
        store.symlink_to("/proc/1/mem")
    answer = product.hook("a", "prepare", A)
    assert answer.status == 1
    assert str(store) in answer.err
    assert len(answer.err.splitlines()) == 1
    for operation in ARRIVALS:
        does_not_arrive(product, "a", operation, A, str(store))
    assert product.sim.writes() == []
    assert product.hook("a", "stopped", A) == (0, "", "")


def test_a_full_disk_refuses_the_start_and_leaves_nothing(product: Product) -> None:
    product.state.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(product.state)], check=True
    )
    try:
        subprocess.run(["dd", "if=/dev/zero", f"of={product.state}/filler", "bs=4k"], check=False)
        answer = product.hook("a", "prepare", A)
        assert answer.status == 1
        assert "store" in answer.err
        assert product.sim.devices() == []
        (product.state / "filler").unlink()
        assert product.hook("a", "prepare", A) == (0, "", "")
    finally:
        subprocess.run(["umount", str(product.state)], check=True)


def test_a_program_that_is_not_whole_refuses_only_starts(product: Product) -> None:
    for python in ("/bin/false", "/nonexistent/python3", "/usr/bin/python3"):
        environment = {"VGPU_HOOK_PYTHON": python}
        answer = product.hook_argv(["a", "prepare", "begin", "-"], A, **environment)
        assert answer.status == 1
        assert "reinstall the package vgpu-hook" in answer.err
        assert len(answer.err.splitlines()) == 1
        assert product.hook_argv(["a", "stopped", "end", "-"], A, **environment).status == 0
        assert product.hook_argv(["p", "prepare", "begin", "-"], PLAIN, **environment).status == 0


def test_an_unprivileged_session_is_refused_with_the_reason(product: Product) -> None:
    def call(operation: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(HOOK), "a", operation, "begin", "-"],
            input=A,
            env=product.environment | {"VGPU_HOOK_CONFIG": "/dev/null"},
            capture_output=True,
            timeout=PATIENCE,
            user=65534,
            cwd="/",
        )

    for operation in ("prepare", "migrate"):
        done = call(operation)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"needs root; use qemu:///system" in done.stderr
    done = call("restore")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "needs root; use qemu:///system" in noted(done.stdout)


def test_the_hook_leaves_no_process_that_holds_its_output(product: Product) -> None:
    """libvirt reads stderr until end of file, without a limit (facts A9)."""
    product.hook("a", "prepare", A)
    product.configure(deadline=2)
    product.sim.fault("write", "sys/*/remove", "hang")
    process = product.popen("a", "stopped", A)
    assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 0
    product.sim.heal()


def test_a_hook_call_opens_nothing_for_others_to_read(product: Product) -> None:
    old = os.umask(0)
    try:
        product.hook("a", "prepare", A)
    finally:
        os.umask(old)
    for path in (product.state, product.state / "store.db", product.runtime / "locks"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_xml_that_was_cut_off_on_its_way_is_no_xml_without_a_request(
    product: Product, tmp_path: Path
) -> None:
    """The shell that hands it on may be killed: what is left of it may ask for nothing."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nhead -c 60 | {sys.executable} "$@"\n')
    python.chmod(0o755)
    cut = partial(product.hook_argv, xml=A, VGPU_HOOK_PYTHON=str(python))
    reason = "vgpu-hook: the XML was cut off on its way here; try again\n"
    assert cut(["a", "prepare", "begin", "-"]) == (1, "", reason)
    assert cut(["a", "stopped", "end", "-"]) == (0, "", "")
    assert product.rows() == []


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (b"\0" * 100, "reinstall the package vgpu-hook"),
        (b"def serve(:", "reinstall the package vgpu-hook"),
        (b"serve = missing", "reinstall the package vgpu-hook"),
        (b"raise MemoryError", "try again"),
        (b"raise OSError(24, 'Too many open files')", "try again"),
    ],
    ids=repr,
)
def test_a_broken_installation_and_a_want_of_resources_are_told_apart(
    product: Product, tmp_path: Path, damage: bytes, hint: str
) -> None:
    package = tmp_path / "vgpu_hook"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hook.py").write_bytes(damage)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] && shift\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    answer = product.hook_argv(["a", "prepare", "begin", "-"], A, VGPU_HOOK_PYTHON=str(python))
    assert answer.status == 1
    assert answer.err.startswith("vgpu-hook: ")
    assert answer.err.endswith(f"; {hint}\n")
    assert len(answer.err.splitlines()) == 1
