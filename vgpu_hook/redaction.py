"""Other names for what tells whose a host is: `vgpu-hook record --redact-names`. Pure.

The same thing has the same new name all over a bundle, and what vgpu-hook derives from a name (the
UUIDs of its devices, the marks of VFs) is derived from the new one, so that a bundle still behaves
as its host did. New UUIDs are random: nothing leads back from them.
"""

from __future__ import annotations

import ast
import re
import shlex
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from vgpu_hook.model import Domain, derive_device_uuid, one_line, owner_mark

UUID = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])")

PATH = re.compile(
    r"(?<=')/[^']+(?=')"
    r'|(?<=")/[^"]+(?=")'
    r"|(?:(?<=file://)|(?<![\w./:])|(?<=:)(?!//))(?P<word>/[^\s'\",;()]+)(?P<rest>\s[^'\",;()]*)?"
)
"""A path in quotes; or one without, and the rest of its clause."""

PATH_ENDS = re.compile(r":(?=\s|\Z)|\s(?=/)")
"""Where a path without quotes ends at the latest: it can have spaces in it."""

OPEN_PATHS = re.compile(
    r"/(sys(/(bus|class/mdev_bus|devices|kernel|module)(/.*)?)?"
    r"|proc(/(\d+|self)(/\w+(/\d+)?)?|/(sys|driver)(/.*)?|/\w+)?"
    r"|dev(/(vfio(/(vfio|(noiommu-)?\d+|devices(/vfio\d+)?))?|null|zero|kvm))?"
    r"|usr(/(bin|sbin|lib|lib64|libexec|share)(/.*)?)?"
    r"|(run|etc|var/lib)/vgpu-hook(/.*)?"
    r"|etc/libvirt/hooks(/qemu(\.d(/50-vgpu-hook)?)?)?)/?\Z"
)
"""Paths that every host has: they stay."""

NOT_OPEN = re.compile(r"/(\.\.|net|block)(/|\Z)")
"""Parts that lead elsewhere, or to what people have named."""

QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
NAMED = re.compile(
    rf"(?:\b[Dd]omain |\bnamed |\bmatching name |\bdefinition of |\) of )({QUOTED})"
    rf"|({QUOTED})(?= slot )"
    r"|matching uuid '[^']*' \((.+?)\)(?:\Z|[;,:. ])"
)
"""A domain's name in a message of ours or of libvirt's."""

COMMAND = "qemu:"
COMMAND_BYTES = 15
"""libvirt names a QEMU like its domain if it is told to (set_process_name), and the kernel keeps so
much of it."""

HOLDER = re.compile(rf"\b{COMMAND}(?!//)[^/]*?(?= \(pid \d)")
"""Such a process in a message of guard.py."""

UNKNOWN = "domain-unknown"
NAME_COLUMN = "domain_name"


def named_in(text: str) -> set[str]:
    """Return the domains that a message names, as far as that can be told."""
    found = set()
    for words in NAMED.findall(text):
        word = next(word for word in words if word)
        try:
            found.add(str(ast.literal_eval(word)) if word[0] in "'\"" else word)
        except (SyntaxError, ValueError):
            found.add(word[1:-1])
    return found


class Names:
    """The new names. Make it with every domain that is known, before anything is renamed."""

    def __init__(
        self,
        domains: Iterable[tuple[str, str]],
        slots: Iterable[tuple[str, str]],
        hide: Callable[[str], str] = str,
    ) -> None:
        """`domains` are (UUID, name), `slots` (UUID of the domain, slot).

        `hide` is done to sentences when all is renamed: before, it could break a name in two.
        """
        self._hide = hide
        self._uuids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        for domain_uuid, name in sorted(set(domains)):
            if domain_uuid:
                self.uuid(domain_uuid)
            if name:
                self._names.setdefault(name, f"domain-{len(self._names) + 1}")
        for domain_uuid, slot in sorted(set(slots)):
            new = self.uuid(domain_uuid)
            self._uuids[derive_device_uuid(domain_uuid, slot)] = derive_device_uuid(new, slot)
            self._uuids[owner_mark(domain_uuid)] = owner_mark(new)
        self._forms: dict[str, str] = {}
        self._commands: dict[str, str] = {}
        for name, other in self._names.items():
            for form in _forms(name):
                self._forms.setdefault(form, other)
            command = _command(name)
            clash = command in self._commands
            self._commands[command] = f"{COMMAND}{UNKNOWN if clash else other}"
        longest_first = sorted(self._forms, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._words = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def uuid(self, text: str) -> str:
        """Return the new form of a UUID."""
        return self._uuids.setdefault(text.lower(), str(uuid.uuid4()))

    def name(self, text: str) -> str:
        """Return the new name of a domain."""
        return self._names.get(text, text and UNKNOWN)

    def uuids_in(self, text: str) -> str:
        """Return a text of the kernel, in which nothing but UUIDs can tell anything."""
        return UUID.sub(lambda match: self.uuid(match[0]), text)

    def text(self, text: str) -> str:
        """Return a sentence with the new names of domains, UUIDs and paths."""
        text = HOLDER.sub(lambda match: self.command(match[0]), self.uuids_in(text))
        text = self._paths_in(text)
        if self._words is not None:
            text = self._words.sub(lambda match: self._forms[match[0]], text)
        return self._hide(text)

    def command(self, text: str) -> str:
        """Return a process's name, which may be made of a domain's."""
        if text.startswith(COMMAND):
            return self._commands.get(text, f"{COMMAND}{UNKNOWN}")
        return self.text(text)

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
        if column == NAME_COLUMN or (column == "name" and value in self._names):
            return self.name(value)
        if column in ("detail", "reason"):
            return self.text(value)
        return self.uuids_in(value)

    def _paths_in(self, text: str) -> str:
        return PATH.sub(self._path_of, text)

    def _path_of(self, match: re.Match[str]) -> str:
        word, rest = match["word"], match["rest"] or ""
        if word is None:  # in quotes
            return self._path(match[0])
        plain = word.rstrip(".:")
        if _is_open(plain):
            return word + self._paths_in(rest)
        whole = word + rest
        end = PATH_ENDS.search(whole)
        at = end.start() if end is not None else len(whole)
        return self._path(whole[:at].rstrip(". ")) + self._paths_in(whole[at:])

    def _path(self, path: str) -> str:
        if _is_open(path):
            return path
        return self._paths.setdefault(path, f"/path-{len(self._paths) + 1}")


def _is_open(path: str) -> bool:
    return bool(OPEN_PATHS.match(path)) and not NOT_OPEN.search(path)


def _forms(name: str) -> set[str]:
    """Return how messages may have a name, without the quotes around it."""
    quoted, word = repr(name)[1:-1], shlex.quote(name)
    forms = {name, quoted, word[1:-1] if word.startswith("'") else word}
    lines = {one_line(form) for form in forms}
    return {form for form in forms | lines if form == name or re.search(r"\w", form)}


def _command(name: str) -> str:
    """Return what the kernel and sysfs.py make of a process's name."""
    data = f"{COMMAND}{name}".encode("utf-8", "replace")[:COMMAND_BYTES]
    return data.decode("utf-8", "backslashreplace").strip()
