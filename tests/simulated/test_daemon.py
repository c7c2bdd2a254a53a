"""vgpu-hookd's socket: served calls, and everything that can go wrong with it. No libvirt here.

The tests that are about the life of a vGPU run on both frameworks.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.asking import greeting
from tests.domains import domain_xml
from tests.product import HOOK, PATIENCE, Product
from tests.simulated.arrivals import noted
from tests.simulated.daemons import NO_LIBVIRT, Daemon, connect, only_client
from tests.simulated.kinds import Kind
from vgpu_hook import protocol

A = domain_xml("a", {"0": "mtty-1"})


def test_the_daemon_does_the_calls(
    product: Product, kind: Kind, daemon: Daemon, tmp_path: Path
) -> None:
    a = kind.xml("a")
    only_client(product, tmp_path)
    assert product.hook("a", "prepare", a) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]
    assert kind.present() == kind.vgpus("a")
    refused = product.hook("b", "prepare", kind.xml("b", "no such"))
    assert refused.status == 1
    assert "vgpu-hook: domain 'b' (slot '0'): profile 'no such' is not offered" in refused.err
    assert product.hook("a", "stopped", a) == (0, "", "")
    assert product.rows() == []
    assert kind.present() == {}
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    assert "can't be used" in product.hook("a", "prepare", a).err


def test_the_hook_does_the_work_itself_when_nobody_greets(product: Product) -> None:
    product.runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(product.runtime / "hook.sock"))
        mute.listen()
        assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.rows() == [("a", "0", "assigned")]


def test_a_daemon_of_another_version_is_not_asked(product: Product) -> None:
    product.runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as newer:
        newer.bind(str(product.runtime / "hook.sock"))
        newer.listen()
        process = product.popen("a", "prepare", A)
        peer, _ = newer.accept()
        peer.sendall(protocol.greeting(0, 60).replace(b"4", b"5"))
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
        assert peer.recv(1 << 16) == b""
        peer.close()
    assert product.rows() == [("a", "0", "assigned")]


@pytest.mark.parametrize("operation", ["prepare", "stopped"])
def test_i7_a_daemon_killed_in_the_middle_of_a_call(
    product: Product, kind: Kind, daemon: Daemon, operation: str
) -> None:
    a = kind.xml("a")
    if operation == "stopped":
        product.hook("a", "prepare", a)
        kind.fail_remove("slow:2", times=1)
    else:
        kind.fail_create("slow:2", times=1)
    call = product.popen("a", operation, a)
    state = "creating" if operation == "prepare" else "releasing"
    product.wait_for("it is being done", lambda: product.rows("state") == [(state,)])
    daemon.send_signal(signal.SIGKILL)
    assert call.communicate(timeout=PATIENCE) == (b"", b"")
    assert call.returncode == 0
    expected = [("a", "0", "assigned")] if operation == "prepare" else []
    assert product.rows() == expected
    assert kind.present() == (kind.vgpus("a") if expected else {})


def test_i3_a_daemon_that_does_not_answer(product: Product, kind: Kind, daemon: Daemon) -> None:
    a = kind.xml("a")
    product.configure(deadline=2, extra=NO_LIBVIRT)
    kind.fail_create("hang")
    answer = product.hook("a", "prepare", a)
    assert answer.status == 1
    assert "has not returned within" in answer.err
    product.sim.heal()
    product.wait_for("it is retained", lambda: product.rows("state") == [("retained",)])
    assert product.hook("a", "stopped", a) == (0, "", "")
    product.hook("a", "release", a)
    assert product.rows() == []
    assert kind.present() == {}


def test_i3_a_restore_that_the_daemon_does_not_answer_is_refused_by_its_start(
    product: Product, kind: Kind
) -> None:
    product.configure(deadline=2)
    product.runtime.mkdir()
    a = kind.xml("a")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(product.runtime / "hook.sock"))
        mute.listen()
        call = product.popen("a", "restore", a)
        peer, _ = mute.accept()
        peer.sendall(protocol.greeting(time.monotonic(), 2))
        out, err = call.communicate(timeout=PATIENCE)
        peer.close()
    assert (call.returncode, err) == (0, b"")
    assert noted(out).startswith("domain 'a': vgpu-hookd has not answered within 2 s")
    refused = product.hook("a", "prepare", out)
    assert refused.status == 1
    assert noted(out) in refused.err
    assert kind.present() == {}


SLOW_TO_END = """
package Slow;
our $slow = bless {};
sub DESTROY { my $end = time + 4; 1 while time < $end }
1;
"""


def test_i3_a_client_that_is_slow_to_end_is_not_killed_by_its_own_alarm(
    product: Product, tmp_path: Path
) -> None:
    """Perl takes the signal's handler down before it has ended; the shell would tell of it."""
    (tmp_path / "Slow.pm").write_text(SLOW_TO_END)
    perl = tmp_path / "perl"
    perl.write_text(f'#!/bin/sh\nexec /usr/bin/perl -I{tmp_path} -MSlow "$@"\n')
    perl.chmod(0o755)
    product.configure(deadline=1)
    product.runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(product.runtime / "hook.sock"))
        mute.listen()
        program = ("env", f"VGPU_HOOK_PERL={perl}", str(HOOK))
        call = product.popen("a", "stopped", domain_xml("a", {"0": "mtty-1"}), program=program)
        peer, _ = mute.accept()
        peer.sendall(protocol.greeting(time.monotonic(), 1))
        assert call.communicate(timeout=PATIENCE) == (b"", b"")
        peer.close()
    assert call.returncode == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"x" * 100,
        b"99999999999:",
        b"5:he",
        protocol.frame(b"only one part"),
        protocol.frame(b"soon", b"a", b"prepare", A),
        protocol.frame(b"0", b"a", b"prepare", b"begin", b"-", b"<broken"),
        protocol.frame(b"0", b"a", b"unheard-of", b"x"),
        protocol.frame(b"0", b"\xff\xfe", b"stopped", A),
        b":",
        b"3:1:a,,",
    ],
    ids=repr,
)
def test_garbage_costs_nobody_else_anything(product: Product, daemon: Daemon, sent: bytes) -> None:
    with connect(product) as peer, connect(product) as slow:
        greeting(slow)
        greeting(peer)
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1 << 16)
        assert product.hook("a", "prepare", A) == (0, "", "")
    assert product.hook("a", "stopped", A) == (0, "", "")
    assert daemon.poll() is None


