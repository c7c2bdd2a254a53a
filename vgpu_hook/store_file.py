"""The sidecar store's file: its schema, and making, opening, checking and setting it aside.

`<state>/store.db`, SQLite in WAL mode with synchronous=FULL and STRICT tables.
`user_version` is the schema's version: unknown columns are left alone, a newer version is
refused. A broken store is reported and never overwritten: `vgpu-hook store set-aside`
moves it away on request. What the rows mean is in store.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import time

from vgpu_hook.database import Database, store_error
from vgpu_hook.folders import check_private, make_private
from vgpu_hook.model import STATES, StoreError, VgpuError
from vgpu_hook.store import Store

FILE = "store.db"

_STATES = ", ".join(f"'{state}'" for state in STATES)
_SCHEMA = f"""
CREATE TABLE domain (
    uuid TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    deleting_since TEXT,
    volumes TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE request (
    domain_uuid TEXT NOT NULL,
    slot TEXT NOT NULL,
    device TEXT NOT NULL,
    profile TEXT NOT NULL,
    gpu TEXT,
    fork TEXT NOT NULL,
    display TEXT,
    ramfb TEXT,
    params TEXT,
    PRIMARY KEY (domain_uuid, slot)
) STRICT;
CREATE INDEX request_of_device ON request (device);
CREATE TABLE assignment (
    generation INTEGER PRIMARY KEY AUTOINCREMENT,
    domain_uuid TEXT NOT NULL,
    domain_name TEXT NOT NULL,
    slot TEXT NOT NULL,
    framework TEXT NOT NULL,
    device TEXT NOT NULL,
    parent TEXT NOT NULL,
    type TEXT NOT NULL,
    profile TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ({_STATES})),
    boot_id TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    changed TEXT NOT NULL
) STRICT;
-- A device is in one live assignment at the most.
CREATE UNIQUE INDEX one_assignment_per_device
    ON assignment (framework, device) WHERE state <> 'reserved';
-- A slot has one current assignment; one that could not be released may stand beside it.
CREATE UNIQUE INDEX one_assignment_per_slot
    ON assignment (domain_uuid, slot) WHERE state <> 'retained';
CREATE INDEX assignment_of_domain ON assignment (domain_uuid);
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    operation TEXT NOT NULL,
    event TEXT NOT NULL,
    domain_uuid TEXT NOT NULL,
    domain_name TEXT NOT NULL,
    slot TEXT NOT NULL,
    device TEXT NOT NULL,
    generation INTEGER,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX history_of_domain ON history (domain_uuid);
CREATE INDEX history_of_device ON history (device);
"""
_VFS = """
CREATE TABLE reservation (
    domain_uuid TEXT NOT NULL,
    slot TEXT NOT NULL,
    device TEXT NOT NULL,
    PRIMARY KEY (domain_uuid, slot)
) STRICT;
CREATE TABLE failure (
    device TEXT NOT NULL,
    doing TEXT NOT NULL,
    domain_uuid TEXT NOT NULL,
    slot TEXT NOT NULL,
    domain_name TEXT NOT NULL,
    at TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (device, doing, domain_uuid, slot)
) STRICT;
CREATE TABLE vgpu_type (
    card TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (card, id)
) STRICT;
ALTER TABLE request ADD COLUMN placement TEXT;
-- One that could not be released is tried again while the slot has another VF.
DROP INDEX one_assignment_per_slot;
CREATE UNIQUE INDEX one_assignment_per_slot
    ON assignment (domain_uuid, slot) WHERE state IN ('creating', 'assigned');
"""
_ARRIVALS = """
-- Since when the VF is kept for a VM that is on its way to this host.
ALTER TABLE reservation ADD COLUMN arriving TEXT;
"""
_STEPS = (_SCHEMA, _VFS, _ARRIVALS)
"""What takes a store from each version to the next one. A step is never changed once released."""
SCHEMA_VERSION = len(_STEPS)


def open_store(state: str, operation: str, *, wait: float, create: bool = True) -> Store | None:
    """Open the store in the folder `state`; None if there is none and it isn't to be made.

    `wait` is how many seconds each call may wait for other writers. Raises StoreError.
    """
    path = place(state, create=create)
    if path is None:
        return None
    connection = connect(path, wait)
    try:
        settle(connection, path)
    except StoreError:
        connection.close()
        raise
    return Store(Database(connection, path), operation)


def place(state: str, *, create: bool) -> str | None:
    """Return the path of the store, made if there is none; None if it isn't to be made."""
    path = os.path.join(state, FILE)
    if not _exists(path):
        if not create:
            return None
        _create(state, path)
    return path


