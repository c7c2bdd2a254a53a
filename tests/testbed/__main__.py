"""The command line of the test hosts: python3 -m tests.testbed build|shell|run|clean."""

import argparse
import shutil
import signal
import subprocess
import sys

from tests.testbed.build import ensure_image
from tests.testbed.errors import TestbedError
from tests.testbed.machine import Machine
from tests.testbed.recipe import SUITES, TRIXIE, Suite, cache_root
from tests.testbed.ssh import as_line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.testbed", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default=TRIXIE.name, help="of Debian")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the image, unless it is there")
    commands.add_parser("shell", help="a shell in a fresh test host, which ends with it")
    run = commands.add_parser("run", help="run one command in a fresh test host")
    run.add_argument("line", nargs="+", metavar="CMD", help="one word is a shell line")
    commands.add_parser("clean", help="remove all images from the cache")
    return parser


def _build(suite: Suite) -> int:
    print(ensure_image(suite).directory)
    return 0


def _shell(suite: Suite) -> int:
    with Machine(ensure_image(suite)) as machine:
        return subprocess.run(machine.ssh.client("", terminal=True)).returncode


def _run(suite: Suite, line: list[str]) -> int:
    command = line[0] if len(line) == 1 else as_line(line)
    with Machine(ensure_image(suite)) as machine:
        return subprocess.run(machine.ssh.client(command)).returncode


def _clean() -> int:
    shutil.rmtree(cache_root(), ignore_errors=True)
    return 0


def main() -> int:
    arguments = _parser().parse_args()
    suite = SUITES[arguments.suite]
    # An ordinary exit, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        match arguments.command:
            case "build":
                return _build(suite)
            case "shell":
                return _shell(suite)
            case "run":
                return _run(suite, arguments.line)
            case _:
                return _clean()
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
