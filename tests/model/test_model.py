"""The rules with real processes: 3,000 steps from a fixed seed, the same each time."""

from __future__ import annotations

import pytest

from .drivers import InProcess, Processes
from .run import first_seed, run, steps_wanted

STEPS = 3000


def test_i1_i2_i3_i4_i5_i6_i7_i8_i9_i10_hold_in_any_order_of_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = steps_wanted(STEPS)
    with capsys.disabled():  # what was covered is to be seen when all is well, too
        covered = run(Processes, wanted, first_seed())
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"


def test_the_same_rules_hold_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    """A crash at any write is among them, which the processes' driver can't choose."""
    wanted = steps_wanted(STEPS)
    with capsys.disabled():
        covered = run(InProcess, wanted, first_seed())
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"
