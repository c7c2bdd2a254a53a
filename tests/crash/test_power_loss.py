"""The power goes at any moment of a domain's life: what the store may then be, and what follows."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import callers
from tests.crash.conftest import FIGURE
from tests.crash.powerloss import Disk, Image
from tests.crash.scenarios import NAME, SCENARIOS
from tests.crash.shim import FILES, SYNC, Record
from tests.crash.world import World
from vgpu_hook import store_file

SEED = 6


class Losses:
    """Puts images of the store's folder on a host that has just been booted, and looks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: set[str] = set()
        self._converged: set[Any] = set()
        self.images = 0

    def look(self, image: Image, rows: list[tuple[str, str]] | None) -> None:
        """Check one image, if it is a new one; `rows` are what must be on record, if known."""
        key = hashlib.sha256(repr((sorted(image.items()), rows)).encode()).hexdigest()
        if key in self._seen:
            return
        self._seen.add(key)
        self.images += 1
        state = self._world.product.state
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir(mode=0o700)
        for name, data in image.items():
            (state / name).write_bytes(data)
        assert store_file.check(str(state)) == []
        if rows is not None:
            assert self._world.rows(NAME) == rows
        self._converges()

    def _converges(self) -> None:
        """Once for each state that the records can be in: they are the same after that."""
        key = repr(self._world.product.rows())
        if key not in self._converged:
            self._converged.add(key)
            self._world.reconcile()
            self._world.is_clean(NAME)
            self._world.others_can_start()


@pytest.mark.parametrize("name", ["first start"])
def test_i7_r2_a_power_loss_at_any_moment(
    world: World, name: str, record_property: Callable[[str, object], None]
) -> None:
    scenario = SCENARIOS[name]
    scenario.begin(world)
    xml = scenario.xml(world)
    product = world.product
    calls: list[tuple[list[Record], list[tuple[str, str]]]] = []
    for operation, rows in (("prepare", [("0", "assigned")]), ("stopped", [])):
        with world.shim.logged(FILES) as records:
            answer = callers.hook(product, world.shim, NAME, operation, xml)
        assert answer == (0, "", "")
        assert world.rows(NAME) == rows
        calls.append((records, rows))
    world.reset(empty=True)
    disk, chance, losses = Disk(product.state), random.Random(SEED), Losses(world)
    world.sim.reboot()
    world.set_others({})
    moments = syncs = 0
    for records, rows in calls:
        for record in records:
            disk.do(record)
            moments += 1
            syncs += record.kind == SYNC
            for image in disk.images(chance):
                losses.look(image, None)
        for image in disk.images(chance):  # libvirt has been answered: it is there for good
            losses.look(image, rows)
    record_property(
        FIGURE,
        f"power loss: start and stop [{world.kind.name}]: {moments} moments, {syncs} of them syncs,"
        f" {losses.images} different disks, all open, whole and converge",
    )


def test_the_log_tells_what_is_on_the_disk(world: World) -> None:
    """Else writes could be missing from the counting: the log is held against the folder itself."""
    scenario = SCENARIOS["first start"]
    scenario.begin(world)
    product = world.product
    disk = Disk(product.state)
    for operation in ("prepare", "stopped"):
        with world.shim.logged() as records:
            callers.hook(product, world.shim, NAME, operation, scenario.xml(world))
        assert 0 not in {record.kind for record in records}  # UNKNOWN_CALL
        to_kernel = [r.data.decode() for r in records if r.path.startswith(str(world.sim.sys))]
        assert [w for w in to_kernel if w] == [w.data for w in world.sim.writes()]
        world.sim.reset_writes()
        for record in records:
            disk.do(record)
        there = {file.name: file.read_bytes() for file in product.state.iterdir()}
        assert there == disk.content()
        assert list(there) == ["store.db"]
