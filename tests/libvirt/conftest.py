"""A real libvirtd for the module, with the product's hook on a simulated host."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.domains import uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import HOOK, PATIENCE, Product
from tests.simhost import SimHost


@pytest.fixture(scope="module")
def sim() -> Iterator[SimHost]:
    """Mounted before libvirtd starts, whose namespace sees no later mounts."""
    with SimHost.start("mtty") as running:
        yield running


@pytest.fixture(scope="module")
def server(sim: SimHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibvirtServer]:
    folder = tmp_path_factory.mktemp("libvirt")
    first = folder / "etc" / "hooks" / "qemu"  # looked for only when libvirtd starts (facts A8)
    first.parent.mkdir(parents=True)
    first.write_text("#!/bin/sh\nexit 0\n")
    first.chmod(0o755)
    with LibvirtServer(folder) as running:
        yield running


@pytest.fixture
def hooked(server: LibvirtServer, sim: SimHost, tmp_path: Path) -> Iterator[Product]:
    """The product on a fresh boot of the simulated host, as libvirtd's hook."""
    sim.heal()
    sim.reboot()
    sim.reset_writes()
    product = Product(sim, tmp_path)
    variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in product.environment.items())
    hook = server.hooks / "qemu.d" / "50-vgpu-hook"
    hook.write_text(f'#!/bin/sh\nexec env {variables} {shlex.quote(str(HOOK))} "$@"\n')
    hook.chmod(0o755)
    yield product
    connection = server.connect()
    for domain in connection.listAllDomains():
        if domain.isActive():
            domain.destroy()
        domain.undefine()
    connection.close()
    hook.unlink()


@pytest.fixture
def daemon(server: LibvirtServer, hooked: Product) -> Iterator[subprocess.Popen[bytes]]:
    """vgpu-hookd, following this libvirtd."""
    hooked.configure(extra=f"[daemon]\nlibvirt = '{server.uri}'\nreconcile = 1\n")
    process = hooked.daemon()
    yield process
    process.terminate()
    process.wait(PATIENCE)


@pytest.fixture
def define(server: LibvirtServer, tmp_path: Path):  # type: ignore[no-untyped-def]
    """A function that defines a small domain, with XML for <metadata> and <devices>."""

    def make(name: str, metadata: str = "", devices: str = "") -> None:
        file = tmp_path / "domain.xml"
        file.write_text(
            f"<domain type='qemu'><name>{name}</name><uuid>{uuid_of(name)}</uuid>"
            f"{metadata and f'<metadata>{metadata}</metadata>'}<memory unit='MiB'>16</memory>"
            "<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>"
            "<devices><controller type='usb' model='none'/>"
            f"<memballoon model='none'/>{devices}</devices></domain>"
        )
        done = server.virsh("define", str(file))
        assert done.returncode == 0, done.stderr

    return make
