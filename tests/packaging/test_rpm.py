"""The rpm as far as Debian can tell, with stand-ins for Fedora's macros (docs/packaging.md)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.source import REPOSITORY

RPM = REPOSITORY / "packaging" / "rpm"
MODULE = REPOSITORY / "packaging" / "selinux" / "vgpu-hook.cil"
HOOK = "/etc/libvirt/hooks/qemu.d/50-vgpu-hook"

POLICY = """
(handleunknown deny) (mls true) (policycap open_perms)
(sid kernel) (sidorder (kernel)) (sidcontext kernel (u system_r kernel_t ((s0) (s0))))
(sensitivity s0) (sensitivityorder (s0)) (category c0) (categoryorder (c0))
(sensitivitycategory s0 (range c0 c0))
(user u) (userrole u system_r) (userlevel u (s0)) (userrange u ((s0) (s0)))
(user system_u) (userrole system_u object_r) (userlevel system_u (s0))
(userrange system_u ((s0) (s0)))
(role system_r) (role object_r) (roletype system_r kernel_t)
(type kernel_t) (type unconfined_service_t)
(typeattribute file_type) (typeattribute exec_type) (typeattribute entry_type)
(typeattribute non_security_file_type)
(common file (getattr ioctl read write append lock map open execute))
(class file (entrypoint execute_no_trans)) (classcommon file file)
(class fifo_file ()) (classcommon fifo_file file)
(class process (transition siginh rlimitinh sigkill signal sigchld))
(class fd (use))
(classorder (file fifo_file process fd))
(allow kernel_t kernel_t (process (signal)))
"""
"""A policy with little more than the names that the module takes from Fedora's."""


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rpm")
    run(RPM / "build.sh", folder)
    return {run("rpm", "-qp", "--qf", "%{NAME}", p): p for p in folder.glob("*.noarch.rpm")}


def test_rpmlint_has_nothing_to_say(rpms: dict[str, Path]) -> None:
    source = next(iter(rpms.values())).parent.glob("*.src.rpm")
    config = RPM / "rpmlint.toml"
    said = run("rpmlint", "--strict", "-c", config, *rpms.values(), *source, RPM / "vgpu-hook.spec")
    assert "0 errors, 0 warnings" in said


def test_what_is_in_it(rpms: dict[str, Path]) -> None:
    listed = run("rpm", "-qp", "--qf", r"[%{FILEMODES:perms} %{FILENAMES}\n]", rpms["vgpu-hook"])
    files = {name: mode for mode, name in (line.split() for line in listed.splitlines())}
    assert files["/usr/share/vgpu-hook/qemu"] == "-rwxr-xr-x"
    assert files["/usr/share/vgpu-hook/place-hook"] == "-rwxr-xr-x"
    # There rpm would have a second one beside it for a moment, which libvirt runs too.
    assert not [name for name in files if name.startswith("/etc/libvirt")]
    expected = {
        "/etc/vgpu-hook/vgpu-hook.toml",
        "/usr/bin/vgpu-hook",
        *(f"/usr/lib/systemd/system/{u.name}" for u in (RPM.parent / "systemd").iterdir()),
        "/usr/lib/tmpfiles.d/vgpu-hook.conf",
        "/usr/share/bash-completion/completions/vgpu-hook",
    }
    assert expected <= files.keys()
    pages = {"man5/vgpu-hook.toml.5", "man8/vgpu-hook.8", "man8/vgpu-hookd.8"}
    assert {f"/usr/share/man/{page}" for page in pages} <= {n.removesuffix(".gz") for n in files}
    package = {
        str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "vgpu_hook").rglob("*.py")
    }
    assert package <= {name.partition("/site-packages/")[2] for name in files}
    assert not [name for name in files if "/vgpu_hook/files/" in name or "/tests/" in name]
    documents = {"doctor.md", "metrics.md", "record.md", "vgpu-hook.rules.yml", "vgpu-hook.json"}
    assert documents <= {Path(name).name for name in files if "/doc/" in name}
    module = run("rpm", "-qpl", rpms["vgpu-hook-selinux"]).split()
    assert "/usr/share/selinux/packages/targeted/vgpu-hook.cil" in module


