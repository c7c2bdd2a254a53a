"""kill -9 at writing calls of the commands that act, on a simulated libvirt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.commands import Admin
from tests.crash.conftest import FIGURE, only_mdev, step
from tests.crash.scenarios import FOLLOWING, NAME, NEXT_EVERY, SCENARIOS, WHOLE_TREE, figure
from tests.crash.shim import KILL_ALL
from tests.crash.world import World

COMMANDS = {"release": ["release", NAME], "reconcile": ["reconcile"]}


@only_mdev
@pytest.mark.parametrize("name", list(COMMANDS))
def test_i7_a_command_is_killed(
    world: World, given: Admin, name: str, record_property: Callable[[str, object], None]
) -> None:
    """After it libvirt starts the domain, or somebody gives the command again."""
    given.begin(world.kind.xml(NAME))
    scenario = SCENARIOS["release of retained"]
    scenario.begin(world)
    world.shim.order()
    answer = given.gives(*COMMANDS[name])
    points = world.shim.count
    assert answer.status == 0, answer
    world.is_clean(NAME)
    often = step(3)
    for turn, point in enumerate(range(1, points + 1, often)):
        scenario.begin(world)
        world.shim.order(point, KILL_ALL)
        answer = given.gives(*COMMANDS[name])
        assert world.shim.count >= point
        try:
            FOLLOWING[1 + turn % 2](world, scenario, answer)
            if turn % NEXT_EVERY == 0:
                world.others_can_start()
        except AssertionError as error:
            raise AssertionError(f"{name} killed at {point} of {points}: {error}") from error
    record_property(FIGURE, figure(world, f"the command {name}", points, WHOLE_TREE, often))
