"""Whose the installed files are, a package's or pip's, and the commands that put them back.

Asks dpkg, rpm and apt, for each on its own host; changes nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

NAME = "vgpu-hook"
TIMEOUT = 10.0
"""Seconds for a look into dpkg's, rpm's or apt's lists."""

PLACE = "/usr/share/vgpu-hook/place-hook"
"""What both packages have, and put the hook in place with."""

ASIDE = "/root/"
"""Where a file goes that is in the way: libvirt runs what is executable beside the hook."""

NOT_INSTALLED = ("", "not-installed", "config-files")

MODULES = {
    "libvirt": ("python3-libvirt", "libvirt-python"),
    "lxml": ("python3-lxml", "lxml"),
    "pydantic": ("python3-pydantic", "pydantic"),
}
"""The packages of Debian, Ubuntu and Fedora, which have the same names; and PyPI's."""


def reinstall() -> str:
    """Return the command that puts all files back, but for settings that are there."""
    known = _asked("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", NAME)
    status, _, version = known.partition(" ")
    if status not in NOT_INSTALLED:
        # A file's name has no epoch. apt can't reinstall what it could not fetch.
        file = f"./{NAME}_{version.rpartition(':')[2]}_all.deb"
        listed = [line.split("|") for line in _asked("apt-cache", "madison", NAME).splitlines()]
        fetched = any(len(words) > 1 and words[1].strip() == version for words in listed)
        words = ["apt-get", "install", "--reinstall", "-o", "Dpkg::Options::=--force-confmiss"]
        return f"run: {shlex.join([*words, NAME if fetched else file])}"
    package = _asked("rpm", "-q", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}", NAME)
    if package:
        again = shlex.join(["rpm", "-U", "--replacepkgs", f"./{package}.rpm"])
        return f"run: dnf reinstall {NAME}; or, if no repository has it: {again}"
    return f"run: {NAME} install-hook"


def restore(path: str) -> str:
    """Return the commands that put the hook's file at this path back, whatever is there now."""
    again = f"run: {PLACE}" if os.access(PLACE, os.X_OK) else reinstall()
    if not os.path.lexists(path):
        return again
    return f"run: {shlex.join(['mv', path, ASIDE])}; then {again}"


def missing(module: str, python: str) -> str:
    """Return what installs, for this Python, one of its modules that vgpu-hook needs."""
    name = module.partition(".")[0]
    if name not in MODULES:
        return reinstall()
    package, project = MODULES[name]
    folder = os.path.dirname(python)
    if os.path.exists(os.path.join(folder, os.pardir, "pyvenv.cfg")):
        return f"run: {shlex.join([os.path.join(folder, 'pip'), 'install', project])}"
    return f"run: apt-get install {package} (Debian), or dnf install {package} (Fedora)"


def missing_here(error: ImportError) -> str:
    """Return what installs the module that this very process could not import."""
    return missing(error.name or "", sys.executable)


def _asked(*command: str) -> str:
    """Return what a program answers; "" where there is none, or it has nothing to tell."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
