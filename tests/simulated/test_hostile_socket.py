"""vgpu-hookd's socket under peers that are slow, wrong, many, or somebody else.

Nobody but root is served, and what one peer does costs no other anything. test_daemon.py has the
plain cases.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.asking import GREETING, greeting
from tests.domains import domain_xml
from tests.product import PATIENCE, Product
from tests.simulated.daemons import NO_LIBVIRT, Daemon, connect, only_client
from tests.simulated.hostile import PYTHON, as_nobody, open_up
from vgpu_hook import protocol

A = domain_xml("a", {"0": "mtty-1"})
MANY = 100
DAEMON_MOST = 250 << 20
"""Bytes of memory that vgpu-hookd may have in use, whatever its peers do."""

CLIENT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(100)
peer.connect(sys.argv[1])
try:
    peer.sendall(sys.stdin.buffer.read())
    print(peer.recv(1 << 16))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def daemon(product: Product, tmp_path: Path) -> Iterator[Daemon]:
    """vgpu-hookd, with a hook that can do nothing without it."""
    product.configure(extra=NO_LIBVIRT)
    process = product.daemon()
    only_client(product, tmp_path)
    yield process
    assert process.poll() is None, "it has ended"
    process.kill()
    process.wait()


def greeted(product: Product) -> socket.socket:
    peer = connect(product)
    greeting(peer)
    return peer


def call_frame(operation: str, xml: bytes, seconds: float = 60) -> bytes:
    expiry = b"%d" % int((time.monotonic() + seconds) * 1000)
    return protocol.frame(expiry, b"a", operation.encode(), b"begin", b"-", xml)


def rest(peer: socket.socket) -> bytes:
    chunks = []
    with contextlib.suppress(ConnectionError):
        while chunk := peer.recv(1 << 16):
            chunks.append(chunk)
    return b"".join(chunks)


def served(product: Product) -> None:
    """Check that others are served: the hook can't do it itself here."""
    for operation in ("prepare", "stopped"):
        assert product.hook("a", operation, A) == (0, "", "")
    assert product.rows() == []


def memory(process: Daemon) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def test_only_root_is_served_even_if_the_mode_lets_others_in(
    product: Product, daemon: Daemon
) -> None:
    path = product.runtime / "hook.sock"
    client = [PYTHON, "-c", CLIENT, str(path)]
    assert "PermissionError" in as_nobody(Path("/"), *client).err
    open_up(product.runtime)
    path.chmod(0o666)
    for operation in ("prepare", "stopped"):
        answer = as_nobody(Path("/"), *client, xml=call_frame(operation, A))
        assert answer.out.strip() in ("b''", "BrokenPipeError", "ConnectionResetError"), answer
    assert product.sim.writes() == []
    assert product.rows() == []
    root = subprocess.run(client, input=b"", capture_output=True, timeout=PATIENCE)
    assert root.stdout.startswith(b"b'vgpu-hook ")
    served(product)


def test_a_user_with_many_connections_keeps_nobody_out(product: Product, daemon: Daemon) -> None:
    open_up(product.runtime)
    (product.runtime / "hook.sock").chmod(0o666)
    hold = (
        "import socket, sys; peers = [socket.socket(socket.AF_UNIX) for _ in range(300)]\n"
        "for peer in peers: peer.connect(sys.argv[1])\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [PYTHON, "-c", hold, str(product.runtime / "hook.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    served(product)
    process.communicate(timeout=PATIENCE)


def test_a_hundred_slow_peers_keep_nobody_waiting(product: Product, daemon: Daemon) -> None:
    frame = call_frame("prepare", A)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(greeted(product)) for _ in range(MANY)]
        for number, peer in enumerate(peers):
            peer.sendall(frame[: number * 7 % len(frame)])
        served(product)
        # None of them has said all: none of it was done.
        assert len(product.sim.writes()) == 2
        assert memory(daemon) < DAEMON_MOST


def test_a_peer_that_says_a_byte_now_and_then_is_given_up_on(
    product: Product, daemon: Daemon
) -> None:
    """Each byte comes in time; all of them together would take for ever."""
    frame = call_frame("prepare", A, PATIENCE)
    with greeted(product) as peer:
        end = time.monotonic() + PATIENCE
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < len(frame) - 1:
                assert time.monotonic() < end, "it is still listened to"
                peer.sendall(frame[sent : sent + 1])
                sent += 1
                time.sleep(0.3)
        assert rest(peer) == b""
    assert product.sim.writes() == []
    served(product)


