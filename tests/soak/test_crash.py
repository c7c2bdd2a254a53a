"""Each crash point of each call, with each that may follow; each fault of the store's disk.

`make soak`; what is most telling of it is in `make test` too (tests/crash).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import FIGURE
from tests.crash.daemons import finishes_by_itself
from tests.crash.faults import ERRORS, EXTENTS, StoreFaults, alone, served
from tests.crash.scenarios import FOLLOWING, SCENARIOS, VARIANTS, converges
from tests.crash.world import World

Figure = Callable[[str, object], None]


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_i7_a_call_is_killed(
    world: World,
    name: str,
    variant: str,
    record_property: Figure,
) -> None:
    for follow in FOLLOWING:
        told = converges(world, SCENARIOS[name], {variant: VARIANTS[variant]}, (follow,))
        record_property(FIGURE, told)


@pytest.mark.parametrize("name", ["start", "start that fails half way", "stopped", "release"])
def test_i7_the_daemon_is_killed(
    world: World,
    name: str,
    record_property: Figure,
) -> None:
    record_property(FIGURE, finishes_by_itself(world, SCENARIOS[name]))


@pytest.mark.parametrize("who", [alone, served])
@pytest.mark.parametrize("name", ["start", "stopped", "release of retained"])
def test_i4_r3_the_disk_fails(
    world: World,
    tmp_path: Path,
    name: str,
    who: Callable[..., object],
    record_property: Figure,
) -> None:
    faults = StoreFaults(world, SCENARIOS[name], tmp_path / "faults")
    with (served if who is served else alone)(world, faults.shim) as call:
        faults.each(call, [*ERRORS], [*EXTENTS])
    where = "the daemon" if who is served else "the hook"
    told = f"{faults.tried} tried, {faults.refused} refused the start; nothing leaked"
    record_property(FIGURE, f"disk faults: {name} [{world.kind.name}], {where}: {told}")
