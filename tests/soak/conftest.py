"""Fixtures of tests/crash, which `make soak` runs beside, and the model's closing lines."""

from __future__ import annotations

import pytest

from tests.crash.conftest import kind, world
from tests.model import conftest as model

__all__ = ["kind", "world"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failure when it happens: the rest may take hours, and be stopped."""
    if report.failed:
        print(report.longreprtext, flush=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    model.pytest_terminal_summary(terminalreporter)