def test_r12_a_call_that_comes_too_late_is_not_done(
    product: Product, kind: Kind, daemon: Daemon
) -> None:
    """The client has given up on it and has answered: a start may have followed."""
    a = kind.xml("a")
    product.hook("a", "prepare", a)
    product.sim.reset_writes()
    with connect(product) as peer:
        greeting(peer)
        peer.sendall(protocol.frame(b"1", b"a", b"stopped", b"end", b"-", a))
        assert protocol.parts(peer.recv(1 << 16)) == [b"0", b"", b""]
    assert product.sim.writes() == []
    assert product.rows() == [("a", "0", "assigned")]


def test_only_root_may_use_the_socket(product: Product, daemon: Daemon) -> None:
    path = product.runtime / "hook.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    # Even where the folder and the mode let somebody in, the peer's credentials do not.
    for folder in (product.runtime, *product.runtime.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o711)
    path.chmod(0o666)
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "sys.exit(s.recv(100) != b'')"
    )
    done = subprocess.run(["/usr/bin/python3", "-c", script, str(path)], user=65534, cwd="/")
    assert done.returncode == 0


def test_many_calls_at_once(product: Product, kind: Kind, daemon: Daemon) -> None:
    """By the daemon, or by the hook itself where it was too busy to greet: each once."""
    domains = {name: kind.xml(name) for name in [f"vm{n}" for n in range(kind.room)]}
    calls = [product.popen(name, "prepare", xml) for name, xml in domains.items()]
    assert [call.communicate(timeout=PATIENCE) for call in calls] == [(b"", b"")] * kind.room
    assert kind.present() == kind.vgpus(*domains)
    calls = [product.popen(name, "stopped", xml) for name, xml in domains.items()]
    assert [call.wait(PATIENCE) for call in calls] == [0] * kind.room
    assert product.rows() == []
    assert kind.present() == {}


AS_SYSTEMD = 'exec 3<&"$1"; shift; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
"""The socket as file 3, and LISTEN_PID naming the process."""


