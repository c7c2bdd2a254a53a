"""Runs a function in a child process that can be given up on.

The kernel has files that never answer: `remove` of a vGPU that somebody holds open
blocks uninterruptibly (facts D4, read in vfio_unregister_group_dev). libvirt waits for
its hook without a limit, so whatever may block is done in a child, and the parent
answers in time. One call, one child: for the daemon's many calls there is workers.py.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

from vgpu_hook.model import DeadlineExceeded, VgpuError

T = TypeVar("T")


class Deadline:
    """A moment on the monotonic clock by which an answer is due."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def expiry_ms(self) -> int:
        """Return the moment as milliseconds of CLOCK_MONOTONIC, for another process."""
        return int(self._at * 1000)

    def remaining(self) -> float:
        """Return the seconds that are left, never below 0."""
        return max(0.0, self._at - time.monotonic())

    def capped(self, seconds: float) -> Deadline:
        """Return a deadline that is not later than this one and `seconds` away."""
        return Deadline(min(seconds, self.remaining()))


def run(
    call: Callable[..., T], *args: Any, deadline: Deadline, doing: str, keep: tuple[int, ...] = ()
) -> T:
    """Return `call(*args)`, computed in a child; its VgpuError is raised here.

    The child inherits neither the standard streams nor any other open file but `keep`, so
    that it holds nothing open for those who wait for this process (libvirt reads the
    hook's stderr until end of file). `keep` is for the lock under which the call is made:
    should this process be killed, the lock stays until the child is done. The result must
    be picklable.

    Raises DeadlineExceeded, naming `doing`, when the child has not answered in time. The
    child is killed then: one that hangs in the kernel dies as soon as its call returns,
    before it does anything else.
    """
    require_time(deadline, doing)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(call, args, writer, keep)
    os.close(writer)
    data = None
    try:
        data = _read_all(reader, deadline)
    finally:
        os.close(reader)
        if data is None:
            give_up(child)
        else:
            os.waitpid(child, 0)
    return result_of(data, deadline, doing)  # type: ignore[no-any-return]


def require_time(deadline: Deadline, doing: str) -> None:
    """Raise DeadlineExceeded if there is no time left to begin with."""
    _reap_given_up()
    if not deadline.remaining():
        raise DeadlineExceeded(f"no time was left for {doing}")


def result_of(data: bytes | None, deadline: Deadline, doing: str) -> Any:
    """Return what a child has answered, or raise it; None: nothing in time; empty: it died."""
    if data is None:
        raise DeadlineExceeded(f"{doing} has not returned within {deadline.seconds:.3g} s")
    if not data:
        raise VgpuError(f"{doing}: the process that did it died")
    # Our own child wrote it, down a pipe that nobody else has.
    good, result = pickle.loads(data)  # noqa: S301
    if good:
        return result
    raise result


def give_up(child: int) -> None:
    """Kill a child that has not answered, without waiting for its end."""
    os.kill(child, signal.SIGKILL)
    _given_up.append(child)


_given_up: list[int] = []
"""Children that were killed and may not have died yet."""


def _reap_given_up() -> None:
    for child in list(_given_up):
        with contextlib.suppress(ChildProcessError, ValueError):
            if os.waitpid(child, os.WNOHANG)[0]:
                _given_up.remove(child)


def _child(
    call: Callable[..., Any], args: tuple[Any, ...], writer: int, keep: tuple[int, ...]
) -> None:
    """Do the call and leave the process, whatever happens."""
    status = 1
    try:
        become_child(writer, *keep)
        _write_all(writer, answer_of(call, args))
        status = 0
    finally:
        os._exit(status)


def become_child(*keep: int) -> None:
    """Leave behind, right after a fork, what is the parent's; all files but `keep` are closed."""
    gc.disable()  # no finalizer of what the daemon's other threads were at
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    first = 3
    for kept in sorted(keep):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, 1 << 20)


def answer_of(call: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Do the call in the child; return what `result_of` makes its result of."""
    try:
        answer: tuple[bool, Any] = (True, call(*args))
    except VgpuError as error:
        answer = (False, error)
    except Exception as error:  # noqa: BLE001 - entry point: the parent must be told
        answer = (False, VgpuError(f"internal error: {type(error).__name__}: {error}"))
    return pickle.dumps(answer)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_all(fd: int, deadline: Deadline) -> bytes | None:
    """Read to end of file; None if that has not come by the deadline."""
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLHUP)
    chunks: list[bytes] = []
    while poller.poll(deadline.remaining() * 1000):
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
    return None
