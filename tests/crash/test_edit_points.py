"""kill -9 at writing calls of attach, detach and delete; all: CRASH_POINTS=all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.commands import Admin
from tests.crash.conftest import FIGURE, only_mdev, step
from tests.crash.edits import EDITS, converges
from tests.crash.world import World


@only_mdev
@pytest.mark.parametrize("name", list(EDITS))
def test_i7_an_editing_command_is_killed(
    world: World, tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    with Admin(world, tmp_path) as admin:
        record_property(FIGURE, converges(world, admin, name, step(6)))
