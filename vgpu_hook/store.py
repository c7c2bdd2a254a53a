"""The sidecar store: which slot of which domain has which device, and how it came to be.

One SQLite file (store_file.py makes and opens it), of which this module knows the meaning:

- `assignment`: one row for each vGPU that exists, or may exist. Its key is the generation,
  which is never used twice, so that whoever holds one can't touch a successor (R12).
  States: see docs/architecture.md. Rows go `creating` -> `assigned` -> `releasing` -> gone,
  or `retained`. The intent is committed before the kernel is written to, the result after
  it has been read back.
- `domain`: the mark that blocks a domain under deletion, changed by column only (R10).
- `history`: what happened and why, newest last, pruned to the last HISTORY_KEPT.

Concurrency is SQLite's: every method is one transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vgpu_hook.model import (
    ASSIGNED,
    CREATING,
    RELEASING,
    RETAINED,
    Assignment,
    StoreError,
)

HISTORY_KEPT = 50_000

_COLUMNS = ", ".join(Assignment._fields)


class HistoryEntry(NamedTuple):
    """One line of the history. `at` is UTC in ISO 8601."""

    at: str
    boot_id: str
    operation: str
    event: str
    domain_uuid: str
    domain_name: str
    slot: str
    device: str
    generation: int | None
    detail: str


class Store:
    """An open store. `operation` (prepare, stopped, cli ...) goes into the history."""

    def __init__(self, connection: sqlite3.Connection, path: str, operation: str) -> None:
        self._db = connection
        self.path = path
        self._operation = operation

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # -- assignments --------------------------------------------------------------------

    def intend(self, boot_id: str, choose: Callable[[list[Assignment]], Assignment]) -> Assignment:
        """Choose a device and commit the intent to make it, as one exclusive step.

        `choose` is given the rows in state `creating` of this boot and returns the row to
        be inserted (its generation is ignored); what it raises undoes everything. It is
        called while others wait: it must be short and must not touch the kernel.
        """
        with self._transaction():
            pending = self._select("WHERE state = ? AND boot_id = ?", CREATING, boot_id)
            return self._insert(choose(pending), "intent to create")

    def adopt(self, row: Assignment, detail: str) -> Assignment:
        """Record a device that is there and was proved to be this slot's.

        Takes the place of what the same domain had on record for it.
        """
        with self._transaction():
            for old in self._select(
                "WHERE device = ? AND domain_uuid = ?", row.device, row.domain_uuid
            ):
                self._execute("DELETE FROM assignment WHERE generation = ?", (old.generation,))
                self._record(old, "superseded", "its device was adopted by a later start")
            return self._insert(row._replace(state=ASSIGNED, reason=""), "adopted", detail)

    def move(self, row: Assignment, state: str, event: str, reason: str = "") -> Assignment | None:
        """Take the row to another state; None if it is no longer as `row` has it (R12)."""
        changed = now()
        with self._transaction():
            done = self._execute(
                "UPDATE assignment SET state = ?, reason = ?, changed = ?"
                " WHERE generation = ? AND state = ?",
                (state, reason, changed, row.generation, row.state),
            )
            if done.rowcount == 0:
                return None
            moved = row._replace(state=state, reason=reason, changed=changed)
            if (row.state, row.reason) != (state, reason):  # a repeated refusal is no news
                self._record(moved, event, reason)
            return moved

    def forget(self, row: Assignment, event: str, detail: str = "") -> bool:
        """Delete the row, because its device is gone; False if it has changed since (R12)."""
        with self._transaction():
            done = self._execute(
                "DELETE FROM assignment WHERE generation = ? AND state = ?",
                (row.generation, row.state),
            )
            if done.rowcount:
                self._record(row, event, detail)
            return bool(done.rowcount)

    def of_domain(self, domain_uuid: str) -> list[Assignment]:
        """Return the domain's rows, oldest first."""
        return self._select("WHERE domain_uuid = ?", domain_uuid)

    def of_device(self, device: str) -> list[Assignment]:
        """Return the rows that name the device, oldest first."""
        return self._select("WHERE device = ?", device)

    def all(self) -> list[Assignment]:
        """Return every row, oldest first."""
        return self._select("")

    def retain_unfinished(self, domain_uuid: str, boot_id: str, reason: str) -> int:
        """Mark what was being created or released when its process was given up on."""
        rows = self._select(
            "WHERE domain_uuid = ? AND boot_id = ? AND state IN (?, ?)",
            domain_uuid,
            boot_id,
            CREATING,
            RELEASING,
        )
        return sum(self.move(row, RETAINED, "retained", reason) is not None for row in rows)

    # -- domains ------------------------------------------------------------------------

    def mark_deleting(self, domain_uuid: str, name: str) -> None:
        """Block every start of the domain from now on (R10)."""
        with self._transaction():
            self._execute(
                "INSERT INTO domain (uuid, name, deleting_since) VALUES (?, ?, ?)"
                " ON CONFLICT (uuid) DO UPDATE SET"
                " deleting_since = coalesce(deleting_since, excluded.deleting_since)",
                (domain_uuid, name, now()),
            )

    def deleting_since(self, domain_uuid: str) -> str | None:
        """Return since when the domain is being deleted, in ISO 8601; None if it is not."""
        row = self._execute(
            "SELECT deleting_since FROM domain WHERE uuid = ?", (domain_uuid,)
        ).fetchone()
        return row[0] if row else None

    def note_name(self, domain_uuid: str, name: str) -> None:
        """Remember the name that the domain has now; touches no other column."""
        with self._transaction():
            self._execute(
                "INSERT INTO domain (uuid, name) VALUES (?, ?)"
                " ON CONFLICT (uuid) DO UPDATE SET name = excluded.name",
                (domain_uuid, name),
            )

    def uuids_of_name(self, name: str) -> list[str]:
        """Return the UUIDs of the domains last seen under this name."""
        found = self._execute("SELECT uuid FROM domain WHERE name = ? ORDER BY uuid", (name,))
        return [row[0] for row in found]

    # -- history ------------------------------------------------------------------------

    def note(self, row: Assignment, event: str, detail: str) -> None:
        """Add a line to the history that changes no assignment."""
        with self._transaction():
            self._record(row, event, detail)

    def history(self, domain_uuid: str = "", device: str = "") -> list[HistoryEntry]:
        """Return the lines about the domain or the device, oldest first."""
        found = self._execute(
            f"SELECT {', '.join(HistoryEntry._fields)} FROM history"  # noqa: S608 - constants
            " WHERE domain_uuid = ? OR device = ? ORDER BY id",
            (domain_uuid, device),
        )
        return [HistoryEntry(*row) for row in found]

    # -- inside -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """An exclusive write transaction; all or nothing."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"{self.path}: {error}: that device or slot already has an assignment",
                "run: vgpu-hook status",
            ) from error
        except sqlite3.Error as error:
            raise store_error(self.path, error) from error

    def _select(self, where: str, *values: Any) -> list[Assignment]:
        found = self._execute(
            f"SELECT {_COLUMNS} FROM assignment {where} ORDER BY generation",  # noqa: S608
            values,
        )
        return [Assignment(*row) for row in found]

    def _insert(self, row: Assignment, event: str, detail: str = "") -> Assignment:
        row = row._replace(changed=now())
        names = ", ".join(Assignment._fields[1:])
        marks = ", ".join("?" for _ in Assignment._fields[1:])
        done = self._execute(
            f"INSERT INTO assignment ({names}) VALUES ({marks})",  # noqa: S608 - constants
            row[1:],
        )
        row = row._replace(generation=int(done.lastrowid or 0))
        self._record(row, event, detail or f"{row.type} on {row.parent}")
        return row

    def _record(self, row: Assignment, event: str, detail: str) -> None:
        done = self._execute(
            "INSERT INTO history (at, boot_id, operation, event, domain_uuid, domain_name,"
            " slot, device, generation, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                now(),
                row.boot_id,
                self._operation,
                event,
                row.domain_uuid,
                row.domain_name,
                row.slot,
                row.device,
                row.generation,
                detail,
            ),
        )
        oldest = int(done.lastrowid or 0) - HISTORY_KEPT
        self._execute("DELETE FROM history WHERE id <= ?", (oldest,))


def now() -> str:
    """Return the time in UTC, ISO 8601 with milliseconds."""
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03}Z"


def store_error(path: str, error: Exception) -> StoreError:
    """Return the StoreError for what SQLite or the file system said."""
    if "locked" in str(error):
        return StoreError(f"store {path} is busy: {error}", "try again")
    return StoreError(
        f"store {path} can't be used: {error}",
        "see `vgpu-hook store check`; `vgpu-hook store set-aside` starts a new one",
    )
