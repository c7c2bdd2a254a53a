"""Breaks one rule after the other in a copy, and says which test noticed.

    python -m tests.mutations [RULE...]

For each change of changes.py: the tests that carry its rule in their names run on the changed
copy until the first of them fails. Exit status 1 if one was not noticed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from tests.packaging.source import copy_source

from .changes import CHANGES, Change

TESTS = ("tests/unit", "tests/simulated")
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
LIMIT = 900


def copy(folder: Path) -> Path:
    """Copy the tree and return a Python that imports the copy, not the original."""
    copy_source(folder)
    python = folder / "venv" / "bin" / "python"
    venv.create(folder / "venv", system_site_packages=True, with_pip=False, symlinks=True)
    tools = sysconfig.get_path("purelib")  # its .pth files are not read, so not the original
    site = next((folder / "venv" / "lib").glob("python3*/site-packages"))
    (site / "copy.pth").write_text(f"{folder}\n{tools}\n")
    return python


def run(change: Change | None, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests on a copy with this change, or with none."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        python = copy(folder)
        if change is not None:
            change.apply(folder)
        return subprocess.run(
            [str(python), *PYTEST, *tests],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )


def noticed(change: Change) -> str | None:
    """Return the first test that fails with the change, and passes without it; or None."""
    done = run(change, "-k", f"_{change.rule.lower()}_", *TESTS)
    if done.returncode == 0:
        return None
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed is None or run(None, failed[1]).returncode != 0:
        raise RuntimeError(f"{change.what}: no test tells:\n{done.stdout}{done.stderr}")
    return failed[1]


def main(rules: list[str]) -> int:
    missed = 0
    for change in CHANGES:
        if rules and change.rule not in rules:
            continue
        test = noticed(change)
        missed += test is None
        print(f"{change.rule:4} {change.what} -> {test or 'NOT NOTICED'}", flush=True)
    print(f"{missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
