"""The checks of `vgpu-hook doctor` that need what no test host has: SELinux, AppArmor's labels,
systemd's own words, an old kernel. On plain folders in place of /sys, /proc and /etc/apparmor.d."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from vgpu_hook.config import Settings
from vgpu_hook.doctor import confinement, hypervisor, kernel, package, scripts, units
from vgpu_hook.doctor.findings import Finding, Report, Situation
from vgpu_hook.frameworks import gpus
from vgpu_hook.model import MDEV, VENDOR_VFIO, Parent
from vgpu_hook.sysfs import Roots

REPOSITORY = Path(__file__).resolve().parents[2]
PID = 4711
PROFILE = """
profile libvirtd /usr/sbin/libvirtd flags=(attach_disconnected) {
  #include <abstractions/base>
  /usr/bin/* PUx,
  /etc/libvirt/hooks/** rmix,
}
"""


class Host:
    """A plain folder with what a check looks at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profiles = folder / "apparmor.d"
        roots = Roots(*(str(folder / name) for name in ("sys", "proc", "dev", "journal")))
        self.situation = Situation(Settings(roots=roots), "qemu:///system")
        for name in ("sys", "proc", "dev/vfio"):
            (folder / name).mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid: int, comm: str, ticks: int = 100) -> None:
        self.write(f"proc/{pid}/comm", f"{comm}\n")
        fields = ["S", "1", *["0"] * 17, str(ticks), "0", "0"]
        self.write(f"proc/{pid}/stat", f"{pid} ({comm}) {' '.join(fields)}\n")

    def systemctl(self, text: str, status: int = 0) -> None:
        self.write("answer", text)
        self.write("bin/systemctl", f"#!/bin/sh\ncat {self.folder}/answer; exit {status}\n")
        (self.folder / "bin/systemctl").chmod(0o755)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    made.systemctl("System has not been booted with systemd as init system\n", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return made


def severities(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in found]


# -- systemd and /proc ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "reloaded", "looked"),
    [
        ("@1700000000", "n/a", 1_700_000_000),
        ("@1700000000", "@1700000100", 1_700_000_100),
        ("Tue 2023-11-14 22:13:20 UTC", "Tue 2023-11-14 22:15:00 UTC", 1_700_000_100),
        ("", "", 0),
    ],
)
def test_a8_a_daemon_has_looked_at_its_start_or_at_its_last_reload(
    host: Host, start: str, reloaded: str, looked: float
) -> None:
    host.systemctl(
        f"ActiveState=active\nMainPID={PID}\nExecMainStartTimestamp={start}\n"
        "ExecReload={ path=/bin/kill ; argv[]=/bin/kill -HUP $MAINPID ; ignore_errors=no ;"
        f" start_time=[{reloaded}] ; stop_time=[{reloaded}] ; pid=8 ; code=exited ; status=0 }}\n"
    )
    found = units.libvirt_daemons(host.situation.settings.roots)
    assert [(d.name, d.pid, d.looked) for d in found] == [
        ("libvirtd", PID, looked),
        ("virtqemud", PID, looked),
    ]
    assert found[1].reload == "run: systemctl reload virtqemud.service"


@pytest.mark.parametrize("answer", ["ActiveState=inactive\nMainPID=0\n", ""])
def test_a_daemon_that_is_not_active_for_systemd_is_looked_for_in_proc(
    host: Host, answer: str
) -> None:
    host.systemctl(answer)
    assert units.libvirt_daemons(host.situation.settings.roots) == []
    host.process(PID, "virtqemud", ticks=0)
    host.process(7, "virtlogd")
    host.write("proc/8/comm", "libvirtd\n")  # it ends while it is looked at
    (found,) = units.libvirt_daemons(host.situation.settings.roots)
    assert (found.name, found.pid, found.reload) == ("virtqemud", PID, f"run: kill -HUP {PID}")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert found.looked == pytest.approx(booted, abs=5)


def test_where_there_is_no_systemctl(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(host.folder / "none"))
    assert units.show("libvirtd.service", "ActiveState") is None


# -- AppArmor ---------------------------------------------------------------------------


def apparmor(host: Host) -> list[Finding]:
    return confinement.apparmor(host.situation, str(host.profiles))


@pytest.mark.parametrize("attribute", ["attr/apparmor/current", "attr/current"])
def test_a12_a_profile_that_lets_hooks_run(host: Host, attribute: str) -> None:
    host.process(PID, "libvirtd")
    host.write(f"proc/{PID}/{attribute}", "libvirtd (enforce)\n")
    host.write("apparmor.d/usr.sbin.libvirtd", PROFILE)
    assert severities(apparmor(host)) == [("apparmor", "ok")]


@pytest.mark.parametrize(
    "rule", ["", "#/etc/libvirt/hooks/** rmix,", "/etc/libvirt/hooks/** rm,", "/etc/** rw,"]
)
def test_a12_a_profile_that_does_not(host: Host, rule: str) -> None:
    host.process(PID, "libvirtd")
    host.write(f"proc/{PID}/attr/current", "libvirtd (enforce)\n")
    text = PROFILE.replace("/etc/libvirt/hooks/** rmix,", rule)
    host.write("apparmor.d/usr.sbin.libvirtd", text)
    (found,) = apparmor(host)
    assert found.severity == "error"
    local = f"{host.profiles}/local/usr.sbin.libvirtd"
    assert f"add to {local}: /etc/libvirt/hooks/** rmix," in found.fix
    assert f"run: apparmor_parser -r {host.profiles}/usr.sbin.libvirtd" in found.fix
    host.write("apparmor.d/local/usr.sbin.libvirtd", "  /etc/libvirt/hooks/** rmix,\n")
    assert severities(apparmor(host)) == [("apparmor", "ok")]


@pytest.mark.parametrize("label", ["unconfined", "libvirtd (complain)"])
def test_a_daemon_that_apparmor_does_not_confine(host: Host, label: str) -> None:
    host.process(PID, "libvirtd")
    host.write(f"proc/{PID}/attr/current", f"{label}\n")
    assert severities(apparmor(host)) == [("apparmor", "ok")]


def test_a_profile_that_is_nowhere_is_told(host: Host) -> None:
    host.process(PID, "libvirtd")
    host.write(f"proc/{PID}/attr/current", "libvirtd (enforce)\n")
    assert severities(apparmor(host)) == [("apparmor", "warning")]


def test_selinux_contexts_are_no_labels_of_apparmor(host: Host) -> None:
    host.process(PID, "virtqemud")
    host.write(f"proc/{PID}/attr/current", "system_u:system_r:virtqemud_t:s0\0")
    assert apparmor(host) == []


@pytest.fixture
def without_modules() -> None:
    """This machine must be a host without an active security module."""
    try:
        Path("/proc/self/attr/current").read_bytes()
    except OSError as error:
        if error.errno == errno.EINVAL:
            return
    pytest.skip("a security module is active here: the kernel has an answer")


@pytest.mark.usefixtures("without_modules")
def test_a_kernel_without_a_security_module_answers_einval(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real /proc: an error of the kernel that means that nothing is confined."""
    daemon = units.Running("libvirtd", os.getpid(), 0.0, "")
    monkeypatch.setattr(units, "libvirt_daemons", lambda _: [daemon])
    assert confinement.apparmor(Situation(Settings(), "qemu:///system")) == []


# -- SELinux ----------------------------------------------------------------------------


def selinux(host: Host, enforce: str, label: str | None) -> list[Finding]:
    """The hook's label is set for real: root may do so whether SELinux is in use or not."""
    host.write("sys/fs/selinux/enforce", enforce)
    # The policy's boolean is not about our hook, whatever it says.
    host.write("sys/fs/selinux/booleans/virt_hooks_unconfined", "1 1")
    host.write("hooks/qemu.d/50-vgpu-hook", "#!/bin/sh\n")
    if label is not None:
        hook = host.folder / "hooks/qemu.d/50-vgpu-hook"
        os.setxattr(hook, "security.selinux", f"{label}\0".encode())
    settings = host.situation.settings._replace(hooks=str(host.folder / "hooks"))
    return confinement.selinux(host.situation._replace(settings=settings))


def label_of_the_module() -> str:
    """What our SELinux module gives the hook."""
    module = (REPOSITORY / "packaging/selinux/vgpu-hook.cil").read_text()
    (words,) = re.findall(
        r'\(filecon "/etc/libvirt/hooks/qemu\\\.d/50-vgpu-hook" file\s+\((\S+ \S+ \S+) ', module
    )
    return ":".join([*words.split(), "s0"])


@pytest.mark.parametrize(
    "label",
    [
        None,
        "system_u:object_r:virt_hook_t:s0",  # what Fedora's policy has for libvirt's hooks
        "system_u:object_r:bin_t:s0",
        "unconfined_u:object_r:etc_t:s0",
        "system_u:object_r:not_vgpu_hook_exec_t:s0",
        "odd",
    ],
)
def test_selinux_lets_libvirt_run_the_hook_only_under_our_modules_label(
    host: Host, label: str | None
) -> None:
    (found,) = selinux(host, "1", label)
    hook = host.folder / "hooks/qemu.d/50-vgpu-hook"
    assert (found.severity, found.object) == ("error", str(hook))
    assert (label or "none") in found.text
    assert "install vgpu-hook-selinux" in found.fix
    module = found.fix.partition("semodule -i ")[2].partition(")")[0]
    assert (REPOSITORY / module).is_file()
    assert found.fix.endswith(f"then run: restorecon -v {hook}")


def test_selinux_with_the_label_of_our_module(host: Host) -> None:
    assert severities(selinux(host, "1", label_of_the_module())) == [("selinux", "ok")]


def test_selinux_where_it_forbids_nothing(host: Host) -> None:
    assert confinement.selinux(host.situation) == []
    assert severities(selinux(host, "0", None)) == [("selinux", "ok")]


# -- the kernel -------------------------------------------------------------------------


def on_parents(host: Host, *parents: Parent) -> list[Finding]:
    return kernel.check(host.situation._replace(parents=parents))


def test_vfs_without_an_iommu_group(host: Host) -> None:
    vfs = [Parent(VENDOR_VFIO, f"0000:41:00.{n}", "0000:41:00.0", ()) for n in (4, 5)]
    host.write("sys/bus/pci/devices/0000:41:00.4/iommu_group/type", "DMA\n")
    found = {f.check: f for f in on_parents(host, *vfs) if f.severity == "error"}
    assert "1 of 2 VFs have no IOMMU group (0000:41:00.5)" in found["iommu"].text
    assert "intel_iommu=on" in found["iommu"].fix


@pytest.mark.parametrize("driver", [True, False])
def test_d3_a_kernel_whose_vfio_mdev_is_a_module_of_its_own(host: Host, *, driver: bool) -> None:
    (host.folder / "sys/bus/mdev/drivers").mkdir(parents=True)
    if driver:
        (host.folder / "sys/bus/mdev/drivers/vfio_mdev").mkdir()
    found = [f for f in on_parents(host, Parent(MDEV, "mtty", "mtty", ())) if f.check == "modules"]
    assert [f.fix for f in found] == ([] if driver else ["run: modprobe vfio_mdev"])


def test_a_host_without_vfio(host: Host) -> None:
    (host.folder / "dev/vfio").rmdir()
    found = [f for f in on_parents(host, Parent(MDEV, "mtty", "mtty", ())) if f.check == "modules"]
    assert [(f.severity, f.fix) for f in found] == [("error", "run: modprobe vfio-pci")]


def test_the_place_of_sriov_manage_is_the_same_wherever_it_is_named() -> None:
    """It is on nobody's PATH."""
    for name in (
        "README.md",
        "docs/migrating.md",
        "etc/vgpu-hook.toml",
        "docs/man/vgpu-hook.toml.5.rst",
    ):
        text = (REPOSITORY / name).read_text()
        named = re.findall(r"[\w/]*sriov-manage", text)
        assert set(named) == {gpus.SRIOV_MANAGE}, name


# -- versions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("libvirt", "qemu", "release", "found"),
    [
        (11_003_000, 10_000_000, "6.12.43+deb13-amd64", []),
        (9_000_000, 7_002_000, "6.1.0-42-amd64", ["QEMU 7.2.0"]),
        (8_005_000, 8_001_000, "6.1.0", ["libvirt 8.5.0", "libvirt 8.5.0"]),
        (9_000_000, 8_001_000, "5.15.0-101-generic", ["kernel 5.15.0-101-generic"]),
        (9_000_000, 8_001_000, "odd", []),
    ],
)
def test_c4_versions_that_can_move_no_running_vm(
    host: Host, libvirt: int, qemu: int, release: str, found: list[str]
) -> None:
    report = Report("versions")
    hypervisor.versions(report, host.situation, libvirt, qemu, release)
    assert [f.object for f in report.findings if f.severity != "ok"] == found


# -- other scripts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("virsh start other", "error"),
        ("exec /usr/bin/virsh -c qemu:///system list", "error"),
        ("import libvirt", "error"),
        ("    from libvirt import open", "error"),
        ("conn = libvirt.openReadOnly(None)", "error"),
        ("virt-xml $1 --edit --memory 512", "error"),
        ("# virsh start other", "ok"),
        ("ls /etc/libvirt/hooks", "ok"),
        ("systemctl start mdevctl", "warning"),
        ("echo 1 > /sys/bus/mdev/devices/$UUID/remove", "warning"),
        ("echo 558 > nvidia/current_vgpu_type", "warning"),
    ],
)
def test_a10_what_a_script_does(host: Host, line: str, severity: str) -> None:
    hooks = host.folder / "hooks"
    host.write("hooks/qemu", f"#!/bin/sh\n{line}\n")
    (hooks / "qemu").chmod(0o755)
    settings = host.situation.settings._replace(hooks=str(hooks))
    (found,) = scripts.check(host.situation._replace(settings=settings))
    assert (found.severity, found.object) == (severity, str(hooks / "qemu"))


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("10-x.dpkg-new", "error"),
        ("10-x.rpmsave", "error"),
        ("10-x~", "error"),
        ("10-x.bak", "error"),
        (".10-x.swp", "error"),
        ("10-x.sh", "ok"),
    ],
)
def test_a7_left_over_copies_that_libvirt_runs(host: Host, name: str, severity: str) -> None:
    host.write(f"hooks/qemu.d/{name}", "#!/bin/sh\n")
    path = host.folder / "hooks/qemu.d" / name
    path.chmod(0o755)
    settings = host.situation.settings._replace(hooks=str(host.folder / "hooks"))
    (found,) = scripts.check(host.situation._replace(settings=settings))
    assert found.severity == severity
    assert found.fix == (f"run: chmod a-x {shlex.quote(str(path))}" if severity == "error" else "")


# -- modules of Python that are not there -----------------------------------------------


def without(
    module: str, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run vgpu-hook where that module can't be imported; all that it has is in the folder."""
    absent = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
    (folder / f"{module}.py").write_text(absent)
    config = folder / "vgpu-hook.toml"
    paths = {"hooks": folder / "hooks", "state": folder / "state", "runtime": folder / "run"}
    config.write_text("[paths]\n" + "".join(f"{k} = '{v}'\n" for k, v in paths.items()))
    ours = {"PYTHONPATH": f"{folder}:{REPOSITORY}", "VGPU_HOOK_CONFIG": str(config)}
    return subprocess.run(
        [sys.executable, "-m", "vgpu_hook", *arguments],
        env={**os.environ, **ours, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("module", "checks"),
    [
        ("libvirt", {"libvirt"}),
        ("lxml", {"hook-python", "daemon", "gpus", "libvirt"}),
        ("pydantic", {"config"}),
    ],
)
def test_a_missing_module_is_a_finding_that_names_its_package(
    tmp_path: Path, module: str, checks: set[str]
) -> None:
    hooks = tmp_path / "hooks"
    (hooks / "qemu.d").mkdir(parents=True)
    shutil.copy(REPOSITORY / "hooks/qemu", hooks / "qemu.d/50-vgpu-hook")
    (hooks / "qemu.d/50-vgpu-hook").chmod(0o755)
    # The hook's Python is started so that it would not see the test's folder.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ]; shift; exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    doctor = ["doctor", "--connect", "none:///", "--format", "json"]
    done = without(module, tmp_path, *doctor, VGPU_HOOK_PYTHON=str(python))
    assert (done.returncode, done.stderr) == (1, "")
    found = [Finding(**finding) for finding in json.loads(done.stdout)["findings"]]
    assert {f.check for f in found} >= {"hook-file", "hook-python", "other-hooks", "daemon"}
    those = [f for f in found if f"No module named '{module}'" in f.text]
    assert {f.check for f in those} == checks
    assert {f.severity for f in those} == {"error"}
    pip = Path(sys.executable).with_name("pip")  # of the virtual environment that this runs in
    assert pip.exists()
    here = f"run: {pip} install {'libvirt-python' if module == 'libvirt' else module}"
    there = f"run: apt-get install python3-{module} (Debian), or dnf install python3-{module} "
    for f in those:  # the hook's Python is a file outside of any virtual environment
        assert f.fix.startswith(there) if f.check == "hook-python" else f.fix == here


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("libvirt", ["attach", "vm", "--profile", "mtty-1"]),
        ("lxml", ["status"]),
        ("pydantic", ["status"]),
        ("libvirt", ["record"]),
        ("lxml", ["boot-gate"]),
    ],
)
def test_a_command_that_misses_a_module_says_which_and_what_installs_it(
    tmp_path: Path, module: str, command: list[str]
) -> None:
    done = without(module, tmp_path, *command)
    advice = package.missing(module, sys.executable)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: No module named '{module}'; {advice}\n"


def test_what_installs_a_module_is_what_our_packages_depend_on() -> None:
    control = (REPOSITORY / "packaging/deb/debian/control").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = [re.split(r"\W* ?[<>=]", name)[0] for name in project["dependencies"]]
    for name, on_pypi in package.MODULES.values():
        assert re.search(rf"^ {name}\b", control, re.MULTILINE)
        assert on_pypi in required
