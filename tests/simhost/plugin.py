"""pytest fixtures for the simulated host: `simhost` and `make_simhost`.

Use: `pytest_plugins = ["tests.simhost.plugin"]` in the top conftest.py (a test module is too late
for --strict-markers), or import the names in another conftest.py. A test, a class or `pytestmark`
that wants another host than mtty is marked `@pytest.mark.simhost("nvidia-t4")`. Without root or
/dev/fuse the tests fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .client import SimHost

MakeSimHost = Callable[..., SimHost]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simhost(host): the host file that the fixture simhost runs")


@pytest.fixture
def make_simhost() -> Iterator[MakeSimHost]:
    """A function as SimHost.start; what it started is stopped after the test."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.fail("the simulated host needs root and /dev/fuse")
    with ExitStack() as stack:

        def make(host: str | Path = "mtty", *, dev_links: str = "/dev") -> SimHost:
            return stack.enter_context(SimHost.start(host, dev_links=dev_links))

        yield make


@pytest.fixture
def simhost(request: pytest.FixtureRequest, make_simhost: MakeSimHost) -> SimHost:
    """A simulated host of the test's own."""
    marker = request.node.get_closest_marker("simhost")
    return make_simhost(*marker.args, **marker.kwargs) if marker else make_simhost()
