"""The daemon's side of the socket: serves hook calls, each in a thread of its own.

Only root may connect (mode 0600, and SO_PEERCRED is looked at). A peer that is slow or talks
nonsense costs its own thread and nothing else. It does what operations.work does, no more.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from vgpu_hook import config, operations, protocol
from vgpu_hook.bounded import Deadline
from vgpu_hook.folders import make_private
from vgpu_hook.hook import operation_of
from vgpu_hook.model import VgpuError
from vgpu_hook.operations import Means

SOCKET = "hook.sock"

PEER_WAIT = 10.0
"""Seconds that a peer may take to send its call, or to take the answer."""

MOST_CALLS = 128
BACKLOG = 256
ACCEPT_PAUSE = 0.05
BEAT = 1.0
"""Seconds after which the accepting thread shows that it lives, if nothing else moves it."""


class Server:
    """Accepts calls until it is stopped, does them with `means`, and calls `after` after each.

    `after` is given the operation, its answer and the seconds that it took.
    """

    def __init__(
        self,
        listener: socket.socket,
        means: Means,
        after: Callable[[str, protocol.Answer, float], None],
    ) -> None:
        self._listener = listener
        self._means = means
        self._after = after
        self._slots = threading.BoundedSemaphore(MOST_CALLS)
        self._active = 0
        self._idle = threading.Condition()
        self._stop_reader, self._stop_writer = os.pipe()
        self._moved = time.monotonic()

    def stands_still_for(self) -> float:
        """Return the seconds for which the accepting thread has not moved: BEAT at most, if well.

        All calls being under way is no standstill: each of them ends by its deadline.
        """
        return time.monotonic() - self._moved

    def run(self) -> None:
        """Accept connections until it is stopped."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._stop_reader, select.POLLIN)
        while True:
            self._moved = time.monotonic()
            ready = [fd for fd, _ in poller.poll(BEAT * 1000)]
            if self._stop_reader in ready:
                return
            if not ready or not self._slots.acquire(timeout=BEAT):
                continue
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the peer has gone, or no file is left for it
                self._slots.release()
                time.sleep(ACCEPT_PAUSE)
                continue
            with self._idle:
                self._active += 1
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # no thread is left for it: the hook does the call itself
                connection.close()
                self._done()
                time.sleep(ACCEPT_PAUSE)

    def stop(self, wait: float) -> bool:
        """Accept no more; wait for the calls under way, and tell whether all have ended.

        The socket stays as it is: it is systemd's, who starts us again when a call comes.
        """
        os.write(self._stop_writer, b"x")
        with self._idle:
            return self._idle.wait_for(lambda: self._active == 0, wait)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, ValueError, protocol.ProtocolError):
                connection.settimeout(PEER_WAIT)
                if peer_is_root(connection):
                    connection.sendall(self._greeting())
                    expiry, *arguments, xml = protocol.parts(_receive_frame(connection))
                    names = tuple(a.decode("utf-8", "surrogateescape") for a in arguments)
                    seconds = int(expiry) / 1000 - time.monotonic()
                    begun = time.monotonic()
                    answer = operations.in_thread(names, xml, seconds, self._means)
                    text = answer.stderr.encode("utf-8", "backslashreplace")
                    self._after(operation_of(names), answer, time.monotonic() - begun)
                    connection.sendall(protocol.frame(b"%d" % answer.status, text, answer.output))
        finally:
            self._done()

    def _greeting(self) -> bytes:
        return protocol.greeting(time.monotonic(), config.hook_deadline(self._means.load))

    def _done(self) -> None:
        self._slots.release()
        with self._idle:
            self._active -= 1
            self._idle.notify_all()


def peer_is_root(connection: socket.socket) -> bool:
    """Tell whether the other side of a Unix socket runs as root (SO_PEERCRED, unix(7))."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return bool(uid == 0)


def listen(runtime: str) -> socket.socket:
    """Return the listening socket: systemd's, else one of our own in the runtime folder.

    systemd's is of no use if the configuration has moved that folder: the hook looks there.
    """
    path = os.path.join(runtime, SOCKET)
    inherited = int(os.environ.pop("LISTEN_FDS", "0"))
    if inherited and os.environ.pop("LISTEN_PID", "") == str(os.getpid()):
        listener = socket.socket(fileno=3)
        if os.path.realpath(listener.getsockname()) == os.path.realpath(path):
            return listener
        listener.close()
    make_private(runtime)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:  # such as a path of more than 107 bytes (unix(7))
        hint = "see: runtime in vgpu-hook.toml"
        raise VgpuError(f"can't listen on {path}: {error}", hint) from None
    finally:
        os.umask(mask)
    listener.listen(BACKLOG)
    return listener


def _receive_frame(connection: socket.socket) -> bytes:
    """Receive one whole frame. Raises ProtocolError or OSError if it is none, or slow."""
    deadline = Deadline(PEER_WAIT)  # for all of it: a byte now and then must not last for ever
    data = bytearray()
    total: int | None = None
    while total is None or len(data) < total:
        if not deadline.remaining():
            raise protocol.ProtocolError("too slow")
        connection.settimeout(deadline.remaining() or 0.001)
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise protocol.ProtocolError("the connection ended")
        data += chunk
        total = total or protocol.length(bytes(data[:16]))
    connection.settimeout(PEER_WAIT)
    return bytes(data)
