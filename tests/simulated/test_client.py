"""hooks/qemu as the daemon's client: whom it asks, and what it does when nobody does the call."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.domains import domain_xml
from tests.product import PATIENCE, Product
from tests.simulated.arrivals import noted
from tests.simulated.daemons import Daemon, only_client
from tests.simulated.kinds import Kind
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
    product.set_config(text.replace(f"runtime = '{product.runtime}'", line))


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


LIKE_OPTIONS = [
    "-c",
    "-v",
    "-vm1",
    "-help",
    "-w",
    "-s",
    "-l",
    "-n",
    "-i",
    "-Mstrict",
    "-",
    "--",
    "-0",
]


@pytest.mark.parametrize("name", [*LIKE_OPTIONS, "-eBEGIN{exit 0}", "-cluster"])
def test_a_name_that_looks_like_an_option_is_a_name(served: Product, name: str) -> None:
    """Perl would go on looking for its own after -e."""
    xml = domain_xml(name, {"0": "mtty-1"})
    assert served.hook(name, "prepare", xml) == (0, "", "")
    assert served.rows("domain_name, state") == [(name, "assigned")]
    refused = served.hook(name, "prepare", domain_xml(name, {"0": "no such"}))
    assert refused.status == 1
    assert repr(name) in refused.err
    assert served.hook(name, "stopped", xml) == (0, "", "")
    assert served.rows() == []


def script(folder: Path, text: str) -> str:
    path = folder / "perl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("says", ["exit 0", "echo", "echo '<domain/>'", "echo no; exit 10"])
def test_a_client_that_says_nothing_of_ours_is_not_believed(
    product: Product, tmp_path: Path, says: str
) -> None:
    """Such as a Perl that prints its version, and ends well."""
    perl = script(tmp_path, f"cat >/dev/null; {says}")
    assert product.hook_argv(START, A, VGPU_HOOK_PERL=perl) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]


def test_what_a_killed_client_had_asked_for_is_not_done_twice(
    product: Product, tmp_path: Path
) -> None:
    """The daemon may have the call, and be at it."""
    perl = script(tmp_path, "cat >/dev/null; kill -9 $$")
    answer = product.hook_argv(START, A, VGPU_HOOK_PERL=perl)
    assert answer.status == 1
    assert "vgpu-hookd has not answered" in answer.err
    assert product.rows() == []


def test_i3_the_time_that_a_daemon_took_before_it_died_is_not_given_again(
    product: Product, kind: Kind
) -> None:
    with silent(product) as mute:
        product.configure(deadline=6)
        kind.fail_create("hang")
        begin = time.monotonic()
        call = product.popen("a", "prepare", kind.xml("a"))
        peer, _ = mute.accept()
        peer.sendall(protocol.greeting(time.monotonic(), 6))
        time.sleep(4)
        peer.close()
        _, err = call.communicate(timeout=PATIENCE)
    assert call.returncode == 1
    told = re.search(r"has not returned within ([0-9.]+) s", err.decode())
    assert told is not None, err
    assert float(told[1]) < 2
    assert time.monotonic() - begin > 4
    product.sim.heal()


def test_r9_an_image_without_a_request_is_looked_up_by_the_daemon_too(
    product: Product, daemon: Daemon
) -> None:
    """Also when it has done other calls before, and keeps the store open."""
    image = domain_xml("a").replace(
        b"<memory", b"<metadata><v:vgpus xmlns:v='urn:vgpu-hook:domain:1'/></metadata><memory", 1
    )
    for operation in ("prepare", "stopped"):
        assert product.hook("a", operation, A) == (0, "", "")
    answer = product.hook("a", "restore", image)
    assert answer.status == 0
    assert "'a'" in noted(answer.out.encode())


def test_the_store_is_whole_without_its_log_when_the_daemon_has_ended(
    product: Product, daemon: Daemon
) -> None:
    """Somebody copies store.db, and brings it back."""
    for operation in ("prepare", "stopped", "prepare"):
        assert product.hook("a", operation, A) == (0, "", "")
    assert (product.state / "store.db-wal").stat().st_size > 0
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    assert [path.name for path in product.state.iterdir()] == ["store.db"]
