"""The daemon and the hook at once: killed half way, two of them, restarted under load (I7, I8).

test_daemon.py has the plain cases. Here the moments are many, and what counts is one effect.
"""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from tests.asking import ask
from tests.product import PATIENCE, Answer, Product
from tests.simulated import moments
from tests.simulated.daemons import NO_LIBVIRT, Daemon
from tests.simulated.kinds import Kind
from tests.simulated.moments import IN_CREATE, IN_DESTROY, STARTING, STOPPING
from vgpu_hook import protocol

BOTH = (signal.SIGKILL, signal.SIGTERM)
ELSEWHERE = {(IN_CREATE, signal.SIGKILL), (IN_DESTROY, signal.SIGKILL)}
"""Held up in test_daemon.py already."""

WITHOUT_DAEMON = """
import sys
from vgpu_hook import operations
status, text, output = operations.in_child(tuple(sys.argv[1:]), sys.stdin.buffer.read(), 0, 60)
print(text, end="", file=sys.stderr)
sys.exit(status)
"""
"""The hook's own process, that has asked for a daemon in vain."""


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param(m, n, id=f"{m}, {n.name}")
        for m in (*STARTING, *STOPPING)
        for n in BOTH
        if (m, n) not in ELSEWHERE
    ],
)
def test_i7_the_daemon_is_ended_in_the_middle_of_a_call(
    product: Product, kind: Kind, daemon: Daemon, moment: str, number: signal.Signals
) -> None:
    """The hook finishes by itself, or the daemon still does: once, and the caller sees nothing."""
    a, starting = kind.xml("a"), moment in STARTING
    if not starting:
        assert product.hook("a", "prepare", a) == (0, "", "")
    product.sim.reset_writes()
    product.sim.reset_reads()
    moments.hold_up(kind, moment)
    call = product.popen("a", "prepare" if starting else "stopped", a)
    product.wait_for(moment, moments.reached(product, kind, moment))
    assert call.poll() is None, "it was over before"
    daemon.send_signal(number)
    assert call.communicate(timeout=PATIENCE) == (b"", b"")
    assert call.returncode == 0
    assert daemon.wait(PATIENCE) == (0 if number == signal.SIGTERM else -number)
    assert kind.present() == (kind.vgpus("a") if starting else {})
    assert product.rows() == ([("a", "0", "assigned")] if starting else [])
    assert moments.standing(kind) == (1 if starting else -1)
    if number == signal.SIGTERM:
        assert len(product.sim.writes()) == 1, "done twice"


def test_i8_the_hook_with_and_without_the_daemon_at_once(
    product: Product, kind: Kind, daemon: Daemon
) -> None:
    a = kind.xml("a")
    for operation in ("prepare", "stopped"):
        for fault in (kind.fail_create, kind.fail_remove):
            fault("slow:0.3", times=2)
        call, alone = product.popen, partial(without_daemon, product)
        calls = [start("a", operation, a) for start in (call, alone, alone, call)]
        for process in calls:
            assert process.communicate(timeout=PATIENCE) == (b"", b"")
            assert process.returncode == 0
        product.sim.heal()
        started = operation == "prepare"
        assert product.rows() == ([("a", "0", "assigned")] if started else [])
        assert kind.present() == (kind.vgpus("a") if started else {})
        assert moments.standing(kind) == int(started)


def without_daemon(product: Product, name: str, operation: str, xml: bytes) -> Daemon:
    alone = (sys.executable, "-I", "-c", WITHOUT_DAEMON)
    return product.popen(name, operation, xml, program=alone)


def greeted(product: Product) -> bool:
    """Tell whether somebody serves the socket, as the hook would see it."""
    answer = ask(product.runtime, ("a", "unheard-of"), b"", PATIENCE)
    return answer == protocol.Answer(0)


def second(product: Product) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-m", "vgpu_hook.daemon"],
        env=product.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_second_daemon_says_so_and_leaves_the_first_alone(
    product: Product, daemon: Daemon
) -> None:
    assert greeted(product)
    done = second(product)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"another vgpu-hookd runs already (pid {daemon.pid})" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert daemon.poll() is None
    assert greeted(product)


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_the_next_daemon_serves_when_the_first_has_ended(
    product: Product, kind: Kind, daemon: Daemon, number: signal.Signals
) -> None:
    assert product.hook("a", "prepare", kind.xml("a")) == (0, "", "")
    daemon.send_signal(number)
    daemon.wait(PATIENCE)
    assert not greeted(product)
    following = product.daemon()
    try:
        product.wait_for("the next one serves", lambda: greeted(product))
        assert product.hook("a", "stopped", kind.xml("a")) == (0, "", "")
        assert second(product).returncode == 1
        assert kind.present() == {}
    finally:
        following.kill()
        following.wait()


def test_i7_a_child_that_outlives_its_daemon_does_not_keep_the_next_one_out(
    product: Product, kind: Kind, daemon: Daemon
) -> None:
    """It hangs in the kernel, and can't be killed: it must hold none of the daemon's files."""
    kind.fail_create("hang", times=1)
    call = product.popen("a", "prepare", kind.xml("a"))
    product.wait_for("it hangs", moments.reached(product, kind, IN_CREATE))
    daemon.kill()
    daemon.wait()
    following = product.daemon()
    try:
        product.wait_for("the next one serves", lambda: greeted(product))
        with (product.runtime / "vgpu-hookd.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        product.sim.heal()
        call.communicate(timeout=PATIENCE)
        following.kill()
        following.wait()
    product.hook("a", "stopped", kind.xml("a"))
    assert (kind.present(), product.rows()) == ({}, [])


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_i7_i8_a_daemon_that_is_restarted_under_load(
    product: Product, kind: Kind, number: signal.Signals
) -> None:
    product.configure(extra=NO_LIBVIRT)
    names = [f"vm{n}" for n in range(4)]
    xml = {name: kind.xml(name) for name in names}
    wrong: list[tuple[str, str, Answer]] = []
    ended = threading.Event()

    def run(name: str) -> None:
        """Start and stop the domain until told to end; it is left started."""
        while True:
            for operation in ("prepare", "stopped", "release", "prepare"):
                answer = product.hook(name, operation, xml[name])
                if answer != (0, "", ""):
                    wrong.append((name, operation, answer))
            if ended.is_set():
                return

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    daemon = product.daemon()
    for thread in threads:
        thread.start()
    for _ in range(4):
        daemon.send_signal(number)
        daemon.wait(PATIENCE)
        daemon = product.daemon()
    ended.set()
    for thread in threads:
        thread.join(PATIENCE)
    daemon.kill()
    daemon.wait()
    assert wrong == []
    assert kind.present() == kind.vgpus(*names)
    assert sorted(product.rows()) == [(name, "0", "assigned") for name in names]
    assert moments.standing(kind) == len(names)
