"""Finds the commands that the documents show: lines of blocks, and `vgpu-hook ...` in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tests.docs.manual import MAN, REPOSITORY

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "SECURITY.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
FENCED = re.compile(r"^```(?P<label>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LITERAL = re.compile(r"::\n\n(?P<text>(?:    .*\n|\n)+)")
SPAN = re.compile(r"`(vgpu-hook [^`]+)`")
BOLD = re.compile(r"\*\*(vgpu-hook [^*]+)\*\*")


class Block(NamedTuple):
    """Lines that are given one after the other, and where they stand."""

    page: str
    lines: tuple[str, ...]


def blocks() -> Iterator[Block]:
    """Yield each block of commands; anything else, such as XML, TOML or a drawing, is none."""
    for page in [*PAGES, *sorted(MAN.glob("*.rst"))]:
        pattern = LITERAL if page.suffix == ".rst" else FENCED
        for match in pattern.finditer(page.read_text()):
            if match.groupdict().get("label") not in (None, "", "console"):
                continue  # such as TOML: of a language of its own
            lines = [_bare(line) for line in match["text"].splitlines() if line.strip()]
            if not lines[0].startswith(("<", "[", "(")):
                yield Block(page.name, tuple(lines))


def spans() -> Iterator[tuple[str, str]]:
    """Yield each command of ours within the text, with its page."""
    for page in [*PAGES, *sorted(MAN.glob("*.rst"))]:
        pattern = BOLD if page.suffix == ".rst" else SPAN
        for match in pattern.finditer(page.read_text()):
            yield page.name, " ".join(match[1].split())


def words(line: str) -> list[str]:
    """Return the words of a line, as a shell has them; what comes after # is none."""
    return shlex.split(line, comments=True)


def _bare(line: str) -> str:
    return line.strip().removeprefix("# ")
