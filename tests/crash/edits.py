"""kill -9 at each writing call of attach, detach and delete, on a simulated libvirt.

After it, in turns: somebody gives the command again, or the domain goes on with whatever it has.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.crash.commands import Admin
from tests.crash.scenarios import NAME, NEXT_EVERY, WHOLE_TREE, figure
from tests.crash.shim import KILL_ALL
from tests.crash.world import World
from tests.domains import domain_xml
from tests.product import Answer

LATER = 3600
"""Seconds."""

FEWEST = 10
"""Points that any of these has: fewer mean that nothing is counted."""


class Edit(NamedTuple):
    """A command, and what the domain is before it: with a vGPU or not, running or not."""

    words: list[str]
    has: bool
    runs: bool
    done: tuple[str, ...] = ()
    """What it may say when it is given again and had been done."""


TAKEN = "is on record with a vGPU in slot '0' that it does not run with"

ATTACH = ["attach", "--profile", "mtty-1", "--slot", "0", NAME]
DETACH = ["detach", "--slot", "0", NAME]
EDITS = {
    "attach": Edit(ATTACH, has=False, runs=False),
    "attach --live": Edit([*ATTACH, "--live"], has=False, runs=True, done=(TAKEN,)),
    "detach": Edit(DETACH, has=True, runs=False, done=("has no vGPU in slot '0'",)),
    "detach --live": Edit(
        [*DETACH, "--live"], has=True, runs=True, done=(TAKEN, "runs without a vGPU")
    ),
    "delete": Edit(["delete", NAME], has=True, runs=True, done=("no domain 'a'",)),
}


def begin(world: World, admin: Admin, edit: Edit) -> None:
    world.reset()
    with_vgpu, without = world.kind.xml(NAME), domain_xml(NAME)
    admin.begin(with_vgpu if edit.has else without, runs=edit.runs)
    world.shim.order()


def converges(world: World, admin: Admin, name: str, step: int) -> str:
    """Kill it at each point, or at every `step`-th; what follows takes turns.

    Return the line of figures.
    """
    edit = EDITS[name]
    begin(world, admin, edit)
    answer = admin.gives(*edit.words)
    points = world.shim.count
    assert answer.status == 0, answer
    assert points > FEWEST
    is_done(world, admin, edit)
    ends(world, admin)
    for turn, point in enumerate(range(1, points + 1, step)):
        begin(world, admin, edit)
        world.shim.order(point, KILL_ALL)
        admin.gives(*edit.words)
        assert world.shim.count >= point
        follow = (is_given_again, goes_on)[turn % 2]
        try:
            follow(world, admin, edit)
            ends(world, admin)
            if turn % NEXT_EVERY == 0:
                world.others_can_start()
        except AssertionError as error:
            at = f"{name} killed at {point} of {points}, {follow.__name__}"
            raise AssertionError(f"{at}: {error}") from error
    return figure(world, f"the command {name}", points, WHOLE_TREE, step)


# -- what follows -----------------------------------------------------------------------


def is_given_again(world: World, admin: Admin, edit: Edit) -> None:
    """It does what is left of it, or says why not; then that goes with the next comparison."""
    world.shim.order()
    answer = admin.gives(*edit.words)
    if answer.status:
        assert is_told(answer, edit.done), answer
        is_compared(world, admin)
        answer = admin.gives(*edit.words)
        assert answer.status == 0 or is_told(answer, edit.done), answer
    is_done(world, admin, edit)


def is_told(answer: Answer, texts: tuple[str, ...]) -> bool:
    return answer.status == 1 and any(text in answer.err for text in texts)


def goes_on(world: World, admin: Admin, edit: Edit) -> None:
    """Nobody gives it again."""
    is_compared(world, admin)
    is_consistent(world, admin)


def is_compared(world: World, admin: Admin) -> None:
    """The daemon, or the command, compares (R7): later, so that nothing can be under way."""
    world.shim.order()
    world.shim.set_clock(LATER)
    assert admin.gives("reconcile").status == 0
    world.shim.set_clock(0)


def is_done(world: World, admin: Admin, edit: Edit) -> None:
    """What was to be had or lost is, in the definition, in what runs, on record, in the kernel."""
    if edit.words[0] == "delete":
        assert admin.domain is None
        world.is_clean(NAME)
        assert not world.product.query("SELECT 1 FROM domain WHERE deleting_since IS NOT NULL")
        return
    slots = {"0"} if edit.words[0] == "attach" else set()
    assert admin.slots("definition") == slots
    if edit.runs:
        is_compared(world, admin)
        assert admin.slots("live") == slots
    is_consistent(world, admin)


def is_consistent(world: World, admin: Admin) -> None:
    """What runs with a vGPU has it and is on record with it; and the definition is a whole one."""
    assert admin.slots("definition") == admin.asked()
    if admin.slots("live"):
        world.has(NAME, ["0"])
    else:
        world.is_clean(NAME)


def ends(world: World, admin: Admin) -> None:
    """Whatever the definition says by now, the domain stops; it starts with that, and stops."""
    admin.stop()
    world.is_clean(NAME)
    if admin.domain is None:
        return
    assert admin.gives("delete", "--cancel", NAME).status in (0, 1)
    slots = admin.slots("definition")
    assert admin.start() == (0, "", "")
    world.has(NAME, slots)
    admin.stop()
    world.is_clean(NAME)
