"""Runs the rules for as many steps as are wanted, and says what was covered.

    python -m tests.model STEPS [SEED] [--processes]

$MODEL_STEPS and $MODEL_SEED change what the tests do; $MODEL_SHRINK=1 has a failure shrunk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .drivers import InProcess, Processes
from .machine import PAIRS
from .rules import Rules
from .world import SEEN

STEPS_PER_EXAMPLE = 60
EXAMPLES_PER_ROUND = 2
"""Each round has a seed of its own: there is a round more until there are enough steps."""


class Covered(NamedTuple):
    """What a run has done; `vms`: how often a VM came up with a vGPU."""

    steps: int
    examples: int
    pairs: int
    vms: int
    line: str


def run(driver: type[InProcess] | type[Processes], steps: int, first_seed: int = 0) -> Covered:
    """Run at least this many steps, and say what they covered. Raises what does not hold."""
    machine: type[Rules] = type(f"{driver.__name__}Rules", (Rules,), {"driver_class": driver})
    machine.hosts = {}
    PAIRS.clear()
    SEEN.clear()
    phases = [Phase.generate, *([Phase.shrink] if os.environ.get("MODEL_SHRINK") else [])]
    options = settings(
        max_examples=EXAMPLES_PER_ROUND,
        stateful_step_count=STEPS_PER_EXAMPLE,
        deadline=None,  # a step may take as long as the machine needs
        database=None,  # the seed alone says what is done
        phases=phases,
        suppress_health_check=list(HealthCheck),  # they are about speed and size
        print_blob=False,
    )
    number = first_seed
    try:
        with on_one_cpu() if driver is InProcess else contextlib.nullcontext():
            while machine.steps < steps:
                machine.is_simplest = True
                run_state_machine_as_test(seed(number)(machine), settings=options)
                number += 1
    finally:
        for sim in machine.hosts.values():
            sim.stop()
        line = (
            f"model: {machine.steps} steps, {machine.examples} examples,"
            f" {len(PAIRS)} distinct pairs of rules, seed {first_seed} ({driver.__name__},"
            f" last seed {number})"
        )
        print(line, dict(sorted(SEEN.items())), sep="\n", flush=True)
    return Covered(machine.steps, machine.examples, len(PAIRS), SEEN["VMs with a vGPU"], line)


@contextlib.contextmanager
def on_one_cpu() -> Iterator[None]:
    """Keep this thread, and the processes that it starts, on one CPU, each worker on another.

    It and the simulated host's file system only ever wait for each other: across CPUs, each turn
    costs a wake-up, which takes three times as long as what is done in it.
    """
    before = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(before)[worker % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def steps_wanted(default: int) -> int:
    """How many steps a test takes: $MODEL_STEPS, else what it is for."""
    return int(os.environ.get("MODEL_STEPS", default))


def first_seed() -> int:
    """Where to begin: $MODEL_SEED, else 0, so that CI does the same each time."""
    return int(os.environ.get("MODEL_SEED", "0"))
