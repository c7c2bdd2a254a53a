"""`vgpu-hook install-hook`: what it puts where, what it refuses, and how it takes it out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environment import PLACE, PYTHON, Environment
from tests.packaging.source import REPOSITORY
from vgpu_hook.installation import CONFIG, HOOK, MARK, PARTS, SERVICES, UNITS, text_of
from vgpu_hook.interpreter import HIDDEN

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.make(tmp_path_factory.mktemp("opt") / "vgpu-hook")


@pytest.fixture
def install(environment: Environment) -> Install:
    return lambda root, *options: environment.vgpu_hook("install-hook", "--root", root, *options)


def files(root: Path) -> dict[str, int]:
    """Everything below a folder that is no folder, with its mode."""
    found = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(root)): path.lstat().st_mode & 0o7777 for path in found}


EXPECTED = {**{part.target: part.mode for part in PARTS}, CONFIG: 0o644}


def test_everything_is_put_in_place(install: Install, tmp_path: Path) -> None:
    done = install(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == EXPECTED
    assert EXPECTED[HOOK] == 0o755
    assert (tmp_path / CONFIG).read_text() == (REPOSITORY / "etc/vgpu-hook.toml").read_text()
    for line in ("systemctl daemon-reload", f"systemctl enable {' '.join(SERVICES)}"):
        assert f"\n  {line}\n" in done.stdout
    assert "\n  systemctl reload libvirtd.service " in done.stdout


def test_again_makes_it_as_it_should_be_and_keeps_the_settings(
    install: Install, tmp_path: Path
) -> None:
    install(tmp_path)
    first = (tmp_path / HOOK).read_text()
    (tmp_path / HOOK).write_text(f"#!/bin/sh\n{MARK}exit 0\n")
    (tmp_path / CONFIG).write_text("[policy]\nplacement = 'pack'\n")
    done = install(tmp_path)
    assert done.returncode == 0
    assert (tmp_path / HOOK).read_text() == first
    assert files(tmp_path) == EXPECTED
    assert (tmp_path / CONFIG).read_text() == "[policy]\nplacement = 'pack'\n"
    assert f"{tmp_path / CONFIG} is kept as it is." in done.stdout


def test_a_hook_that_was_put_out_of_use_stays_so(install: Install, tmp_path: Path) -> None:
    install(tmp_path)
    whole = (tmp_path / HOOK).read_text()
    (tmp_path / HOOK).write_text(f"#!/bin/sh\n{MARK}exit 0\n")
    (tmp_path / HOOK).chmod(0o644)
    done = install(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {**EXPECTED, HOOK: 0o644}
    assert (tmp_path / HOOK).read_text() == whole
    assert f"chmod +x {tmp_path / HOOK}" in done.stdout


@pytest.mark.parametrize("target", [part.target for part in PARTS])
@pytest.mark.parametrize("kind", ["another", "link"])
def test_what_somebody_else_put_there_is_never_overwritten(
    install: Install, tmp_path: Path, target: str, kind: str
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
def test_a_host_that_has_the_package_is_left_alone(
    install: Install, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "vgpu-hookd.service").touch()
    before = files(tmp_path)
    done = install(tmp_path)
    assert done.returncode == 1
    assert "vgpu-hook is installed from a package here" in done.stderr
    assert files(tmp_path) == before


def test_other_hooks_stay_and_so_do_changed_settings_when_it_is_removed(
    install: Install, tmp_path: Path
) -> None:
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


def test_the_hook_is_removed_first_and_nothing_of_it_stays(
    install: Install, tmp_path: Path
) -> None:
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
    # The repository itself may be in a folder that is root's alone.
    shutil.copytree(REPOSITORY / "vgpu_hook", tmp_path / "vgpu_hook")
    command = ["/usr/bin/python3", "-c", RUN, str(tmp_path), str(root)]
    done = subprocess.run(command, user=65534, group=65534, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {root}/etc/")
    assert done.stderr.endswith("Permission denied; run it as root\n")


RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from vgpu_hook import cli, installation
installation.interpreter.check = lambda python, package: None
sys.exit(cli.main(["install-hook", "--root", sys.argv[2]]))
"""
"""As a user who may read the code; its package is not where that user's Python looks."""


def test_a_root_that_is_not_there_is_named(install: Install, tmp_path: Path) -> None:
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


def test_what_others_put_beside_the_settings_stays_and_the_rest_goes(
    install: Install, tmp_path: Path
) -> None:
    install(tmp_path)
    other = (tmp_path / CONFIG).with_suffix(".toml.bak")
    other.write_text("of an editor\n")
    done = install(tmp_path, "--remove")
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path).keys() == {str(other.relative_to(tmp_path))}
    assert f"{other.parent} is left in place, with what is not of this command: " in done.stdout
    assert other.name in done.stdout
    assert "\n  systemctl stop vgpu-hookd.socket vgpu-hookd.service\n" in done.stdout


def owned(path: Path) -> None:
    os.lchown(path, 65534, 65534)


def writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def linked(path: Path) -> None:
    """Has a link of somebody else on the way to the Python."""
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    owned(path)


BAD = [
    (owned, "bin/python3", "uid 65534"),
    (owned, "bin", "uid 65534"),
    (linked, "bin", "uid 65534"),
    (owned, "pyvenv.cfg", "uid 65534"),
    (owned, "lib/python3*/site-packages", "uid 65534"),
    (owned, "lib/python3*/site-packages/vgpu_hook/hook.py", "uid 65534"),
    (writable, "", "can write to"),
    (writable, "bin", "can write to"),
    (writable, "pyvenv.cfg", "can write to"),
    (writable, "lib/python3*/site-packages", "can write to"),
    (writable, "lib/python3*/site-packages/vgpu_hook", "can write to"),
    (writable, "lib/python3*/site-packages/vgpu_hook/frameworks/mdev.py", "can write to"),
]


