"""The fixture `world`, and the figures that the tests leave, shown at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.commands import Admin
from tests.crash.world import World
from tests.product import Product
from tests.simulated.conftest import kind
from tests.simulated.kinds import KINDS, Kind

__all__ = ["kind"]

only_mdev, only_vfs = (
    pytest.mark.parametrize(
        "kind",
        [pytest.param(one, marks=pytest.mark.simhost(one.host), id=one.name)],
        indirect=True,
    )
    for one in KINDS
)
"""For what is the same on both frameworks, and costs too much to be done twice."""

ALL = os.environ.get("CRASH_POINTS") == "all"
"""Whether each point is tried: `make soak` has time for it."""


def step(number: int) -> int:
    """Return which points are tried: every `number`th, or all."""
    return 1 if ALL else number


FIGURE = "crash figure"
"""The name of a property of a test: one line of figures (pytest's record_property)."""


@pytest.fixture
def world(product: Product, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("VGPU_HOOK_CONFIG", str(product.config))
    return World(product, kind, tmp_path)


@pytest.fixture
def given(world: World, tmp_path: Path) -> Iterator[Admin]:
    """Somebody who gives commands, beside a libvirt that answers them."""
    admin = Admin(world, tmp_path)
    with admin.server:
        yield admin


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures, which xdist's workers send along with the reports of their tests."""
    lines = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == FIGURE
    ]
    if lines:
        terminalreporter.section("crash points and faults")
        for line in sorted(lines):
            terminalreporter.write_line(line)
