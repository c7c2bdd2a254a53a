"""Fixtures of tests/crash, which `make soak` runs beside, and the model's closing lines."""

from __future__ import annotations

import pytest

from tests.crash.conftest import kind, world
from tests.model import conftest as model

__all__ = ["kind", "world"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    model.pytest_terminal_summary(terminalreporter)
