"""What else libvirt runs as a hook of QEMU's VMs: hooks/qemu, and everything in qemu.d.

libvirt runs every executable regular file there, whatever its name, in the order of their bytes,
the file `qemu` first (virHookCall; facts A7). It waits for each, and holds the VM meanwhile.
"""

from __future__ import annotations

import os
import re
import stat

from vgpu_hook.doctor.findings import HOOK, Finding, Report, Situation, run
from vgpu_hook.doctor.hook_file import is_run, read

LEFT_OVER = re.compile(
    r"(\.dpkg-\w+|\.ucf-\w+|\.rpm(new|save|orig)|\.(bak|old|orig|save|disabled)|\.sw[a-p]|~)\Z"
)
"""Names of what package managers, editors and people leave beside a file."""

LIBVIRT = re.compile(
    r"\b(virsh|virt-(install|xml|clone|admin|manager)|libvirt\.open\w*|qemu:///(system|session))\b"
    r"|^\s*(import|from)\s+libvirt\b"
)
"""A call of libvirt: it never returns, since the VM is locked until the hook has ended (A10)."""

VGPUS = re.compile(r"\bmdevctl\b|mdev_supported_types|\bmdev/devices\b|current_vgpu_type")
"""Makes or removes vGPUs itself; such scripts take what the XML names, whosever it is (G9)."""

PROGRAMS = ("/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/")
"""What libvirt's AppArmor profiles let it run, besides what is in the folder of hooks (A12)."""

REMARK = re.compile(r"^\s*(#|//|--)")


def check(situation: Situation) -> list[Finding]:
    """Look at each of the other scripts, and at where they stand around our hook."""
    report = Report("other-hooks")
    hooks = os.path.realpath(situation.settings.hooks)
    own = os.path.join(hooks, HOOK)
    folder = os.path.dirname(own)
    paths = [os.path.join(hooks, "qemu")]
    if os.path.isdir(folder):
        paths += [os.path.join(folder, n) for n in sorted(os.listdir(folder), key=os.fsencode)]
    there = [path for path in paths if path != own and os.path.lexists(path)]
    order = paths.index(own) if own in paths else len(paths)
    for path in there:
        _look(report, path, "before" if paths.index(path) < order else "after", hooks)
    if not there:
        report.ok(hooks, "there is no other hook for QEMU's VMs")
    return report.findings


def _look(report: Report, path: str, when: str, hooks: str) -> None:
    name = os.path.basename(path)
    if not is_run(path):
        text = "libvirt skips it: it is no executable file"
        if LEFT_OVER.search(name) or os.path.isdir(path):
            report.ok(path, text)
        else:
            fix = f"{run('chmod', '0755', path)}; or {run('rm', path)}"
            report.warning(path, text, fix if os.path.isfile(path) else run("rm", path))
        return
    before = len(report.findings)
    if LEFT_OVER.search(name):
        text = "it is a left-over copy, and libvirt runs it too, whatever its name"
        report.error(path, text, run("chmod", "a-x", path))
    if (found := os.stat(path)).st_uid != 0 or found.st_mode & 0o022:
        mode = f"uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        text = f"others than root can change it ({mode}), and libvirt runs it as root"
        report.error(path, text, f"{run('chown', 'root:root', path)}; {run('chmod', 'go-w', path)}")
    target = os.path.realpath(path)
    if target != os.path.abspath(path) and not target.startswith((f"{hooks}/", *PROGRAMS)):
        text = f"it is a link to {target}: where AppArmor confines libvirt, no VM can start then"
        report.warning(path, text, run("install", "-m", "0755", target, path))
    _calls(report, path)
    if len(report.findings) == before:
        report.ok(path, f"libvirt runs it {when} vgpu-hook's")


def _calls(report: Report, path: str) -> None:
    lines = [line for line in read(path).splitlines() if not REMARK.search(line)]
    if called := next(filter(None, map(LIBVIRT.search, lines)), None):
        word = called[0].strip()
        text = f"it calls libvirt ({word!r}), which waits for it: the VM's start or stop hangs"
        report.error(path, text, f"take the call out of it, or {run('chmod', 'a-x', path)}")
    if any(VGPUS.search(line) for line in lines):
        text = "it works on vGPUs itself, and may take the one that a VM of vgpu-hook's has"
        report.warning(path, text, f"if vgpu-hook is to do that, {run('chmod', 'a-x', path)}")