def test_what_it_requires(rpms: dict[str, Path]) -> None:
    required = run("rpm", "-qp", "--requires", rpms["vgpu-hook"]).splitlines()
    assert "perl-interpreter" in required
    assert "libvirt-daemon-driver-qemu >= 9.0" in required
    selinux = "(vgpu-hook-selinux = 0.1.0-1 if selinux-policy-targeted)"
    assert selinux in required


def test_structlog_is_not_required(rpms: dict[str, Path], tmp_path: Path) -> None:
    """Fedora's dependency generator reads the package's metadata, and Fedora has no structlog."""
    script = 'cd "$2" && rpm2cpio "$1" | cpio --quiet -idm "*/METADATA"'
    run("sh", "-c", script, "sh", rpms["vgpu-hook"], tmp_path)
    (metadata,) = tmp_path.rglob("METADATA")
    required = re.findall(r"^Requires-Dist: ([\w-]+)", metadata.read_text(), re.MULTILINE)
    assert required == ["libvirt-python", "lxml", "pydantic"]


def test_scriptlets_reload_libvirt_and_restart_nothing_of_it(rpms: dict[str, Path]) -> None:
    said = run("rpm", "-qp", "--scripts", rpms["vgpu-hook"])
    assert 'systemctl reload "$unit"' in said
    assert not re.search(r"systemctl (re)?start|try-restart|stop", said)
    before, taken_out, after = said.partition('rm -f "$hook"')
    assert taken_out
    assert f"hook={HOOK}\n" in before
    assert '[ -x "$hook" ]' in before.partition("preuninstall")[2]  # as the deb: else it stays
    posttrans = said.partition("posttrans")[2]
    assert "/usr/share/vgpu-hook/place-hook\n" in posttrans
    assert "preuninstall scriptlet" in before
    assert "systemd_preun vgpu-hookd.socket vgpu-hookd.service vgpu-hook-boot.service" in after
    module = run("rpm", "-qp", "--scripts", rpms["vgpu-hook-selinux"])
    assert "selinux_modules_install -s targeted /usr/share/selinux/packages/targeted" in module
    assert "selinux_modules_uninstall -s targeted vgpu-hook" in module


def test_an_installation_by_pip_stops_it_as_it_stops_the_deb(rpms: dict[str, Path]) -> None:
    """tests/packaging/test_deb.py runs it."""
    said = run("rpm", "-qp", "--scripts", rpms["vgpu-hook"])
    own = (REPOSITORY / "packaging/deb/debian/vgpu-hook.preinst").read_text()
    check = own[own.index("mark=") : own.index("\ndone\n")]
    assert "preinstall scriptlet" in said[: said.index(check)]


@pytest.mark.parametrize(
    "daemons", [(), ("virtqemud_t",), ("virtd_t",), ("virtqemud_t", "virtd_t")], ids=str
)
def test_the_selinux_module_compiles(tmp_path: Path, daemons: tuple[str, ...]) -> None:
    """With the types of either of libvirt's daemons, of both, and of none."""
    policy = tmp_path / "policy.cil"
    policy.write_text(POLICY + "".join(f"(type {name})" for name in daemons))
    output = ("-o", tmp_path / "policy", "-f", tmp_path / "contexts")
    run("secilc", *output, policy, MODULE)
    context = "system_u:object_r:vgpu_hook_exec_t:s0"
    labelled = r"/etc/libvirt/hooks/qemu\.d/50-vgpu-hook"
    assert (tmp_path / "contexts").read_text().split() == [labelled, "--", context]
    binary = (tmp_path / "policy").read_bytes()
    assert b"vgpu_hook_exec_t" in binary


def test_the_selinux_module_names_nothing_that_the_policy_has_not(tmp_path: Path) -> None:
    """So that the test above can fail."""
    policy = tmp_path / "policy.cil"
    policy.write_text(POLICY.replace("(type unconfined_service_t)", ""))
    command = ["secilc", "-o", str(tmp_path / "p"), "-f", str(tmp_path / "f")]
    done = subprocess.run([*command, str(policy), str(MODULE)], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"Failed to resolve allow statement at {MODULE}" in done.stdout + done.stderr
