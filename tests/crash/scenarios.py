"""What is killed: calls of the hook in all states that a domain can be in, and what follows.

Each scenario is one call. How many points it has is counted in a run of it that is not killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.crash import callers
from tests.crash.shim import KILL_ALL, KILL_WRITER
from tests.crash.world import World
from tests.product import Answer
from tests.simulated.arrivals import on_record
from vgpu_hook.model import VgpuRequest

WHOLE_TREE = {"whole tree": KILL_ALL}
VARIANTS = {**WHOLE_TREE, "writer alone": KILL_WRITER}
NAME = "a"
TWO = ["0", "1"]
NEXT_EVERY = 8
"""After how many points a second domain is started; the state is compared after each."""


class Scenario(NamedTuple):
    """A call for the domain `a`. `set_up` begins after a reset."""

    name: str
    operation: str
    set_up: Callable[[World], None]
    slots: list[str] = TWO
    answer: int = 0
    """Its status when nobody kills it."""
    empty: bool = False
    """Whether the host has no store yet, nor another VM."""

    def xml(self, world: World) -> bytes:
        profiles = [world.kind.profile, world.kind.other][: len(self.slots)]
        return world.kind.xml(NAME, *profiles, marked=True)

    def begin(self, world: World) -> None:
        world.reset(empty=self.empty)
        self.set_up(world)


def _nothing(world: World) -> None:
    """The domain has never been seen."""


def _runs(world: World) -> None:
    xml = world.kind.xml(NAME, world.kind.profile, world.kind.other, marked=True)
    assert world.call(NAME, "prepare", xml) == (0, "", "")


def _half_fails(world: World) -> None:
    """The kernel makes the first vGPU and refuses the second."""
    world.kind.fail_create("EIO", world.kind.other)


def _is_retained(world: World) -> None:
    """The kernel would not take its vGPUs away when it stopped; now it would."""
    _runs(world)
    world.configure(deadline=2)
    world.kind.fail_remove("EACCES")
    xml = world.kind.xml(NAME, world.kind.profile, world.kind.other, marked=True)
    assert world.call(NAME, "stopped", xml) == (0, "", "")
    assert [state for _, state in world.rows(NAME)] == ["retained", "retained"]
    world.sim.heal()
    world.configure()


def _is_on_record(world: World) -> None:
    """It ran here before, so that what it asks for is known; another VM has its device's VF."""
    asked = [world.kind.profile, world.kind.other]
    requests = [VgpuRequest(slot, p) for slot, p in zip(TWO, asked, strict=True)]
    on_record(world.product, NAME, *requests)


SCENARIOS = {
    found.name: found
    for found in (
        Scenario("first start", "prepare", _nothing, ["0"], empty=True),
        Scenario("start", "prepare", _nothing),
        Scenario("served start", "prepare", _nothing, ["0"]),
        Scenario("start again", "prepare", _runs),
        Scenario("start that fails half way", "prepare", _half_fails, answer=1),
        Scenario("start after retained", "prepare", _is_retained),
        Scenario("stopped", "stopped", _runs),
        Scenario("release", "release", _runs),
        Scenario("release of retained", "release", _is_retained),
        Scenario("restore", "restore", _is_on_record),
        Scenario("migrate", "migrate", _nothing),
    )
}


Follow = Callable[[World, Scenario, Answer], None]


def crash(world: World, scenario: Scenario, point: int, action: int) -> Answer:
    """Kill the scenario's call at the point; return what libvirt sees of it."""
    scenario.begin(world)
    world.unheard = world.rows(NAME) if point == 1 else None
    world.shim.order(point, action)
    answer = callers.hook(world.product, world.shim, NAME, scenario.operation, scenario.xml(world))
    assert world.shim.count >= point, "the point was not reached"
    world.sim.heal()
    # dash says on stderr which of its children were killed.
    return answer._replace(err=answer.err.replace("Killed\n", ""))


def count(world: World, scenario: Scenario) -> int:
    """Return how many points the scenario has; run to its end, it is what it should be."""
    scenario.begin(world)
    xml = scenario.xml(world)
    world.unheard = None
    world.shim.order()
    answer = callers.hook(world.product, world.shim, NAME, scenario.operation, xml)
    found = world.shim.count
    assert answer.status == scenario.answer, answer
    world.sim.heal()
    libvirt_goes_on(world, scenario, answer)
    return found


# -- what follows -----------------------------------------------------------------------


def libvirt_goes_on(world: World, scenario: Scenario, answer: Answer) -> None:
    """What libvirtd calls next, whatever became of its call; then the domain is gone."""
    xml = scenario.xml(world)
    if scenario.operation in ("restore", "migrate"):
        xml = world.arrived(NAME, answer, xml)
        if xml:
            answer = world.call(NAME, "prepare", xml)
            assert answer == (0, "", "")
    if scenario.operation in ("stopped", "release"):
        assert answer.status <= 0
        assert (answer.out, answer.err) == ("", "")
        following = ["release"]
    else:
        if scenario.operation == "prepare":
            world.started(NAME, answer, xml, scenario.slots)
        following = ["stopped", "release"]
    for operation in following if xml else ():
        assert world.call(NAME, operation, xml) == (0, "", "")
    world.is_clean(NAME)


def starts_again(world: World, scenario: Scenario, answer: Answer) -> None:
    """libvirtd was killed too; the next thing is that somebody starts the domain."""
    xml = scenario.xml(world)
    world.check()
    assert world.call(NAME, "prepare", xml) == (0, "", "")
    world.has(NAME, scenario.slots)
    assert world.call(NAME, "stopped", xml) == (0, "", "")
    world.is_clean(NAME)


def is_reconciled(world: World, scenario: Scenario, answer: Answer) -> None:
    """Nobody calls; the daemon or the command compares (R7). libvirt does not run the domain."""
    world.check()
    world.reconcile()
    world.is_clean(NAME)


FOLLOWING = (libvirt_goes_on, starts_again, is_reconciled)


def converges(
    world: World,
    scenario: Scenario,
    variants: dict[str, int],
    following: tuple[Follow, ...] = FOLLOWING,
    step: int = 1,
) -> str:
    """Kill at each of the points, or every `step`th; what follows takes turns.

    Return the line of figures.
    """
    points = count(world, scenario)
    assert points > step * len(FOLLOWING)
    for name, action in variants.items():
        for turn, point in enumerate(range(1, points + 1, step)):
            follow = following[turn % len(following)]
            at = f"{scenario.name}, {name} killed at {point} of {points}, {follow.__name__}"
            try:
                follow(world, scenario, crash(world, scenario, point, action))
                if turn % NEXT_EVERY == 0:
                    world.others_can_start()
            except AssertionError as error:
                raise AssertionError(f"{at}: {error}") from error
    return figure(world, scenario.name, points, variants, step)


def figure(world: World, name: str, points: int, variants: dict[str, int], step: int = 1) -> str:
    """Return the line of figures of a call of whose points every `step`th was tried."""
    what = f"{name} [{world.kind.name}]"
    tried = "all" if step == 1 else f"{len(range(0, points, step))} of them"
    how = " and ".join(variants)
    return f"crash points: {what}: {points} found, {tried} tried ({how}), all converge"
