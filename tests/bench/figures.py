"""What a run of the benchmarks has measured, and how it is shown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RUNS = 30


@dataclass(frozen=True)
class Spread:
    """Milliseconds of one thing."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


@dataclass(frozen=True)
class Figure:
    """One line: what was measured, against what, and the goal."""

    what: str
    ms: Spread
    peer: str = ""
    peer_ms: Spread | None = None
    ratio: float | None = None
    """The median of the ratios, pair by pair."""
    goal: str = ""
    note: str = ""


def spread(milliseconds: Sequence[float]) -> Spread:
    return Spread(statistics.median(milliseconds), min(milliseconds), max(milliseconds))


def pairs(
    what: str,
    ours: Callable[[], float],
    peer: str,
    theirs: Callable[[], float],
    *,
    goal: str = "",
    note: str = "",
    runs: int = RUNS,
) -> Figure:
    """Measure both in turn; each call returns its milliseconds."""
    found = [(ours(), theirs()) for _ in range(runs)]
    return of_pairs(what, found, peer, goal=goal, note=note)


def of_pairs(
    what: str, found: Sequence[tuple[float, float]], peer: str, *, goal: str = "", note: str = ""
) -> Figure:
    mine, others = zip(*found, strict=True)
    ratio = statistics.median(a / b for a, b in found)
    return Figure(what, spread(mine), peer, spread(others), round(ratio, 3), goal, note)


def table(figures: Sequence[Figure]) -> str:
    """Return a table in Markdown; times in ms: median (least to most)."""
    rows = ["| What | ms | Against | ms | Ratio | Goal |", "|---|---|---|---|---|---|"]
    for f in figures:
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}"
        what = f"{f.what}; {f.note}" if f.note else f.what
        peer = "" if f.peer_ms is None else str(f.peer_ms)
        rows.append(f"| {what} | {f.ms} | {f.peer} | {peer} | {ratio} | {f.goal} |")
    return "\n".join(rows)


def write(path: Path, machine: dict[str, str], figures: Sequence[Figure]) -> None:
    """Write all of it as JSON."""
    path.parent.mkdir(exist_ok=True)
    found = {"machine": machine, "runs": RUNS, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(found, indent=1) + "\n")
