"""python -m tests.model STEPS [SEED] [--processes]: the rules by hand."""

from __future__ import annotations

import sys

from .drivers import InProcess, Processes
from .run import run


def main(arguments: list[str]) -> None:
    driver: type[InProcess] | type[Processes] = InProcess
    if "--processes" in arguments:
        arguments.remove("--processes")
        driver = Processes
    run(driver, int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
