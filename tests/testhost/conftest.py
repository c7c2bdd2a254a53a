"""The test host with the vGPUs of one framework, for tests that hold for both."""

from __future__ import annotations

import pytest

from tests.testbed.plugin import Testbed
from tests.testhost.kinds import KINDS, Kind


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares a clean host on one worker: each worker has a test host of its own."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        kind = callspec.params.get("kind", "") if callspec is not None else ""
        module = item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(f"{module} {kind}"))


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest, testbed: Testbed) -> Kind:
    """One framework on a test host that is clean at the start of the module."""
    made: Kind = KINDS[request.param](testbed.clean_host())
    return made
