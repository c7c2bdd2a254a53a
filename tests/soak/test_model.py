"""The rules of tests/model for long: $MODEL_STEPS runs a portion, $MODEL_SEED another one."""

from __future__ import annotations

import pytest

from tests.model.drivers import InProcess, Processes
from tests.model.run import first_seed, run, steps_wanted


@pytest.mark.parametrize(("driver", "steps"), [(Processes, 30_000), (InProcess, 300_000)])
def test_the_invariants_hold_for_long(
    driver: type[InProcess] | type[Processes], steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = steps_wanted(steps)
    with capsys.disabled():
        covered = run(driver, wanted, first_seed())
    assert covered.steps >= wanted
    assert covered.vms > covered.steps / 50, "few VMs got a vGPU: little was shown"
