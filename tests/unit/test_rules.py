"""docs/rules.md names the tests of each rule, all of them and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
RULES = TESTS.parent / "docs" / "rules.md"
NUMBERED = re.compile(r"test_((?:[ri]\d+_)+)")


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
    table = re.findall(r"^\| ([RI]\d+) \| (.*) \| (.*) \|$", RULES.read_text(), re.MULTILINE)
    return {rule: set(re.findall(r"`(test_\w+)`", tests)) for rule, _, tests in table}


def test_every_rule_is_in_the_table() -> None:
    expected = {f"R{n}" for n in range(1, 15)} | {f"I{n}" for n in range(1, 11)}
    assert set(rows()) == expected


def test_the_table_names_the_tests_that_exist() -> None:
    found = numbered_tests()
    for rule, tests in rows().items():
        assert tests == found.get(rule, set()), rule
