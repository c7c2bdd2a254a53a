"""A store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_hook import store_file
from vgpu_hook.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = store_file.open_store(str(tmp_path), "test", wait=5)
    assert opened is not None
    yield opened
    opened.close()
