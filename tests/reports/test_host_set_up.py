"""Reports of hosts on which no hook is run (docs/reports.md, rows 52 to 55).

`vgpu-hook doctor` tells it, and what it names as the fix is done as it stands, and is enough.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tests.simlibvirt.doctor import Finding, Patient
from tests.unit.test_doctor import (
    PID,
    PROFILE,
    Host,
    apparmor,
    label_of_the_module,
    selinux,
    severities,
)

DAY = 86400


def errors(patient: Patient) -> list[Finding]:
    return [finding for finding in patient.findings() if finding.severity == "error"]


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_gpu_passthrough_tutorial_5_a_hook_that_is_not_executable(
    patient: Patient, mode: int
) -> None:
    patient.hook.chmod(mode)
    (found,) = errors(patient)
    assert (found.check, found.object) == ("hook-file", str(patient.hook))
    assert "it is not executable, so that libvirt skips it" in found.text
    subprocess.run(shlex.split(found.fix.removeprefix("run: ")), check=True)
    assert errors(patient) == []


@pytest.mark.parametrize("reloaded", [None, 3600])
def test_gpu_passthrough_tutorial_37_a_libvirt_that_looked_before_the_hook_was_there(
    patient: Patient, reloaded: int | None
) -> None:
    started = time.time() - DAY
    patient.libvirtd(started=started, reloaded=reloaded and started + reloaded)
    (found,) = errors(patient)
    assert found.check == "hook-seen"
    assert "no call of it is on record: it does not call it" in found.text
    assert found.fix == "run: systemctl reload libvirtd.service"
    patient.libvirtd(started=started, reloaded=time.time() + 1)
    assert errors(patient) == []


@pytest.mark.parametrize("label", [None, "system_u:object_r:virt_hook_t:s0"])
def test_selinux_policy_pr_2195_a_hook_that_selinux_does_not_let_libvirt_run(
    host: Host, label: str | None
) -> None:
    (found,) = selinux(host, "1", label)
    assert (found.severity, found.object) == ("error", f"{host.folder}/hooks/qemu.d/50-vgpu-hook")
    assert f"its label is {label or 'none'}: no VM can start" in found.text
    assert "install vgpu-hook-selinux" in found.fix
    assert severities(selinux(host, "1", label_of_the_module())) == [("selinux", "ok")]


def test_vfio_isolate_4_a_profile_of_apparmor_that_does_not_let_libvirt_run_hooks(
    host: Host,
) -> None:
    host.process(PID, "libvirtd")
    host.write(f"proc/{PID}/attr/current", "libvirtd (enforce)\n")
    text = PROFILE.replace("/etc/libvirt/hooks/** rmix,", "")
    host.write("apparmor.d/usr.sbin.libvirtd", text)
    (found,) = apparmor(host)
    assert (found.severity, found.object) == ("error", "libvirtd")
    snippet = re.match(r"add to (\S+): (\S+ \w+,) and run: apparmor_parser -r ", found.fix)
    assert snippet is not None, found.fix
    local = Path(snippet[1])
    local.parent.mkdir()
    local.write_text(f"  {snippet[2]}\n")
    assert severities(apparmor(host)) == [("apparmor", "ok")]
