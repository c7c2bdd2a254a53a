"""Fixtures of the tests that are named after public reports: shared with other folders."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.simulated.arrivals",
    "tests.reports.calls",
    "tests.simlibvirt.doctor",
    "tests.unit.test_doctor",
    "tests.unit.test_migration",
)

from tests.simlibvirt.conftest import (  # noqa: E402 - not before asserts are rewritten
    compare,
    profile,
    server,
    simulation,
)
from tests.simlibvirt.test_doctor import patient  # noqa: E402
from tests.simulated.conftest import kind  # noqa: E402
from tests.unit.test_doctor import host  # noqa: E402
from tests.unit.test_migration import pair, ssh  # noqa: E402

__all__ = ["compare", "host", "kind", "pair", "patient", "profile", "server", "simulation", "ssh"]
