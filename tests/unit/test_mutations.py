"""The changes of `make mutations` still fit the code, and the tests can run in its copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutations.__main__ import TESTS, run
from tests.mutations.changes import CHANGES, Change

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: f"{c.rule} {c.what}")
def test_each_change_can_be_made(change: Change, tmp_path: Path) -> None:
    file = tmp_path / change.file
    file.parent.mkdir()
    shutil.copy(ROOT / change.file, file)
    change.apply(tmp_path)
    compile(file.read_text(), change.file, "exec")


def test_a_copy_has_all_that_the_tests_need() -> None:
    done = run(None, "--collect-only", "-k", "_r1_", *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
