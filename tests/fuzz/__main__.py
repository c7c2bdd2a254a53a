"""The long run: `python -m tests.fuzz [SECONDS]`, or `again -- HOST LEVEL NAME OPERATION FILE`.

Rounds of some hundred calls on a host of their own, the frameworks in turn, each from another seed,
until the time is over. Exit status 1 with the smallest call that failed, and how to do it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.calls import INSIDE, PROCESS, Call, Fuzzed, calls, reproduction, started
from tests.fuzz.domains import SUBJECTS

ROUND = {INSIDE: 300, PROCESS: 25}
"""Calls on one host: enough to fill it, few enough to start from an empty one often."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the hook.")
    parser.add_argument("seconds", nargs="?", default="600", help="how long; or `again`")
    parser.add_argument("call", nargs="*", help="HOST LEVEL NAME OPERATION FILE")
    options = parser.parse_args()
    if options.seconds == "again":
        return _again(*options.call)
    return _run(float(options.seconds))


def _run(seconds: float) -> int:
    tried: Counter[str] = Counter()
    end, number = time.monotonic() + seconds, 0
    first = random.SystemRandom().randrange(1 << 32)
    print(f"fuzz: {seconds:g} s, seeds from {first}", flush=True)
    while time.monotonic() < end:
        with started(SUBJECTS[number % len(SUBJECTS)], tried) as fuzzed:
            try:
                for level in ROUND:
                    _round(fuzzed, level, first + number, end)
                fuzzed.check_host()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
                print(f"fuzz: {_counts(tried)}, 1 failure (seed {first + number}): {error!r}")
                print(reproduction(fuzzed))
                return 1
        number += 1
        print(f"fuzz: {number} rounds, {_counts(tried)}", flush=True)
    print(f"fuzz: {_counts(tried)}, 0 failures")
    return 0


def _round(fuzzed: Fuzzed, level: str, number: int, end: float) -> None:
    @seed(number)
    @settings(
        max_examples=ROUND[level],
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(calls(fuzzed.subject, level))
    def examples(call: Call) -> None:
        if time.monotonic() < end:
            fuzzed.check(call)

    examples()


def _again(host: str, level: str, name: str, operation: str, file: str) -> int:
    subject = next(subject for subject in SUBJECTS if subject.host == host)
    with started(subject, Counter()) as fuzzed:
        fuzzed.check(Call(level, name, operation, Path(file).read_bytes()))
        fuzzed.check_host()
    print("fuzz: nothing is wrong with it")
    return 0


def _counts(tried: Counter[str]) -> str:
    return (
        f"{tried[INSIDE]} examples in-process, {tried[PROCESS]} through hooks/qemu"
        f" ({tried['refused']} refused, {tried['rewritten']} with XML to go on with)"
    )


if __name__ == "__main__":
    sys.exit(main())
