"""A connection to the sidecar store's file: statements and transactions, errors as StoreError.

Knows nothing of what is stored (store.py, store_domains.py) nor of the file (store_file.py).
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from vgpu_hook.model import StoreError, denied_hint

_DISK_CODES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
)
_DENIED_CODES = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_DENIED_ERRORS = (errno.EACCES, errno.EPERM)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class Database:
    """An open SQLite connection, in autocommit mode but for `transaction`."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self.path = path
        self.broken = False
        """Whether anything has failed but what the store's rules forbid."""

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """An exclusive write transaction; all or nothing."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run one statement. Raises StoreError."""
        try:
            return self._connection.execute(statement, values)
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"{self.path}: {error}: that device or slot already has an assignment",
                "run: vgpu-hook status",
            ) from error
        except sqlite3.Error as error:
            self.broken = True
            raise store_error(self.path, error) from error


def now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03}Z"


def seconds_since(moment: str) -> float:
    """Return the seconds since a time that `now` gave; negative if the clock went back."""
    whole, _, milliseconds = moment.rstrip("Z").partition(".")
    then = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return time.time() - then - int(milliseconds) / 1000


def store_error(path: str, error: Exception) -> StoreError:
    """Return the StoreError for what SQLite or the file system said."""
    if "locked" in str(error):
        return StoreError(f"store {path} is busy: {error}", "try again")
    if _is_of(error, _DENIED_CODES, _DENIED_ERRORS):
        return StoreError(f"store {path} can't be used: {error}", denied_hint(path))
    if _is_of(error, _DISK_CODES, _DISK_ERRORS):
        return StoreError(
            f"store {path} can't be used: {error}",
            f"is the disk of {os.path.dirname(path)} full, read-only or broken?",
        )
    return StoreError(
        f"store {path} can't be used: {error}",
        "see `vgpu-hook store check`; `vgpu-hook store set-aside` starts a new one",
    )


def _is_of(error: Exception, codes: tuple[int, ...], errors: tuple[int, ...]) -> bool:
    """Tell of an error after which the store is as good as ever: a new one would lose records."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what the extended codes add
        return code in codes
    return isinstance(error, OSError) and error.errno in errors