def test_a_call_that_comes_in_bytes_is_done_once_it_is_whole(
    product: Product, daemon: Daemon
) -> None:
    with greeted(product) as peer:
        for byte in call_frame("prepare", A):
            peer.sendall(bytes([byte]))
        assert protocol.parts(rest(peer)) == [b"0", b"", b""]
    assert product.rows() == [("a", "0", "assigned")]
    assert product.hook("a", "stopped", A) == (0, "", "")


def test_a_peer_that_leaves_at_any_byte(product: Product, daemon: Daemon) -> None:
    frame = call_frame("prepare", A)
    edges = {0, 1, 2, 3, 4, 5, *range(5, 60), len(frame) - 2, len(frame) - 1}
    for length in [*edges, *range(60, len(frame) - 2, 29)]:
        with connect(product) as peer:
            peer.sendall(frame[:length])
            if length % 2:
                peer.shutdown(socket.SHUT_WR)
                assert GREETING.fullmatch(rest(peer)), length
    served(product)
    assert len(product.sim.writes()) == 2


def test_a_peer_that_does_not_wait_for_the_answer(product: Product, daemon: Daemon) -> None:
    """It has said all: the daemon does it, whoever hears of it."""
    with greeted(product) as peer:
        peer.sendall(call_frame("prepare", A))
    product.wait_for("it is done", lambda: product.rows("state") == [("assigned",)])
    assert product.hook("a", "stopped", A) == (0, "", "")


XML_OF_16_MB = A.replace(b"<vcpu>", b" " * (16 << 20) + b"<vcpu>")
HUGE = {
    "a length that is none": b"9" * 100_000 + b":",
    "a length beyond reason": b"999999999:" + b"x" * 1000,
    "a length beyond the limit": b"%d:" % protocol.MAX_FRAME + b"x" * 1000,
    "no length for long": b"1" * 100_000_000,
    "parts beyond number": protocol.frame(*[b""] * 4_000_000),
    "a part that is longer than all": b"9:8:abcd,,,,,",
    "a negative length": b"-1:,",
    "spaces in the length": b" 3:0:,,",
    "digits of others": "٣:0:,,".encode(),
    "half of what it said": b"17000000:" + b"x" * 8_000_000,
    "no arguments": protocol.frame(b"99999999999"),
    "an expiry beyond numbers": protocol.frame(b"9" * 5000, b"a", b"prepare", A),
    "an expiry with a sign": protocol.frame(b"-5", b"a", b"stopped", A),
    "an expiry that is none": protocol.frame(b"nan", b"a", b"stopped", A),
    "too much": protocol.frame(b"1", b"a", b"prepare", XML_OF_16_MB + b"x" * (1 << 20)),
}


def test_what_is_no_call_is_dropped_in_bounded_memory(product: Product, daemon: Daemon) -> None:
    for what, sent in HUGE.items():
        with greeted(product) as peer:
            with contextlib.suppress(ConnectionError):
                peer.sendall(sent)
                peer.shutdown(socket.SHUT_WR)
            rest(peer)
        assert daemon.poll() is None, what
    served(product)
    assert len(product.sim.writes()) == 2
    assert memory(daemon) < DAEMON_MOST


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"vgpu-hook 9999\n",
        protocol.greeting(0, 60).upper(),
        b"vgpu-hook 4 0 \n",
        b"vgpu-hook 4 0 60000000000000000000\n",
        random.Random(0).randbytes(4096),  # the same in each of xdist's workers
        protocol.greeting(0, 60) + b"99999999999:",
        protocol.greeting(0, 60) + b"x" * 100,
        protocol.greeting(0, 60) + protocol.frame(b"0"),
        protocol.greeting(0, 60) + protocol.frame(b"zero", b"", b""),
        protocol.greeting(0, 60) + protocol.frame(b"0", b"", b"", b"and more"),
        protocol.greeting(0, 60) + b"3:0:,",
    ],
    ids=lambda said: ascii(said[:40]),
)
def test_a_daemon_that_talks_nonsense_is_not_believed(product: Product, said: bytes) -> None:
    """The hook does the call itself then."""
    product.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(product.runtime / "hook.sock"))
        odd.listen()
        call = product.popen("a", "prepare", A)
        peer, _ = odd.accept()
        with peer, contextlib.suppress(ConnectionError):
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            rest(peer)
        assert call.communicate(timeout=PATIENCE) == (b"", b"")
        assert call.returncode == 0
    assert product.rows() == [("a", "0", "assigned")]