def settle(connection: sqlite3.Connection, path: str) -> None:
    """Make a new connection safe, and the store of this program's version. Raises StoreError."""
    try:
        connection.execute("PRAGMA synchronous = FULL")
        _upgrade(connection, path)
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def _upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Take the store to this program's version, a step at a time. Raises StoreError."""
    while (version := _version(connection)) != SCHEMA_VERSION:
        if not 0 < version < SCHEMA_VERSION:
            raise wrong_version(path, version)
        try:
            connection.executescript(_transaction(_STEPS[version], version + 1))
        except sqlite3.OperationalError:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _version(connection) == version:  # else another process was first
                raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _transaction(step: str, version: int) -> str:
    return f"BEGIN IMMEDIATE;\n{step}\nPRAGMA user_version = {version};\nCOMMIT;"


def check(state: str) -> list[str]:
    """Return what SQLite's integrity check finds wrong with the store; empty if nothing."""
    path = os.path.join(state, FILE)
    store = open_store(state, "check", wait=5, create=False)
    if store is None:
        return []
    try:
        with contextlib.closing(connect(path, 5)) as connection:
            return damage(Database(connection, path))
    finally:
        store.close()


def damage(database: Database) -> list[str]:
    """Return what SQLite's integrity check finds wrong with an open store. Raises StoreError."""
    found = [row[0] for row in database.execute("PRAGMA integrity_check")]
    return [] if found == ["ok"] else found


def set_aside(state: str) -> str | None:
    """Move the store out of the way, whole, and return its new path; None if there is none."""
    path = os.path.join(state, FILE)
    if not (_exists(path) or _exists(f"{path}-wal")):
        return None
    target = f"{path}.set-aside-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    if os.path.lexists(target):
        raise StoreError(f"{target} exists already", "try again in a second")
    with (
        contextlib.suppress(StoreError, sqlite3.Error),
        contextlib.closing(connect(path, 5)) as now,
    ):
        now.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that nothing is in the log alone
    try:
        for suffix in ("-wal", "-shm", ""):  # never a log beside a store that it is not of
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + suffix, target + suffix)
    except OSError as error:
        raise store_error(path, error) from error
    return target


def connect(path: str, wait: float, mode: str = "rw") -> sqlite3.Connection:
    """Open an existing file, read-write unless `mode` is `ro`; never makes one."""
    require_safe(path)
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        return sqlite3.connect(
            f"file:{quoted}?mode={mode}",
            uri=True,
            timeout=wait,
            isolation_level=None,
            check_same_thread=False,  # stores.py has one thread after the other use it
        )
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def require_safe(path: str) -> None:
    """Refuse what others may have put there. Raises StoreError."""
    try:
        check_private(os.path.dirname(path))
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError("it is not a regular file")
    except OSError as error:
        raise store_error(path, error) from error
    except VgpuError as error:
        raise StoreError(f"store {path} can't be used: {error.message}", error.hint) from error


def _exists(path: str) -> bool:
    """Tell whether there is anything; a folder that can't be looked into is no answer."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise store_error(path, error) from error
    return True


def _create(state: str, path: str) -> None:
    """Make an empty store beside its place and link it there: others see all or nothing."""
    # Of this thread alone: the daemon serves several calls at once.
    temporary = f"{path}.new-{os.getpid()}-{os.urandom(4).hex()}"
    # SQLite would play it into the new file. Looked at in this order: another process may be making
    # the store right now.
    if os.path.lexists(f"{path}-wal") and not os.path.lexists(path):
        raise store_error(path, OSError(f"{path}-wal is there without it"))
    try:
        make_private(state)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            with contextlib.closing(sqlite3.connect(temporary)) as connection:
                for version, step in enumerate(_STEPS):
                    connection.executescript(_transaction(step, version + 1))
                # Last: the end of a connection can't say that its log did not fit into the file.
                connection.execute("PRAGMA journal_mode = WAL")
            if os.path.lexists(f"{temporary}-wal"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(temporary, path)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary + suffix)
        folder = os.open(state, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except (OSError, sqlite3.Error) as error:
        raise store_error(path, error) from error
    except VgpuError as error:
        raise StoreError(f"store {path} can't be used: {error.message}", error.hint) from error


def wrong_version(path: str, version: int) -> StoreError:
    """Return the StoreError for a store whose format this program does not know."""
    if version > SCHEMA_VERSION:
        return StoreError(
            f"store {path} has format {version}, newer than this program's {SCHEMA_VERSION}",
            "install the vgpu-hook that wrote it, or newer",
        )
    return StoreError(
        f"store {path} has no known format (version {version})",
        "see `vgpu-hook store check`; `vgpu-hook store set-aside` starts a new one",
    )
