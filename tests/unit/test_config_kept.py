"""The settings of a process that goes on: the file's, whatever happens to the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vgpu_hook import config
from vgpu_hook.config import Kept, Settings
from vgpu_hook.model import ConfigError

PACK = "[policy]\nplacement = 'pack'\n"
LONGER = "[deadlines]\nhook = 31\n"
SAME_LENGTH = "[deadlines]\nhook = 32\n"


class Reads:
    """How often the file was read; `later` is what the clock says beyond the real one."""

    def __init__(self) -> None:
        self.count = 0
        self.later = 60.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "vgpu-hook.toml"
    monkeypatch.setenv("VGPU_HOOK_CONFIG", str(found))
    return found


@pytest.fixture
def reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads, load, now = Reads(), config.load, time.time

    def counted() -> Settings:
        reads.count += 1
        return load()

    monkeypatch.setattr(config, "load", counted)
    monkeypatch.setattr(time, "time", lambda: now() + reads.later)
    return reads


def test_a_file_that_stays_as_it_is_is_read_once(path: Path, reads: Reads) -> None:
    path.write_text(PACK)
    kept = Kept()
    assert [kept.load().placement for _ in range(3)] == ["pack"] * 3
    assert reads.count == 1


def test_a_file_that_was_written_just_now_is_read_again(path: Path, reads: Reads) -> None:
    """It can be written twice within one step of the file system's clock."""
    reads.later = 0
    path.write_text(LONGER)
    kept = Kept()
    assert kept.load().hook_deadline == 31
    path.write_text(SAME_LENGTH)
    assert kept.load().hook_deadline == 32
    assert reads.count == 2


def test_any_change_is_seen(path: Path, reads: Reads, tmp_path: Path) -> None:
    path.write_text(LONGER)
    kept = Kept()
    assert kept.load().hook_deadline == 31
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock has steps
        path.write_text(SAME_LENGTH)  # in place, and made to look as old as it was
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept.load().hook_deadline == 32
    other = tmp_path / "other"
    other.write_text(LONGER)
    other.rename(path)  # as editors and configuration management do
    assert kept.load().hook_deadline == 31


def test_a_file_in_another_place_is_another_file(
    path: Path, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(LONGER)
    kept = Kept()
    assert kept.load().hook_deadline == 31
    other = tmp_path / "other"
    other.write_text(SAME_LENGTH)
    monkeypatch.setenv("VGPU_HOOK_CONFIG", str(other))
    assert kept.load().hook_deadline == 32


def test_what_is_wrong_is_told_each_time_until_it_is_mended(path: Path, reads: Reads) -> None:
    kept = Kept()
    for text in (None, "[policy]\nplacement = 'nowhere'\n"):
        if text is not None:
            path.write_text(text)
        for _ in range(2):
            with pytest.raises(ConfigError):
                kept.load()
    path.write_text(PACK)
    assert kept.load().placement == "pack"
    path.unlink()
    with pytest.raises(ConfigError, match="there is no such file"):
        kept.load()
