"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.product import Product
from tests.simhost import SimHost
from vgpu_hook.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["tests.simhost.plugin", "tests.testbed.plugin"]

# Examples may take as long as a loaded machine needs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def product(simhost: SimHost, tmp_path: Path) -> Product:
    """vgpu-hook on a simulated host; the marker `simhost` chooses which."""
    return Product(simhost, tmp_path)


@pytest.fixture(autouse=True)
def nothing_of_ours_on_this_machine() -> Iterator[None]:
    """What runs without a configuration of the test's own would use this machine's folder."""
    state = Path(Settings().state)
    was = state.exists()
    yield
    assert state.exists() == was, f"a test ran the product with this machine's {state}"
