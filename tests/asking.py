"""Asks the daemon as hooks/qemu does, without starting processes for it."""

from __future__ import annotations

import re
import socket
from contextlib import closing, suppress
from pathlib import Path

from vgpu_hook import protocol
from vgpu_hook.protocol import Answer

GREETING = re.compile(rb"vgpu-hook %d (\d+) (\d+)\n" % protocol.VERSION)


def greeting(peer: socket.socket) -> re.Match[bytes]:
    """Receive the greeting, and no more: its clock and its time, in ms."""
    found = GREETING.fullmatch(peer.recv(64))
    assert found is not None
    return found


def ask(runtime: Path, arguments: tuple[str, ...], xml: bytes, patience: float) -> Answer | None:
    """Return the daemon's answer; None if nobody serves the socket, or it ended meanwhile."""
    with (
        closing(socket.socket(socket.AF_UNIX)) as peer,
        suppress(ConnectionError, FileNotFoundError),
    ):
        peer.settimeout(patience)
        peer.connect(str(runtime / "hook.sock"))
        now, seconds = map(int, greeting(peer).groups())
        words = [word.encode("utf-8", "surrogateescape") for word in arguments]
        peer.sendall(protocol.frame(b"%d" % (now + seconds), *words, xml))
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
        if data:
            status, text, output = protocol.parts(data)
            return Answer(int(status), text.decode(), output)
    return None
