"""What the sidecar store knows of devices that are a part of the host: SR-IOV VFs.

- `reservation`: the VF that a domain's definition names for a slot. Many definitions may name
  one VF, of which one domain at a time can run on it; who does is an assignment (store.py).
- `failure`: VFs on which a vGPU could not be made or reset, and for whom. One that failed so
  for two different assignments is in quarantine, until it succeeds or a command clears it.
- `vgpu_type`: names of types that were seen, since a driver lists only what it can make now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from vgpu_hook.database import Database, now, seconds_since
from vgpu_hook.model import Assignment

CREATE = "create"
RESET = "reset"
ARRIVAL_WAIT = 60.0
"""Seconds that a VF is kept for a VM whose XML named it to libvirt: `prepare` follows at once."""

QUARANTINE_AT = 2
"""Different slots of domains for which a VF has failed in the same way."""


class Reservation(NamedTuple):
    """The VF that a definition names. `arriving` is since when (UTC, ISO 8601) it is kept for a VM
    that is restored or migrated here: for ARRIVAL_WAIT, whether it has started or not."""

    domain_uuid: str
    slot: str
    device: str
    arriving: str | None = None

    @property
    def is_kept(self) -> bool:
        """Tell whether nobody else should be given the VF: its VM is about to start on it."""
        return self.arriving is not None and 0 <= seconds_since(self.arriving) < ARRIVAL_WAIT


class Failure(NamedTuple):
    """A VF that failed, doing what and for whom. `at` is UTC in ISO 8601."""

    device: str
    doing: str
    domain_uuid: str
    slot: str
    domain_name: str
    at: str
    reason: str


class DeviceRecords:
    """The tables `reservation`, `failure` and `vgpu_type` of an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reservations -------------------------------------------------------------------

    def reserve(self, domain_uuid: str, slot: str, device: str, *, arriving: bool = False) -> None:
        """Record that the domain's definition names the VF; it takes the place of another.

        `arriving`: its VM is about to start, so that for a moment nobody else is given the VF.
        """
        if arriving or self.reserved(domain_uuid, slot) != device:
            with self._database.transaction():
                self._database.execute(
                    "INSERT INTO reservation (domain_uuid, slot, device, arriving)"
                    " VALUES (?, ?, ?, ?) ON CONFLICT (domain_uuid, slot) DO UPDATE"
                    " SET device = excluded.device, arriving = excluded.arriving",
                    (domain_uuid, slot, device, now() if arriving else None),
                )

    def reserved(self, domain_uuid: str, slot: str) -> str | None:
        """Return the VF that the slot's definition was last given; None if none was."""
        row = self._database.execute(
            "SELECT device FROM reservation WHERE domain_uuid = ? AND slot = ?",
            (domain_uuid, slot),
        ).fetchone()
        return row[0] if row else None

    def is_arriving(self, domain_uuid: str) -> bool:
        """Tell whether a VF is kept for the domain, which libvirt may not know yet."""
        return any(r.is_kept for r in self.reservations() if r.domain_uuid == domain_uuid)

    def reservations(self) -> list[Reservation]:
        """Return every reservation."""
        found = self._database.execute(
            "SELECT domain_uuid, slot, device, arriving FROM reservation ORDER BY domain_uuid, slot"
        )
        return [Reservation(*row) for row in found]

    def keep_reservations(self, domain_uuid: str, slots: Iterable[str]) -> None:
        """Drop the domain's reservations but those of `slots`."""
        kept = tuple(slots)
        marks = ", ".join("?" for _ in kept)
        values = (domain_uuid, *kept)
        where = f"WHERE domain_uuid = ? AND slot NOT IN ({marks})"
        if self._database.execute(
            f"SELECT 1 FROM reservation {where}",  # noqa: S608 - marks only
            values,
        ).fetchone():
            with self._database.transaction():
                self._database.execute(f"DELETE FROM reservation {where}", values)  # noqa: S608

    # -- failures -----------------------------------------------------------------------

    def note_failure(self, failure: Failure) -> None:
        """Record that the VF failed for this slot; `at` is filled in."""
        with self._database.transaction():
            self._database.execute(
                "INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?, ?, ?, ?)",
                failure._replace(at=now()),
            )

    def clear_failures(self, device: str, doing: str | None = None) -> int:
        """Forget that the VF has failed (at `doing`, if given); return what was forgotten."""
        where, values = "WHERE device = ?", [device]
        if doing is not None:
            where, values = f"{where} AND doing = ?", [device, doing]
        if not self._database.execute(
            f"SELECT 1 FROM failure {where}",  # noqa: S608 - constants
            tuple(values),
        ).fetchone():
            return 0
        with self._database.transaction():
            done = self._database.execute(f"DELETE FROM failure {where}", tuple(values))  # noqa: S608
        return done.rowcount

    def failures(self) -> list[Failure]:
        """Return every failure on record, oldest first."""
        found = self._database.execute("SELECT * FROM failure ORDER BY at, device")
        return [Failure(*row) for row in found]

    # -- names of types -----------------------------------------------------------------

    def types(self) -> dict[tuple[str, str], str]:
        """Return the names of all types that were seen, by card and type id."""
        found = self._database.execute("SELECT card, id, name FROM vgpu_type")
        return {(card, type_id): name for card, type_id, name in found}

    def learn_types(self, names: dict[tuple[str, str], str]) -> None:
        """Record names of types, by card and type id."""
        with self._database.transaction():
            for (card, type_id), name in names.items():
                self._database.execute(
                    "INSERT OR REPLACE INTO vgpu_type (card, id, name) VALUES (?, ?, ?)",
                    (card, type_id, name),
                )


def failure_of(row: Assignment, doing: str, reason: str) -> Failure:
    """Return the failure of an assignment's VF; `at` is filled in when it is recorded."""
    return Failure(row.device, doing, row.domain_uuid, row.slot, row.domain_name, "", reason)


def quarantined(failures: Iterable[Failure]) -> dict[str, list[Failure]]:
    """Return the VFs that are set aside, each with the failures that it is for."""
    by_device: dict[str, list[Failure]] = {}
    for failure in failures:
        by_device.setdefault(failure.device, []).append(failure)
    return {
        device: those
        for device, those in by_device.items()
        if max(Counter(failure.doing for failure in those).values()) >= QUARANTINE_AT
    }