@pytest.mark.parametrize(("spoil", "part", "said"), BAD)
def test_code_that_others_can_change_is_not_made_roots(
    environment: Environment, tmp_path: Path, spoil: Callable[[Path], None], part: str, said: str
) -> None:
    """Who can write there would be root at the next start of a VM."""
    shutil.copytree(environment.folder, tmp_path / "copy", symlinks=True)
    copy = Environment(tmp_path / "copy")
    (path,) = copy.folder.glob(part) if part else [copy.folder]
    spoil(path)
    root = tmp_path / "root"
    root.mkdir()
    done = copy.vgpu_hook("install-hook", "--root", root)
    assert done.returncode == 1
    named = f"{PLACE}/{path.relative_to(copy.folder)}".removesuffix("/.")
    assert re.search(rf"{re.escape(named)} .*{said}|{said} {re.escape(named)} ", done.stderr)
    assert files(root) == {}
    (advice,) = re.findall(r"(?:run|as root): (.*)", done.stderr)
    if spoil is writable:  # what it says mends it
        assert copy.run("sh", "-ec", advice).returncode == 0
        assert copy.vgpu_hook("install-hook", "--root", root).returncode == 0
    else:
        assert advice == f"rm -r {PLACE} && python3 -m venv --system-site-packages {PLACE}"


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_place_that_the_unit_hides_from_the_daemon_is_refused(
    environment: Environment, tmp_path: Path, hidden: str
) -> None:
    """Its ExecStart= would fail for ever."""
    bind = 'mount -t tmpfs -o mode=0755 none "$1"; mkdir "$1/x"; mount --bind "$2" "$1/x"; shift 2'
    root = Path("/opt/root")
    script = f'mkdir -p "$1" {root}; {bind}; exec "$@"'
    own = f"{hidden}/x/bin/python3"
    command = ["sh", "-ec", script, "sh", hidden, PLACE, own, "-I", "-B", "-m", "vgpu_hook"]
    done = environment.run(*command, "install-hook", "--root", root)
    assert done.returncode == 1
    assert f"vgpu-hookd's unit may not look into {hidden}; install it, as root" in done.stderr


def test_what_is_refused_is_what_the_unit_hides() -> None:
    unit = (REPOSITORY / "packaging/systemd/vgpu-hookd.service").read_text().splitlines()
    home = {"/home", "/root", "/run/user"} if "ProtectHome=yes" in unit else set()
    temporary = {"/tmp", "/var/tmp"} if "PrivateTmp=yes" in unit else set()
    assert set(HIDDEN) == home | temporary


SELINUX = """
mount -t tmpfs none /sys
mkdir -p /sys/fs/selinux
echo 1 >/sys/fs/selinux/enforce
for folder in /etc/systemd/system /etc/tmpfiles.d /etc/libvirt /etc/vgpu-hook; do
    mkdir -p $folder
    mount -t tmpfs none $folder
done
exec "$@"
"""
"""A host with SELinux, as far as install-hook can see, whose own files stay as they are."""

LABEL = "system_u:object_r:vgpu_hook_exec_t:s0"
TOOLS = {
    "matchpathcon": 'echo "system_u:object_r:$(cat "$0.type"):s0"',
    "semodule": '[ -s "$2" ] && echo vgpu_hook_exec_t >"${0%/*}/matchpathcon.type"',
}


def test_where_selinux_is_the_hook_has_its_label_or_is_not_there(
    environment: Environment, tmp_path: Path
) -> None:
    """A hook that libvirt may not run refuses the start of each VM."""
    for name, text in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "matchpathcon.type").write_text("virt_hook_t")
    path = {"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"}
    shown = f"import os; print(os.getxattr('/{HOOK}', 'security.selinux'))"
    hook = f"{PYTHON} -I -B -m vgpu_hook install-hook"

    def on_host(script: str) -> subprocess.CompletedProcess[str]:
        return environment.run("sh", "-ec", SELINUX, "sh", "sh", "-ec", script, env=path)

    refused = on_host(f"{hook} || [ -e /{HOOK} ] || exit 7")
    assert refused.returncode == 7
    assert f"SELinux's policy has no label for /{HOOK}" in refused.stderr
    assert refused.stdout == "", "nothing was written"
    (advice,) = re.findall(r"and try again: (.*)", refused.stderr)
    # There is no SELinux here: that the module can be loaded is not shown.
    done = on_host(f'{advice}; {hook}; {hook}; python3 -c "{shown}"')
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == repr(LABEL.encode() + b"\0")


def test_where_selinux_forbids_nothing_the_hook_is_in_place(
    environment: Environment, tmp_path: Path
) -> None:
    """Debian without AppArmor has SELinux on, and neither a policy nor its tools."""
    script = SELINUX.replace("echo 1 >", "echo 0 >")
    hook = f"{PYTHON} -I -B -m vgpu_hook install-hook"
    for said in ("exit 1", "echo system_u:object_r:virt_hook_t:s0"):
        done = environment.run(
            "sh", "-ec", script, "sh", "sh", "-ec", f"{hook}; test -x /{HOOK}",
            env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (tmp_path / "matchpathcon").write_text(f"#!/bin/sh\n{said}\n")
        (tmp_path / "matchpathcon").chmod(0o755)


def test_where_selinux_is_without_its_tools_they_are_named(
    environment: Environment, tmp_path: Path
) -> None:
    for name in ("unshare", "sh", "mount", "mkdir"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = environment.run(
        "sh", "-ec", SELINUX, "sh", PYTHON, "-I", "-B", "-m", "vgpu_hook", "install-hook",
        env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "no matchpathcon, which tells the hook's label; install libselinux-utils" in done.stderr
