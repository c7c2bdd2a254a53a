"""Lists of numbers as libvirt and the kernel write them: CPUs, NUMA nodes."""

from __future__ import annotations

import re

PART = re.compile(r"(\^?)(\d{1,4})(?:-(\d{1,4}))?\Z")
MOST = 8192
"""Numbers, and parts of a list: as many as Linux can have CPUs. More is not understood."""


def numbers(text: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-3,^2,8`; none if it is not understood."""
    found = bytearray(MOST)
    parts = text.split(",", MOST)
    for part in parts:
        match = PART.match(part.strip())
        if match is None:
            return frozenset()
        first = int(match[2])
        last = int(match[3] or first)
        if len(parts) > MOST or last >= MOST:
            return frozenset()
        size = max(0, last + 1 - first)
        found[first : first + size] = (b"\0" if match[1] else b"\1") * size
    return frozenset(number for number, there in enumerate(found) if there)
