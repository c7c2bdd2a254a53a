"""What a disk may hold after the power went: the log of shim.c, without what was not synced.

A file has what was synced, and of what was written since: nothing, all, any part, the last sector
torn. Names are the same: without an fsync of their folder, what was made, linked or removed may or
may not be there. That is less than any file system promises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from tests.crash.shim import (
    CREATE,
    LINK,
    RENAME,
    SYNC,
    TRUNCATE,
    UNLINK,
    WRITE,
    Record,
)

SECTOR = 512
RANDOM_IMAGES = 3
"""Random choices at each moment, beside nothing and all of what was not synced."""

Pending = TypeVar("Pending")
_Choose = Callable[[list[Pending]], list[Pending]]

Image = dict[str, bytes]
"""The content of each file of the folder, by its name."""


class Change(NamedTuple):
    """A write at `offset`, or, without data, a truncation to that size."""

    offset: int
    data: bytes | None


@dataclass
class File:
    synced: bytes = b""
    pending: list[Change] = field(default_factory=list)

    def content(self, changes: Iterable[Change]) -> bytes:
        data = bytearray(self.synced)
        for offset, written in changes:
            size = offset if written is None else max(len(data), offset + len(written))
            data.extend(bytes(max(0, size - len(data))))
            if written is None:
                del data[size:]
            else:
                data[offset : offset + len(written)] = written
        return bytes(data)


class Naming(NamedTuple):
    """A name that came to a file, or went (None)."""

    name: str
    file: File | None


class Disk:
    """One folder on a disk with a write cache. It is told of calls that were done, in order."""

    def __init__(self, folder: PurePath) -> None:
        self._folder = folder
        self._names: dict[str, File] = {}
        self._synced_names: dict[str, File] = {}
        self._pending: list[Naming] = []

    def do(self, record: Record) -> None:
        """Take in one call; those on other folders are ignored."""
        path = PurePath(record.path)
        if record.kind == SYNC and path == self._folder:
            self._synced_names = dict(self._names)
            self._pending.clear()
        if path.parent != self._folder:
            return
        name, other = path.name, PurePath(record.other).name
        if record.kind == CREATE:
            self._name(name, File())
        elif record.kind == UNLINK:
            self._name(name, None)
        elif record.kind in (LINK, RENAME):
            self._name(other, self._names[name])
            if record.kind == RENAME:
                self._name(name, None)
        elif record.kind in (WRITE, TRUNCATE):
            data = record.data if record.kind == WRITE else None
            self._names[name].pending.append(Change(record.offset, data))
        elif record.kind == SYNC:
            file = self._names[name]
            file.synced = file.content(file.pending)
            file.pending.clear()

    def _name(self, name: str, file: File | None) -> None:
        _apply(self._names, Naming(name, file))
        self._pending.append(Naming(name, file))

    def content(self) -> Image:
        """Return what is there as long as the power stays."""
        return {name: file.content(file.pending) for name, file in self._names.items()}

    def images(self, chance: random.Random) -> Iterator[Image]:
        """Return what may be there after it went; the same twice, at times."""
        yield self.content()
        yield self._image(lambda pending: [], lambda pending: [])
        yield self._image(lambda pending: [], lambda pending: pending)
        yield self._image(lambda pending: pending, lambda pending: [])

        def some_changes(pending: list[Change]) -> list[Change]:
            return [_torn(c, chance) for c in pending if chance.random() < 0.5]

        def some_names(pending: list[Naming]) -> list[Naming]:
            return pending[: chance.randint(0, len(pending))]

        for _ in range(RANDOM_IMAGES):
            yield self._image(some_changes, some_names)

    def _image(self, changes: _Choose[Change], namings: _Choose[Naming]) -> Image:
        names = dict(self._synced_names)
        for naming in namings(self._pending):
            _apply(names, naming)
        return {name: file.content(changes(file.pending)) for name, file in names.items()}


def _apply(names: dict[str, File], naming: Naming) -> None:
    if naming.file is None:
        names.pop(naming.name, None)
    else:
        names[naming.name] = naming.file


def _torn(change: Change, chance: random.Random) -> Change:
    """Return the change, of which at times only the first sectors have come to the disk."""
    if change.data is None or len(change.data) <= SECTOR or chance.random() < 0.5:
        return change
    sectors = chance.randint(1, len(change.data) // SECTOR)
    return change._replace(data=change.data[: sectors * SECTOR])
