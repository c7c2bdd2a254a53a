"""`vgpu-hook record`: all that a bug report needs, in one file, and nothing that it does not.

What is in it and what never is: docs/record.md. What can't be read is named in the file and on
stderr, and never a reason to write none: a host in trouble is what this is for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import urllib.parse
from typing import Any, NamedTuple

from vgpu_hook import __version__, bounded, bundle, config, domain, reduced, snapshot, store_dump
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.database import now
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.model import FRAMEWORK, Domain, VgpuError, one_line
from vgpu_hook.redaction import Names
from vgpu_hook.snapshot import Entries, Entry

KERNEL_SHARE = 2
"""Of a hook's deadline, for reading the kernel's files: nobody waits for this as libvirt does."""

LIBVIRT_WAIT = 30.0
JOURNAL_WAIT = 20.0
"""Seconds."""

JOURNAL_MOST = 2000
"""Lines of the journal, the newest."""

JOURNAL_FIELDS = (
    *("__REALTIME_TIMESTAMP", "_BOOT_ID", "_PID", "MESSAGE", "MESSAGE_ID", "PRIORITY"),
    *("VGPU_DOMAIN_UUID", "VGPU_DOMAIN_NAME", "VGPU_SLOT", "VGPU_DEVICE", "VGPU_PARENT"),
    "VGPU_OPERATION",
)
LIBRARIES = ("libvirt-python", "lxml", "pydantic", "structlog")
BY_DEFAULT = "vgpu-hook-record-%Y%m%dT%H%M%SZ.tar.gz"


class Seen(NamedTuple):
    """A domain as libvirt shows it. `problem` is why a part of it is missing, if so."""

    uuid: str
    name: str
    active: bool
    persistent: bool
    definition: Domain | None
    live: Domain | None
    problem: str = ""

    @property
    def matters(self) -> bool:
        """Tell of a domain that has to do with vGPUs, or may have; all others are only counted."""
        both = [subject for subject in (self.definition, self.live) if subject is not None]
        hostdevs = (hostdev for subject in both for hostdev in subject.hostdevs)
        asks = any(subject.request or subject.refused for subject in both)
        return bool(self.problem) or asks or any(h.type in FRAMEWORK for h in hostdevs)


class Asked(NamedTuple):
    """What libvirt was asked for: domains, and versions as it counts them (11003000: 11.3.0)."""

    domains: list[Seen]
    libvirt: int
    hypervisor: int


class Recorded(NamedTuple):
    """All parts of a bundle, before anything is renamed."""

    settings: dict[str, Any]
    store: store_dump.Dump | None
    kernel: Entries
    asked: Asked | None
    journal: list[dict[str, str]]
    versions: dict[str, Any]
    problems: list[str]


def record(arguments: argparse.Namespace) -> int:
    """Write a bundle for a bug report."""
    path = arguments.output or time.strftime(BY_DEFAULT, time.gmtime())
    if os.path.lexists(path) and not arguments.force:
        raise VgpuError(f"{path} exists already", "name another file, or use --force")
    found = _gather(arguments.connect)
    names = _names(found) if arguments.redact_names else None
    parts, entries = _parts(found, names)
    for droppable in ("journal.json", "store.json"):
        if bundle.size(parts, entries) > bundle.MOST:
            parts[droppable] = bundle.as_json(None)
            found.problems.append(f"{droppable} was left out: the file would be too large")
    if bundle.size(parts, entries) > bundle.MOST:
        raise VgpuError(
            f"what is to be recorded is larger than {bundle.MOST >> 20} MiB", "report this as a bug"
        )
    problems = [names.text(text) for text in found.problems] if names else found.problems
    manifest = {
        "format": bundle.FORMAT,
        "recorded": now(),
        "redacted_names": names is not None,
        "problems": problems,
    }
    data = bundle.pack({**parts, "manifest.json": bundle.as_json(manifest)}, entries)
    bundle.write(path, data, overwrite=arguments.force)
    for problem in found.problems:
        print(f"warning: not recorded: {one_line(problem)}", file=sys.stderr)
    print(
        f"Recorded in {path} ({len(data) // 1024 + 1} KiB). See docs/record.md for what is in it."
    )
    return 0


def _gather(uri: str) -> Recorded:
    """Ask everyone. What fails is one of the problems."""
    problems: list[str] = []
    settings = Settings()
    try:
        settings = config.load()
    except VgpuError as error:
        problems.append(f"the settings are the defaults: {error}")
    store = asked = None
    try:
        store = store_dump.dump(settings.state)
    except VgpuError as error:
        problems.append(f"the store: {error}")
    kernel = snapshot.take(settings.roots, Deadline(settings.hook_deadline * KERNEL_SHARE))
    problems += kernel.problems
    try:
        wait = Deadline(LIBVIRT_WAIT)
        asked = bounded.run(_ask_libvirt, uri, deadline=wait, doing="asking libvirt")
    except VgpuError as error:
        problems.append(f"the domains: {error}")
    journal: list[dict[str, str]] = []
    try:
        journal = _journal(settings)
    except VgpuError as error:
        problems.append(f"the journal: {error}")
    plain = _plain_settings(settings)
    return Recorded(plain, store, kernel.entries, asked, journal, _versions(asked), problems)


def _ask_libvirt(uri: str) -> Asked:
    libvirt = Libvirt(uri)
    found = []
    for domain_uuid, known in sorted(libvirt.domains().items()):
        with contextlib.suppress(NoDomain):  # it has gone meanwhile
            found.append(_seen(libvirt, domain_uuid, known.name, known.active))
    connection = libvirt.connection
    return Asked(found, connection.getLibVersion(), connection.getVersion())


def _seen(libvirt: Libvirt, domain_uuid: str, name: str, active: bool) -> Seen:
    there = libvirt.find_uuid(domain_uuid)
    seen = Seen(domain_uuid, name, active, False, None, None)
    try:
        seen = seen._replace(persistent=bool(libvirt.call(there, there.isPersistent)))
        if seen.persistent:
            seen = seen._replace(definition=domain.parse(libvirt.shown(there, live=False)))
        if active:
            seen = seen._replace(live=domain.parse(libvirt.shown(there, live=True)))
    except NoDomain:
        raise
    except VgpuError as error:
        seen = seen._replace(problem=str(error))
    return seen


def _journal(settings: Settings) -> list[dict[str, str]]:
    """Return the newest lines of vgpu-hook in the journal; none if there is no journal."""
    if not os.path.exists(settings.roots.journal):
        return []
    command = ["journalctl", "--identifier=vgpu-hook", f"--lines={JOURNAL_MOST}", "--output=json"]
    try:
        done = subprocess.run(
            [*command, "--no-pager", "--quiet"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=JOURNAL_WAIT,
            check=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise VgpuError(f"journalctl: {error}") from None
    return [
        {key: line[key] for key in JOURNAL_FIELDS if isinstance(line.get(key), str)}
        for line in lines
    ]


def _versions(asked: Asked | None) -> dict[str, Any]:
    libraries = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            libraries[name] = importlib.metadata.version(name)
    distro = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
        distro = {
            key: release[key] for key in ("ID", "VERSION_ID", "PRETTY_NAME") if key in release
        }
    system = os.uname()
    return {
        "vgpu-hook": __version__,
        "python": platform.python_version(),
        "libraries": libraries,
        "kernel": system.release,
        "machine": system.machine,
        "distro": distro,
        "libvirt": asked and asked.libvirt,
        "qemu": asked and asked.hypervisor,
    }


def _plain_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON has them, without what may hold a password."""
    uri = urllib.parse.urlsplit(settings.uri)
    return {
        **settings._asdict(),
        "roots": settings.roots._asdict(),
        "unused_gpus": sorted(settings.unused_gpus),
        "uri": f"{uri.scheme}://{uri.path}",
        "boot_commands": [command[:1] for command in settings.boot_commands],
    }


