"""Reads files, prints tables as virsh does, and JSON. Knows nothing of what is in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from vgpu_hook.model import VgpuError, one_line

FORMAT_VERSION = 1


def read_input(name: str) -> bytes:
    """Return what a file holds, `-` being stdin. Raises VgpuError."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise VgpuError(f"{name}: {error.strerror}") from error


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table: a leading space, columns three spaces apart, a rule, a blank line."""
    cells = [[str(title) for title in titles], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    lines = [_line(cells[0], widths), "-" * (sum(widths) + 3 * (len(widths) - 1) + 2)]
    lines += [_line(line, widths) for line in cells[1:]]
    return "\n".join(lines) + "\n"


def as_json(value: dict[str, Any]) -> str:
    """Return the value as JSON, with the version of its format; what is odd in names is escaped."""
    text = json.dumps({"version": FORMAT_VERSION, **value}, indent=2, ensure_ascii=False)
    lines = text.split("\n")  # its layout: within strings they are escaped
    return "\n".join("".join(map(_escaped, line)) for line in lines)


def _escaped(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return (" " + "   ".join(padded)).rstrip()


def _cell(value: Any) -> str:
    """Return a value as one line: names come from outside."""
    return one_line(str(value)) or "-"
