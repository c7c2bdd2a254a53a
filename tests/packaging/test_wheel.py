"""What is uploaded to PyPI: built, checked, installed into a virtual environment, and used."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.domains import domain_xml
from tests.packaging.environment import PLACE, PYTHON, Environment
from tests.packaging.source import REPOSITORY
from tests.product import Product
from vgpu_hook.installation import MARK, PARTS

SOURCES = {
    "qemu": "hooks/qemu",
    "vgpu-hook.toml": "etc/vgpu-hook.toml",
    "tmpfiles.conf": "packaging/tmpfiles.conf",
    "vgpu-hook.cil": "packaging/selinux/vgpu-hook.cil",
    **{
        unit.name: f"packaging/systemd/{unit.name}"
        for unit in (REPOSITORY / "packaging" / "systemd").iterdir()
    },
}
HOOK = "etc/libvirt/hooks/qemu.d/50-vgpu-hook"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    target = tmp_path_factory.mktemp("source") / "dist"
    run(REPOSITORY / "packaging/pypi/build.sh", target)
    return target


@pytest.fixture(scope="module")
def venv(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Where the wheel is installed by the commands of docs/packaging.md, without network."""
    environment = Environment(tmp_path_factory.mktemp("opt") / "vgpu-hook")
    environment.folder.mkdir()
    page = (REPOSITORY / "docs/packaging.md").read_text()
    lines = re.findall(r"^# (.*(?:venv|/pip) .*)$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        done = environment.run("sh", "-ec", line, cwd=dist.parent, env={**os.environ, **ALONE})
        assert done.returncode == 0, done.stderr
    return environment


ALONE = {"PIP_NO_INDEX": "1", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def test_what_is_built_is_what_pypi_takes(dist: Path) -> None:
    names = sorted(path.name for path in dist.iterdir())
    assert len(names) == 2
    said = run("twine", "check", "--strict", *dist.iterdir())
    assert said.count("PASSED") == 2


def test_the_wheel_has_the_files_themselves(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("vgpu_hook/files/")}
        assert names == {f"vgpu_hook/files/{name}" for name in SOURCES}
        for name, source in SOURCES.items():
            assert archive.read(f"vgpu_hook/files/{name}") == (REPOSITORY / source).read_bytes()
        assert not [name for name in archive.namelist() if name.startswith("tests/")]


def test_the_sdist_has_what_a_packager_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {*SOURCES.values(), "LICENSE", "CHANGELOG.md", "docs/architecture.md"} <= inside
    assert "packaging/rpm/vgpu-hook.spec" in inside
    assert "packaging/deb/debian/control" in inside


def test_a_vm_gets_its_vgpu_by_an_installation_from_the_wheel(
    venv: Environment, product: Product, tmp_path: Path
) -> None:
    """libvirt gives its hook nothing but PATH and LC_ALL, so the hook itself names the Python."""
    root = tmp_path / "root"
    root.mkdir()
    said = run(*venv.command(f"{PLACE}/bin/vgpu-hook", "install-hook", "--root", root))
    assert "systemctl reload libvirtd.service" in said
    product.configure()
    a = domain_xml("a", {"0": "mtty-1"})

    def hook(operation: str, xml: bytes) -> subprocess.CompletedProcess[bytes]:
        environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
        environment["VGPU_HOOK_CONFIG"] = str(product.config)
        command = venv.command(root / HOOK, "a", operation, "begin", "-")
        return subprocess.run(command, input=xml, env=environment, cwd="/", capture_output=True)

    done = hook("prepare", a)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert product.rows() == [("a", "0", "assigned")]
    assert hook("stopped", a).returncode == 0
    assert product.rows() == []
    refused = hook("prepare", domain_xml("a", {"0": "no such"}))
    assert refused.returncode == 1
    assert b"profile 'no such' is not offered" in refused.stderr


def test_the_units_run_the_daemon_of_the_virtual_environment(
    venv: Environment, tmp_path: Path
) -> None:
    run(*venv.command(f"{PLACE}/bin/vgpu-hook", "install-hook", "--root", tmp_path))
    units = tmp_path / "etc/systemd/system"
    service = (units / "vgpu-hookd.service").read_text()
    (start,) = (line for line in service.splitlines() if line.startswith("ExecStart="))
    python, *arguments = start.removeprefix("ExecStart=").split()
    assert Path(python).parent == Path(PYTHON).parent
    assert arguments == ["-I", "-m", "vgpu_hook.daemon"]
    boot = (units / "vgpu-hook-boot.service").read_text()
    assert f"ExecStart=-{python} -I -m vgpu_hook boot-gate" in boot
    run(*venv.command("systemd-analyze", "verify", "--man=no", *sorted(units.iterdir())))
    assert all(MARK in (tmp_path / part.target).read_text() for part in PARTS)
