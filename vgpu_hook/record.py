"""`vgpu-hook record`: all that a bug report needs, in one file, and nothing that it does not.

What is in it and what never is: docs/record.md. What can't be read is named in the file and on
stderr, and never a reason to write none: a host in trouble is what this is for.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from vgpu_hook import (
    __version__,
    addresses,
    bounded,
    bundle,
    config,
    domain,
    journal,
    reduced,
    snapshot,
    store_dump,
)
from vgpu_hook.addresses import Hider
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.database import now
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.model import FRAMEWORK, Domain, VgpuError, one_line
from vgpu_hook.redaction import Names, named_in
from vgpu_hook.snapshot import Entries, Entry, Snapshot

T = TypeVar("T")

KERNEL_SHARE = 2
"""Of a hook's deadline, for reading the kernel's files: nobody waits for this as libvirt does."""

LIBVIRT_WAIT = 30.0
"""Seconds."""

LIBRARIES = ("libvirt-python", "lxml", "pydantic", "structlog")
NO_VERSIONS: dict[str, Any] = {"vgpu-hook": __version__, "kernel": ""}
BY_DEFAULT = "vgpu-hook-record-%Y%m%dT%H%M%SZ"


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

    settings: Settings
    store: store_dump.Dump | None
    kernel: Entries
    asked: Asked | None
    journal: list[journal.Line]
    versions: dict[str, Any]
    problems: list[str]


def record(arguments: argparse.Namespace) -> int:
    """Write a bundle for a bug report."""
    path = arguments.output
    if path and os.path.lexists(path) and not arguments.force:
        raise bundle.FileExists(path)
    asked = _gather(arguments.connect)
    hide = Hider((asked.settings.uri, arguments.connect), (os.uname().nodename,))
    names = _names(asked, hide) if arguments.redact_names else None
    found = asked if names is not None else _hidden(asked, hide)
    parts, entries = _parts(found, names)
    for droppable in ("journal.json", "store.json"):
        if bundle.size(parts, entries) > bundle.MOST:
            parts[droppable] = bundle.as_json(None)
            problem = f"{droppable} was left out: the file would be too large"
            asked.problems.append(problem)
            if found is not asked:
                found.problems.append(problem)
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
    if path:
        bundle.write(path, data, overwrite=arguments.force)
    else:
        path = bundle.write_unused(time.strftime(BY_DEFAULT, time.gmtime()), data)
    for problem in asked.problems:
        print(f"warning: not recorded: {one_line(problem)}", file=sys.stderr)
    size = f"{len(data) // 1024 + 1} KiB"
    print(f"Recorded in {one_line(path)} ({size}), as text, without passwords: look through it.")
    return 0


def _gather(uri: str) -> Recorded:
    """Ask everyone. What fails is one of the problems."""
    problems: list[str] = []

    def ask(what: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except VgpuError as error:
            problems.append(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - what nobody has thought of keeps nothing else out
            problems.append(f"{what}: internal error: {type(error).__name__}: {error}")
        return otherwise

    settings = ask("the settings are the defaults", config.load, Settings())
    store = ask("the store", partial(store_dump.dump, settings.state), None)
    patience = Deadline(settings.hook_deadline * KERNEL_SHARE)
    nothing = Snapshot({}, ())
    kernel = ask("the kernel's files", partial(snapshot.take, settings.roots, patience), nothing)
    problems += kernel.problems
    wait = Deadline(LIBVIRT_WAIT)
    asking = partial(bounded.run, _ask_libvirt, uri, deadline=wait, doing="asking libvirt")
    asked: Asked | None = ask("the domains", asking, None)
    no_lines: list[journal.Line] = []
    lines = ask("the journal", partial(journal.newest, settings.roots.journal), no_lines)
    versions = ask("the versions", partial(_versions, asked), NO_VERSIONS)
    return Recorded(settings, store, kernel.entries, asked, lines, versions, problems)


def _hidden(found: Recorded, hide: Hider) -> Recorded:
    """Return it without the host's addresses and name, which messages may quote."""
    store, asked = found.store, found.asked
    if store is not None:
        tables = {name: _without(hide, table) for name, table in store["tables"].items()}
        store = {**store, "tables": tables}
    if asked is not None:
        domains = [seen._replace(problem=hide.text(seen.problem)) for seen in asked.domains]
        asked = asked._replace(domains=domains)
    lines = [
        {key: hide.text(text) if key == "MESSAGE" else text for key, text in line.items()}
        for line in found.journal
    ]
    problems = [hide.text(problem) for problem in found.problems]
    return found._replace(store=store, asked=asked, journal=lines, problems=problems)


