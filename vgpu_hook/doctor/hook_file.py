"""The hook itself: the file, the Python that it starts, and whether libvirt has noticed it.

A hook that can't be executed is skipped by libvirt without a word (facts A8), or refuses every
start on the host if it is AppArmor that forbids it (facts G14).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator

from vgpu_hook import __version__, protocol
from vgpu_hook.doctor import package, records, units
from vgpu_hook.doctor.findings import HOOK, Finding, Report, Situation, run
from vgpu_hook.doctor.units import Running

PYTHON = re.compile(r"VGPU_HOOK_PYTHON:-([^}]+)}")
PERL = re.compile(r"VGPU_HOOK_PERL-([^}]+)}")
GREETING = re.compile(r"vgpu-hook (\d+) \(")
"""In the hook's text: what it starts, and the version of the protocol that it speaks."""

LOAD = "import vgpu_hook.hook, vgpu_hook.operations as o; print(vgpu_hook.__version__, o.__file__)"
NO_MODULE = re.compile(r"No module named '([^']+)'")
LOADING_SHARE = 0.9
"""Of a check's time."""

OURS = "vgpu_hook.hook"


def file(situation: Situation) -> list[Finding]:
    """Look at the hook's file: is it there, can libvirt run it, and is it this version's?"""
    report = Report("hook-file")
    path = os.path.join(situation.settings.hooks, HOOK)
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        report.error(
            path, "there is no such file: libvirt never calls vgpu-hook", package.restore(path)
        )
        return report.findings
    if stat.S_ISLNK(found.st_mode):
        target = os.path.realpath(path)
        text = f"it is a link to {target}: AppArmor forbids libvirt to run what is not in"
        there = os.path.isfile(target)
        fix = run("install", "-m", "0755", target, path) if there else package.restore(path)
        report.error(path, f"{text} {situation.settings.hooks}, so that no VM can start", fix)
        return report.findings
    if not stat.S_ISREG(found.st_mode):
        report.error(path, "it is no regular file, so that libvirt skips it", package.restore(path))
        return report.findings
    if not found.st_mode & 0o111:
        text = "it is not executable, so that libvirt skips it"
        report.error(path, text, run("chmod", "0755", path))
    for place in _with_folders(situation.settings.hooks, path):
        _require_roots_own(report, place)
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        text = "its file system is mounted noexec, so that nothing in it can be run"
        report.error(path, text, f"mount it without noexec: findmnt -T {path}")
    _text(report, path)
    if not report.findings:
        report.ok(path, "it is a regular file that libvirt can run, of this version")
    return report.findings


def _with_folders(hooks: str, path: str) -> Iterator[str]:
    yield from (hooks, os.path.dirname(path), path)


def _require_roots_own(report: Report, path: str) -> None:
    """Whoever may write here is root at the next start of a VM."""
    found = os.stat(path)
    if found.st_uid != 0:
        text = f"it belongs to uid {found.st_uid}, who can have anything run as root"
        report.error(path, text, run("chown", "root:root", path))
    if found.st_mode & 0o022:
        text = f"others than root may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
        report.error(path, text, run("chmod", "go-w", path))


def _text(report: Report, path: str) -> None:
    text = read(path)
    if OURS not in text:
        report.error(path, "it is not vgpu-hook's", package.restore(path))
        return
    spoken = GREETING.search(text)
    if spoken is None or int(spoken[1]) != protocol.VERSION:
        other = "no known one" if spoken is None else spoken[1]
        what = f"it speaks version {other} of the protocol, vgpu-hook {__version__} speaks"
        text = f"{what} {protocol.VERSION}: it is of another release"
        report.error(path, text, package.restore(path))
    perl = PERL.search(text)
    if perl is not None and shutil.which(perl[1]) is None:
        what = f"there is no {perl[1]}, so that each call starts Python, which takes longer"
        report.warning(path, what, "install perl-base (Debian) or perl-interpreter (Fedora)")


def python(situation: Situation) -> list[Finding]:
    """Start the hook's Python as the hook does, and see that it finds this version whole."""
    report = Report("hook-python")
    hook = os.path.join(situation.settings.hooks, HOOK)
    named = PYTHON.search(read(hook)) if os.path.isfile(hook) else None
    program = situation.python or (named[1] if named else "/usr/bin/python3")
    limit = situation.limit * LOADING_SHARE
    try:
        done = subprocess.run(
            [program, "-I", "-B", "-X", "utf8", "-c", LOAD],
            capture_output=True,
            timeout=limit,
            cwd="/",
            text=True,
            errors="replace",
        )
    except OSError as error:
        text = f"it can't be run: {error.strerror}: a start with a vGPU is refused"
        report.error(program, text, package.reinstall())
        return report.findings
    except subprocess.TimeoutExpired:
        text = f"it has not loaded vgpu_hook within {limit:.0f} s"
        report.error(program, text, f"try: {program} -I -X utf8 -c 'import vgpu_hook.hook'")
        return report.findings
    version, _, place = done.stdout.strip().partition(" ")
    if done.returncode != 0:
        cause = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        text = f"it can't load vgpu_hook, so that a start with a vGPU is refused: {cause}"
        absent = NO_MODULE.search(cause)
        report.error(program, text, package.missing(absent[1] if absent else "", program))
    elif version != __version__:
        folder = os.path.dirname(place)
        text = f"the hook runs vgpu-hook {version} from {folder}, this command is {__version__}"
        report.error(program, text, f"remove one of the two; {package.reinstall()}")
    else:
        report.ok(program, f"it runs vgpu-hook {version} from {os.path.dirname(place)}")
    return report.findings


def seen(situation: Situation) -> list[Finding]:
    """Tell whether the libvirt that runs now calls the hook (facts A8).

    It looks for hooks when it starts and when it is reloaded, and calls none if it found none. If
    it found any, it reads the folder again at each call.
    """
    report = Report("hook-seen")
    hook = os.path.join(situation.settings.hooks, HOOK)
    if not is_run(hook):
        return []  # hook-file says so
    daemons = units.libvirt_daemons(situation.settings.roots)
    for daemon in daemons:
        _seen_by(report, daemon, hook, situation)
    if not daemons:
        report.ok("libvirt", "no daemon runs now: it looks for hooks when it starts")
    return report.findings


def _seen_by(report: Report, daemon: Running, hook: str, situation: Situation) -> None:
    subject = f"{daemon.name} (pid {daemon.pid})"
    hooks = [os.path.join(situation.settings.hooks, "qemu"), hook]
    folder = os.path.dirname(hook)
    hooks += [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    # systemd's moments are whole seconds.
    old = [path for path in hooks if is_run(path) and int(os.stat(path).st_ctime) <= daemon.looked]
    if hook in old:
        report.ok(subject, "it has looked for hooks since the hook is there")
        return
    if old:
        report.ok(subject, f"it reads the folder at each call, since {old[0]} was there before")
        return
    called = records.last_hook_call(situation.settings)
    if called is not None and called >= daemon.looked:
        report.ok(subject, "it has called the hook since it looked for hooks last")
        return
    text = "it looked for hooks before this one came or was changed"
    if called is None:
        text = f"{text}, and no call of it is on record: it does not call it"
        report.error(subject, text, daemon.reload)
    else:
        report.warning(subject, f"{text}: it may not call it", daemon.reload)


def is_run(path: str) -> bool:
    """Tell whether libvirt runs this file as a hook: stat says regular, and executable by any."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def read(path: str) -> str:
    """Return the beginning of a script."""
    with open(path, "rb") as script:
        return script.read(1 << 18).decode("utf-8", "replace")
