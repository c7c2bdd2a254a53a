"""vgpu-hookd killed at each of its writing calls while it does a call of the hook."""

from __future__ import annotations

import itertools
import shutil
from contextlib import closing

from tests.asking import ask
from tests.crash.callers import Daemons, group_is_over
from tests.crash.scenarios import NAME, NEXT_EVERY, WHOLE_TREE, Scenario, figure, libvirt_goes_on
from tests.crash.shim import FILES, KILL_ALL
from tests.crash.world import World
from tests.product import PATIENCE, Answer

FEWEST = 20
"""Points that any call has: fewer mean that nothing is counted."""

FEWEST_OF_A_START = 6
"""The same, of a start: the two folders, the lock's file and its pid, the socket."""


def served(
    world: World, daemons: Daemons, scenario: Scenario, point: int = 0
) -> tuple[Answer, int]:
    """Have a daemon do the scenario's call, and be killed at the point.

    Return what libvirt sees, and how many points the daemon has come to.
    """
    scenario.begin(world)
    world.shim.order(scope=0)
    with daemons.running() as pid:
        world.shim.order(point, KILL_ALL)
        answer = world.product.hook(NAME, scenario.operation, scenario.xml(world))
        found = world.shim.count
        if found >= point:
            group_is_over(pid)
    world.sim.heal()
    return answer, found


def finishes_by_itself(world: World, scenario: Scenario) -> str:
    """Kill the daemon at each point: the hook does the call, once. Return the line of figures."""
    with closing(Daemons(world.product, world.shim)) as daemons:
        return _each_point(world, daemons, scenario)


def _each_point(world: World, daemons: Daemons, scenario: Scenario) -> str:
    """Until a call is done before the point is reached: its other threads write too, at times."""
    for point in itertools.count(1):
        answer, reached = served(world, daemons, scenario, point)
        try:
            is_done_once(world, scenario, answer)
            if point % NEXT_EVERY == 0:
                world.others_can_start()
        except AssertionError as error:
            at = f"{scenario.name}, the daemon killed at {point}"
            raise AssertionError(f"{at}: {error}") from error
        if reached < point:
            break
    assert point > FEWEST
    how = {"the daemon's whole tree, while the hook waits": KILL_ALL}
    return figure(world, scenario.name, point - 1, how)


def starts_again(world: World) -> str:
    """Kill the daemon at each point of its very first start: the next one serves.

    Return the figures.
    """
    runtime, xml = world.product.runtime, world.kind.xml(NAME)
    with closing(Daemons(world.product, world.shim)) as daemons:
        for point in itertools.count(1):
            world.reset()
            shutil.rmtree(runtime, ignore_errors=True)
            world.shim.order(point, KILL_ALL, scope=FILES)
            with daemons.running(killed=True):
                reached = world.shim.count
            world.shim.order(scope=0)
            with daemons.running():
                for operation in ("prepare", "stopped"):
                    words = (NAME, operation, "begin", "-")
                    answer = ask(runtime, words, xml, PATIENCE)
                    assert answer == (0, "", b""), f"after {point}: {answer}"
            world.is_clean(NAME)
            if reached < point:
                break
    assert point > FEWEST_OF_A_START, "it was not counted"
    return figure(world, "first start of vgpu-hookd", point - 1, WHOLE_TREE)


def is_done_once(world: World, scenario: Scenario, answer: Answer) -> None:
    """The hook answers as if nobody had been killed, and what it did is there once."""
    assert answer.status == scenario.answer, answer
    if scenario.operation == "prepare" and scenario.answer == 0:
        assert answer == (0, "", "")
        world.has(NAME, scenario.slots)
        assert len(world.present()) == len(scenario.slots)
    elif scenario.operation in ("stopped", "release"):
        assert answer == (0, "", "")
        assert world.rows(NAME) == []
    libvirt_goes_on(world, scenario, answer)
