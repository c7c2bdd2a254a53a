"""docs/reports.md has each public report that was collected, and names the tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS.parent / "docs" / "reports.md"
NOT_CITED = TESTS / "reports" / "test_not_reported.py"

NUMBERS = [
    *(1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16),  # leaks, failed releases, orphans
    *(17, 18, 19, 20, 21, 22, 24, 25, 26, 27, 28),  # reboots, boot order, driver reloads
    *(29, 31, 34, 35, 36, 37, 38, 39, 40, 73, 74, 75, 76),  # capacity, names, types
    *(41, 42, 43, 46, 47, 48),  # clones, snapshots, restores
    *(49, 52, 53, 54, 55, 56, 58, 60, 61, 62),  # hooks and XML
    *(64, 65, 66, 67, 68, 69, 70, 72),  # races, events, migration, health
]
"""The rows of the survey (shared/facts/peers.md, section 2), in its order."""

ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
NOT_OURS = "not ours: "


def rows() -> list[tuple[int, str, str]]:
    """Return number, source, and the last cell of each row."""
    return [(int(n), source, last) for n, source, _, last in ROW.findall(TABLE.read_text())]


def cited() -> list[str]:
    return [name for *_, last in rows() for name in re.findall(r"`(test_\w+)`", last)]


def names_in(*files: Path) -> set[str]:
    return {
        node.name
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def is_named_after(name: str, source: str) -> bool:
    """Tell for `test_lxd_9499_...` and canonical/lxd#9499; `pr_` is for a pull request.

    Of the repository's owner and name, the part that people know it by will do.
    """
    whose, _, number = source.rpartition("#")
    whose, pull, _ = whose.partition(" PR")
    known = re.sub(r"[^a-z0-9]+", "_", whose.lower())
    found = re.match(rf"test_(\w+?)_{'pr_' if pull else ''}{number}_", name)
    return found is not None and f"_{found[1]}_" in f"_{known}_"


def test_each_report_has_its_row() -> None:
    assert [number for number, *_ in rows()] == NUMBERS
    assert all(re.search(r"\]\(https://[^)]+\)", source) for _, source, _ in rows())


def test_each_row_has_tests_or_a_reason() -> None:
    for number, _, last in rows():
        if last.startswith(NOT_OURS):
            assert "`test_" not in last, number
        else:
            assert re.fullmatch(r"`test_\w+`(<br>`test_\w+`)*", last), number


def test_each_test_of_the_table_exists_and_is_named_after_a_source_of_its_row() -> None:
    there = names_in(*TESTS.rglob("test_*.py"))
    for number, source, last in rows():
        sources = re.findall(r"\[([^]]+)\]", source)
        for name in re.findall(r"`(test_\w+)`", last):
            assert name in there, name
            assert any(is_named_after(name, link) for link in sources), (number, name)


def test_each_test_that_is_named_after_a_report_is_in_the_table() -> None:
    listed = TABLE.read_text().split("## Not reported by anybody")[1]
    not_reported = set(re.findall(r"`(test_\w+)`", listed))
    assert names_in(NOT_CITED) <= not_reported
    files = [*(TESTS / "reports").glob("test_*.py"), TESTS / "libvirt" / "test_reports.py"]
    named = names_in(*files) - not_reported
    assert named
    assert named <= set(cited())
    assert not_reported.isdisjoint(cited())
    assert not_reported <= names_in(*files)


def test_the_counts_are_those_of_the_table() -> None:
    kinds = Counter(last.startswith(NOT_OURS) for *_, last in rows())
    said = f"{len(NUMBERS)} rows: {kinds[False]} with a test, {kinds[True]} not ours."
    assert f"\n{said}\n" in TABLE.read_text()
