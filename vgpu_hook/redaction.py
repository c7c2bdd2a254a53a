"""Other names for what tells whose a host is: `vgpu-hook record --redact-names`. Pure.

The same thing has the same new name all over a bundle, and what vgpu-hook derives from a name (the
UUIDs of its devices, the marks of VFs) is derived from the new one, so that a bundle still behaves
as its host did. New UUIDs are random: nothing leads back from them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any

from vgpu_hook.model import Domain, derive_device_uuid, owner_mark

UUID = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])")
PATH = re.compile(r"(?<![\w./:-])/[^\s'\",;()]+")
OPEN_PATHS = re.compile(r"/(sys|proc|dev|usr|run/vgpu-hook|etc/vgpu-hook|var/lib/vgpu-hook)(/|\Z)")
"""Paths that every host has: they stay."""

NAME_COLUMNS = ("name", "domain_name")


class Names:
    """The new names. Make it with every domain that is known, before anything is renamed."""

    def __init__(
        self, domains: Iterable[tuple[str, str]], slots: Iterable[tuple[str, str]]
    ) -> None:
        """`domains` are (UUID, name), `slots` (UUID of the domain, slot)."""
        self._uuids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        for domain_uuid, name in sorted(set(domains)):
            self.uuid(domain_uuid)
            if name:
                self._names.setdefault(name, f"domain-{len(self._names) + 1}")
        for domain_uuid, slot in sorted(set(slots)):
            new = self.uuid(domain_uuid)
            self._uuids[derive_device_uuid(domain_uuid, slot)] = derive_device_uuid(new, slot)
            self._uuids[owner_mark(domain_uuid)] = owner_mark(new)
        longest_first = sorted(self._names, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._words = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def uuid(self, text: str) -> str:
        """Return the new form of a UUID."""
        return self._uuids.setdefault(text.lower(), str(uuid.uuid4()))

    def name(self, text: str) -> str:
        """Return the new name of a domain."""
        return self._names.get(text, text and "domain-unknown")

    def uuids_in(self, text: str) -> str:
        """Return a text of the kernel, in which nothing but UUIDs can tell anything."""
        return UUID.sub(lambda match: self.uuid(match[0]), text)

    def text(self, text: str) -> str:
        """Return a sentence with the new names of domains, UUIDs and paths."""
        text = PATH.sub(lambda match: self._path(match[0]), self.uuids_in(text))
        if self._words is not None:
            text = self._words.sub(lambda match: self._names[match[0]], text)
        return text

    def domain(self, subject: Domain) -> Domain:
        """Return a domain with the new names in it."""
        return subject._replace(
            uuid=self.uuid(subject.uuid),
            name=self.name(subject.name),
            hostdevs=tuple(h._replace(address=self.uuids_in(h.address)) for h in subject.hostdevs),
            marks={slot: self.uuids_in(mark) for slot, mark in subject.marks.items()},
            refused=self.text(subject.refused),
        )

    def table(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return a table of the store (store_dump.py) with the new names in it."""
        columns = table["columns"]
        rows = [
            [self._value(column, value) for column, value in zip(columns, row, strict=True)]
            for row in table["rows"]
        ]
        return {"columns": columns, "rows": rows}

    def _value(self, column: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if column in NAME_COLUMNS and value in self._names:
            return self.name(value)
        if column in ("detail", "reason"):
            return self.text(value)
        return self.uuids_in(value)

    def _path(self, path: str) -> str:
        if OPEN_PATHS.match(path):
            return path
        return self._paths.setdefault(path, f"/path-{len(self._paths) + 1}")
