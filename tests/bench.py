"""Figures, not tests: what hooks/qemu costs a VM that asks for no vGPU.

    make bench

Each hook is run in turn with a no-op one that only reads its stdin, with the same real
domain XML, as whole processes. Prints the
median and the spread of RUNS pairs, and the median of the ratio pair by pair, which holds
when the machine's speed drifts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.product import HOOK

RUNS = 30
REPEATS = 10
"""Calls that make up one timed run: a single one takes a millisecond."""

NOOP = "#!/bin/sh\ncat >/dev/null\n"
PLAIN = Path(__file__).with_name("data") / "plain-domain.xml"


def seconds(hook: str, operation: str, xml: Path) -> float:
    """Time REPEATS calls of a hook, process start and end included; return one's seconds."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(xml), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    environment = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    arguments = [hook, "plain", operation, "begin", "-"]
    begin = time.perf_counter()
    for _ in range(REPEATS):
        pid = os.posix_spawn(hook, arguments, environment, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        assert status == 0
    return (time.perf_counter() - begin) / REPEATS


def compare(operation: str, noop: str, xml: Path) -> None:
    pairs = [
        (seconds(str(HOOK), operation, xml), seconds(noop, operation, xml)) for _ in range(RUNS)
    ]
    for label, values in (("hooks/qemu", [p[0] for p in pairs]), ("no-op", [p[1] for p in pairs])):
        ms = [1000 * value for value in values]
        print(
            f" {operation:9} {label:11} median {statistics.median(ms):6.2f} ms"
            f"   min {min(ms):6.2f}   max {max(ms):6.2f}"
        )
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f" {operation:9} ratio, median of {RUNS} pairs: {ratio:.2f}\n")


def main() -> int:
    xml = PLAIN.read_bytes()
    print(
        f"a domain without a request ({len(xml)} bytes of XML), {RUNS} pairs of {REPEATS} calls\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        noop = Path(folder) / "noop"
        noop.write_text(NOOP)
        noop.chmod(0o755)
        for operation in ("prepare", "start", "stopped"):
            compare(operation, str(noop), PLAIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
