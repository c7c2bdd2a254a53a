"""Fixtures of the tests on simulated hosts."""

from __future__ import annotations

import pytest

from tests.simhost import SimHost
from tests.simulated.kinds import KINDS, Kind


@pytest.fixture(
    params=[pytest.param(k, marks=pytest.mark.simhost(k.host), id=k.name) for k in KINDS]
)
def kind(request: pytest.FixtureRequest, simhost: SimHost) -> Kind:
    """Each framework in turn, on its simulated host: the one that `product` works on."""
    framework: type[Kind] = request.param
    return framework(simhost)
