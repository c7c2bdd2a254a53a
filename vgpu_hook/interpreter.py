"""Which Python install-hook may write into root's hook and units: one that only root can change.

libvirt runs the hook as root, and systemd the daemon. Whoever can write to their Python, to the
package, or to a folder or link on the way there, is root at the next start of a VM.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator

from vgpu_hook.model import VgpuError

SAFE_PATH = re.compile(r"/[A-Za-z0-9/._+-]+")
"""Paths that a shell, and systemd, take for nothing but themselves."""

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
"""What vgpu-hookd's unit hides from it: ProtectHome= and PrivateTmp=."""

ENVIRONMENT = "/opt/vgpu-hook"
MAKE = f"python3 -m venv --system-site-packages {ENVIRONMENT}"
ADVICE = f"install it, as root, in a virtual environment: {MAKE}"
ASK = """
import json, os, sys, vgpu_hook.hook
own = [path for path in sys.path if path.startswith(sys.prefix + os.sep)]
print(json.dumps([vgpu_hook.__path__[0], sys.prefix, own]))
"""


def check(python: str, package: str) -> None:
    """Raise VgpuError if the hook could not run this very package by it, or not safely."""
    if not SAFE_PATH.fullmatch(python):
        raise VgpuError(f"the Python that runs this has an odd path: {python!r}", ADVICE)
    done = subprocess.run(
        [python, "-I", "-B", "-c", ASK], cwd="/", capture_output=True, text=True, check=False
    )
    found, prefix, own = json.loads(done.stdout) if done.returncode == 0 else ("", "", [])
    if found != package:
        raise VgpuError(
            f"`{python} -I` does not find this vgpu-hook, and libvirt's hook runs it so", ADVICE
        )
    settings = os.path.join(prefix, "pyvenv.cfg")
    paths = [python, *(path for path in (settings, *own) if os.path.exists(path))]
    for folder, _, names in os.walk(package):
        paths += [folder, *(os.path.join(folder, name) for name in names)]
    for part in dict.fromkeys(part for path in paths for part in reached_by(path)):
        _require_roots_own(part, prefix)


def reached_by(path: str) -> Iterator[str]:
    """Yield each folder, link and file that the kernel comes by on the way to a path."""
    os.stat(path)  # so that no links go in circles
    done, left = "/", path.split("/")[::-1]
    yield done
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            done = os.path.dirname(done)
            continue
        done = os.path.join(done, name)
        yield done
        if os.path.islink(done):
            target = os.readlink(done)
            left += target.split("/")[::-1]
            done = "/" if target.startswith("/") else os.path.dirname(done)


def _require_roots_own(part: str, prefix: str) -> None:
    anew = ADVICE
    if _below(part, ENVIRONMENT):
        anew = f"install it anew, as root: rm -r {ENVIRONMENT} && {MAKE}"
    hidden = next((folder for folder in HIDDEN if _below(part, folder)), None)
    if hidden is not None:
        raise VgpuError(f"{part}: vgpu-hookd's unit may not look into {hidden}", anew)
    found = os.lstat(part)
    above = _below(ENVIRONMENT, part)
    if found.st_uid != 0:
        what = f"{part} belongs to uid {found.st_uid}, who could have anything run as root"
        raise VgpuError(what, f"run: chown root {part}" if above and part != ENVIRONMENT else anew)
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode):
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        what = f"others than root can write to {part} ({mode}), and have anything run as root"
        own = f"run: chmod go-w {part}" if above else anew
        raise VgpuError(what, f"run: chmod -R go-w {prefix}" if _below(part, prefix) else own)


def _below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")
