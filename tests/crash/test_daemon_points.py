"""kill -9 of vgpu-hookd at each of its writing calls, while the hook waits for its answer."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.conftest import FIGURE, only_mdev
from tests.crash.daemons import finishes_by_itself, starts_again
from tests.crash.scenarios import SCENARIOS
from tests.crash.world import World


def test_i7_the_hook_finishes_by_itself_when_the_daemon_is_killed(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    """Start on one framework, stop on the other; all of both: tests/soak/test_crash.py."""
    name = "served start" if world.kind.name == "mdev" else "stopped"
    record_property(FIGURE, finishes_by_itself(world, SCENARIOS[name]))


@only_mdev
def test_the_daemon_serves_after_one_that_was_killed_at_its_start(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    record_property(FIGURE, starts_again(world))
