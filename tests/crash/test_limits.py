"""The hook with hardly any files, memory or file size allowed to it (I4, R14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import callers
from tests.crash.conftest import FIGURE, only_mdev
from tests.crash.scenarios import NAME, SCENARIOS
from tests.crash.world import World
from tests.domains import domain_xml
from tests.product import HOOK, Answer

MEGABYTE = 1 << 20
LIMITS = {
    "nofile": list(range(3, 41)),
    "as": [size * MEGABYTE for size in (*range(2, 64, 6), *range(64, 161, 24))],
    "fsize": [0, 1, 511, 512, 4096, 30000, 32768, 65536, 80000, 100000, 200000],
}
"""Of prlimit(1)."""


def limited(world: World, limit: str, script: Path, *arguments: str, xml: bytes = b"") -> Answer:
    """Run a script, with what it starts, under a limit."""
    argv = ["prlimit", limit, "--", str(script), *arguments]
    return callers.run(argv, xml, world.product.environment)


def called(world: World, limit: str, name: str, operation: str, xml: bytes) -> Answer:
    return limited(world, limit, HOOK, name, operation, "begin", "-", xml=xml)


@only_mdev
@pytest.mark.parametrize("resource", list(LIMITS))
def test_i4_r14_the_hook_under_a_limit(
    world: World, tmp_path: Path, resource: str, record_property: Callable[[str, object], None]
) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\n{ xml=$(cat); } 2>/dev/null\n[ -n "$xml" ]\n')
    shell.chmod(0o755)
    without_shell = []
    worked = refused = 0
    for value in LIMITS[resource]:
        limit = f"--{resource}={value}"
        if limited(world, limit, shell, xml=b"<domain/>").status != 0:
            without_shell.append(value)  # no script can run or read its input
            continue
        if prepares(world, limit):
            worked += 1
        else:
            refused += 1
        stops(world, limit)
    assert len(without_shell) < len(LIMITS[resource]) / 3
    record_property(
        FIGURE,
        f"limits: {resource} [{world.kind.name}]: {worked} starts worked, {refused} were refused,"
        f" {len(without_shell)} values with which no shell runs; nothing leaked",
    )


def prepares(world: World, limit: str) -> bool:
    """Start under the limit; tell whether it worked."""
    scenario = SCENARIOS["start"]
    scenario.begin(world)
    xml = scenario.xml(world)
    assert called(world, limit, "plain", "prepare", domain_xml("plain")) == (0, "", "")
    answer = called(world, limit, NAME, "prepare", xml)
    assert "Traceback" not in answer.err
    if answer.status == 0:
        assert answer == (0, "", "")
        world.has(NAME, scenario.slots)
    else:
        assert (answer.status, answer.out) == (1, ""), (limit, answer)
        # The shell tells before that of a Python that could not even begin.
        assert answer.err.splitlines()[-1].startswith("vgpu-hook: "), (limit, answer)
    for operation in ("stopped", "release"):
        assert world.call(NAME, operation, xml) == (0, "", "")
    world.is_clean(NAME)
    return answer.status == 0


def stops(world: World, limit: str) -> None:
    """Stop under the limit: it never fails, and the next one does what is left."""
    scenario = SCENARIOS["stopped"]
    scenario.begin(world)
    xml = scenario.xml(world)
    assert called(world, limit, "plain", "stopped", domain_xml("plain")) == (0, "", "")
    answer = called(world, limit, NAME, "stopped", xml)
    assert (answer.status, answer.out) == (0, ""), (limit, answer)
    assert "Traceback" not in answer.err
    assert world.call(NAME, "release", xml) == (0, "", "")
    world.is_clean(NAME)
