"""The one way to the kernel's files: /sys, /proc and /dev under roots that tests can move.

A file that is gone between listing and reading is an answer (None, or an empty list), not
a crash. Any other error is a KernelError that names the path: the caller decides, and the
guard takes it for "unknown". Knows nothing of vGPUs.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from vgpu_hook.model import KernelError

GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH)
OWN_FILES = "/proc/self/fd"  # of the process, wherever Roots.proc is
DELETED = " (deleted)"  # what the kernel adds to the path of a file that went meanwhile
MAX_READ = 1 << 16  # sysfs gives a page at most; a larger buffer costs more than the read


class Roots(NamedTuple):
    """Where the kernel's file systems are, and the journal's socket."""

    sysfs: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    journal: str = "/run/systemd/journal/socket"

    def boot_id(self) -> str:
        """Return the UUID of this boot of the host, as the kernel prints it.

        Raises KernelError when it can't be read: nothing can be proved without it.
        """
        path = os.path.join(self.proc, "sys/kernel/random/boot_id")
        text = read_text(path)
        if not text:
            raise KernelError(f"{path}: no boot id there", "is /proc mounted?")
        return text


def name(text: str) -> str:
    """Return the text if it can be one name in a path; raise KernelError if it can't."""
    if not text or "/" in text or "\0" in text or text in (".", ".."):
        raise KernelError(f"{text!r} is not the name of anything in sysfs")
    return text


def require_mounted(sysfs: str) -> None:
    """Raise KernelError if sysfs is not there: its emptiness would prove nothing."""
    if not entries(os.path.join(sysfs, "bus")):
        raise KernelError(f"{sysfs} is not a mounted sysfs")


def read_text(path: str) -> str | None:
    """Return the file's text without surrounding white space; None if it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, MAX_READ).decode("utf-8", "backslashreplace").strip()
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise kernel_error("reading", path, error) from error


def read_count(path: str) -> int | None:
    """Return a whole number from 0 that the kernel prints; None if the file is gone."""
    text = read_text(path)
    if text is None:
        return None
    if not text.isdecimal():
        raise KernelError(f"{path}: a number was expected, not {text[:80]!r}")
    return int(text)


def entries(path: str) -> list[str]:
    """Return the sorted names in a folder; none if it is gone."""
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        if error.errno in GONE:
            return []
        raise kernel_error("listing", path, error) from error


def link_target(path: str) -> str | None:
    """Return a symbolic link's text; None if it is gone."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise kernel_error("reading the link", path, error) from error


def resolve(path: str) -> str | None:
    """Return the canonical path of what is there; None if it is gone.

    The kernel tells it of an open file (proc(5), /proc/PID/fd): two system calls, where
    os.path.realpath makes one for each part of a path.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise kernel_error("resolving", path, error) from error
    try:
        found = os.readlink(f"{OWN_FILES}/{fd}")
    except OSError as error:  # for want of /proc, which says nothing of the path
        raise kernel_error("resolving", path, error) from error
    finally:
        os.close(fd)
    return None if found.endswith(DELETED) else found


def write_text(path: str, text: str) -> None:
    """Write to a kernel file with one write(2). Never creates a file. May block for ever."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise kernel_error("writing", path, error) from error


def kernel_error(doing: str, path: str, error: OSError) -> KernelError:
    """Return the KernelError for what the operating system said of a path."""
    code = error.errno or 0
    name = errno.errorcode.get(code, str(code))
    return KernelError(f"{doing} {path}: {os.strerror(code)} ({name})", code=code)
