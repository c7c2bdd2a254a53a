"""Says what the model's runs covered, also when they ran in other processes (xdist)."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "covered":
                    terminalreporter.write_line(str(value))
