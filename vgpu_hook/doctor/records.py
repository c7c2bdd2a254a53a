"""The sidecar store: can it be used, is it whole, and what in it waits for somebody?

Opened here without being brought up to date, unlike everywhere else: nothing is to change.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from vgpu_hook import store_file
from vgpu_hook.config import Settings
from vgpu_hook.database import Database, seconds_since
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.model import RETAINED, StoreError, VgpuError, shell_word
from vgpu_hook.store import Store
from vgpu_hook.store_devices import quarantined

WAIT = 3.0
SPACE = 16 << 20
"""Bytes that must be free: SQLite's log grows to some four MiB before it is taken over."""

HOOK_CALLS = ("prepare", "stopped", "release", "migrate", "restore")
"""What libvirt's calls of the hook are written into the history as."""


class OtherVersion(VgpuError):
    """The store is of an older version, and is brought up to date by whoever uses it next."""


class Opened(NamedTuple):
    """The store, and the connection to it for what nobody else asks."""

    store: Store
    database: Database


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Opened | None]:
    """Open the store as it is; None if there is none. Raises StoreError, or OtherVersion."""
    path = store_file.place(settings.state, create=False)
    if path is None:
        yield None
        return
    # SQLite's log is taken over by the last who closes the store for writing, and left behind by
    # who only reads it.
    mode = "ro" if os.path.lexists(f"{path}-wal") else "rw"
    database = Database(store_file.connect(path, WAIT, mode), path)
    with contextlib.closing(database):
        database.execute("PRAGMA query_only = ON")
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        if 0 < version < store_file.SCHEMA_VERSION:
            raise OtherVersion(
                f"it has format {version}: whoever uses it next brings it up to date"
            )
        if version != store_file.SCHEMA_VERSION:
            raise store_file.wrong_version(path, version)
        yield Opened(Store(database, "doctor"), database)


def check(situation: Situation) -> list[Finding]:
    """Look at the folder, at the store as `store check` does, and at the records."""
    report = Report("store")
    settings = situation.settings
    path = os.path.join(settings.state, store_file.FILE)
    _space(report, settings.state)
    try:
        with opened(settings) as found:
            if found is None:
                report.ok(path, "there is none yet: nothing was ever recorded")
                return report.findings
            damage = store_file.damage(found.database)
            if damage:
                text = f"it is damaged: {damage[0]}"
                report.error(path, text, f"copy it, then {run('vgpu-hook', 'store', 'set-aside')}")
            else:
                report.ok(path, f"it is whole, of format {store_file.SCHEMA_VERSION}")
            _retained(report, found.store)
            _quarantined(report, found.store)
            _deletions(report, found.store)
    except OtherVersion as error:
        report.ok(path, error.message)
    except StoreError as error:
        text = f"{error.message}: every start with a vGPU is refused"
        report.error(path, text, error.hint or run("vgpu-hook", "store", "check"))
    return report.findings


def _space(report: Report, folder: str) -> None:
    while not os.path.isdir(folder):  # it is made at the first start
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY:
        text = "its file system is read-only: every start with a vGPU is refused"
        report.error(folder, text, f"why: findmnt -T {folder}; dmesg")
    elif free < SPACE:
        text = f"{free >> 20} MiB are free: when none is, every start with a vGPU is refused"
        report.error(folder, text, f"make room: df {folder}")


def _retained(report: Report, store: Store) -> None:
    for row in store.all():
        if row.state == RETAINED:
            subject = f"{row.device} of domain {row.domain_name!r}"
            fix = f"run: vgpu-hook release {shell_word(row.domain_name)}"
            report.warning(subject, f"it could not be released: {row.reason}", fix)


def _quarantined(report: Report, store: Store) -> None:
    for device, failures in quarantined(store.devices.failures()).items():
        text = f"it is set aside, since it failed for {len(failures)} vGPUs: {failures[-1].reason}"
        report.warning(device, text, run("vgpu-hook", "quarantine", "--clear", device))


def _deletions(report: Report, store: Store) -> None:
    for domain_uuid, name in store.domains.names().items():
        since = store.domains.deleting_since(domain_uuid)
        if since is not None:
            text = f"its deletion began at {since} and has not ended: it can't be started"
            word = shell_word(name)
            fix = f"run: vgpu-hook delete {word}; or: vgpu-hook delete --cancel {word}"
            report.warning(f"domain {name!r}", text, fix)


def last_hook_call(settings: Settings) -> float | None:
    """Return when the hook was called last, as far as is on record, in seconds since 1970."""
    marks = ", ".join("?" for _ in HOOK_CALLS)
    with contextlib.suppress(VgpuError, OSError), opened(settings) as found:
        if found is not None:
            (at,) = found.database.execute(
                f"SELECT max(at) FROM history WHERE operation IN ({marks})",  # noqa: S608
                HOOK_CALLS,
            ).fetchone()
            return None if at is None else time.time() - seconds_since(at)
    return None
