"""Folders that nobody but us writes to: the state folder, the runtime folder and its locks.

Root opens, locks and listens there by name. Where another user could put something, that might be a
link to a file of root's, or a socket that answers in the daemon's place: such a folder is refused.
What stands above it is up to whoever set the path.
"""

from __future__ import annotations

import os
import stat

from vgpu_hook.model import VgpuError

MODE = 0o700


def make_private(path: str) -> None:
    """Make the folder, and what is missing above it, for its owner alone; then check it.

    Raises OSError if it can't be made, VgpuError if others could write to it.
    """
    try:
        os.mkdir(path, MODE)
    except FileNotFoundError:
        make_private(os.path.dirname(path))
        make_private(path)
    except FileExistsError:
        pass
    check_private(path)


def check_private(path: str) -> None:
    """Raise VgpuError if others could write to the folder, or have put a link in its place."""
    link, found = os.lstat(path), os.stat(path)
    for owner in (link.st_uid, found.st_uid):
        if owner not in (0, os.geteuid()):
            raise VgpuError(f"{path} is of another user (uid {owner})", f"check {path}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise VgpuError(f"others may write to {path} (mode {mode:04o})", f"run: chmod 700 {path}")
