"""libvirt, QEMU and the kernel: does libvirt answer, and what can't these versions do?

Which version brought what: facts C3 (VFs on their own driver), C4 (moving a running VM's device).
"""

from __future__ import annotations

import os
import re
from typing import Any

import libvirt

from vgpu_hook.commands import VFS_SINCE
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.migration import (
    KERNEL_MIGRATES,
    LIBVIRT_CROSSES,
    LIBVIRT_MIGRATES,
    QEMU_MIGRATES,
)
from vgpu_hook.model import MDEV, VENDOR_VFIO, VgpuError

OLDEST_LIBVIRT = 9_000_000
UPGRADE = "upgrade it; until then, VMs can be stopped, and migrated with virsh migrate --offline"


def check(situation: Situation) -> list[Finding]:
    """Ask libvirt for the versions, and compare them with what each feature needs."""
    report = Report("libvirt")
    try:
        connection = Libvirt(situation.uri).connection
        own, qemu = connection.getLibVersion(), connection.getVersion()
    except VgpuError as error:
        fix = f"run: systemctl start libvirtd (or virtqemud); then: virsh -c {situation.uri} list"
        report.error(situation.uri, error.message, fix)
        return report.findings
    except libvirt.libvirtError as error:
        fix = run("virsh", "-c", situation.uri, "version")
        report.error(situation.uri, f"it gives no version: {error.get_error_message()}", fix)
        return report.findings
    release = os.uname().release
    report.ok(situation.uri, f"libvirt {text(own)} answers, with QEMU {text(qemu)} on {release}")
    report.check = "versions"
    versions(report, situation, own, qemu, release)
    return report.findings


def versions(report: Report, situation: Situation, own: int, qemu: int, release: str) -> None:
    """Add what libvirt, QEMU and the kernel of these versions can't do."""
    before = len(report.findings)
    libvirt_, fix = f"libvirt {text(own)}", "upgrade libvirt"
    if own < OLDEST_LIBVIRT:
        report.error(libvirt_, f"vgpu-hook needs {text(OLDEST_LIBVIRT)}", fix)
    frameworks = {p.framework for p in situation.parents or () if not p.state}
    if VENDOR_VFIO in frameworks and own < VFS_SINCE:
        text_ = f"it can't start VMs on VFs that stay on NVIDIA's driver: {text(VFS_SINCE)} can"
        report.error(libvirt_, text_, fix)
    if {MDEV, VENDOR_VFIO} <= frameworks and own < LIBVIRT_CROSSES:
        text_ = f"a VM can't go from a mediated device to a VF: {text(LIBVIRT_CROSSES)} can"
        report.warning(libvirt_, text_, fix)
    kernel = kernel_version(release)
    needs: tuple[tuple[str, Any, str], ...] = (
        (libvirt_, own < LIBVIRT_MIGRATES, text(LIBVIRT_MIGRATES)),
        (f"QEMU {text(qemu)}", qemu < QEMU_MIGRATES, text(QEMU_MIGRATES)),
        (f"kernel {release}", kernel is not None and kernel < KERNEL_MIGRATES, "5.18"),
    )
    for subject, old, since in needs:
        if old:
            text_ = f"VMs with a vGPU can't be saved or migrated while they run: {since} can"
            report.warning(subject, text_, UPGRADE)
    if len(report.findings) == before:
        report.ok(libvirt_, "these versions can do all that vgpu-hook does")


def kernel_version(release: str) -> tuple[int, int] | None:
    """Return the first two numbers of a kernel's release; None if it has none."""
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", release)
    return (int(found[1]), int(found[2])) if found else None


def text(version: int) -> str:
    """Return one of libvirt's version numbers as people write it."""
    return f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}"
