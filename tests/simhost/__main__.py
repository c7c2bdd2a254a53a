"""A shell on a simulated host: python -m tests.simhost HOST [-- COMMAND ...]

HOST is a name in hosts/, a host file, or a bundle of `vgpu-hook record`. To try the product by
hand, see docs/simulated-host.md. With a command it runs that instead.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from . import byhand
from .hostfile import BUNDLE, HOSTS, host_path, load

_USAGE = "usage: python -m tests.simhost HOST [-- COMMAND ...]\n\nhosts:"


def _hosts() -> str:
    """Their names, with how the comment of each begins."""
    lines = []
    for path in sorted(HOSTS.glob("*.toml")):
        comment = path.read_text().splitlines()[0].lstrip("# ")
        lines.append(f"  {path.stem:<22} {comment}")
    return "\n".join(lines)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    host, *rest = arguments or [""]
    if host.endswith(BUNDLE):
        host = str(Path(host).resolve())
    known = bool(host) and host_path(host).exists()
    if not known or (rest and (rest[0] != "--" or len(rest) == 1)):
        print(f"{_USAGE}\n{_hosts()}", file=sys.stderr)
        return 2
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        print("error: a simulated host needs root and /dev/fuse", file=sys.stderr)
        return 1
    load(host)  # a slip in a host file of one's own is told before anything is started
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    return byhand.run(host, rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
