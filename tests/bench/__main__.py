"""`make bench`: prints a table, and writes dist/bench.json and the one of docs/performance.md."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from tests.bench import asked, large, plain, real, sizes, storm
from tests.bench.figures import Figure, table, write

ROOT = Path(__file__).parents[2]
JSON = ROOT / "dist" / "bench.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
GROUPS = {
    "plain": plain,
    "asked": asked,
    "storm": storm,
    "sizes": sizes,
    "large": large,
    "real": real,
}


def main(names: list[str]) -> int:
    unknown = set(names) - set(GROUPS)
    if unknown:
        print(f"no such group: {', '.join(sorted(unknown))}; there are: {', '.join(GROUPS)}")
        return 2
    found: list[Figure] = []
    for name in names or GROUPS:
        for figure in GROUPS[name].figures():
            found.append(figure)
            print(table([figure]).splitlines()[-1], flush=True)
    write(JSON, _machine(), found)
    if not names:
        _into_page(table(found))
    return 0


def _machine() -> dict[str, str]:
    cpus = re.findall("model name\t: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "cpu": cpus[0] if cpus else platform.machine(),
        "load when it began": f"{os.getloadavg()[0]:.1f}",
    }


def _into_page(text: str) -> None:
    """Put the table into the page, and which machine it is of."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    machine = ", ".join(f"{key}: {value}" for key, value in _machine().items())
    PAGE.write_text(f"{before}{BEGIN}{machine}\n\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
