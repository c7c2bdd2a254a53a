"""systemd's units, and libvirt's daemons as processes: what runs, and since when.

systemctl(1) is asked if systemd runs the host; else /proc tells of the processes.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from calendar import timegm
from typing import NamedTuple

from vgpu_hook import sysfs
from vgpu_hook.model import KernelError
from vgpu_hook.sysfs import Roots

LIBVIRT_DAEMONS = ("libvirtd", "virtqemud")
"""Those that run QEMU's VMs, and so call its hook; one of them is in use (facts A11)."""

TIMEOUT = 10.0
"""Seconds for systemctl, that asks systemd and waits for nothing else."""
ACTIVE = ("active", "reloading")
START = re.compile(r"start_time=\[([^]]*)\]")
STARTTIME = 19
"""Place of a process's start, in clock ticks since boot, after its name: proc(5), field 22."""


class Running(NamedTuple):
    """A daemon of libvirt's. `looked` is when it looked for hooks last, in seconds since 1970.

    That is at its start and at each reload (facts A8); `reload` is the command for that.
    A SIGHUP that did not come from systemd is not known of.
    """

    name: str
    pid: int
    looked: float
    reload: str


def show(unit: str, *properties: str) -> dict[str, str] | None:
    """Return what systemd says of a unit; None if it can't be asked. Moments are as `@SECONDS`."""
    command = ["systemctl", "show", "--timestamp=unix", f"--property={','.join(properties)}", unit]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key] = f"{found[key]} {value}" if key in found else value
    return found


def moment(text: str) -> float:
    """Return one of systemd's moments in seconds since 1970; 0 for none.

    `@1700000000`, or `Tue 2023-11-14 22:13:20 UTC` of a systemctl that knows no other form.
    """
    if text.startswith("@") and text[1:].isdecimal():
        return float(text[1:])
    with contextlib.suppress(ValueError):
        return float(timegm(time.strptime(text, "%a %Y-%m-%d %H:%M:%S UTC")))
    return 0.0


def libvirt_daemons(roots: Roots) -> list[Running]:
    """Return libvirt's daemons that run now; none if it is started when somebody asks for it."""
    return [found for name in LIBVIRT_DAEMONS if (found := _of_systemd(name))] or _processes(roots)


def _of_systemd(name: str) -> Running | None:
    unit = f"{name}.service"
    shown = show(unit, "ActiveState", "MainPID", "ExecMainStartTimestamp", "ExecReload")
    if shown is None or shown.get("ActiveState") not in ACTIVE:
        return None
    looks = [shown.get("ExecMainStartTimestamp", ""), *START.findall(shown.get("ExecReload", ""))]
    pid = shown.get("MainPID", "0")
    reload = f"run: systemctl reload {unit}"
    return Running(name, int(pid) if pid.isdecimal() else 0, max(map(moment, looks)), reload)


def _processes(roots: Roots) -> list[Running]:
    found = []
    for pid in sysfs.entries(roots.proc):
        if not pid.isdecimal():
            continue
        with contextlib.suppress(KernelError, ValueError, IndexError):
            name = sysfs.read_text(os.path.join(roots.proc, pid, "comm"))
            if name in LIBVIRT_DAEMONS:
                stat = sysfs.read_text(os.path.join(roots.proc, pid, "stat")) or ""
                ticks = int(stat.rpartition(")")[2].split()[STARTTIME])
                up = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
                found.append(Running(name, int(pid), time.time() - up, f"run: kill -HUP {pid}"))
    return found
