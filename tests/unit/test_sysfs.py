"""The canonical path of something in sysfs, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpu_hook import sysfs
from vgpu_hook.model import KernelError


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device's folder, and the link to it that its bus has."""
    real = tmp_path / "devices" / "mtty" / "of it"
    real.mkdir(parents=True)
    link = tmp_path / "bus"
    link.symlink_to("devices/mtty/of it")
    return link


def test_links_are_followed_to_the_end(device: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(device)
    real = str(tmp_path / "devices" / "mtty" / "of it")
    for path in (device, tmp_path / "again", tmp_path / "devices" / ".." / "bus"):
        assert sysfs.resolve(str(path)) == real == os.path.realpath(path)


@pytest.mark.parametrize("left", ["nothing", "the link", "a file in its way"])
def test_what_is_gone_is_none(device: Path, left: str) -> None:
    device.resolve().rmdir()
    if left == "nothing":
        device.unlink()
    elif left == "a file in its way":
        device.resolve().write_text("")
        device = device / "deeper"
    assert sysfs.resolve(str(device)) is None


def test_what_goes_meanwhile_is_none(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, opening = device.resolve(), os.open

    def and_gone(path: str, flags: int) -> int:
        fd = opening(path, flags)
        real.rmdir()
        return fd

    monkeypatch.setattr(os, "open", and_gone)
    assert sysfs.resolve(str(device)) is None


def test_what_cannot_be_told_is_not_gone(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    round_and_round = device.with_name("round")
    round_and_round.symlink_to("round")
    with pytest.raises(KernelError, match=r"resolving .*/round: .*ELOOP"):
        sysfs.resolve(str(round_and_round))
    monkeypatch.setattr(sysfs, "OWN_FILES", "/proc/self/none")
    with pytest.raises(KernelError, match=r"resolving .*/bus: .*ENOENT"):
        sysfs.resolve(str(device))


def test_no_file_is_left_open(device: Path) -> None:
    before = os.listdir("/proc/self/fd")
    sysfs.resolve(str(device))
    assert os.listdir("/proc/self/fd") == before
