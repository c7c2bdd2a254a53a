"""kill -9 at writing calls of a start, at all of them with CRASH_POINTS=all (`make soak`)."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.conftest import FIGURE, only_mdev, only_vfs, step
from tests.crash.scenarios import SCENARIOS, WHOLE_TREE, converges
from tests.crash.world import World

Figure = Callable[[str, object], None]


@only_mdev
def test_i7_the_very_first_start_is_killed(world: World, record_property: Figure) -> None:
    record_property(FIGURE, converges(world, SCENARIOS["first start"], WHOLE_TREE, step=step(3)))


@only_vfs
def test_i7_r11_a_start_that_fails_half_way_is_killed(
    world: World, record_property: Figure
) -> None:
    scenario = SCENARIOS["start that fails half way"]
    record_property(FIGURE, converges(world, scenario, WHOLE_TREE, step=step(3)))
