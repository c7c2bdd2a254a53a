"""`vgpu-hook install-hook`: what it puts where, what it refuses, and how it takes it out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.source import REPOSITORY
from vgpu_hook.installation import CONFIG, HOOK, MARK, PARTS, SERVICES, UNITS, text_of

PYTHON = "/opt/vgpu-hook/bin/python3"


def install(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-m", "vgpu_hook", "install-hook", "--root", str(root)]
    return subprocess.run([*command, *options], capture_output=True, text=True)


def files(root: Path) -> dict[str, int]:
    """Everything below a folder that is no folder, with its mode."""
    found = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(root)): path.lstat().st_mode & 0o7777 for path in found}


EXPECTED = {**{part.target: part.mode for part in PARTS}, CONFIG: 0o644}


def test_everything_is_put_in_place(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == EXPECTED
    assert EXPECTED[HOOK] == 0o755
    assert (tmp_path / CONFIG).read_text() == (REPOSITORY / "etc/vgpu-hook.toml").read_text()
    for line in ("systemctl daemon-reload", f"systemctl enable {' '.join(SERVICES)}"):
        assert f"\n  {line}\n" in done.stdout
    assert "\n  systemctl reload libvirtd.service " in done.stdout


def test_again_makes_it_as_it_should_be_and_keeps_the_settings(tmp_path: Path) -> None:
    install(tmp_path)
    first = (tmp_path / HOOK).read_text()
    (tmp_path / HOOK).write_text(f"#!/bin/sh\n{MARK}exit 0\n")
    (tmp_path / HOOK).chmod(0o644)
    (tmp_path / CONFIG).write_text("[policy]\nplacement = 'pack'\n")
    done = install(tmp_path)
    assert done.returncode == 0
    assert (tmp_path / HOOK).read_text() == first
    assert files(tmp_path) == EXPECTED
    assert (tmp_path / CONFIG).read_text() == "[policy]\nplacement = 'pack'\n"
    assert f"{tmp_path / CONFIG} is kept as it is." in done.stdout


@pytest.mark.parametrize("target", [part.target for part in PARTS])
@pytest.mark.parametrize("kind", ["another", "link"])
def test_what_somebody_else_put_there_is_never_overwritten(
    tmp_path: Path, target: str, kind: str
) -> None:
    path = tmp_path / target
    path.parent.mkdir(parents=True)
    if kind == "another":
        path.write_text("#!/bin/sh\nexit 7\n")
    else:  # a link that leads nowhere, or to one of ours, is not ours
        path.symlink_to("/nonexistent")
    before = files(tmp_path)
    done = install(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path} was not put there by `vgpu-hook install-hook`")
    assert files(tmp_path) == before
    removed = install(tmp_path, "--remove")
    assert f"{path} was not put there by this command, and is left alone." in removed.stdout
    assert files(tmp_path) == before


@pytest.mark.parametrize("folder", ["usr/lib/systemd/system", "lib/systemd/system"])
def test_a_host_that_has_the_package_is_left_alone(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "vgpu-hookd.service").touch()
    before = files(tmp_path)
    done = install(tmp_path)
    assert done.returncode == 1
    assert "vgpu-hook is installed from a package here" in done.stderr
    assert files(tmp_path) == before


def test_other_hooks_stay_and_so_do_changed_settings_when_it_is_removed(tmp_path: Path) -> None:
    other = tmp_path / HOOK.replace("50-vgpu-hook", "20-other")
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\n")
    state = tmp_path / "var/lib/vgpu-hook"
    state.mkdir(parents=True)
    (state / "store.db").touch()
    install(tmp_path)
    wants = tmp_path / UNITS / "multi-user.target.wants"
    wants.mkdir()
    (wants / "vgpu-hookd.service").symlink_to("../vgpu-hookd.service")
    (wants / "other.service").symlink_to("../other.service")
    with (tmp_path / CONFIG).open("a") as file:
        file.write("# mine\n")
    done = install(tmp_path, "--remove")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(files(tmp_path)) == {
        str(other.relative_to(tmp_path)),
        CONFIG,
        "var/lib/vgpu-hook/store.db",
        f"{UNITS}/multi-user.target.wants/other.service",
    }
    assert f"{tmp_path / CONFIG} was changed, and is left in place." in done.stdout
    assert f"rm -r {state}" in done.stdout
    assert "\n  systemctl stop vgpu-hookd.socket vgpu-hookd.service\n" in done.stdout


def test_the_hook_is_removed_first_and_nothing_of_it_stays(tmp_path: Path) -> None:
    install(tmp_path)
    done = install(tmp_path, "--remove")
    assert done.stdout.startswith(f"{tmp_path / HOOK} was removed.\n")
    assert files(tmp_path) == {}
    assert install(tmp_path, "--remove").stdout == "Nothing was there to be removed.\n"


def test_who_may_not_write_there_is_told_so(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o711)
    command = ["/usr/bin/python3", "-c", RUN, str(REPOSITORY), str(root)]
    done = subprocess.run(command, user=65534, group=65534, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {root}/etc/")
    assert done.stderr.endswith("Permission denied; run it as root\n")


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from vgpu_hook import cli, installation
installation._check_python = lambda python: None
sys.exit(cli.main(["install-hook", "--root", sys.argv[2]]))
"""
"""As a user who may read the repository; its package is not where that user's Python looks."""


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = install(tmp_path / "none")
    assert done.stderr == f"error: {tmp_path}/none is no folder\n"
    assert done.returncode == 1


def test_a_python_that_does_not_find_the_package_is_refused(tmp_path: Path) -> None:
    """As after `pip install --user`: the hook runs Python with -I."""
    elsewhere = "import sys; sys.path.insert(0, sys.argv[1]);"
    run = "from vgpu_hook import cli; sys.exit(cli.main(['install-hook', '--root', sys.argv[2]]))"
    command = ["/usr/bin/python3", "-c", elsewhere + run, str(REPOSITORY), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: `/usr/bin/python3 -I` does not find this vgpu-hook")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("part", PARTS, ids=[part.source for part in PARTS])
def test_each_file_names_the_python_that_it_is_for(part: object) -> None:
    source = part.source  # type: ignore[attr-defined]
    text = text_of(source, PYTHON)
    assert MARK in text
    assert "/usr/bin/python3" not in text
    assert "/usr/bin/vgpu-hook" not in text
    runs = source in ("qemu", "vgpu-hookd.service", "vgpu-hook-boot.service")
    assert text.count(PYTHON) == int(runs)
