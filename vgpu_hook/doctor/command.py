"""The command: runs the checks, each in a child with a limit, and prints what they found.

A check that does not return, or that fails, is a finding like any other: the rest is still run.
So is a module of Python that is not there: each check's own module is imported in its child, since
some need libvirt's or lxml.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import stat
from collections.abc import Callable

from vgpu_hook import bounded, config
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.config import Settings
from vgpu_hook.doctor import package, records
from vgpu_hook.doctor.findings import ERROR, WARNING, Finding, Report, Situation, run
from vgpu_hook.host import Host
from vgpu_hook.model import ConfigError, DeadlineExceeded, Parent, VgpuError
from vgpu_hook.tables import as_json, table

LIBVIRT, DEFINITIONS = "libvirt", "definitions"
CHECKS = (
    ("hook-file", "hook_file.file"),
    ("hook-python", "hook_file.python"),
    ("hook-seen", "hook_file.seen"),
    ("other-hooks", "scripts.check"),
    ("apparmor", "confinement.apparmor"),
    ("selinux", "confinement.selinux"),
    ("daemon", "service.check"),
    ("store", "records.check"),
    ("gpus", "kernel.check"),
    (LIBVIRT, "hypervisor.check"),
    (DEFINITIONS, "definitions.check"),
)
"""In the order in which they are shown: the word, which is a part of the JSON format, and the
function in this package."""

KERNEL_SHARE = 0.7
"""Of a check's time, for reading all parents: those that hang are read apart, and named (host.py);
the rest is for what then has to be told of them."""

FORBIDDEN = re.compile(
    "permission denied|not permitted|needs root|authentication|access denied", re.IGNORECASE
)

LIBVIRT_WAIT = 30.0
"""Seconds at least for what asks libvirt, which waits for other VMs' hooks meanwhile."""

HANGS = (
    "run: ps -wweo pid,stat,etime,args | grep {hooks}/; then end the hook that has run too long,"
    " and what it has started (pgrep -laP PID): kill PID; in state D it waits for a vGPU that is"
    " open: power off the VM that has it, from inside. Do not restart libvirt while a write to"
    " `remove` hangs: when it starts, it kills each running VM whose vGPU is gone from sysfs"
)
"""Why such a write hangs: facts D4, G9. What libvirt does when it starts: facts A13."""

AS_ROOT = "run it as root: sudo vgpu-hook doctor"


def doctor(arguments: argparse.Namespace) -> int:
    """Look for what is wrong; return 1 if anything is, 0 if not. Warnings are nothing wrong."""
    findings, settings = _configuration()
    python = os.environ.get("VGPU_HOOK_PYTHON") or None
    situation = Situation(settings, arguments.connect, None, python)
    found, parents = _parents(situation)
    findings += found
    situation = situation._replace(parents=parents)
    for name, function in CHECKS:
        if name != DEFINITIONS or not _count(findings, ERROR, LIBVIRT):
            findings += _bounded(name, function, situation)
    if os.geteuid() != 0:
        findings = [_not_seen(finding) for finding in findings]
    _print(findings, arguments.format)
    return 1 if _count(findings, ERROR) else 0


def _configuration() -> tuple[list[Finding], Settings]:
    """Return what is wrong with the configuration, and the settings; the defaults if it is."""
    report = Report("config")
    path = os.environ.get("VGPU_HOOK_CONFIG") or config.DEFAULT_PATH
    settings = Settings()
    try:
        settings = config.load()
    except ConfigError as error:
        text = f"{error.message}; starts with a vGPU are refused; looked further with the defaults"
        report.error(path, text, error.hint)
    except ImportError as error:  # what reads a file that sets something
        text = f"it can't be read ({error}): starts with a vGPU are refused; looked further with"
        report.error(path, f"{text} the defaults", package.missing_here(error))
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            mode = f"uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
            text = f"others than root can change it ({mode}), and its commands are run as root"
            fix = f"{run('chown', 'root:root', path)}; {run('chmod', 'go-w', path)}"
            report.error(path, text, fix)
    if not report.findings:
        report.ok(path, "it is valid" if os.path.exists(path) else "there is none: defaults")
    return report.findings, settings


def _parents(situation: Situation) -> tuple[list[Finding], tuple[Parent, ...] | None]:
    report = Report("gpus")
    try:
        limit = Deadline(situation.limit)
        return [], bounded.run(_read, situation, deadline=limit, doing="reading the GPUs")
    except VgpuError as error:
        report.error("this host", error.message, error.hint or "run: dmesg")
        return report.findings, None


def _read(situation: Situation) -> tuple[Parent, ...]:
    settings = situation.settings
    found = Host(settings, "").parents(Deadline(situation.limit * KERNEL_SHARE))
    with contextlib.suppress(VgpuError), records.opened(settings) as opened:
        return completed(found, opened.store.devices if opened is not None else None)
    return completed(found, None)


def _bounded(name: str, function: str, situation: Situation) -> list[Finding]:
    report = Report(name)
    asks_libvirt = name in (LIBVIRT, DEFINITIONS)
    limit = max(situation.limit, LIBVIRT_WAIT) if asks_libvirt else situation.limit
    try:
        return bounded.run(
            _checked, function, situation, deadline=Deadline(limit), doing=f"the check {name}"
        )
    except DeadlineExceeded:
        if asks_libvirt:
            text = f"it has not answered within {limit:.0f} s: it hangs, or waits for a hook"
            fix = HANGS.format(hooks=shlex.quote(situation.settings.hooks))
            report.error(situation.uri, text, fix)
        else:
            text = f"what is asked for it has not answered within {limit:.0f} s"
            report.error(f"check {name}", text, "run: dmesg")
    except VgpuError as error:
        report.error(f"check {name}", error.message, error.hint or "run: journalctl -p err -b")
    return report.findings


def _checked(function: str, situation: Situation) -> list[Finding]:
    """Run a check. What can't be looked at or imported ends it. Raises VgpuError."""
    module, _, name = function.partition(".")
    try:
        found = importlib.import_module(f"vgpu_hook.doctor.{module}")
        check: Callable[[Situation], list[Finding]] = getattr(found, name)
        return check(situation)
    except ImportError as error:
        raise VgpuError(f"it can't be made: {error}", package.missing_here(error)) from error
    except OSError as error:
        raise VgpuError(f"{error.filename or module}: {error.strerror}") from error


def _not_seen(finding: Finding) -> Finding:
    """Who is not root may not look at everything; what that hides is not known to be wrong."""
    if finding.severity != ERROR or not FORBIDDEN.search(finding.text):
        return finding
    text = f"it could not be looked at: {finding.text}"
    return finding._replace(severity=WARNING, text=text, fix=AS_ROOT)


def _print(findings: list[Finding], how: str) -> None:
    errors, warnings = _count(findings, ERROR), _count(findings, WARNING)
    if how == "json":
        those = [finding._asdict() for finding in findings]
        print(as_json({"errors": errors, "warnings": warnings, "findings": those}))
        return
    titles = ("Severity", "Check", "Object", "What was found", "What to do")
    print(table(titles, [(f.severity, f.check, f.object, f.text, f.fix) for f in findings]))
    print(f"{errors} errors, {warnings} warnings.")


def _count(findings: list[Finding], severity: str, check: str = "") -> int:
    return sum(f.severity == severity and check in ("", f.check) for f in findings)
