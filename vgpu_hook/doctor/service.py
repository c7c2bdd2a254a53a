"""vgpu-hookd: does it run, does it answer, and does it speak what the hook speaks?"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct

from vgpu_hook import protocol
from vgpu_hook.doctor import units
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.folders import check_private
from vgpu_hook.model import VgpuError
from vgpu_hook.server import SOCKET

UNIT = "vgpu-hookd.service"
SOCKET_UNIT = "vgpu-hookd.socket"
WAITING_SHARE = 0.5
"""Of a check's time. The hook itself waits for two seconds, and then does without it."""

GREETING = re.compile(rb"vgpu-hook (\d+) ")
ROLE = "VMs with a vGPU start without it, but slower; definitions and orphans are left as they are"


def check(situation: Situation) -> list[Finding]:
    """Ask the daemon for its greeting, as the hook does. It is told nothing."""
    report = Report("daemon")
    shown = units.show(UNIT, "ActiveState", "UnitFileState")
    if shown is not None:
        _unit(report, shown)
        if shown.get("ActiveState") not in units.ACTIVE:
            # Not asked: systemd would start it for whoever connects.
            text = f"it does not run ({shown.get('ActiveState') or 'unknown'}). {ROLE}"
            report.error("vgpu-hookd", text, f"{_start()}; why: journalctl -u {UNIT}")
            return report.findings
    try:
        check_private(situation.settings.runtime)
    except FileNotFoundError:
        pass
    except VgpuError as error:
        report.error(situation.settings.runtime, error.message, error.hint)
    path = os.path.join(situation.settings.runtime, SOCKET)
    _ask(report, path, situation.limit * WAITING_SHARE)
    return report.findings


def _unit(report: Report, shown: dict[str, str]) -> None:
    state = shown.get("UnitFileState", "")
    if state == "masked":
        fix = f"{run('systemctl', 'unmask', UNIT)}; {_start()}"
        report.error(UNIT, "it is masked, so that it can't be started", fix)
    elif state == "disabled":
        text = "it is not enabled, so that it does not run after the next boot"
        report.warning(UNIT, text, run("systemctl", "enable", UNIT, SOCKET_UNIT))


def _start() -> str:
    return run("systemctl", "restart", SOCKET_UNIT, UNIT)


def _ask(report: Report, path: str, wait: float) -> None:
    said = b""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as peer:
        peer.settimeout(wait)
        try:
            peer.connect(path)
            uid = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[
                1
            ]
            said = peer.recv(64)
        except (FileNotFoundError, ConnectionRefusedError):
            report.error(path, f"nobody serves there: vgpu-hookd does not run. {ROLE}", _start())
            return
        except TimeoutError:
            text = f"vgpu-hookd has not greeted within {wait:.0f} s: it hangs. {ROLE}"
            report.error(path, text, _start())
            return
        except OSError as error:
            raise VgpuError(f"{path}: {error.strerror}", _start()) from error
    greeting = GREETING.match(said)
    if uid != 0:
        text = f"uid {uid} serves there, not root: the hook does not listen to it"
        report.error(path, text, f"find out who: ss -xlp src {path}")
    elif greeting is None:
        text = "who serves there does not greet as vgpu-hookd does"
        report.error(path, text, _start())
    elif int(greeting[1]) != protocol.VERSION:
        text = f"vgpu-hookd speaks version {int(greeting[1])} of the protocol, the hook that was"
        report.error(
            path, f"{text} installed with this command speaks {protocol.VERSION}", _start()
        )
    else:
        report.ok(path, f"vgpu-hookd answers, version {protocol.VERSION} of the protocol")
