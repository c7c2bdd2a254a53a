"""AppArmor and SELinux: do they let libvirt's daemon run the hook?

AppArmor: libvirt's profiles name the folder of hooks; /proc/PID/attr tells how a daemon is confined
(facts A12, G14). SELinux: the hook's label decides (docs/packaging.md). No boolean of the policy is
about our hook: virt_hooks_unconfined is for virtnetworkd's (facts/peers.md row 54).
"""

from __future__ import annotations

import errno
import os
import re

from vgpu_hook import sysfs
from vgpu_hook.doctor import units
from vgpu_hook.doctor.findings import HOOK, Finding, Report, Situation, run
from vgpu_hook.doctor.units import Running
from vgpu_hook.model import KernelError
from vgpu_hook.sysfs import Roots

PROFILES = "/etc/apparmor.d"
ENFORCE = " (enforce)"
EXECUTABLE = "vgpu_hook_exec_t"
"""The one type that our module (packaging/selinux/vgpu-hook.cil) lets libvirt's daemons run."""

MODULE = "install vgpu-hook-selinux (with pip: semodule -i packaging/selinux/vgpu-hook.cil)"


def apparmor(situation: Situation, profiles: str = PROFILES) -> list[Finding]:
    """Look whether a confined daemon's profile lets it execute what is in the folder of hooks."""
    report = Report("apparmor")
    roots = situation.settings.roots
    for daemon in units.libvirt_daemons(roots):
        label = _label(roots, daemon.pid)
        if not label.endswith(ENFORCE):
            if label:
                report.ok(daemon.name, f"AppArmor does not confine it ({label})")
            continue
        _profile(report, daemon, label.removesuffix(ENFORCE), situation.settings.hooks, profiles)
    return report.findings


def _label(roots: Roots, pid: int) -> str:
    """Return how AppArmor confines a process: `NAME (MODE)`, `unconfined`, or "" without it."""
    for name in ("attr/apparmor/current", "attr/current"):
        try:
            text = sysfs.read_text(os.path.join(roots.proc, str(pid), name))
        except KernelError as error:
            if error.code != errno.EINVAL:
                raise
            text = None  # a kernel without any active module answers so (fs/proc/base.c)
        if text is not None:
            # SELinux's contexts, user:role:type:level, are in `attr/current` too.
            return "" if text.count(":") >= 2 else text
    return ""


def _profile(report: Report, daemon: Running, label: str, hooks: str, profiles: str) -> None:
    file = os.path.join(profiles, f"usr.sbin.{daemon.name}")
    local = os.path.join(profiles, "local", os.path.basename(file))
    text = "\n".join(_text(path) for path in (file, local))
    if not text.strip():
        report.warning(label, f"the profile that confines {daemon.name} is not in {file}")
        return
    rules = [line for line in text.splitlines() if _lets_run(line, hooks)]
    if rules:
        report.ok(label, f"{daemon.name} is confined, and may run hooks ({rules[0].strip()})")
        return
    rule = f"{hooks}/** rmix,"
    fix = f"add to {local}: {rule} and {run('apparmor_parser', '-r', file)}"
    report.error(label, f"it does not let {daemon.name} run what is in {hooks}: no VM starts", fix)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _lets_run(line: str, hooks: str) -> bool:
    """Tell whether a rule gives leave to execute below the folder: `/PATH/** rmix,`."""
    found = re.match(r"\s*(\S+)\s+([a-zA-Z]+)\s*,", line)
    if found is None or "x" not in found[2]:
        return False
    return found[1].strip('"') in (f"{hooks}/**", f"{hooks}/{HOOK}", f"{hooks}/qemu.d/*")


def selinux(situation: Situation) -> list[Finding]:
    """Look whether SELinux is enforcing, and the hook has the label that libvirt may run."""
    report = Report("selinux")
    top = os.path.join(situation.settings.roots.sysfs, "fs/selinux")
    enforcing = sysfs.read_text(os.path.join(top, "enforce"))
    if enforcing is None:
        return report.findings
    if enforcing != "1":
        report.ok("SELinux", "it is permissive: what it would forbid is only in the audit log")
        return report.findings
    hook = os.path.join(situation.settings.hooks, HOOK)
    if not os.path.lexists(hook):
        return report.findings  # hook-file says so
    context = _context(hook)
    if context.split(":")[2:3] == [EXECUTABLE]:
        report.ok(hook, f"SELinux is enforcing, and its type is {EXECUTABLE}: libvirt may run it")
    else:
        text = f"SELinux is enforcing, and lets libvirt run it only as {EXECUTABLE}"
        text = f"{text}; its label is {context or 'none'}: no VM can start"
        report.error(hook, text, f"{MODULE}; then {run('restorecon', '-v', hook)}")
    return report.findings


def _context(path: str) -> str:
    """Return a file's context, user:role:type:level; "" if it has none."""
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return ""
        raise
