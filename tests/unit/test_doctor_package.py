"""What `vgpu-hook doctor` says to put files back: the commands are run, by the real dpkg, apt, rpm
and install(1), on a package of two files and a root of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.product import REPOSITORY
from vgpu_hook.config import Settings
from vgpu_hook.doctor import hook_file, package, scripts
from vgpu_hook.doctor.findings import HOOK, Finding, Situation

VERSION = "1:0.1.0-1"
FILE = "vgpu-hook_0.1.0-1_all.deb"
CONTROL = f"""Package: vgpu-hook
Version: {VERSION}
Architecture: all
Maintainer: nobody <nobody@localhost>
Description: stands in for the real one
"""
WHOLE = "#!/bin/sh\n# the package's\n"
CHANGED = "#!/bin/sh\n# changed by hand\n"
SPEC = """Name: vgpu-hook
Version: 0.1.0
Release: 1
Summary: stands in for the real one
License: none
BuildArch: noarch
%description
%install
mkdir -p %{buildroot}/etc/libvirt/hooks/qemu.d
printf '#!/bin/sh\\n# the package\\047s\\n' >%{buildroot}/etc/libvirt/hooks/qemu.d/50-vgpu-hook
%files
%attr(0755,root,root) /etc/libvirt/hooks/qemu.d/50-vgpu-hook
"""


def follow(fix: str, folder: Path) -> None:
    """Do what a finding says; only where the hook is moved to is another place here."""
    for step in fix.split("; then "):
        shell(step.removeprefix("run: ").replace(f" {package.ASIDE}", f" {folder}/"), folder)


def shell(script: str, folder: Path) -> None:
    done = subprocess.run(["sh", "-ec", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"


class Machine:
    """A root of its own, in which packages are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.hooks = self.root / "etc/libvirt/hooks"
        self.hook = self.hooks / HOOK
        self.settings = self.root / "etc/vgpu-hook/vgpu-hook.toml"
        self.root.mkdir()

    def finding(self) -> Finding:
        """What doctor says of the hook's file; which is of no version that there is."""
        situation = Situation(Settings(hooks=str(self.hooks)), "qemu:///system")
        (found,) = hook_file.file(situation)
        assert found.severity == "error"
        return found

    def contents(self) -> list[str]:
        """All files below the hooks, with what is in them."""
        files = (path for path in sorted(self.hooks.rglob("*")) if not path.is_dir())
        return [f"{path.name}: {path.read_text()}" for path in files]


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The package was installed from a file. Only apt's own configuration is moved."""
    machine = Machine(tmp_path)
    made = tmp_path / "made"
    for name, text in (("DEBIAN/control", CONTROL), ("etc/vgpu-hook/vgpu-hook.toml", "# none\n")):
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(text)
    (made / "DEBIAN/conffiles").write_text(
        f"/etc/libvirt/hooks/{HOOK}\n/etc/vgpu-hook/vgpu-hook.toml\n"
    )
    hook = made / "etc/libvirt/hooks" / HOOK
    hook.parent.mkdir(parents=True)
    hook.write_text(WHOLE)
    hook.chmod(0o755)
    shell(
        f"""dpkg-deb --root-owner-group --build made {FILE}
        mkdir -p root/var/lib/dpkg/updates root/var/lib/dpkg/info root/tmp root/apt/lists/partial
        mkdir -p root/apt/archives/partial
        touch root/var/lib/dpkg/status root/var/lib/dpkg/available sources.list
        dpkg --root="$PWD/root" --log=/dev/null -i {FILE}""",
        tmp_path,
    )
    (tmp_path / "apt.conf").write_text(
        f'Dir::State "{machine.root}/apt"; Dir::Cache "{machine.root}/apt";'
        f' Dir::State::status "{machine.root}/var/lib/dpkg/status";'
        f' Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "-";'
        f' Dir::Etc::parts "-"; Dir::Etc::preferencesparts "-"; Dir::Log "{tmp_path}";'
        f' Dir::Etc::preferences "-"; APT::Sandbox::User "root"; Dpkg::Use-Pty "0";'
        f' Dpkg::Options {{ "--root={machine.root}"; "--log=/dev/null"; }}; DPkg::Post-Invoke "";'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.setenv("DPKG_ADMINDIR", str(machine.root / "var/lib/dpkg"))
    monkeypatch.setenv("DEBIAN_FRONTEND", "noninteractive")
    return machine


def repository(machine: Machine) -> None:
    """apt has the package from a repository, too."""
    file = machine.folder / "repository" / FILE
    file.parent.mkdir()
    (machine.folder / FILE).rename(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / "Packages").write_text(
        f"{CONTROL}Filename: ./{FILE}\nSize: {file.stat().st_size}\nSHA256: {digest}\n"
    )
    sources = machine.folder / "sources.list"
    sources.write_text(f"deb [trusted=yes] file:{file.parent} ./\n")
    shell("apt-get update", machine.folder)


def missing(machine: Machine) -> None:
    machine.hook.unlink()


def changed(machine: Machine) -> None:
    machine.hook.write_text(CHANGED)


def dangling(machine: Machine) -> None:
    machine.hook.unlink()
    machine.hook.symlink_to("/no/such/hook")


def no_file(machine: Machine) -> None:
    machine.hook.unlink()
    os.mkfifo(machine.hook)


Fault = Callable[[Machine], None]
FAULTS = pytest.mark.parametrize("fault", [missing, changed, dangling, no_file])


@FAULTS
def test_a_hook_of_a_deb_that_is_only_a_file_is_put_back(debian: Machine, fault: Fault) -> None:
    fault(debian)
    debian.settings.write_text("# the owner's\n")
    fix = debian.finding().fix
    assert f"./{FILE}" in fix
    follow(fix, debian.folder)
    assert debian.contents() == [f"50-vgpu-hook: {WHOLE}"]
    assert debian.settings.read_text() == "# the owner's\n"


@FAULTS
def test_a_hook_of_a_deb_of_a_repository_is_put_back(debian: Machine, fault: Fault) -> None:
    repository(debian)
    fault(debian)
    fix = debian.finding().fix
    assert fix.endswith(" vgpu-hook")
    follow(fix, debian.folder)
    assert debian.contents() == [f"50-vgpu-hook: {WHOLE}"]


def test_a_repository_with_another_version_is_no_help(debian: Machine) -> None:
    repository(debian)
    listed = debian.folder / "repository/Packages"
    listed.write_text(listed.read_text().replace(VERSION, "1:0.0.9-1"))
    shell("apt-get update", debian.folder)
    assert package.reinstall().endswith(f" ./{FILE}")


def test_a_package_that_was_removed_owns_nothing(debian: Machine) -> None:
    shell(f'dpkg --root="{debian.root}" --log=/dev/null -r vgpu-hook', debian.folder)
    assert package.reinstall() == "run: vgpu-hook install-hook"


@FAULTS
def test_a_hook_of_an_rpm_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "vgpu-hook.spec").write_text(SPEC)
    shell(
        """rpmbuild -bb --define "_topdir $PWD" --define "_rpmdir $PWD" \
            --define '_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm' vgpu-hook.spec
        rpm --root "$PWD/root" --dbpath /rpm -i vgpu-hook-0.1.0-1.noarch.rpm""",
        tmp_path,
    )
    # A machine where dpkg knows of nothing, and rpm's root is the machine's.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "rpm").write_text(
        f'#!/bin/sh\nexec /usr/bin/rpm --root {machine.root} --dbpath /rpm "$@"\n'
    )
    (programs / "rpm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("DPKG_ADMINDIR", str(tmp_path / "none"))
    fault(machine)
    fix = machine.finding().fix
    assert "run: dnf reinstall vgpu-hook; or, if no repository has it: rpm " in fix
    before, _, again = fix.partition("run: dnf reinstall vgpu-hook; or, if no repository has it: ")
    follow(f"{before}run: {again}", tmp_path)
    assert machine.contents() == [f"50-vgpu-hook: {WHOLE}"]


@FAULTS
def test_where_a_package_has_what_puts_the_hook_in_place_that_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """The real place-hook; only where libvirt's hooks are is another place here."""
    machine = Machine(tmp_path)
    share = tmp_path / "share"
    share.mkdir()
    (share / "qemu").write_text(f"{WHOLE}# vgpu_hook.hook\n")
    place = share / "place-hook"
    text = (REPOSITORY / "packaging/place-hook").read_text()
    assert text.count("hooks=/etc/libvirt/hooks\n") == 1
    place.write_text(text.replace("hooks=/etc/libvirt/hooks\n", f"hooks={machine.hooks}\n"))
    place.chmod(0o755)
    monkeypatch.setattr(package, "PLACE", str(place))
    shell(str(place), tmp_path)
    fault(machine)
    fix = machine.finding().fix
    assert fix.endswith(f"run: {place}")
    follow(fix, tmp_path)
    assert machine.contents() == [f"50-vgpu-hook: {WHOLE}# vgpu_hook.hook\n"]
    assert os.access(machine.hook, os.X_OK)


# -- links ------------------------------------------------------------------------------


def test_g14_a_hook_that_is_a_link_becomes_a_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    target = tmp_path / "libexec"
    target.write_text(CHANGED)
    machine.hook.parent.mkdir(parents=True)
    machine.hook.symlink_to(target)
    follow(machine.finding().fix, tmp_path)
    assert not machine.hook.is_symlink()
    assert (machine.hook.read_text(), machine.hook.stat().st_mode & 0o777) == (CHANGED, 0o755)
    assert target.read_text() == CHANGED


def test_g14_another_script_that_is_a_link_becomes_a_file(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    target = tmp_path / "it's"
    target.write_text("#!/bin/sh\n")
    target.chmod(0o755)
    link = machine.hook.with_name("10-x")
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    situation = Situation(Settings(hooks=str(machine.hooks)), "qemu:///system")
    (found,) = scripts.check(situation)
    assert (found.severity, found.object) == ("warning", str(link))
    follow(found.fix, tmp_path)
    assert not link.is_symlink()
    assert [f.severity for f in scripts.check(situation)] == ["ok"]
