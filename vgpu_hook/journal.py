"""The newest lines of vgpu-hook in the journal, for `vgpu-hook record`. log.py writes them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from vgpu_hook.model import VgpuError

MOST = 2000
"""Lines."""

WAIT = 20.0
"""Seconds."""

FIELDS = (
    *("__REALTIME_TIMESTAMP", "_BOOT_ID", "_PID", "MESSAGE", "MESSAGE_ID", "PRIORITY"),
    *("VGPU_DOMAIN_UUID", "VGPU_DOMAIN_NAME", "VGPU_SLOT", "VGPU_DEVICE", "VGPU_PARENT"),
    "VGPU_OPERATION",
)

Line = dict[str, str]


def newest(socket: str) -> list[Line]:
    """Return lines by their fields, the oldest first; none if there is no journal at `socket`.

    Raises VgpuError if it can't be read.
    """
    if not os.path.exists(socket):
        return []
    command = ["journalctl", "--identifier=vgpu-hook", f"--lines={MOST}", "--output=json", "--all"]
    try:
        done = subprocess.run(
            [*command, "--no-pager", "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT,
            check=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise VgpuError(f"journalctl: {error}") from None
    return [_line(line) for line in lines if isinstance(line, dict)]


def _line(fields: dict[str, Any]) -> Line:
    texts = {key: _text(fields.get(key)) for key in FIELDS}
    return {key: text for key, text in texts.items() if text is not None}


def _text(value: Any) -> str | None:
    """Return a field's text; journalctl has one with control characters as a list of bytes."""
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode("utf-8", "backslashreplace") if value else None
    except (TypeError, ValueError):  # the same field several times: not ours
        return None
