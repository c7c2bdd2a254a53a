"""The rules of tests/model for long: $MODEL_STEPS runs a portion, $MODEL_SEED another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.drivers import InProcess, Processes
from tests.model.run import first_seed, run, steps_wanted

PORTIONS = 10
"""So that workers can share it, and one that fails does not end the rest."""
BEGIN = 10_000
"""The first seed: none that `make test` has."""


@pytest.mark.parametrize("portion", range(PORTIONS))
@pytest.mark.parametrize(("driver", "steps"), [(Processes, 30_000), (InProcess, 300_000)])
def test_the_invariants_hold_for_long(
    driver: type[InProcess] | type[Processes],
    steps: int,
    portion: int,
    record_property: Callable[[str, object], None],
) -> None:
    wanted = -(-steps_wanted(steps) // PORTIONS)
    covered = run(driver, wanted, BEGIN + first_seed() + portion * 1000)
    record_property("covered", covered.line)
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"
