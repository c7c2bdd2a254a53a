"""The same is done to this machine's libvirtd and to the simulated one, and what is seen compared.

The simulated one twice: in-process, and by way of the stand-in module and a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.domains import device_of, hostdev, uuid_of
from tests.libvirt.server import LibvirtServer

from .sides import MARKER, AnySide, OverSocket, Real, Simulated
from .state import SimLibvirt

NAMESPACE = "urn:vgpu-hook:domain:1"
LIVE, CONFIG = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
XML_FLAGS = (0, 1, 2, 3, 8)
LIST_FLAGS = (0, 1, 2, 3)
UNDEFINE = 1 | 2 | 4 | 16
"""What the product gives to virDomainUndefineFlags."""
OURS = f"<v:vgpus xmlns:v='{NAMESPACE}'><v:vgpu profile='mtty-1'/></v:vgpus>"
OTHER = "<o:note xmlns:o='urn:o'>kept</o:note>"
MINE = hostdev(device_of(uuid_of("a")))

Compare = Callable[[Callable[[Any], None]], None]


def domain(name: str, metadata: str = "", devices: str = "", uuid: str | None = None) -> str:
    """A domain that can run here."""
    return (
        f"<domain type='qemu'><name>{name}</name><uuid>{uuid or uuid_of(name)}</uuid>"
        f"{metadata and f'<metadata>{metadata}</metadata>'}<memory unit='MiB'>16</memory>"
        "<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>"
        f"<devices><controller type='usb' model='none'/><memballoon model='none'/>{devices}"
        "</devices></domain>"
    )


def look(side: AnySide, found: Any, when: str) -> None:
    """Ask all that the product asks of a domain."""
    answers = {
        "isActive": side.answer(found.isActive),
        "isPersistent": side.answer(found.isPersistent),
    }
    for flags in XML_FLAGS:
        answers[f"XMLDesc {flags}"] = side.answer(found.XMLDesc, flags)
    for flags in LIST_FLAGS:
        answers[f"list {flags}"] = side.answer(side.connection.listAllDomains, flags)
    side.do(when, lambda: answers)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibvirtServer]:
    folder = tmp_path_factory.mktemp("libvirt")
    Real.install(folder)
    with LibvirtServer(folder) as running:
        running.connect().defineXML(domain(MARKER))
        yield running


@pytest.fixture
def compare(server: LibvirtServer, tmp_path: Path) -> Iterator[Compare]:
    """Does a scenario to each, and compares what was seen step by step."""
    sides: list[AnySide] = []

    def run(scenario: Callable[[Any], None]) -> None:
        real = Real(server)
        sides.append(real)
        version = real.connection.getLibVersion()
        for number, kind in enumerate((Simulated, OverSocket)):
            (tmp_path / str(number)).mkdir()
            simulated = SimLibvirt(version)
            simulated.define(domain(MARKER))
            sides.append(kind(simulated, tmp_path / str(number)))
        for side in sides:
            scenario(side)
        assert real.seen
        for side in sides[1:]:
            for theirs, ours in zip(real.seen, side.seen, strict=True):
                assert ours == theirs, f"\nlibvirtd:  {theirs}\nsimulated: {ours}"

    yield run
    for side in sides:
        side.tidy()
