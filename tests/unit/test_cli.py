"""cli.main: where its output goes, and what becomes of what can't go there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.source import REPOSITORY

COMMAND = [sys.executable, "-m", "vgpu_hook"]


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    config = tmp_path / "vgpu-hook.toml"
    config.write_text(f"[paths]\nstate = '{tmp_path}/state'\nruntime = '{tmp_path}/run'\n")
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": request.param,
        "VGPU_HOOK_CONFIG": str(config),
    }


def shell(line: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which "$@" is the command."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *COMMAND], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("arguments", ["status", "quarantine --format json", "--help", "--version"])
def test_output_that_can_not_be_written_is_named(
    environment: dict[str, str], arguments: str
) -> None:
    done = shell(f'"$@" {arguments} >/dev/full', environment)
    assert done.stderr == "error: the output can't be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["status", "store set-aside", "--help"])
def test_a_command_does_its_work_without_any_of_the_three_streams(
    environment: dict[str, str], arguments: str, closed: str
) -> None:
    done = shell(f'"$@" {arguments} {closed}', environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout or ">&-" in closed.replace("2>&-", "")


def test_no_input_is_an_empty_one(environment: dict[str, str]) -> None:
    done = shell('"$@" render - <&-', environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["status", "--help"])
def test_who_reads_no_more_hears_no_more(environment: dict[str, str], arguments: str) -> None:
    done = shell(f'"$@" {arguments} | true; echo "${{PIPESTATUS[0]}}"', environment)
    assert done.stderr == ""
    assert done.stdout in ("0\n", "1\n")  # whether it was written before


def test_a_name_that_the_character_set_has_not_is_shown_all_the_same(
    environment: dict[str, str], tmp_path: Path
) -> None:
    xml = tmp_path / "vm.xml"
    text = "<domain type='kvm'><name>日本</name><uuid>{}</uuid></domain>"
    xml.write_text(text.format("19145e45-d55e-5f97-8b8c-b264ee7abc9b"), encoding="utf-8")
    done = shell(f'"$@" check-arrival {xml}', {**environment, "PYTHONIOENCODING": "latin-1"})
    assert "Traceback" not in done.stderr
    assert "\\u65e5\\u672c" in done.stdout
