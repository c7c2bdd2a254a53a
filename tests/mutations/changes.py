"""Single changes to the product, each of which breaks one rule of docs/rules.md.

Who changes the code that one of them is about changes it here too: tests/unit/test_mutations.py
fails while a text is not found just once.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LIFECYCLE = "vgpu_hook/lifecycle.py"
GUARD = "vgpu_hook/guard.py"


class Change(NamedTuple):
    """`before` in `file` becomes `after`; tests with `rule` in their names have to notice."""

    rule: str
    what: str
    file: str
    before: str
    after: str

    def apply(self, root: Path) -> None:
        """Change the file below `root`. Raises ValueError unless the text is there just once."""
        file = root / self.file
        text = file.read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.what}: {self.file} has it {text.count(self.before)} times")
        file.write_text(text.replace(self.before, self.after))


CHANGES = (
    Change(
        "R1",
        "a stop releases nothing",
        LIFECYCLE,
        "left = [self._release(row, share) for row, share in self._shares(rows, self._deadline)]",
        "left: list[Assignment | None] = []",
    ),
    Change(
        "R2",
        "a release is not persisted",
        LIFECYCLE,
        'if not self._store.forget(row, "released", why or gone):',
        "if False:",
    ),
    Change(
        "R3",
        "a failed release fails the stop",
        LIFECYCLE,
        "            self._note_failure(row, error)\n"
        "            return self._retain(row, error.message)",
        "            raise",
    ),
    Change(
        "R4",
        "what is retained is not tried again",
        LIFECYCLE,
        "if generations is None or row.generation in generations",
        "if row.state != RETAINED",
    ),
    Change(
        "R5",
        "a start leaves what an earlier run left",
        LIFECYCLE,
        "            self._release_stale(domain, taking)\n",
        "",
    ),
    Change(
        "R6", "who has the device open does not count", GUARD, "    if holders:", "    if False:"
    ),
    Change(
        "R6",
        "what the device is does not count",
        GUARD,
        "if found.type and (found.type, found.parent) == (row.type, row.parent):",
        "if True:",
    ),
    Change("R6", "other records do not count", GUARD, "    if not others:", "    if True:"),
    Change(
        "I2",
        "users that can't be read do not count",
        GUARD,
        'return Fact(False, f"can\'t tell who uses it: {error.message}")',
        'return Fact(True, f"can\'t tell who uses it: {error.message}")',
    ),
    Change(
        "R8",
        "a stop acts on other domains' records",
        LIFECYCLE,
        "for row in self._store.of_domain(domain_uuid)\n                if generations",
        "for row in self._store.all()\n                if generations",
    ),
    Change(
        "R9",
        "an image brings back what it asks for",
        LIFECYCLE,
        "stands = self._store.domains.requests(domain.uuid) if known else None",
        "stands = None",
    ),
    Change(
        "R10",
        "a domain under deletion starts",
        LIFECYCLE,
        "            self._note(domain)\n            self._refuse_if_deleting(domain)\n",
        "            self._note(domain)\n",
    ),
    Change(
        "R11",
        "a start that fails half way gives nothing back",
        LIFECYCLE,
        "for row in reversed(taken):",
        "for row in taken[:0]:",
    ),
    Change(
        "R12",
        "a late release acts on what came later",
        LIFECYCLE,
        "if generations is None or row.generation in generations",
        "if row",
    ),
    Change(
        "R12",
        "a call that was frozen goes on",
        LIFECYCLE,
        "if not deadline.remaining():  # frozen",
        "if False:  # frozen",
    ),
    Change(
        "I8",
        "VMs that arrive at once choose at once",
        LIFECYCLE,
        "with planning_lock(self._settings.runtime, self._deadline):",
        "with contextlib.nullcontext():",
    ),
    Change(
        "I9",
        "a record of another boot proves something",
        GUARD,
        "    if row.boot_id == boot_id:",
        "    if row.boot_id:",
    ),
)
