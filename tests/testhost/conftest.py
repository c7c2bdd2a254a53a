"""The test host with the vGPUs of one framework, for tests that hold for both."""

from __future__ import annotations

import pytest

from tests.testbed.plugin import Testbed
from tests.testhost.kinds import KINDS, Kind


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest, testbed: Testbed) -> Kind:
    """One framework on a test host that is clean at the start of the module."""
    made: Kind = KINDS[request.param](testbed.clean_host())
    return made
