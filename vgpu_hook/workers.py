"""Children that stay: what bounded.run does, without a fork for each call.

For the daemon, where a fork copies the page tables of all its libraries (docs/performance.md has
the figures). A worker does one call at a time. One that has not answered in time is killed and
never used again; if it hangs in the kernel, it dies as soon as that lets it. As many are made as
there are calls at once, since one that hangs must not hold up others.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from vgpu_hook import bounded
from vgpu_hook.bounded import Deadline

T = TypeVar("T")

SPARE = 8
"""Workers that are kept for the next calls."""

MOST_CALLS = 1000
"""After which a worker is replaced, so that nothing that it may gather lasts."""

_HEAD = struct.Struct("=Q")
_MOST_FILES = 8


class Workers:
    """A pool of them. `run` is for many threads at once, and has bounded.run's contract."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def run(
        self,
        call: Callable[..., T],
        *args: Any,
        deadline: Deadline,
        doing: str,
        keep: tuple[int, ...] = (),
    ) -> T:
        """Return `call(*args)`, computed in a worker. Arguments must be picklable too."""
        bounded.require_time(deadline, doing)
        worker = self._take()
        data: bytes | None = None
        try:
            data = worker.ask(pickle.dumps((call, args)), keep, deadline)
        finally:
            self._put_back(worker, whole=bool(data))
        return bounded.result_of(data, deadline, doing)  # type: ignore[no-any-return]

    def _take(self) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_there():
                    return worker
                worker.end()
        return _Worker()

    def _put_back(self, worker: _Worker, *, whole: bool) -> None:
        """Keep it for the next call; `whole`: it has answered."""
        if whole and worker.calls < MOST_CALLS:
            with self._lock:
                if len(self._idle) < SPARE:
                    self._idle.append(worker)
                    return
        worker.end()


class _Worker:
    """One child, and our end of the socket to it."""

    def __init__(self) -> None:
        self.calls = 0
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                bounded.become_child(theirs.fileno())
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def is_there(self) -> bool:
        """Tell of an idle one whether it lives: nothing comes from it, not even an end of file."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(self, data: bytes, keep: tuple[int, ...], deadline: Deadline) -> bytes | None:
        """Return its answer, nothing if it died, None if that has not come in time.

        `keep`: open files that it holds until it has answered.
        """
        self.calls += 1
        files = array.array("i", keep)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if keep else []
        message = _HEAD.pack(len(data)) + data
        try:
            self._socket.settimeout(deadline.remaining() or 0.001)
            sent = self._socket.sendmsg([message], rights)
            self._socket.sendall(message[sent:])
            return _receive(self._socket, deadline)
        except TimeoutError:
            return None
        except (OSError, EOFError):
            return b""

    def end(self) -> None:
        """Kill it; its end is not waited for, since it may hang in the kernel."""
        self._socket.close()
        bounded.give_up(self._pid)


def _serve(connection: socket.socket) -> None:
    """Do calls until the parent is gone."""
    while True:
        head, files = _receive_head(connection)
        if not head:
            return
        (size,) = _HEAD.unpack(head)
        call, args = pickle.loads(_receive_exactly(connection, size))  # noqa: S301 - our parent's
        answer = bounded.answer_of(call, args)
        for file in files:  # the lock goes when the call is over, not when its answer is read
            os.close(file)
        connection.sendall(_HEAD.pack(len(answer)) + answer)


def _receive_head(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive the size of a call, and the files that come with it; nothing at end of file."""
    files = array.array("i")
    head, extra, _, _ = connection.recvmsg(
        _HEAD.size, socket.CMSG_SPACE(_MOST_FILES * files.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    if head and len(head) < _HEAD.size:
        head += _receive_exactly(connection, _HEAD.size - len(head))
    return head, list(files)


def _receive(connection: socket.socket, deadline: Deadline) -> bytes:
    (size,) = _HEAD.unpack(_receive_exactly(connection, _HEAD.size, deadline))
    return _receive_exactly(connection, size, deadline)


def _receive_exactly(
    connection: socket.socket, size: int, deadline: Deadline | None = None
) -> bytes:
    """Receive so many bytes. Raises TimeoutError, or EOFError if there are no more."""
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline.remaining()
            if not left:
                raise TimeoutError
            connection.settimeout(left)
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
