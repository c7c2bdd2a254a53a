"""A host on which one VM is started and stopped while others are there, and what must hold.

`bystander` is a running VM with a vGPU of ours, `foreign` a vGPU that somebody else made: nothing
may happen to either. The calls between the crashes are done in the test's own process, by the
function that hooks/qemu calls: they are many, and it is not they that are killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.crash.shim import Shim
from tests.domains import uuid_of
from tests.product import Answer, Product
from tests.simulated.arrivals import noted
from tests.simulated.daemons import NO_LIBVIRT
from tests.simulated.kinds import Kind
from vgpu_hook import config, context, hook, store_file
from vgpu_hook.libvirtd import Known
from vgpu_hook.reconcile import Finding, Reconciler

BYSTANDER = "bystander"
FOREIGN = uuid_of("foreign")


class World:
    """A product on a simulated host, with a bystander, and orders for the shim."""

    def __init__(self, product: Product, kind: Kind, folder: Path) -> None:
        self.product = product
        self.kind = kind
        self.sim = product.sim
        self.configure()
        self.shim = Shim(folder, [product.state, product.runtime, self.sim.sys])
        self.unheard: list[tuple[Any, ...]] | None = None
        """If the hook was killed at its very first call: what was on record of the domain then."""
        self._others: dict[str, str] = {}
        self._save = folder / "begun"
        self._saved: tuple[bool, str] | None = None
        """Whether the saved state is an empty one, and of which boot."""

    def _foreign(self) -> str:
        return FOREIGN if self.kind.name == "mdev" else self.kind.device("foreign")

    def configure(self, deadline: float = 60) -> None:
        """Write the configuration: no daemon of these tests meets this machine's libvirt."""
        self.product.configure(deadline=deadline, extra=NO_LIBVIRT)

    def reset(self, *, empty: bool = False) -> None:
        """Begin anew: the others are there, or with `empty` neither them nor a store.

        The host is booted anew only if it must be: after what has converged, the store is put back
        as it was, so that each run of a call has the very same points.
        """
        self.sim.heal()
        if self._saved is None or self._saved[0] != empty or not self._is_as_begun():
            self._boot(empty=empty)
        _copy(self._save, self.product.state.parent, ("state",))
        # A socket of a daemon that runs stays.
        gone = self.product.runtime if empty else self.product.runtime / "locks"
        shutil.rmtree(gone, ignore_errors=True)
        self.sim.reset_writes()

    def _is_as_begun(self) -> bool:
        assert self._saved is not None
        state = self.sim.state()
        return self.kind.present() == self._others and state["boot_id"] == self._saved[1]

    def _boot(self, *, empty: bool) -> None:
        self.sim.reboot()
        for folder in (self.product.state, self._save):
            shutil.rmtree(folder, ignore_errors=True)
        self._save.mkdir()
        if self.kind.name == "mdev":
            self.sim.make(FOREIGN, "mtty", self.kind.type_id)
        else:
            self.sim.assign(self._foreign(), int(self.kind.profile))
        self._others = {self._foreign(): self.kind.type_id}
        if not empty:
            assert self.call(BYSTANDER, "prepare", self.kind.xml(BYSTANDER)) == (0, "", "")
            self._others |= self.kind.vgpus(BYSTANDER)
            self.sim.hold(self.kind.device(BYSTANDER))
        _copy(self.product.state.parent, self._save, ("state",))
        self._saved = (empty, str(self.sim.state()["boot_id"]))

    def set_others(self, devices: dict[str, str]) -> None:
        """Say which vGPUs are the others', after a boot."""
        self._others = devices

    # -- calls that are not killed -------------------------------------------------------

    def call(self, name: str, operation: str, xml: bytes) -> Answer:
        """Do a call of the hook here."""
        status, err, out = hook.serve([name, operation, "begin", "-"], xml)
        return Answer(status, out.decode(), err)

    def reconcile(self, *running: str) -> list[Finding]:
        """Compare store, kernel and a libvirt in which these domains run, and no others are."""
        settings = config.load()
        with closing(context.store(settings)) as opened:
            names = {*running, *([BYSTANDER] if self.rows(BYSTANDER) else [])}
            domains = {uuid_of(name): Known(name, True) for name in names}
            return Reconciler(
                opened,
                lambda: context.lifecycle(settings, opened, "reconcile command"),
                lambda: domains,
                lambda domain_uuid: None,
            ).run()

    # -- what must hold ------------------------------------------------------------------

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return slot and state of what is on record of the domain."""
        return self.product.query(
            f"SELECT slot, state FROM assignment WHERE domain_name = '{name}' ORDER BY slot"
        )

    def present(self) -> dict[str, str]:
        """Return the vGPUs that the kernel has, without those of the others, which are checked."""
        found = self.kind.present()
        others = {device: found.pop(device, "gone") for device in self._others}
        assert others == self._others
        return found

    def check(self) -> None:
        """Whatever happened: the store is whole, and nobody wrote to what is the others' (I1)."""
        assert store_file.check(str(self.product.state)) == []
        if len(self._others) > 1:
            assert self.rows(BYSTANDER) == [("0", "assigned")]
        self.present()
        for write in self.sim.writes():
            assert not any(device in write.path for device in self._others), write

    def has(self, name: str, slots: Iterable[str]) -> None:
        """The domain runs with its vGPUs, and they are on record."""
        self.check()
        devices = {self.kind.device(name, slot) for slot in slots}
        assert devices <= self.present().keys()
        assert self.rows(name) == [(slot, "assigned") for slot in slots]

    def is_clean(self, name: str) -> None:
        """Nothing of the domain is left: as if nothing had happened (I7)."""
        self.check()
        assert self.present() == {}
        assert self.rows(name) == []

    def others_can_start(self) -> None:
        """A second domain starts and stops."""
        other = self.kind.xml("next")
        assert self.call("next", "prepare", other) == (0, "", "")
        self.has("next", ["0"])
        assert self.call("next", "stopped", other) == (0, "", "")
        assert self.present() == {}

    def started(self, name: str, answer: Answer, xml: bytes, slots: list[str]) -> None:
        """libvirt was told that the start may go on, or why not, or nothing at all."""
        if self.unheard is not None and answer.status == 0:
            # The hook's first call hands the XML on to sh, which then has nothing to go by: it
            # may be a VM without a request (R14). libvirt does not find the vGPU, unless it was
            # there before.
            self.check()
            assert self.rows(name) == self.unheard
        elif answer.status == 0:
            assert (answer.out, answer.err) == ("", "")
            self.has(name, slots)
        else:
            self.check()
            assert answer.out == ""
            assert answer.status < 0 or answer.err.startswith("vgpu-hook: "), answer

    def arrived(self, name: str, answer: Answer, xml: bytes) -> bytes:
        """Return the XML with which libvirt goes on after a restore or a migration; or nothing."""
        assert "Traceback" not in answer.err
        if answer.status != 0:
            assert answer.out == ""
            return b""
        going_on = answer.out.encode() or xml
        return b"" if noted(going_on) else going_on


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    """Put folders in the place of others, as they are in `source`: absent if they are there."""
    for name in names:
        shutil.rmtree(target / name, ignore_errors=True)
        if (source / name).exists():
            shutil.copytree(source / name, target / name)
