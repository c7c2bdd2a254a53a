"""The hook's side of the socket: asks the daemon, if it is there, to do a call.

For speed only: when the daemon does not greet in time, the caller does the work itself; when
it dies before it has answered, too (lifecycle makes good what was left half done). Once it has
the call, and lives, it is the one that does it.
"""

from __future__ import annotations

import os
import socket
import struct

from vgpu_hook import protocol
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import DeadlineExceeded

SOCKET = "hook.sock"
GREETING_WAIT = 2.0
"""Seconds. A daemon that is alive greets at once, from a thread of its own."""


def ask(
    runtime: str, arguments: tuple[str, ...], xml: bytes, deadline: Deadline
) -> protocol.Answer | None:
    """Return the daemon's answer; None if the caller must do it itself.

    Raises DeadlineExceeded if the daemon has the call but has not answered in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(min(GREETING_WAIT, deadline.remaining()))
            connection.connect(os.path.join(runtime, SOCKET))
            # Whoever could put a socket there must not get to say what a start is told.
            if not peer_is_root(connection):
                return None
            if _receive(connection, len(protocol.GREETING)) != protocol.GREETING:
                return None
        except OSError:
            return None
        try:
            encoded = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
            connection.settimeout(deadline.remaining() or 0.001)
            connection.sendall(protocol.frame(b"%d" % deadline.expiry_ms(), *encoded, xml))
            status, stderr, output = protocol.parts(_rest(connection, deadline))
            text = stderr.decode("utf-8", "backslashreplace")
            return protocol.Answer(int(status), text, output)
        except TimeoutError:
            raise DeadlineExceeded(
                f"vgpu-hookd has not answered within {deadline.seconds:.3g} s",
                "see: journalctl -u vgpu-hookd",
            ) from None
        except (OSError, ValueError, protocol.ProtocolError):
            return None


def peer_is_root(connection: socket.socket) -> bool:
    """Tell whether the other side of a Unix socket runs as root (SO_PEERCRED, unix(7)).

    That of a socket that systemd listens on for the daemon is systemd, as root too.
    """
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return bool(uid == 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def _rest(connection: socket.socket, deadline: Deadline) -> bytes:
    """Receive to the end; an early end is found out when it is taken apart."""
    chunks: list[bytes] = []
    while True:
        connection.settimeout(deadline.remaining() or 0.001)
        chunk = connection.recv(1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
