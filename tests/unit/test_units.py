"""packaging/systemd: what systemd itself says of our units."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = sorted((REPOSITORY / "packaging" / "systemd").iterdir())
MOST_EXPOSED = 20
"""The limit of `systemd-analyze security`, in tenths."""


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """The units with programs that this machine has: `verify` looks for them."""
    for unit in UNITS:
        text = unit.read_text().replace("/usr/bin/vgpu-hook", "/usr/bin/python3")
        (tmp_path / unit.name).write_text(text)
    return sorted(tmp_path.iterdir())


def test_systemd_has_nothing_to_say_of_the_units(installed: list[Path]) -> None:
    done = analyze("verify", "--man=no", *installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_say_what_is_wrong(installed: list[Path]) -> None:
    service = next(unit for unit in installed if unit.name == "vgpu-hookd.service")
    service.write_text(service.read_text().replace("ProtectHome=", "ProtectHomes="))
    assert "ProtectHomes" in analyze("verify", "--man=no", *installed).stderr


def test_the_daemon_is_exposed_no_more_than_it_must_be() -> None:
    service = REPOSITORY / "packaging" / "systemd" / "vgpu-hookd.service"
    ask = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", service)
    done = analyze(*ask)
    assert done.returncode == 0, done.stdout
    assert "Overall exposure level for vgpu-hookd.service" in done.stdout


@pytest.mark.parametrize("option", ["ProtectKernelTunables", "ProtectProc", "ProcSubset"])
def test_nothing_hides_from_the_daemon_what_it_works_with(option: str) -> None:
    """Vetoed for good: each would blind the guard, or make /sys read-only."""
    lines = (REPOSITORY / "packaging" / "systemd" / "vgpu-hookd.service").read_text().splitlines()
    assert not [line for line in lines if line.startswith(f"{option}=")]
