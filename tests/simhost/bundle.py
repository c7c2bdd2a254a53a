"""Reads bundles of `vgpu-hook record` (docs/record.md), and makes a store of what is in one.

Bundles come from users: nothing is unpacked, and no link in one is followed.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from vgpu_hook import store_file
from vgpu_hook.snapshot import FILE, FOLDER, LINK, Entry

FORMAT = 1


class Bundle(NamedTuple):
    """What is in one. `parts` are the JSON files by their names without the ending."""

    name: str
    parts: dict[str, Any]
    entries: dict[str, Entry]
    domains: dict[str, str]
    """The domains' XML, by the name of the file: UUID.definition or UUID.live."""


def read(path: Path) -> Bundle:
    """Raises ValueError if it is none, or a newer one than is known here."""
    found = Bundle(path.name.removesuffix(".tar.gz"), {}, {}, {})
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                _read_member(found, archive, member)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"it is no bundle: {error}") from error
    if found.parts.get("manifest", {}).get("format") != FORMAT:
        raise ValueError(f"it is no bundle of format {FORMAT}")
    for name, (kind, failure) in found.parts["errors"].items():
        found.entries[name] = Entry(kind, "", failure)
    return found


def _read_member(found: Bundle, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    top, _, rest = member.name.partition("/")
    if member.issym():
        found.entries[member.name] = Entry(LINK, member.linkname)
    elif member.isdir():
        found.entries[member.name] = Entry(FOLDER)
    elif (file := archive.extractfile(member)) is not None:
        text = file.read().decode()
        if top in ("sys", "proc"):
            found.entries[member.name] = Entry(FILE, text.removesuffix("\n"))
        elif top == "domains":
            found.domains[rest.removesuffix(".xml")] = text
        elif top.endswith(".json"):
            found.parts[top.removesuffix(".json")] = json.loads(text)


def restore_store(bundle: Bundle, state: Path) -> None:
    """Make the store that was recorded in the folder `state`; none if there was none."""
    recorded = bundle.parts["store"]
    if recorded is None:
        return
    opened = store_file.open_store(str(state), "replay", wait=5)
    assert opened is not None
    opened.close()
    connection = store_file.connect(str(state / store_file.FILE), 5)
    try:
        for name, table in recorded["tables"].items():
            columns, marks = ", ".join(table["columns"]), ", ".join("?" for _ in table["columns"])
            connection.execute(f"DELETE FROM {name}")
            connection.executemany(
                f"INSERT INTO {name} ({columns}) VALUES ({marks})", table["rows"]
            )
    finally:
        connection.close()


def settings_of(bundle: Bundle) -> str:
    """Return what decides how the host is seen, as lines of vgpu-hook.toml; no paths."""
    settings = bundle.parts["settings"]
    unused = (f"[gpu.{json.dumps(name)}]\nuse = false\n" for name in settings["unused_gpus"])
    return f'[policy]\nplacement = "{settings["placement"]}"\n{"".join(unused)}'
