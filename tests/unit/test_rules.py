"""docs/rules.md names the tests of each rule, all of them and no others."""

from __future__ import annotations

from tests.rules_table import numbered_tests, rows


def test_every_rule_is_in_the_table() -> None:
    expected = {f"R{n}" for n in range(1, 15)} | {f"I{n}" for n in range(1, 11)}
    assert set(rows()) == expected


def test_the_table_names_the_tests_that_exist() -> None:
    found = numbered_tests()
    for rule, tests in rows().items():
        assert tests == found.get(rule, set()), f"{rule}; run: make rules"