def _without(hide: Hider, table: dict[str, Any]) -> dict[str, Any]:
    """Hide in the columns of a table that hold messages."""
    messages = [column in ("detail", "reason") for column in table["columns"]]
    rows = [
        [
            hide.text(value) if message and isinstance(value, str) else value
            for message, value in zip(messages, row, strict=True)
        ]
        for row in table["rows"]
    ]
    return {**table, "rows": rows}


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
    """Return the settings as JSON has them, without passwords and addresses."""
    return {
        **settings._asdict(),
        "roots": settings.roots._asdict(),
        "unused_gpus": sorted(settings.unused_gpus),
        "uri": addresses.plain_uri(settings.uri),
        "boot_commands": [
            [os.path.basename(c) for c in command[:1]] for command in settings.boot_commands
        ],
        "metrics_listen": settings.metrics_listen is not None,
    }


def _names(found: Recorded, hide: Hider) -> Names:
    """Return new names for all domains that libvirt, the store or a message knows."""
    domains: set[tuple[str, str]] = set()
    slots: set[tuple[str, str]] = set()
    texts = list(found.problems)
    for line in found.journal:
        domains.add((line.get("VGPU_DOMAIN_UUID", ""), line.get("VGPU_DOMAIN_NAME", "")))
        texts.append(line.get("MESSAGE", ""))
    tables = found.store["tables"] if found.store is not None else {}
    for table in tables.values():
        for row in table["rows"]:
            pairs = zip(table["columns"], row, strict=True)
            values = {column: value for column, value in pairs if isinstance(value, str)}
            domain_uuid = values.get("domain_uuid") or values.get("uuid") or ""
            name = values.get("domain_name") or (domain_uuid and values.get("name")) or ""
            domains.add((domain_uuid, name))
            texts += [values[column] for column in ("detail", "reason") if column in values]
            if domain_uuid:
                slots.add((domain_uuid, values.get("slot") or "0"))
    domains |= {("", name) for text in texts for name in named_in(text)}
    for seen in found.asked.domains if found.asked is not None else ():
        domains.add((seen.uuid, seen.name))
        for subject in (seen.definition, seen.live):
            if subject is not None:
                slots |= {(seen.uuid, request.slot) for request in subject.request}
                slots |= {(seen.uuid, h.slot) for h in subject.hostdevs if h.slot is not None}
    return Names(domains, slots, hide.text)


def _parts(found: Recorded, names: Names | None) -> tuple[dict[str, bytes], Entries]:
    """Return the parts by their names in the bundle, and the kernel's files; renamed if asked."""
    store, settings, lines = found.store, _plain_settings(found.settings), found.journal
    entries = found.kernel
    domains = found.asked.domains if found.asked is not None else []
    if names is not None:
        entries = {
            names.uuids_in(path): _renamed_entry(names, path, entry)
            for path, entry in entries.items()
        }
        lines = [_renamed(names, line) for line in lines]
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
        "journal.json": bundle.as_json(lines),
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


def _renamed_entry(names: Names, path: str, entry: Entry) -> Entry:
    """Rename in a file of the kernel; the name of a process may be made of a domain's."""
    is_command = path.startswith("proc/") and path.endswith("/comm")
    return entry._replace(text=(names.command if is_command else names.uuids_in)(entry.text))


def _renamed(names: Names, line: journal.Line) -> journal.Line:
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
