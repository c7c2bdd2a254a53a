"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.product import Product
from tests.simhost import SimHost

pytest_plugins = ["tests.simhost.plugin", "tests.testbed.plugin"]

# Examples may take as long as a loaded machine needs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def product(simhost: SimHost, tmp_path: Path) -> Product:
    """vgpu-hook on a simulated host; the marker `simhost` chooses which."""
    return Product(simhost, tmp_path)
