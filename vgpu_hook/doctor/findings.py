"""What a check says, and what it is given. Values only: looks at nothing."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from vgpu_hook.config import Settings
from vgpu_hook.model import Parent

OK = "ok"
WARNING = "warning"
ERROR = "error"

SHORTEST, LONGEST = 10.0, 60.0
"""Seconds for a check: a busy host is to have the time to answer, whatever is configured."""

HOOK = "qemu.d/50-vgpu-hook"
"""Our hook, below libvirt's folder of hooks."""


class Finding(NamedTuple):
    """One thing that was looked at. `check` is a stable word, `fix` a command if there is one.

    `severity` is OK; WARNING: something works less well than it could, or could not be looked at;
    or ERROR: VMs with a vGPU, or others, fail because of it, or will.
    """

    check: str
    severity: str
    object: str
    text: str
    fix: str = ""


class Situation(NamedTuple):
    """What the checks are given: the settings, libvirt's URI, and the host's parents.

    `parents` is None if they could not be read. `python` is what runs the hook's Python part, if
    it is not the one that the hook names.
    """

    settings: Settings
    uri: str
    parents: tuple[Parent, ...] | None = None
    python: str | None = None

    @property
    def limit(self) -> float:
        """Return how many seconds a check may take: about as long as a call of the hook."""
        return min(max(self.settings.hook_deadline, SHORTEST), LONGEST)


class Report:
    """Collects the findings of one check."""

    def __init__(self, check: str) -> None:
        self.check = check
        self.findings: list[Finding] = []

    def ok(self, subject: str, text: str) -> None:
        """Add that something is as it should be."""
        self.findings.append(Finding(self.check, OK, subject, text))

    def warning(self, subject: str, text: str, fix: str = "") -> None:
        """Add something that works less well than it could, or could not be looked at."""
        self.findings.append(Finding(self.check, WARNING, subject, text, fix))

    def error(self, subject: str, text: str, fix: str) -> None:
        """Add something that is wrong. It has a way out, always."""
        self.findings.append(Finding(self.check, ERROR, subject, text, fix))


def run(*words: str) -> str:
    """Return a command as a fix: what is in it is quoted for a shell."""
    return f"run: {shlex.join(words)}"
