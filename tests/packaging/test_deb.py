"""The .deb: lintian, and what dpkg does with it on a copy of this machine's file system.

The copy is an overlay in a mount namespace, which ends with it. `systemctl` only notes what it is
asked for there, as if this machine had systemd and a libvirtd that runs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.source import REPOSITORY

HOOK = "etc/libvirt/hooks/qemu.d/50-vgpu-hook"
STATE = "var/lib/vgpu-hook"
OURS = ("vgpu-hookd.service", "vgpu-hookd.socket", "vgpu-hook-boot.service")
DOCS = {"NEWS.md", "README.md", "SECURITY.md", "migrating.md", "packaging.md"}

SYSTEMCTL = """#!/bin/sh
echo "$*" >>/asked
case "$*" in
*is-enabled*) echo enabled ;;
*--root=*) exec systemctl.real "$@" ;;
esac
"""
MOUNT = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
mount -t tmpfs none "$1/root/run"
mount --rbind /dev "$1/root/dev"
mount --rbind /proc "$1/root/proc"
mkdir -p "$1/root/run/systemd/system"
cp "$2" "$1/root/package.deb"
rm -rf "$1/root/usr/sbin/policy-rc.d" "$1/root/var/lib/vgpu-hook" "$1/root/etc/vgpu-hook"
rm -rf "$1/root/etc/libvirt/hooks"
mv "$1/root/usr/bin/systemctl" "$1/root/usr/bin/systemctl.real"
echo ready
exec sleep infinity
"""


