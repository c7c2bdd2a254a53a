"""The store, kept open between the daemon's calls.

SQLite moves its log into the file whenever the last connection is closed: that, and the opening,
is half of what a call costs (docs/performance.md).

A child of a process that keeps a store open must not open it: it has SQLite's own records of the
file, and not the file's handles.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from vgpu_hook import store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.database import Database
from vgpu_hook.model import StoreError
from vgpu_hook.store import Store

SPARE = 8
"""Connections that are kept for the next calls."""


class Stores:
    """Opens the store as store_file.open_store does. For many threads at once."""

    def __init__(self) -> None:
        self._idle: list[_Kept] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def open(self, state: str, operation: str, *, wait: float, create: bool = True) -> Store | None:
        """Return the store; None if there is none and it isn't to be made. Raises StoreError."""
        path = store_file.place(state, create=create)
        if path is None:
            return None
        kept = self._take(path) or _Kept(path, wait, self._put_back, self._writing)
        try:
            kept.begin(wait)
        except StoreError:
            kept.broken = True
            kept.close()
            raise
        return Store(kept, operation)

    def _take(self, path: str) -> _Kept | None:
        with self._lock:
            for position, kept in enumerate(self._idle):
                if kept.path == path:
                    del self._idle[position]
                    break
            else:
                return None
        if kept.is_current():
            return kept
        _abandoned.append(kept)
        return self._take(path)

    def _put_back(self, kept: _Kept) -> None:
        """Keep a connection for the next call, if it is one to the file that is there."""
        if not kept.is_current():
            _abandoned.append(kept)
            return
        with self._lock:
            keep = not kept.broken and len(self._idle) < SPARE
            if keep:
                self._idle.append(kept)
        if not keep:
            kept.end()

    def tidy(self) -> None:
        """Have SQLite move its log into the files, so that they are whole without it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            if kept.is_current():
                with contextlib.suppress(StoreError):
                    kept.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._put_back(kept)

    def end(self) -> None:
        """Close what is idle: the last one to a file moves its log into it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            if kept.is_current():
                kept.end()


class _Kept(Database):
    """A connection whose `close` gives it back."""

    def __init__(
        self,
        path: str,
        wait: float,
        put_back: Callable[[_Kept], None],
        writing: threading.Lock,
    ) -> None:
        before = _identity(path)
        super().__init__(store_file.connect(path, wait), path)
        self._put_back = put_back
        self._writing = writing
        self._wait = wait
        self._identity = before if before == _identity(path) else None
        """Of the file that it is to; None if that can't be told."""

    def begin(self, wait: float) -> None:
        """Be as new, for a call that may wait so long for others. Raises StoreError."""
        self._wait = wait
        store_file.require_safe(self.path)
        self.execute(f"PRAGMA busy_timeout = {int(wait * 1000)}")
        store_file.settle(self._connection, self.path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """The same, in turn with the process's other threads: SQLite would sleep and try again."""
        end = Deadline(self._wait)
        if not self._writing.acquire(timeout=self._wait):
            raise StoreError(f"store {self.path} is busy", "try again")
        try:
            self.execute(f"PRAGMA busy_timeout = {int(end.remaining() * 1000)}")
            with super().transaction():
                yield
        finally:
            self._writing.release()

    def close(self) -> None:
        """Give it back."""
        self._put_back(self)

    def end(self) -> None:
        """Close the file."""
        super().close()

    def is_current(self) -> bool:
        """Tell whether the file that is there is the one that it is to."""
        return self._identity is not None and self._identity == _identity(self.path)


_abandoned: list[_Kept] = []
"""Connections to a file that was put aside. Never closed: SQLite, closing the last one of a file,
deletes the log beside its *name*, which may be the new store's by now."""


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
