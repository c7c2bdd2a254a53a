"""What a script waits for: so many calls on files of the simulated host. Pure.

The commands `after` and `each` of control.py make a Watch. It counts calls when they are answered,
failed ones too, and those that a fault made fail.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .faults import OPS


@dataclass
class Watch:
    op: str
    path: str
    """A glob relative to the mount point, as in faults.py."""
    count: int
    command: list[str]
    """The words of what is to be done then."""
    again: bool = False
    """At every count-th call, not only at the first."""
    outcome: str = "*"
    """A glob of "ok" or an errno's name: only such calls count."""
    data: str = "*"
    """A glob of what is written: only such writes count."""
    seen: int = 0

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ValueError(f"unknown operation {self.op!r}, one of {', '.join(OPS)}")
        if self.count < 1:
            raise ValueError("a count begins at 1")
        if not self.command:
            raise ValueError("there is no command to do then")
        if self.data != "*" and self.op != "write":
            raise ValueError("data is for writes")

    @property
    def spent(self) -> bool:
        return not self.again and self.seen >= self.count

    def is_due(self, op: str, paths: list[str], number: int, data: bytes) -> bool:
        """Count the call, if it counts; tell whether it is the one that was waited for."""
        outcome = errno.errorcode.get(number, str(number)) if number else "ok"
        written = data.decode("utf-8", "backslashreplace").strip()
        if (
            self.spent
            or op != self.op
            or not fnmatchcase(outcome, self.outcome)
            or not fnmatchcase(written, self.data)
            or not any(fnmatchcase(path, self.path) for path in paths)
        ):
            return False
        self.seen += 1
        return self.seen % self.count == 0


def make_watch(again: bool, words: list[str]) -> Watch:
    """From `COUNT OP GLOB [outcome=GLOB] [data=GLOB] COMMAND ...`. Raises ValueError."""
    if len(words) < 3:
        raise ValueError("COUNT, OP and GLOB are missing")
    count, op, path, *rest = words
    options = {"outcome": "*", "data": "*"}
    while rest and rest[0].partition("=")[0] in options and "=" in rest[0]:
        name, _, value = rest.pop(0).partition("=")
        options[name] = value
    outcome, data = options["outcome"], options["data"]
    return Watch(op, path.lstrip("/"), int(count), rest, again, outcome, data)
