"""The man pages: up to date with the program, complete, and right for those who format them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.docs import manual
from vgpu_hook import cli, config_file
from vgpu_hook.config import Settings

PAGES = sorted(manual.MAN.glob("*.rst"))
RST2MAN_ITSELF = re.compile(
    # Docutils 0.19 writes these for every page; man-db and mandoc skip them.
    r"skipping paragraph macro: sp after S[HS]$|unknown font, skipping request: ft C$"
)


def page(source: Path, folder: Path) -> Path:
    target = folder / source.stem
    command = ["rst2man", "--halt=2", str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return target


def test_there_are_pages_for_the_command_the_daemon_and_the_settings() -> None:
    assert [source.stem for source in PAGES] == ["vgpu-hook.8", "vgpu-hook.toml.5", "vgpu-hookd.8"]


@pytest.mark.parametrize("source", PAGES, ids=[source.stem for source in PAGES])
def test_what_is_generated_is_up_to_date(source: Path) -> None:
    text = source.read_text()
    assert manual.written(text) == text, "run: make docs"


@pytest.mark.parametrize("source", PAGES, ids=[source.stem for source in PAGES])
def test_groff_and_mandoc_have_nothing_to_say(source: Path, tmp_path: Path) -> None:
    target = page(source, tmp_path)
    groff = ["groff", "-man", "-Tutf8", "-z", "-ww", str(target)]
    done = subprocess.run(groff, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    mandoc = ["mandoc", "-Tlint", "-W", "warning", str(target)]
    said = subprocess.run(mandoc, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in said if not RST2MAN_ITSELF.search(line)] == []


def test_each_command_and_option_is_in_the_manual(tmp_path: Path) -> None:
    """As a reader sees it, not as it was generated."""
    target = page(manual.MAN / "vgpu-hook.8.rst", tmp_path)
    done = subprocess.run(["mandoc", "-Tascii", str(target)], capture_output=True, check=True)
    text = re.sub(r".\x08", "", done.stdout.decode())
    found = list(manual.commands(cli.parser()))
    assert len(found) >= 16
    for command in found:
        assert re.search(rf"^       {command.name}\b", text, re.MULTILINE), command.name
        for action in manual.arguments(command.parser):
            for option in action.option_strings:
                assert re.search(rf"^  +(\S.*)?{option}\b", text, re.MULTILINE), option


def test_each_key_of_the_settings_is_in_the_manual_with_its_default(tmp_path: Path) -> None:
    """The defaults that the page gives are those that the program uses."""
    target = page(manual.MAN / "vgpu-hook.toml.5.rst", tmp_path)
    done = subprocess.run(["mandoc", "-Tascii", str(target)], capture_output=True, check=True)
    text = re.sub(r".\x08", "", done.stdout.decode())
    shown = text.partition("\nSECTIONS\n")[2].partition("\nEXAMPLE\n")[0]
    lines = []
    for part in re.split(r"\n(?=   \S|       \S)", shown):
        if heading := re.match(r"   (\[.*\])$", part, re.MULTILINE):
            lines.append(heading[1])
        words = " ".join(part.split())
        if entry := re.match(r"(\w+) = .* Default: (.*)", words):
            lines.append(f"{entry[1]} = {entry[2]}")
    given = "\n".join(lines)
    assert len(tomllib.loads(given)) == len(config_file.File.__annotations__)
    assert config_file.settings(given, "the manual") == Settings()
    for name, values in tomllib.loads(given).items():
        model = getattr(config_file, name.capitalize())
        keys = values["NAME"] if name == "gpu" else values
        assert set(keys) == set(model.__annotations__)
