"""The file that `vgpu-hook record` writes: a .tar.gz whose format is described in docs/record.md.

Puts parts together and knows nothing of where they come from. The order of what is in it is always
the same, and it names neither the user nor the machine that wrote it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping
from typing import Any

from vgpu_hook.model import VgpuError
from vgpu_hook.snapshot import FILE, LINK, Entries

FORMAT = 1
"""Of the bundle. A reader refuses a newer one, and ignores members that it does not know."""

MOST = 64 << 20
"""Bytes before compression. A host with 512 VFs and a full history has some 10 million."""

MODE = 0o600


class FileExists(VgpuError):
    """There is a file at that path, which was not to be overwritten."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already", "name another file, or use --force")


def as_json(value: Any) -> bytes:
    """Return a part that is JSON, the same for the same value."""
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def pack(parts: Mapping[str, bytes], entries: Entries) -> bytes:
    """Return the bundle: the parts by name, and the kernel's files as a tree of their own.

    What could not be read is in errors.json, by path.
    """
    errors = {path: [e.kind, e.error] for path, e in entries.items() if e.error}
    whole = {**parts, "errors.json": as_json(errors)}
    members = {name: _file(name, data) for name, data in whole.items()}
    members |= {path: _member(path, entries) for path, e in entries.items() if not e.error}
    data = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=data, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for _, (member, content) in sorted(members.items()):
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def size(parts: Mapping[str, bytes], entries: Entries) -> int:
    """Return the bytes that a bundle has before compression, roughly: tar adds 1 KiB a member."""
    texts = sum(len(path) + len(entry.text) + 1024 for path, entry in entries.items())
    return texts + sum(len(data) + 1024 for data in parts.values())


def write_unused(name: str, data: bytes) -> str:
    """Write <name>.tar.gz, or <name>-2.tar.gz and so on if that exists; return which it is."""
    number = 1
    while True:
        path = f"{name}-{number}.tar.gz" if number > 1 else f"{name}.tar.gz"
        try:
            write(path, data, overwrite=False)
        except FileExists:
            number += 1
        else:
            return path


def write(path: str, data: bytes, *, overwrite: bool) -> None:
    """Write the file for its owner alone (mode 0600), whole or not at all. Raises VgpuError."""
    target = f"{path}.new-{os.getpid()}" if overwrite else path
    try:
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise FileExists(target) from None
    except OSError as error:
        raise VgpuError(f"{target} can't be written: {error.strerror}") from error
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
        if overwrite:
            os.rename(target, path)
    except OSError as error:
        os.unlink(target)
        raise VgpuError(f"{path} can't be written: {error.strerror}") from error


def _member(path: str, entries: Entries) -> tuple[tarfile.TarInfo, bytes]:
    entry = entries[path]
    if entry.kind == FILE:
        return _file(path, entry.text.encode("utf-8", "backslashreplace") + b"\n")
    member = tarfile.TarInfo(path)
    if entry.kind == LINK:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.text, 0o777
    else:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member, b""


def _file(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    return member, data