def _names(found: Recorded) -> Names:
    """Return new names for all domains that are known to libvirt or to the store."""
    domains: set[tuple[str, str]] = set()
    slots: set[tuple[str, str]] = set()
    tables = found.store["tables"] if found.store is not None else {}
    for table in tables.values():
        for row in table["rows"]:
            values = dict(zip(table["columns"], row, strict=True))
            domain_uuid = values.get("domain_uuid") or values.get("uuid")
            if domain_uuid:
                domains.add((domain_uuid, values.get("domain_name") or values.get("name") or ""))
                slots.add((domain_uuid, values.get("slot") or "0"))
    for seen in found.asked.domains if found.asked is not None else ():
        domains.add((seen.uuid, seen.name))
        for subject in (seen.definition, seen.live):
            if subject is not None:
                slots |= {(seen.uuid, request.slot) for request in subject.request}
                slots |= {(seen.uuid, h.slot) for h in subject.hostdevs if h.slot is not None}
    return Names(domains, slots)


def _parts(found: Recorded, names: Names | None) -> tuple[dict[str, bytes], Entries]:
    """Return the parts by their names in the bundle, and the kernel's files; renamed if asked."""
    store, settings, journal = found.store, found.settings, found.journal
    entries = found.kernel
    domains = found.asked.domains if found.asked is not None else []
    if names is not None:
        entries = {
            names.uuids_in(path): Entry(entry.kind, names.uuids_in(entry.text), entry.error)
            for path, entry in entries.items()
        }
        journal = [_renamed(names, line) for line in journal]
        settings = {key: _in_text(names, value) for key, value in settings.items()}
        if store is not None:
            store = {**store, "tables": _tables(names, store["tables"])}
    listed = []
    parts = {}
    for seen in domains:
        if seen.matters:
            listed.append(_listed(seen, names))
            for kind, subject in (("definition", seen.definition), ("live", seen.live)):
                if subject is not None:
                    subject = names.domain(subject) if names is not None else subject
                    parts[f"domains/{subject.uuid}.{kind}.xml"] = reduced.text_of(subject)
    parts |= {
        "domains.json": bundle.as_json({"listed": listed, "others": len(domains) - len(listed)}),
        "journal.json": bundle.as_json(journal),
        "settings.json": bundle.as_json(settings),
        "store.json": bundle.as_json(store),
        "versions.json": bundle.as_json(found.versions),
    }
    return parts, entries


def _listed(seen: Seen, names: Names | None) -> dict[str, Any]:
    problem = seen.problem
    return {
        "uuid": names.uuid(seen.uuid) if names else seen.uuid,
        "name": names.name(seen.name) if names else seen.name,
        "active": seen.active,
        "persistent": seen.persistent,
        "problem": names.text(problem) if names else problem,
    }


def _tables(names: Names, tables: dict[str, Any]) -> dict[str, Any]:
    """Rename in all tables but those that hold no domain."""
    kept = ("sqlite_sequence", "vgpu_type")
    return {key: t if key in kept else names.table(t) for key, t in tables.items()}


def _renamed(names: Names, line: dict[str, str]) -> dict[str, str]:
    """Rename in a line of the journal, whose boot id is in a form of its own."""
    name = "VGPU_DOMAIN_NAME"
    texts = {key: names.text(value) for key, value in line.items() if key != "_BOOT_ID"}
    return {**texts, name: names.name(line[name])} if name in line else texts


def _in_text(names: Names, value: Any) -> Any:
    if isinstance(value, str):
        return names.text(value)
    if isinstance(value, dict):
        return {key: _in_text(names, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_in_text(names, inner) for inner in value]
    return value
