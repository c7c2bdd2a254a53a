"""Makes the fixtures of plugin.py known to the tests in this directory."""

from __future__ import annotations

from .plugin import make_simhost, pytest_configure, simhost

__all__ = ["make_simhost", "pytest_configure", "simhost"]
