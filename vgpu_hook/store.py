"""The sidecar store: which slot of which domain has which device, and how it came to be.

One SQLite file (store_file.py makes and opens it), of which this module knows the meaning:

- `assignment`: one row for each vGPU that exists, or may exist. Its key is the generation,
  which is never used twice, so that whoever holds one can't touch a successor (R12).
  States: see docs/architecture.md. Rows go `creating` -> `assigned` -> `releasing` -> gone,
  or `retained`. The intent is committed before the kernel is written to, the result after
  it has been read back.
- `domain`, `request`: what is known of domains (store_domains.py).
- `reservation`, `failure`, `vgpu_type`: what is known of VFs (store_devices.py).
- `history`: what happened and why, newest last, pruned to the last HISTORY_KEPT.

Concurrency is SQLite's: every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vgpu_hook.database import Database, now, seconds_since
from vgpu_hook.model import (
    ASSIGNED,
    CREATING,
    RELEASING,
    RETAINED,
    Assignment,
)
from vgpu_hook.store_devices import DeviceRecords
from vgpu_hook.store_domains import DomainRecords

HISTORY_KEPT = 50_000
INTENT = "intent to create"

YOUNG = 300.0
"""Seconds for which the record of a running domain's vGPU may be of one that is on its way into or
out of it (hot-plug). Longer than a hook's deadline and libvirt's own waits together."""

_COLUMNS = ", ".join(Assignment._fields)


def is_young(row: Assignment) -> bool:
    """Tell whether the record has changed so lately that a hot-plug may be under way.

    Also if the clock went back.
    """
    return not seconds_since(row.changed) - YOUNG >= 0


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

    def __init__(self, database: Database, operation: str) -> None:
        self._database = database
        self._operation = operation
        self.domains = DomainRecords(database)
        self.devices = DeviceRecords(database)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # -- assignments --------------------------------------------------------------------

    def intend(self, boot_id: str, choose: Callable[[list[Assignment]], Assignment]) -> Assignment:
        """Choose a device and commit the intent to make it, as one exclusive step.

        `choose` is given the rows in state `creating` of this boot and returns the row to
        be inserted (its generation is ignored); what it raises undoes everything. It is
        called while others wait: it must be short and must not touch the kernel.
        """
        with self._database.transaction():
            pending = self._select("WHERE state = ? AND boot_id = ?", CREATING, boot_id)
            return self._insert(choose(pending), INTENT)

    def adopt(self, row: Assignment, detail: str) -> Assignment:
        """Record a device that is there and was proved to be this slot's.

        Takes the place of what the same domain had on record for it.
        """
        with self._database.transaction():
            for old in self._select(
                "WHERE device = ? AND domain_uuid = ?", row.device, row.domain_uuid
            ):
                self._delete(old)
                self._record(old, "superseded", "its device was adopted by a later start")
            return self._insert(row._replace(state=ASSIGNED, reason=""), "adopted", detail)

    def move(self, row: Assignment, state: str, event: str, reason: str = "") -> Assignment | None:
        """Take the row to another state; None if it is no longer as `row` has it (R12)."""
        changed = now()
        with self._database.transaction():
            done = self._database.execute(
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

    def correct_type(self, row: Assignment, type_id: str) -> Assignment:
        """Record what the kernel made in place of what was asked for; else nobody could undo it."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE assignment SET type = ? WHERE generation = ?", (type_id, row.generation)
            )
            corrected = row._replace(type=type_id)
            self._record(corrected, "read back", f"{type_id} instead of {row.type}")
            return corrected

    def forget(self, row: Assignment, event: str, detail: str = "") -> bool:
        """Delete the row, because its device is gone; False if it has changed since (R12)."""
        with self._database.transaction():
            done = self._database.execute(
                "DELETE FROM assignment WHERE generation = ? AND state = ?",
                (row.generation, row.state),
            )
            if done.rowcount:
                self._record(row, event, detail)
            return bool(done.rowcount)

    def of_domain(self, domain_uuid: str) -> list[Assignment]:
        """Return the domain's rows, oldest first."""
        return self._select("WHERE domain_uuid = ?", domain_uuid)

    def of_slot(self, domain_uuid: str, slot: str) -> list[Assignment]:
        """Return the domain's rows for one slot, oldest first."""
        return [row for row in self.of_domain(domain_uuid) if row.slot == slot]

    def generations(self, domain_uuid: str, slot: str) -> frozenset[int]:
        """Return the generations of the domain's rows for one slot."""
        return frozenset(row.generation for row in self.of_slot(domain_uuid, slot))

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

    # -- history ------------------------------------------------------------------------

    def note(self, domain_uuid: str, domain_name: str, event: str, detail: str = "") -> None:
        """Add a line about the domain to the history, that changes no assignment."""
        with self._database.transaction():
            self._write_history(
                ("", self._operation, event, domain_uuid, domain_name, "", "", None, detail)
            )

    def history(self, device: str, domain_uuids: Iterable[str]) -> list[HistoryEntry]:
        """Return the lines about the device or one of the domains, oldest first."""
        uuids = tuple(domain_uuids)
        marks = ", ".join("?" for _ in uuids)
        found = self._database.execute(
            f"SELECT {', '.join(HistoryEntry._fields)} FROM history"  # noqa: S608 - constants
            f" WHERE (device = ? AND device <> '') OR domain_uuid IN ({marks}) ORDER BY id",
            (device, *uuids),
        )
        return [HistoryEntry(*row) for row in found]

    # -- inside -------------------------------------------------------------------------

    def _select(self, where: str, *values: Any) -> list[Assignment]:
        found = self._database.execute(
            f"SELECT {_COLUMNS} FROM assignment {where} ORDER BY generation",  # noqa: S608
            values,
        )
        return [Assignment(*row) for row in found]

    def _insert(self, row: Assignment, event: str, detail: str = "") -> Assignment:
        row = row._replace(changed=now())
        names = ", ".join(Assignment._fields[1:])
        marks = ", ".join("?" for _ in Assignment._fields[1:])
        done = self._database.execute(
            f"INSERT INTO assignment ({names}) VALUES ({marks})",  # noqa: S608 - constants
            row[1:],
        )
        row = row._replace(generation=int(done.lastrowid or 0))
        self._record(row, event, detail or f"{row.type} on {row.parent}")
        return row

    def _delete(self, row: Assignment) -> None:
        self._database.execute("DELETE FROM assignment WHERE generation = ?", (row.generation,))

    def _record(self, row: Assignment, event: str, detail: str) -> None:
        self._write_history(
            (
                row.boot_id,
                self._operation,
                event,
                row.domain_uuid,
                row.domain_name,
                row.slot,
                row.device,
                row.generation,
                detail,
            )
        )

    def _write_history(self, values: tuple[Any, ...]) -> None:
        done = self._database.execute(
            "INSERT INTO history (at, boot_id, operation, event, domain_uuid, domain_name,"
            " slot, device, generation, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (now(), *values),
        )
        oldest = int(done.lastrowid or 0) - HISTORY_KEPT
        self._database.execute("DELETE FROM history WHERE id <= ?", (oldest,))
