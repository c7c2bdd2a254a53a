"""docs/rules.md: each rule, and the tests that carry its number. `make rules` writes them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
RULES = TESTS.parent / "docs" / "rules.md"
NUMBERED = re.compile(r"test_((?:[ri]\d+_)+)")
ROW = re.compile(r"^\| ([RI]\d+) \| (.*) \| (.*) \|$", re.MULTILINE)


def numbered_tests() -> dict[str, set[str]]:
    """Return, for each R1 or I1, the tests whose names carry it."""
    found: dict[str, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := NUMBERED.match(node.name)):
                for rule in match[1].strip("_").upper().split("_"):
                    found.setdefault(rule, set()).add(node.name)
    return found


def rows() -> dict[str, set[str]]:
    """Return what the table says: by rule, its tests."""
    table = ROW.findall(RULES.read_text())
    return {rule: set(re.findall(r"`(test_\w+)`", tests)) for rule, _, tests in table}


def write() -> None:
    """Put the tests that there are into the table."""
    found = numbered_tests()

    def row(match: re.Match[str]) -> str:
        tests = ", ".join(f"`{test}`" for test in sorted(found.get(match[1], ())))
        return f"| {match[1]} | {match[2]} | {tests or 'not built yet'} |"

    RULES.write_text(ROW.sub(row, RULES.read_text()))


if __name__ == "__main__":
    write()
