"""vgpu-hookd without a libvirt, for tests on simulated hosts."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.product import PATIENCE, Product

Daemon = subprocess.Popen[bytes]
NO_LIBVIRT = "[daemon]\nlibvirt = 'qemu+unix:///system?socket=/nonexistent'\n"


def only_client(product: Product, tmp_path: Path) -> None:
    """Give the hook a store that it can't use itself: what then works was the daemon's."""
    broken = tmp_path / "client-state"
    broken.write_text("no folder")
    path = tmp_path / "client.toml"
    path.write_text(product.config.read_text().replace(str(product.state), str(broken)))
    product.config = path


def connect(product: Product) -> socket.socket:
    """Return a connection to the daemon, which has not been read from."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(PATIENCE)
    peer.connect(str(product.runtime / "hook.sock"))
    return peer
