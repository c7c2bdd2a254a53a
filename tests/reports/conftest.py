"""Fixtures of the tests that are named after public reports: shared with other folders."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.simulated.arrivals", "tests.reports.calls", "tests.unit.test_migration"
)

from tests.simulated.conftest import kind  # noqa: E402 - not before asserts are rewritten
from tests.unit.test_migration import pair, ssh  # noqa: E402

__all__ = ["kind", "pair", "ssh"]
