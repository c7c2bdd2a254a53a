"""vgpu-hookd's metrics over HTTP, for a Prometheus that does not use node_exporter's textfiles.

Off unless `[metrics] listen` says where. No TLS and no passwords: it is for the loopback, or for a
network that is trusted. The standard library's server, which is everywhere, with what it lacks:
a limit on connections, and on the time that one may take.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import socket
import threading
from collections.abc import Callable
from typing import Any

from vgpu_hook.exposition import CONTENT_TYPE
from vgpu_hook.model import VgpuError

PATH = "/metrics"
MOST_PEERS = 8
PEER_WAIT = 10.0
"""Seconds for a whole request and its answer."""


def serve(host: str, port: int, text: Callable[[], str]) -> _Server:
    """Listen, and serve in a thread of its own until `shutdown`. Raises VgpuError."""
    try:
        server = _Server(host, port, text)
    except OSError as error:
        raise VgpuError(
            f"can't serve metrics on {host} port {port}: {error}",
            "the unit allows no network by itself; see CONFINEMENT: man vgpu-hookd"
            if error.errno == errno.EAFNOSUPPORT
            else "see: listen in vgpu-hook.toml",
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics-http", daemon=True).start()
    return server


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.text = text
        self._slots = threading.BoundedSemaphore(MOST_PEERS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without http.server's look-up of the host's name, which may take a while."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the peer, if there are not too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one peer, for PEER_WAIT at the most."""
        timer = threading.Timer(PEER_WAIT, _end, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that goes away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    server_version = "vgpu-hookd"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the metrics."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, f"there is {PATH} and nothing else")
            return
        data = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
