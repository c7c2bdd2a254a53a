"""Calls of hook scripts as whole processes, timed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
"""What libvirt leaves of it (facts A9)."""

NOOP = "#!/bin/sh\ncat >/dev/null\n"
"""A hook that reads its stdin, and does no more."""


def timed(
    argv: list[str],
    stdin: Path,
    environment: Mapping[str, str] = ENVIRONMENT,
    repeats: int = 1,
) -> float:
    """Run a program so many times; return the milliseconds of one, its start and end included."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(stdin), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    begin = time.perf_counter()
    for _ in range(repeats):
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        assert status == 0, argv
    return 1000 * (time.perf_counter() - begin) / repeats


def script(folder: Path, name: str, text: str) -> str:
    """Write an executable script; return its path."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
