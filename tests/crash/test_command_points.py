"""kill -9 at writing calls of the commands that act, on a simulated libvirt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash import callers
from tests.crash.conftest import FIGURE, only_mdev, step
from tests.crash.scenarios import FOLLOWING, NAME, NEXT_EVERY, SCENARIOS, figure
from tests.crash.shim import KILL_ALL
from tests.crash.world import BYSTANDER, World
from tests.product import Answer
from tests.simlibvirt.server import PYTHON, Server
from tests.simlibvirt.state import SimLibvirt

COMMANDS = {"release": ["release", NAME], "reconcile": ["reconcile"]}


@pytest.fixture
def libvirt(world: World, tmp_path: Path) -> Iterator[Server]:
    """A libvirt that runs the bystander; the domain is defined, and does not run."""
    simulated = SimLibvirt()
    text = world.kind.xml(BYSTANDER).decode()
    simulated.started(simulated.define(text), text)
    simulated.define(world.kind.xml(NAME).decode())
    with Server(simulated, tmp_path) as server:
        yield server


def run(world: World, libvirt: Server, words: list[str]) -> Answer:
    argv = [*PYTHON, "vgpu_hook", words[0], "--connect", libvirt.uri, *words[1:]]
    environment = {**os.environ, **world.product.environment, **world.shim.environment}
    return callers.run(argv, b"", environment)


@only_mdev
@pytest.mark.parametrize("name", list(COMMANDS))
def test_i7_a_command_is_killed(
    world: World, libvirt: Server, name: str, record_property: Callable[[str, object], None]
) -> None:
    """After it libvirt starts the domain, or somebody gives the command again."""
    scenario = SCENARIOS["release of retained"]
    scenario.begin(world)
    world.shim.order()
    answer = run(world, libvirt, COMMANDS[name])
    points = world.shim.count
    assert answer.status == 0, answer
    world.is_clean(NAME)
    often = step(3)
    for turn, point in enumerate(range(1, points + 1, often)):
        scenario.begin(world)
        world.shim.order(point, KILL_ALL)
        answer = run(world, libvirt, COMMANDS[name])
        assert world.shim.count >= point
        try:
            FOLLOWING[1 + turn % 2](world, scenario, answer)
            if turn % NEXT_EVERY == 0:
                world.others_can_start()
        except AssertionError as error:
            raise AssertionError(f"{name} killed at {point} of {points}: {error}") from error
    command = scenario._replace(name=f"the command {name}")
    record_property(FIGURE, figure(world, command, points, {"whole tree": KILL_ALL}, often))