def test_a_socket_of_systemd_that_is_elsewhere_is_not_used(
    product: Product, tmp_path: Path
) -> None:
    """The configuration has moved the runtime folder, and the hook asks there."""
    product.configure(extra=NO_LIBVIRT)
    command = [sys.executable, "-I", "-m", "vgpu_hook.daemon"]
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(tmp_path / "hook.sock"))
        elsewhere.listen()
        process = subprocess.Popen(
            ["bash", "-c", AS_SYSTEMD, "bash", str(elsewhere.fileno()), *command],
            env={**os.environ, **product.environment},
            pass_fds=[elsewhere.fileno()],
        )
        try:
            served = product.runtime / "hook.sock"
            product.wait_for("it serves", served.exists)
            only_client(product, tmp_path)
            assert product.hook("a", "prepare", A) == (0, "", "")
            assert product.rows() == [("a", "0", "assigned")]
        finally:
            process.terminate()
            process.wait(PATIENCE)


def test_systemd_is_told_and_the_socket_can_be_its(product: Product, tmp_path: Path) -> None:
    product.configure(extra=NO_LIBVIRT)
    product.runtime.mkdir()
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(PATIENCE)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(product.runtime / "hook.sock"))
    listener.listen()
    command = [sys.executable, "-I", "-m", "vgpu_hook.daemon"]
    process = subprocess.Popen(
        ["bash", "-c", AS_SYSTEMD, "bash", str(listener.fileno()), *command],
        env={
            **os.environ,
            **product.environment,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "200000",
        },
        pass_fds=[listener.fileno()],
    )
    try:
        assert notify.recv(100) == b"READY=1"
        assert notify.recv(100) == b"WATCHDOG=1"
        assert product.hook("a", "prepare", A) == (0, "", "")
        process.send_signal(signal.SIGHUP)
        heard = b""
        while b"RELOADING=1" not in heard:
            heard = notify.recv(100)
        process.terminate()
        while heard != b"STOPPING=1":
            heard = notify.recv(100)
        assert process.wait(PATIENCE) == 0
        # systemd's socket still accepts: the next call starts the daemon again.
        with connect(product):
            pass
    finally:
        process.kill()
        process.wait()
        listener.close()
        notify.close()


def test_a_daemon_that_was_stopped_for_a_while_goes_on(product: Product) -> None:
    """Longer than it waits for signals at a time: Python then tells it of one that never came."""
    process = product.daemon(WATCHDOG_USEC="200000")
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(1)
        process.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        with connect(product):
            pass
    finally:
        process.kill()
        process.wait()


def test_a_daemon_whose_path_is_too_long_for_a_socket_names_it(product: Product) -> None:
    """107 bytes, says unix(7)."""
    runtime = product.runtime / ("r" * 100)
    text = product.config.read_text()
    product.set_config(text.replace(str(product.runtime), str(runtime)))
    done = run_daemon(product)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: can't listen on {runtime}/hook.sock: ")
    assert done.stderr.endswith("; see: runtime in vgpu-hook.toml\n")


SLOW_END = """
import ctypes, runpy
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.sleep, ctypes.c_void_p(3), None)
runpy.run_module("vgpu_hook.daemon", run_name="__main__")
"""
"""The process takes 3 s to end, after the interpreter has."""


def test_what_libvirt_calls_back_at_the_end_does_not_crash_a_daemon(product: Product) -> None:
    """A callback after the interpreter's end is a crash, and there is one each second."""
    product.configure(extra=NO_LIBVIRT)
    program = [sys.executable, "-I", "-c", SLOW_END]
    process = subprocess.Popen(program, env={**os.environ, **product.environment})
    try:
        product.wait_for("it serves", lambda: product.is_served() or process.poll() is not None)
        time.sleep(1.5)  # so that the loop is past its first round
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_a_daemon_that_cannot_start_says_why(product: Product) -> None:
    product.set_config("[daemon]\nreconcile = 'often'\n")
    done = run_daemon(product)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: configuration {product.config}: daemon.reconcile")


def run_daemon(product: Product) -> subprocess.CompletedProcess[str]:
    """Run one that ends by itself."""
    return subprocess.run(
        [sys.executable, "-I", "-m", "vgpu_hook.daemon"],
        env={**os.environ, **product.environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
