"""What the sidecar store knows of domains: the mark of a deletion, and their current requests.

The mark blocks every start (R10). It is changed by column and in a transaction of its own, so
that no other save can lose it. The requests are those that a domain was last seen with: what
stands when a snapshot brings back an older definition (R9), and what the boot gate waits for.
"""

from __future__ import annotations

import json

from vgpu_hook.database import Database, now
from vgpu_hook.model import VgpuRequest, derive_device_uuid

_REQUEST = ", ".join(VgpuRequest._fields)
_MARKS = ", ".join("?" for _ in VgpuRequest._fields)


class DomainRecords:
    """The tables `domain` and `request` of an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def name_of(self, domain_uuid: str) -> str | None:
        """Return the name that the domain was last seen under; None if it is not on record."""
        row = self._database.execute(
            "SELECT name FROM domain WHERE uuid = ?", (domain_uuid,)
        ).fetchone()
        return row[0] if row else None

    def names(self) -> dict[str, str]:
        """Return the name of every domain on record, by UUID."""
        return dict(self._database.execute("SELECT uuid, name FROM domain").fetchall())

    def uuids_of_name(self, name: str) -> list[str]:
        """Return the UUIDs of the domains last seen under this name."""
        found = self._database.execute(
            "SELECT uuid FROM domain WHERE name = ? ORDER BY uuid", (name,)
        )
        return [row[0] for row in found]

    def forget(self, domain_uuid: str) -> None:
        """Forget the domain and its requests, unless it is being deleted (R10).

        Assignments stay until they are released.
        """
        with self._database.transaction():
            done = self._database.execute(
                "DELETE FROM domain WHERE uuid = ? AND deleting_since IS NULL", (domain_uuid,)
            )
            if done.rowcount:
                self._database.execute("DELETE FROM request WHERE domain_uuid = ?", (domain_uuid,))
                self._database.execute(
                    "DELETE FROM reservation WHERE domain_uuid = ?", (domain_uuid,)
                )

    def end_deletion(self, domain_uuid: str, *, keep: bool = False) -> None:
        """Lift the mark; forget the domain too, unless `keep` (its deletion was called off)."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE domain SET deleting_since = NULL, volumes = '' WHERE uuid = ?",
                (domain_uuid,),
            )
        if not keep:
            self.forget(domain_uuid)

    # -- deletion -----------------------------------------------------------------------

    def mark_deleting(self, domain_uuid: str, name: str) -> None:
        """Block every start of the domain from now on (R10)."""
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO domain (uuid, name, deleting_since) VALUES (?, ?, ?)"
                " ON CONFLICT (uuid) DO UPDATE SET"
                " deleting_since = coalesce(deleting_since, excluded.deleting_since)",
                (domain_uuid, name, now()),
            )

    def deleting_since(self, domain_uuid: str) -> str | None:
        """Return since when the domain is being deleted, in ISO 8601; None if it is not."""
        row = self._database.execute(
            "SELECT deleting_since FROM domain WHERE uuid = ?", (domain_uuid,)
        ).fetchone()
        return row[0] if row else None

    def set_volumes(self, domain_uuid: str, volumes: list[str]) -> None:
        """Remember the volumes that a deletion is to remove, before the definition goes."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE domain SET volumes = ? WHERE uuid = ?", (json.dumps(volumes), domain_uuid)
            )

    def volumes(self, domain_uuid: str) -> list[str]:
        """Return the volumes that a deletion is still to remove."""
        row = self._database.execute(
            "SELECT volumes FROM domain WHERE uuid = ?", (domain_uuid,)
        ).fetchone()
        return [str(path) for path in json.loads(row[0])] if row and row[0] else []

    # -- requests -----------------------------------------------------------------------

    def set_requests(self, domain_uuid: str, name: str, requests: tuple[VgpuRequest, ...]) -> bool:
        """Record what the domain asks for now; tell whether it is news."""
        if requests == self.requests(domain_uuid) and self.name_of(domain_uuid) == name:
            return False
        with self._database.transaction():
            self._note_name(domain_uuid, name)
            self._database.execute("DELETE FROM request WHERE domain_uuid = ?", (domain_uuid,))
            for request in requests:
                self._database.execute(
                    f"INSERT INTO request (domain_uuid, device, {_REQUEST})"  # noqa: S608 - constants
                    f" VALUES (?, ?, {_MARKS})",
                    (domain_uuid, derive_device_uuid(domain_uuid, request.slot), *request),
                )
        return True

    def requests(self, domain_uuid: str) -> tuple[VgpuRequest, ...]:
        """Return what the domain was last seen to ask for, in its order."""
        found = self._database.execute(
            f"SELECT {_REQUEST} FROM request WHERE domain_uuid = ? ORDER BY rowid",  # noqa: S608
            (domain_uuid,),
        )
        return tuple(VgpuRequest(*row) for row in found)

    def all_requests(self) -> list[tuple[str, VgpuRequest]]:
        """Return what any domain asks for, with the domain's UUID."""
        found = self._database.execute(
            f"SELECT domain_uuid, {_REQUEST} FROM request ORDER BY rowid"  # noqa: S608 - constants
        )
        return [(row[0], VgpuRequest(*row[1:])) for row in found]

    def owner_of(self, device: str) -> str | None:
        """Return the UUID of the domain whose derived device this is, if it is known."""
        row = self._database.execute(
            "SELECT domain_uuid FROM request WHERE device = ?", (device,)
        ).fetchone()
        return row[0] if row else None

    def _note_name(self, domain_uuid: str, name: str) -> None:
        self._database.execute(
            "INSERT INTO domain (uuid, name) VALUES (?, ?)"
            " ON CONFLICT (uuid) DO UPDATE SET name = excluded.name",
            (domain_uuid, name),
        )
        self._database.execute(
            "UPDATE assignment SET domain_name = ? WHERE domain_uuid = ? AND domain_name <> ?",
            (name, domain_uuid, name),
        )
