"""The product as processes on a simulated host, under a simulated libvirtd with its VMs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

import libvirt

from tests.domains import domain_xml, vgpus_of
from tests.product import Answer, Product

from .errors import SimError
from .qemu import Qemu
from .server import PYTHON, Server
from .state import SimDomain, SimLibvirt, devices_of


class Simulation:
    """`with Simulation(product, folder) as simulation:`; hook calls are made as libvirt would."""

    def __init__(self, product: Product, folder: Path, profile: str = "mtty-2") -> None:
        self.product = product
        self.libvirt = SimLibvirt()
        self.qemu = Qemu(self.libvirt, product.hook_argv)
        self.qemu.takes = self._takes
        self.qemu.opens = self._opens
        self.qemu.closes = self._closes
        self.libvirt.on_attach = self._plug
        self.libvirt.on_detach = self._unplug
        self.server = Server(self.libvirt, folder)
        self.pids: dict[str, list[int]] = {}
        """By domain's UUID: who has its devices open. One process can't hold two."""
        self.daemon: subprocess.Popen[bytes] | None = None
        self._profile = profile
        """One that the host has room for."""
        self._barriers = 0
        product.python = PYTHON
        self.configure()

    def __enter__(self) -> Simulation:
        self.server.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        self.server.__exit__(kind, value, trace)

    def configure(self, reconcile: int = 3600) -> None:
        """Point the product at this libvirtd."""
        daemon = f"[daemon]\nlibvirt = '{self.server.uri}'\nreconcile = {reconcile}\n"
        self.product.configure(extra=daemon)

    def command(self, *arguments: str) -> Answer:
        """Run `vgpu-hook`."""
        return self.product.command(*arguments, LIBVIRT_DEFAULT_URI=self.server.uri)

    def start_daemon(self) -> None:
        """Start vgpu-hookd and wait until it listens."""
        self.daemon = self.product.daemon()
        self.wait_until_connected()

    def wait_until_connected(self) -> None:
        """Wait until the daemon gets events, and has seen all that there is."""
        self.product.wait_for("it listens", lambda: self.server.listeners == 1)
        self._barrier()  # perhaps as one of the domains that it looks at since it has connected
        self.handled()

    def handled(self) -> None:
        """Deliver everything, and wait until the daemon has handled it and its own changes."""
        while self._barrier():
            pass
        self.libvirt.deliver()

    def vgpus(self, domain: SimDomain) -> dict[str, str]:
        """Return what a definition names, by slot."""
        return devices_of(str(domain.definition))

    def _barrier(self) -> bool:
        """Wait for what the daemon does at one more event: it handles them one after the other.

        Returns whether more has happened meanwhile.
        """
        self._barriers += 1
        name, asked = f"barrier-{self._barriers}", {"0": self._profile}
        domain = self.libvirt.define(domain_xml(name, asked, hostdevs=[]).decode())
        self.libvirt.deliver()
        self.product.wait_for("the daemon is idle", lambda: bool(self.vgpus(domain)))
        self.libvirt.undefine(domain)
        return any(event.uuid != domain.uuid for event in self.libvirt.pending)

    def _plug(self, domain: SimDomain, hostdev: str) -> None:
        """QEMU opens one device more."""
        devices = devices_of(f"<domain><devices>{hostdev}</devices></domain>").values()
        opened = [self.product.sim.hold(device) for device in devices]
        self.pids.setdefault(domain.uuid, []).extend(opened)

    def _unplug(self, domain: SimDomain, alias: str) -> None:
        """The guest lets go of its last device."""
        self.product.sim.drop(self.pids[domain.uuid].pop())
        self.libvirt.let_go(domain, alias)

    def _takes(self, domain: SimDomain, xml: str) -> None:
        """libvirt looks for the mdevs (facts C2)."""
        for kind, device in vgpus_of(xml).values():
            if kind == "mdev" and device not in self.product.sim.devices():
                text = f"device not found: mediated device '{device}' not found"
                raise SimError(libvirt.VIR_ERR_DEVICE_MISSING, text)

    def _opens(self, domain: SimDomain, xml: str) -> None:
        devices = devices_of(xml).values()
        self.pids[domain.uuid] = [self.product.sim.hold(device) for device in devices]

    def _closes(self, domain: SimDomain) -> None:
        for pid in self.pids.pop(domain.uuid, []):
            self.product.sim.drop(pid)
