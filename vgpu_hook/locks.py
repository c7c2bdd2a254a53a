"""One lock for each domain: nobody else takes or gives back its vGPUs meanwhile; one for each VF.

A file lock (flock) in the runtime folder, so that it dies with its holder. Never held
across a call to libvirt: the hook waits for it while libvirt holds the domain. The files
stay, empty, until the next boot: removing them would be a race.

A VF's lock is taken by the very child that writes to it or judges it, and only that child's end
frees it. So a write that hangs in the kernel, and may yet be done, keeps everybody else from the
VF, even after it was given up on (R12: addresses are used again).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from vgpu_hook.bounded import Deadline
from vgpu_hook.folders import make_private
from vgpu_hook.model import DeadlineExceeded, Unblamed, VgpuError

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.1
DEVICE_WAIT = 1.0
"""Seconds that a VF's lock is waited for: nobody has it for long unless the kernel hangs."""
DAEMON = "vgpu-hookd.lock"
DAEMON_WAIT = 1.0
"""Seconds that one may take to be gone after it was killed: its children close what they inherit
first of all."""


@contextlib.contextmanager
def domain_lock(runtime: str, domain_uuid: str, deadline: Deadline) -> Iterator[int]:
    """Hold the domain's lock; yields its file descriptor.

    Raises DeadlineExceeded if others hold it for too long, VgpuError if it can't be made.
    """
    fd, path = _open(runtime, domain_uuid)
    try:
        _acquire(fd, path, deadline)
        yield fd
    finally:
        # A child that was given up on has this lock open too: closing would not free it.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def planning_lock(runtime: str, deadline: Deadline) -> contextlib.AbstractContextManager[int]:
    """Hold the lock of those who choose VFs for VMs that start right after: no two get the same.

    Raises as domain_lock does.
    """
    return domain_lock(runtime, "planning", deadline)


@contextlib.contextmanager
def daemon_lock(runtime: str) -> Iterator[None]:
    """Hold the lock of the one vgpu-hookd of a host. Raises VgpuError if another has it."""
    path = os.path.join(runtime, DAEMON)
    fd = _open_file(path, runtime)
    try:
        try:
            _acquire(fd, path, Deadline(DAEMON_WAIT))
        except DeadlineExceeded as error:
            pid = os.pread(fd, 20, 0).decode(errors="replace").strip()
            raise VgpuError(
                f"another vgpu-hookd runs already (pid {pid})", "see: systemctl status vgpu-hookd"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def device_lock(runtime: str, device: str) -> Iterator[None]:
    """Hold a VF's lock, for a child that works on it. Raises Unblamed if another has it."""
    fd, path = _open(runtime, device)
    try:
        try:
            _acquire(fd, path, Deadline(DEVICE_WAIT))
        except DeadlineExceeded as error:
            raise Unblamed(
                f"another process is at work on {device}, and the kernel may not have answered it",
                f"see who: fuser -v {path}",
            ) from error
        yield
    finally:
        os.close(fd)


def _open(runtime: str, name: str) -> tuple[int, str]:
    path = os.path.join(runtime, "locks", name)
    return _open_file(path, runtime, os.path.dirname(path)), path


def _open_file(path: str, *folders: str) -> int:
    """Open a lock's file, made if there is none, in the last of these folders."""
    try:
        for folder in folders:
            make_private(folder)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise VgpuError(f"lock {path}: {error.strerror}", f"check {folders[0]}") from error


def _acquire(fd: int, path: str, deadline: Deadline) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not deadline.remaining():
                raise DeadlineExceeded(
                    f"the lock {path} is held by another process",
                    f"see who holds it: fuser -v {path}",
                ) from None
        time.sleep(min(pause, deadline.remaining()))
        pause = min(2 * pause, LONGEST_PAUSE)
