"""vgpu-hookd without a libvirt, for tests on simulated hosts."""

from __future__ import annotations

from pathlib import Path

from tests.product import Product

NO_LIBVIRT = "[daemon]\nlibvirt = 'qemu+unix:///system?socket=/nonexistent'\n"


def only_client(product: Product, tmp_path: Path) -> None:
    """Give the hook a store that it can't use itself: what then works was the daemon's."""
    broken = tmp_path / "client-state"
    broken.write_text("no folder")
    path = tmp_path / "client.toml"
    path.write_text(product.config.read_text().replace(str(product.state), str(broken)))
    product.config = path
