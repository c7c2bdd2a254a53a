"""One lock for each domain: nobody else takes or gives back its vGPUs meanwhile.

A file lock (flock) in the runtime folder, so that it dies with its holder. Never held
across a call to libvirt: the hook waits for it while libvirt holds the domain. The files
stay, empty, until the next boot: removing them would be a race.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from vgpu_hook.bounded import Deadline
from vgpu_hook.model import DeadlineExceeded, VgpuError

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.1


@contextlib.contextmanager
def domain_lock(runtime: str, domain_uuid: str, deadline: Deadline) -> Iterator[int]:
    """Hold the domain's lock; yields its file descriptor.

    Raises DeadlineExceeded if others hold it for too long, VgpuError if it can't be made.
    """
    path = os.path.join(runtime, "locks", domain_uuid)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise VgpuError(f"lock {path}: {error.strerror}", f"check {runtime}") from error
    try:
        _acquire(fd, path, deadline)
        yield fd
    finally:
        # A child that was given up on has this lock open too: closing would not free it.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


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
