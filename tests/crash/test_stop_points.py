"""kill -9 at writing calls of a stop and of an arrival; retained ones: test_command_points."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.conftest import FIGURE, step
from tests.crash.scenarios import SCENARIOS, WHOLE_TREE, converges
from tests.crash.world import World

Figure = Callable[[str, object], None]


@pytest.mark.parametrize("name", ["stopped", "restore", "migrate"])
def test_i7_a_stop_or_an_arrival_is_killed(
    world: World, name: str, record_property: Figure
) -> None:
    often = step(3 if name == "stopped" else 1)
    record_property(FIGURE, converges(world, SCENARIOS[name], WHOLE_TREE, step=often))
