"""Fixtures and closing lines of the groups whose long runs are here."""

from __future__ import annotations

import pytest

from tests.crash import conftest as crash
from tests.crash.conftest import kind, world
from tests.model import conftest as model

__all__ = ["kind", "world"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for group in (model, crash):
        group.pytest_terminal_summary(terminalreporter)
