"""The product on a simulated host, under a simulated libvirtd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.product import Product

from .contract import compare, server
from .simulation import Simulation

__all__ = ["compare", "server"]


@pytest.fixture
def profile() -> str:
    """One that the host has; tests on another host say which."""
    return "mtty-2"


@pytest.fixture
def simulation(product: Product, tmp_path: Path, profile: str) -> Iterator[Simulation]:
    """No domain, no daemon yet."""
    with Simulation(product, tmp_path, profile) as running:
        yield running
