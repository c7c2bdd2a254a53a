"""Lists of numbers as libvirt and the kernel write them: CPUs, NUMA nodes."""

from __future__ import annotations

import re

PART = re.compile(r"(\^?)(\d{1,5})(?:-(\d{1,5}))?\Z")


def numbers(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-3,^2,8`; none if it is not understood."""
    found: set[int] = set()
    for part in text.split(","):
        match = PART.match(part.strip())
        if match is None:
            return frozenset()
        first = int(match[2])
        these = range(first, int(match[3] or first) + 1)
        found = found.difference(these) if match[1] else found.union(these)
    return frozenset(found)
