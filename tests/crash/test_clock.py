"""The wall clock is set between calls: by hand, by NTP, or a host boots in 1970."""

from __future__ import annotations

import time
from itertools import permutations

from tests.crash import callers
from tests.crash.conftest import only_mdev, only_vfs
from tests.crash.scenarios import NAME
from tests.crash.world import World
from tests.domains import uuid_of
from vgpu_hook import context
from vgpu_hook.config import load

DAY, YEAR = 86400.0, 365 * 86400.0


def jumps() -> dict[str, float]:
    """By how much the clock is off."""
    return {"right": 0, "a day back": -DAY, "1970": 60 - time.time(), "a year on": YEAR}


@only_mdev
def test_i7_start_and_stop_by_different_clocks(world: World) -> None:
    world.reset()
    xml = world.kind.xml(NAME, marked=True)
    for (first, begun), (second, ended) in permutations(jumps().items(), 2):
        world.shim.set_clock(begun)
        started = callers.hook(world.product, world.shim, NAME, "prepare", xml)
        assert started == (0, "", ""), (first, second)
        year = world.product.rows("changed")[-1][0][:4]
        assert year == time.strftime("%Y", time.gmtime(time.time() + begun))
        world.shim.set_clock(ended)
        world.reconcile(NAME)
        world.has(NAME, ["0"])  # it runs: whatever the clock says, it is kept
        stopped = callers.hook(world.product, world.shim, NAME, "stopped", xml)
        assert stopped == (0, "", ""), (first, second)
        world.is_clean(NAME)


@only_vfs
def test_i7_a_vm_arrives_by_one_clock_and_starts_by_another(world: World) -> None:
    world.reset()
    xml = world.kind.xml(NAME, marked=True)
    for (first, begun), (second, ended) in permutations(jumps().items(), 2):
        world.shim.set_clock(begun)
        answer = callers.hook(world.product, world.shim, NAME, "migrate", xml)
        going_on = world.arrived(NAME, answer, xml)
        assert going_on, (first, second, answer)
        world.shim.set_clock(ended)
        started = callers.hook(world.product, world.shim, NAME, "prepare", going_on)
        assert started == (0, "", ""), (first, second)
        assert callers.hook(world.product, world.shim, NAME, "stopped", going_on) == (0, "", "")
        world.is_clean(NAME)


def test_i7_what_is_kept_for_a_minute_is_not_kept_for_a_year(world: World) -> None:
    """A VM that was on its way when the clock was set back, and never came."""
    world.reset()
    xml = world.kind.xml(NAME, marked=True)
    for begun in jumps().values():
        world.shim.set_clock(begun)
        answer = callers.hook(world.product, world.shim, NAME, "migrate", xml)
        assert answer.status == 0
        if begun:
            world.reconcile()
            store = context.existing_store(load())
            assert store is not None
            assert uuid_of(NAME) not in {r.domain_uuid for r in store.devices.reservations()}
            store.close()
        world.is_clean(NAME)
