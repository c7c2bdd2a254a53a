"""The simulated libvirtd on a Unix socket: one JSON line a call, one an answer or an event."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .calls import Calls
from .errors import SimError
from .facade import Happened
from .state import SimLibvirt

STANDIN = Path(__file__).with_name("standin")
REPOSITORY = Path(__file__).resolve().parents[2]
RUN = (
    "import runpy, sys; sys.path[:0] = [sys.argv.pop(1), sys.argv.pop(1)];"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""`python -m MODULE` with two folders more to import from, which -I would not take from outside."""

PYTHON = [sys.executable, "-I", "-c", RUN, str(STANDIN), str(REPOSITORY)]
"""For tests.product.Product.python."""


class Server:
    """Serves a SimLibvirt. `with Server(simulated, folder) as server:`"""

    def __init__(self, simulated: SimLibvirt, folder: Path) -> None:
        self.simulated = simulated
        self.path = folder / "simlibvirt.sock"
        self.uri = f"qemu+unix:///system?socket={self.path}"
        self._peers: set[socket.socket] = set()
        self._listening: dict[socket.socket, int] = {}
        """Who gets events, and how many there had been when it asked for them."""
        self._calls = Calls(simulated)
        self._listener = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()

    def __enter__(self) -> Server:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self.simulated.listeners.append(self._happened)
        threading.Thread(target=self._accept, name="simlibvirt", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.simulated.listeners.remove(self._happened)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.simulated.serving.set()
        self.disconnect()
        self.path.unlink()

    def disconnect(self) -> None:
        """End every connection, as when libvirtd is started again; what was not heard is lost."""
        with self._lock:
            for peer in self._peers:
                with suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    @property
    def listeners(self) -> int:
        """How many connections get events."""
        with self._lock:
            return len(self._listening)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                with self._lock:
                    self._peers.add(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as lines, suppress(OSError, ValueError):
            for line in lines:
                method, *arguments = json.loads(line)
                if method == "listen":
                    with self._lock:
                        _send(peer, {"result": None})
                        self._listening[peer] = self.simulated.happened
                else:
                    _send(peer, self._answer(method, arguments))
        with self._lock:
            self._peers.discard(peer)
            self._listening.pop(peer, None)

    def _answer(self, method: str, arguments: list[Any]) -> dict[str, Any]:
        try:
            return {"result": self._calls(method, *arguments)}
        except SimError as error:
            return {"error": [error.code, error.message]}

    def _happened(self, event: Happened) -> None:
        """Tell those who listened already when it happened."""
        with self._lock:
            for peer, heard in self._listening.items():
                if event.number > heard:
                    with suppress(OSError):
                        _send(peer, {"event": event})


def _send(peer: socket.socket, message: dict[str, Any]) -> None:
    peer.sendall(json.dumps(message).encode() + b"\n")
