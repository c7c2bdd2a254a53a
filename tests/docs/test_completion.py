"""Completion in a bash, as it answers the tabulator key."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs import completion
from tests.docs.manual import arguments, commands
from vgpu_hook import cli

ASK = """
compopt() { echo "compopt $*" >>"$ASKED"; }
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_vgpu_hook
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """With a virsh that knows three domains, in a folder with two files."""
    virsh = tmp_path / "bin" / "virsh"
    virsh.parent.mkdir()
    virsh.write_text("#!/bin/sh\nprintf 'web\\nweb 2\\ndb\\n\\n'\n")
    virsh.chmod(0o755)
    (tmp_path / "a.xml").touch()
    (tmp_path / "b.xml").touch()
    return f"{virsh.parent}:{os.environ['PATH']}"


def complete(path: str, *words: str) -> list[str]:
    folder = Path(path.partition(":")[0]).parent
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", str(completion.TARGET), "vgpu-hook", *words],
        env={"PATH": path, "ASKED": str(folder / "asked")},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


def test_it_is_up_to_date() -> None:
    assert completion.TARGET.read_text() == completion.text(), "run: make docs"


def test_each_command_and_each_of_its_options_is_offered(path: str) -> None:
    tops = {command.name.split()[0] for command in commands(cli.parser())}
    assert set(complete(path, "")) == tops
    for command in commands(cli.parser()):
        options = {
            max(action.option_strings, key=len)
            for action in arguments(command.parser)
            if action.option_strings
        }
        assert set(complete(path, *command.name.split(), "--")) == options | {"--help"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["che"], ["check-migrate", "check-arrival"]),
        (["--v"], ["--version"]),
        (["store", ""], ["check", "set-aside"]),
        (["store", "s"], ["set-aside"]),
        (["attach", "--fork", ""], ["new", "none", "refuse"]),
        (["attach", "web", "--pl"], ["--placement"]),
        (["attach", "web", "--placement", "s"], ["spread"]),
        (["attach", ""], ["web", "web\\ 2", "db"]),
        (["attach", "web"], ["web", "web\\ 2"]),
        (["attach", "web\\ "], ["web\\ 2"]),
        (["attach", "--live", "d"], ["db"]),
        (["explain", "w"], ["web", "web\\ 2"]),
        (["attach", "--profile", ""], []),
        (["attach", "--slot", "w"], []),
        (["render", ""], ["a.xml", "b.xml", "asked", "bin"]),
        (["status", ""], []),
        (["status", "--format", "j"], ["json"]),
        (["detach", "--connect", ""], []),
        (["detach", "-c", ""], []),
    ],
    ids=str,
)
def test_what_is_offered(path: str, words: list[str], expected: list[str]) -> None:
    assert sorted(complete(path, *words)) == sorted(expected)


def test_a_virsh_that_fails_offers_nothing(path: str) -> None:
    virsh = Path(path.partition(":")[0]) / "virsh"
    virsh.write_text("#!/bin/sh\necho error: no libvirt >&2\nexit 1\n")
    assert complete(path, "attach", "") == []