class Machine:
    """A copy of this one, in the mount namespace of a process."""

    def __init__(self, folder: Path, deb: Path) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(folder), str(deb)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "ready\n"
        self._root = str(folder / "root")
        self.put("usr/bin/systemctl", SYSTEMCTL, 0o755)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.kill()
        self._keeper.wait()

    def shell(self, script: str, *arguments: str, text: str | None = None) -> str:
        """Run a script in it; return what it prints. It must succeed."""
        program = ["chroot", self._root, "/bin/sh", "-ec", script, "sh", *arguments]
        enter = ["nsenter", "--mount", "--target", str(self._keeper.pid)]
        done = subprocess.run(
            [*enter, *program],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        script = 'mkdir -p "$(dirname "/$1")"; rm -f "/$1"; cat >"/$1"; chmod "$2" "/$1"'
        self.shell(script, path, f"{mode:o}", text=text)

    def dpkg(self, *arguments: str) -> str:
        """Run dpkg; systemctl's list begins anew."""
        self.shell("rm -f /asked")
        return self.shell('dpkg "$@" </dev/null', *arguments)

    def install(self) -> str:
        return self.dpkg("--install", "/package.deb")

    def asked(self) -> list[str]:
        """What systemctl was asked for, but for whether something is so."""
        lines = self.shell("cat /asked 2>/dev/null || true").splitlines()
        return [line for line in lines if " is-" not in f" {line}"]

    def mode(self, path: str) -> str:
        """The type and mode of a file; empty if there is none."""
        return self.shell('stat -c %A "/$1" 2>/dev/null || true', path).strip()


def touched(asked: list[str]) -> set[str]:
    """Units that were started, stopped or otherwise changed; all but those that are reloaded."""
    changing = ("start", "stop", "restart", "try-restart", "kill", "isolate")
    lines = [line.split() for line in asked if set(line.split()) & set(changing)]
    return {word for line in lines for word in line if "." in word}


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    build = [str(REPOSITORY / "packaging/deb/build.sh"), str(folder)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
def machine(deb: Path, tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.fail("the copy of this machine needs root")
    with Machine(tmp_path, deb) as running:
        yield running


def test_lintian_has_nothing_to_say(deb: Path) -> None:
    lintian = ["lintian", "--allow-root", "--pedantic", "-I", str(deb)]
    done = subprocess.run(lintian, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_in_it(deb: Path) -> None:
    done = subprocess.run(["dpkg", "-c", str(deb)], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    files = {row[5].removeprefix("./"): row[0] for row in rows if not row[5].endswith("/")}
    assert files[HOOK] == "-rwxr-xr-x"
    assert files["etc/vgpu-hook/vgpu-hook.toml"] == "-rw-r--r--"
    assert files["usr/bin/vgpu-hook"] == "-rwxr-xr-x"
    expected = {
        *(f"lib/systemd/system/{unit}" for unit in OURS),
        "usr/lib/tmpfiles.d/vgpu-hook.conf",
        "usr/share/bash-completion/completions/vgpu-hook",
        "usr/share/man/man5/vgpu-hook.toml.5.gz",
        "usr/share/man/man8/vgpu-hook.8.gz",
        "usr/share/man/man8/vgpu-hookd.8.gz",
    }
    assert expected <= {name.removeprefix("usr/lib/systemd") for name in files} | set(files)
    docs = {Path(name).name.removesuffix(".gz") for name in files if "/doc/" in name}
    assert docs >= DOCS
    assert not [name for name in files if "/vgpu_hook/files/" in name or "/tests/" in name]


def test_it_is_installed_and_only_ours_is_started(machine: Machine) -> None:
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    asked = machine.asked()
    assert touched(asked) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert [line for line in asked if "reload " in line and "daemon-reload" not in line] == [
        "reload libvirtd.service",
        "reload virtqemud.service",
    ]
    enabled = "find /etc/systemd/system -name 'vgpu-hook*' -printf '%f\\n'"
    assert set(machine.shell(enabled).split()) == set(OURS)
    assert machine.shell("vgpu-hook --version") == "vgpu-hook 0.1.0\n"
    nothing = "echo '<domain/>' | /etc/libvirt/hooks/qemu.d/50-vgpu-hook a prepare begin -"
    assert machine.shell(nothing) == ""


def test_an_upgrade_keeps_the_hook_the_settings_and_the_store(machine: Machine) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    machine.put("etc/vgpu-hook/vgpu-hook.toml", "[policy]\nplacement = 'pack'\n")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"
    assert "pack" in machine.shell("cat /etc/vgpu-hook/vgpu-hook.toml")
    asked = machine.asked()
    assert touched(asked) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert not [line for line in asked if "libvirtd" in line or "virtqemud" in line]


def test_removal_takes_the_hook_out_of_use_and_nothing_of_libvirts_is_touched(
    machine: Machine,
) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    machine.dpkg("--remove", "vgpu-hook")
    assert machine.mode(HOOK) == "-rw-r--r--"
    assert touched(machine.asked()) == {"vgpu-hookd.service", "vgpu-hookd.socket"}
    assert not machine.mode("usr/bin/vgpu-hook")
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"


def test_the_hook_is_out_of_use_before_what_it_needs_goes_away(machine: Machine) -> None:
    """dpkg runs the prerm first: what it leaves is seen there, with all files still in place."""
    machine.install()
    seen = "[ -x /etc/libvirt/hooks/qemu.d/50-vgpu-hook ] && echo used >/seen || echo unused >/seen"
    machine.shell(f"echo '{seen}' >>/var/lib/dpkg/info/vgpu-hook.prerm")
    machine.dpkg("--remove", "vgpu-hook")
    assert machine.shell("cat /seen") == "unused\n"


def test_installed_again_after_a_removal_the_hook_is_in_use_again(machine: Machine) -> None:
    machine.install()
    machine.dpkg("--remove", "vgpu-hook")
    machine.install()
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert "reload libvirtd.service" in machine.asked()


def test_a_hook_that_the_admin_has_put_out_of_use_stays_so(machine: Machine) -> None:
    machine.install()
    machine.shell(f"chmod a-x /{HOOK}")
    machine.install()
    assert machine.mode(HOOK) == "-rw-r--r--"


def test_the_new_version_of_a_changed_hook_is_not_executable(machine: Machine) -> None:
    """libvirt would run both."""
    machine.install()
    changed = f"echo '# mine' >>/{HOOK}; md5sum /{HOOK}"
    machine.shell(changed)
    # Another version brings another hook: here the installed one is said to have been another.
    status = "sed -i 's,^ /etc/libvirt/hooks/qemu.d/50-vgpu-hook .*,"
    machine.shell(f"{status} /{HOOK} 0123456789abcdef0123456789abcdef,' /var/lib/dpkg/status")
    machine.dpkg("--force-confold", "--install", "/package.deb")
    assert machine.mode(HOOK) == "-rwxr-xr-x"
    assert machine.mode(f"{HOOK}.dpkg-dist") == "-rw-r--r--"


def test_purge_says_what_it_leaves(machine: Machine) -> None:
    machine.install()
    machine.put(f"{STATE}/store.db", "a store")
    said = machine.dpkg("--purge", "vgpu-hook")
    assert "vgpu-hook: left in place: /var/lib/vgpu-hook, the record of its vGPUs." in said
    assert "vgpu-hook: when no vGPU is left: rm -r /var/lib/vgpu-hook" in said
    assert machine.shell(f"cat /{STATE}/store.db") == "a store"
    assert not machine.mode(HOOK)
    assert not machine.mode("etc/vgpu-hook")
    assert machine.shell("find /etc/systemd/system -name 'vgpu-hook*'") == ""


def test_purge_leaves_nothing_where_nothing_is_on_record(machine: Machine) -> None:
    machine.install()
    said = machine.dpkg("--purge", "vgpu-hook")
    assert "left in place" not in said
    assert not machine.mode(STATE)
