"""hooks/qemu as the daemon's client: whom it asks, and what it does when nobody does the call."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.domains import domain_xml
from tests.product import PATIENCE, Product
from tests.simulated.daemons import Daemon, only_client
from vgpu_hook import protocol

A = domain_xml("a", {"0": "mtty-1"})
START = ["a", "prepare", "begin", "-"]

PLAINLY = ["runtime = '{}'", 'runtime="{}"', "  runtime\t=  '{}'  # as it was", "runtime = '{}'\r"]
OTHERWISE = [
    '"runtime" = "{}"',
    "runtime = '''{}'''",
    'runtime = """\\\n{}"""',
    'runtime = "\\u002f{}"',
    "# runtime = '/elsewhere'\n'runtime' = '{}'",
]


def with_runtime(product: Product, line: str) -> None:
    """Say in another way where the runtime folder is."""
    text = product.config.read_text()
    product.config.write_text(text.replace(f"runtime = '{product.runtime}'", line))


@pytest.mark.parametrize("line", PLAINLY)
def test_the_daemon_is_found_where_the_settings_say(
    product: Product, daemon: Daemon, tmp_path: Path, line: str
) -> None:
    only_client(product, tmp_path)
    with_runtime(product, line.format(product.runtime))
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.hook("a", "stopped", A) == (0, "", "")


@pytest.mark.parametrize("line", OTHERWISE)
def test_what_perl_can_not_read_python_does(product: Product, line: str) -> None:
    """It does the call itself, with the settings as they are meant."""
    with_runtime(product, line.format(str(product.runtime).removeprefix("/" * ("u002f" in line))))
    assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]
    assert list(product.runtime.iterdir()) != []


@pytest.mark.parametrize("perl", ["", "/nonexistent", "/bin/false", "/etc/passwd"])
def test_without_a_client_the_hook_does_it_itself(
    product: Product, daemon: Daemon, perl: str
) -> None:
    assert product.hook_argv(START, A, VGPU_HOOK_PERL=perl) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]


def test_what_is_in_the_environment_does_not_reach_the_client(
    product: Product, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "Mine.pm").write_text('print "<mine/>"; exit 0; 1;\n')
    odd = {"PERL5LIB": str(tmp_path), "PERL5OPT": "-MMine", "PERL_UNICODE": "SDA"}
    assert product.hook_argv(START, A, **odd) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]


@contextlib.contextmanager
def silent(product: Product) -> Iterator[socket.socket]:
    """A daemon that has greeted, with the time that a call has, and says no more."""
    product.configure(deadline=2)
    product.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(product.runtime / "hook.sock"))
        mute.listen()
        yield mute


@pytest.mark.parametrize("operation", ["prepare", "stopped", "release", "migrate"])
def test_i3_a_call_that_the_daemon_does_not_answer(product: Product, operation: str) -> None:
    """What it may still do must not be done a second time."""
    with silent(product) as mute:
        call = product.popen("a", operation, A)
        peer, _ = mute.accept()
        peer.sendall(protocol.greeting(time.monotonic(), 2))
        out, err = call.communicate(timeout=PATIENCE)
        sent = peer.recv(1 << 20)
        peer.close()
    expiry, *words, xml = protocol.parts(sent)
    assert (words, xml) == ([b"a", operation.encode(), b"begin", b"-"], A.rstrip())
    assert 0 < int(expiry) / 1000 - time.monotonic() + PATIENCE + 2 < 2 * PATIENCE
    assert out == b""
    if operation in ("stopped", "release"):
        assert (call.returncode, err) == (0, b"")
    else:
        assert call.returncode == 1
        assert err.decode().startswith(
            "vgpu-hook: domain 'a': vgpu-hookd has not answered within 2 s"
        )
    assert product.sim.writes() == []


def test_i3_a_daemon_that_stops_reading_in_the_middle_of_a_large_call(product: Product) -> None:
    xml = A.replace(b"<vcpu>", b"<!--" + b" " * (4 << 20) + b"--><vcpu>")
    with silent(product) as mute:
        call = product.popen("a", "prepare", xml)
        peer, _ = mute.accept()
        peer.sendall(protocol.greeting(time.monotonic(), 2))
        _, err = call.communicate(timeout=PATIENCE)
        peer.close()
    assert call.returncode == 1
    assert b"has not answered within 2 s" in err


def test_names_and_xml_that_are_no_utf8_arrive_as_they_are(
    product: Product, daemon: Daemon, tmp_path: Path
) -> None:
    only_client(product, tmp_path)
    name = "Übung ☃"
    xml = domain_xml(name, {"0": "mtty-1"})
    assert product.hook(name, "prepare", xml) == (0, "", "")
    assert product.rows("domain_name") == [(name,)]
    odd = os.fsdecode(b"\xff\xfe")
    refused = product.hook_argv([odd, "prepare", "begin", "-"], A.replace(b"mtty-1", b"\xff"))
    assert refused.status == 1
    assert refused.err.startswith("vgpu-hook: ")
