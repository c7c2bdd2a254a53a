"""kill -9 at writing calls of attach, detach and delete; all: CRASH_POINTS=all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.commands import Admin
from tests.crash.conftest import FIGURE, only_mdev, step
from tests.crash.edits import EDITS, converges
from tests.crash.world import World


@only_mdev
@pytest.mark.parametrize("name", list(EDITS))
def test_i7_an_editing_command_is_killed(
    world: World, given: Admin, name: str, record_property: Callable[[str, object], None]
) -> None:
    record_property(FIGURE, converges(world, given, name, step(6)))
