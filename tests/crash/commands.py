"""Commands under the shim, and the simulated libvirt that they talk to."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash import callers
from tests.crash.scenarios import NAME
from tests.crash.world import BYSTANDER, World
from tests.domains import uuid_of, vgpus_of
from tests.product import Answer
from tests.simlibvirt.definitions import running
from tests.simlibvirt.server import PYTHON, Server
from tests.simlibvirt.state import SimDomain, SimLibvirt
from vgpu_hook import domain as domain_xml


class Admin:
    """A libvirt that runs the bystander, and who gives it and the product commands."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._libvirt = SimLibvirt()
        self._pids: dict[str, int] = {}
        text = world.kind.xml(BYSTANDER).decode()
        self._libvirt.started(self._libvirt.define(text), text)
        self._libvirt.on_destroy = self._destroyed
        self._libvirt.on_attach = lambda domain, hostdev: self._hold(domain)
        self._libvirt.on_detach = self._let_go
        self.server = Server(self._libvirt, folder)

    def begin(self, xml: bytes, *, runs: bool = False) -> None:
        """Have the domain defined, and running or not, whatever it was before."""
        for pid in self._pids.values():
            self._world.sim.drop(pid)
        self._pids.clear()
        self._libvirt.domains.pop(uuid_of(NAME), None)
        self._libvirt.define(xml.decode())
        if runs:
            assert self.start() == (0, "", "")

    def gives(self, *words: str) -> Answer:
        """Run the command, under the shim."""
        argv = [*PYTHON, "vgpu_hook", words[0], "--connect", self.server.uri, *words[1:]]
        environment = {**os.environ, **self._world.product.environment}
        return callers.run(argv, b"", {**environment, **self._world.shim.environment})

    @property
    def domain(self) -> SimDomain | None:
        """The domain, if libvirt has one."""
        return self._libvirt.domains.get(uuid_of(NAME))

    def slots(self, which: str) -> set[str]:
        """Slots of the vGPUs in the `definition`, or in what is `live`; none if there is none."""
        text = self.domain and getattr(self.domain, which)
        return set(vgpus_of(text)) if text else set()

    def asked(self) -> set[str]:
        """Slots that the definition asks for."""
        text = self.domain and self.domain.definition
        return {r.slot for r in domain_xml.parse(text.encode()).request} if text else set()

    def start(self) -> Answer:
        """Have libvirt start the domain with its definition, and QEMU open its vGPU."""
        subject = self._libvirt.find(name=NAME)
        xml = running(str(subject.definition), 7)
        answer = self._world.call(NAME, "prepare", xml.encode())
        if answer.status == 0:
            self._libvirt.started(subject, xml)
            self._hold(subject)
        return answer

    def stop(self) -> None:
        """Have the domain end, if it runs."""
        if self.domain is not None and self.domain.live is not None:
            self._destroyed(self.domain)

    def _destroyed(self, domain: SimDomain) -> None:
        xml = str(domain.live).encode()
        self._drop(domain)
        for operation in ("stopped", "release"):
            assert self._world.call(domain.name, operation, xml) == (0, "", "")
        self._libvirt.stopped(domain)

    def _let_go(self, domain: SimDomain, alias: str) -> None:
        self._drop(domain)
        self._libvirt.let_go(domain, alias)

    def _hold(self, domain: SimDomain) -> None:
        device = self._world.kind.device(domain.name)
        if device in self._world.present():
            self._pids[domain.uuid] = self._world.sim.hold(device)

    def _drop(self, domain: SimDomain) -> None:
        if domain.uuid in self._pids:
            self._world.sim.drop(self._pids.pop(domain.uuid))
