"""The rules, from fixed seeds: 3,000 steps with real processes, the same each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .drivers import InProcess, Processes
from .run import first_seed, run, steps_wanted

STEPS = 3000
PORTIONS = 4
"""Of the run with processes, which takes ten minutes: several workers can share it."""
SEEDS_APART = 1000


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_i1_i2_i3_i4_i5_i6_i7_i8_i9_i10_hold_in_any_order_of_events(
    portion: int, record_property: Callable[[str, object], None]
) -> None:
    wanted = -(-steps_wanted(STEPS) // PORTIONS)
    covered = run(Processes, wanted, first_seed() + portion * SEEDS_APART)
    record_property("covered", covered.line)
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"


def test_the_same_rules_hold_in_process(record_property: Callable[[str, object], None]) -> None:
    """A crash at any write is among them, which the processes' driver can't choose."""
    wanted = steps_wanted(STEPS)
    covered = run(InProcess, wanted, first_seed())
    record_property("covered", covered.line)
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"
