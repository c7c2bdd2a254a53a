"""Runs vgpu-hookd's `main`, again and again, without starting the interpreter each time.

Not needed by what is tested; a start of the daemon imports for half a second, and there is one for
each point. For each line on stdin the process id of a new daemon goes to stdout; it is left to
whoever takes in orphans (callers.all_children).
"""

from __future__ import annotations

import os
import sys

from vgpu_hook import daemon


def main() -> None:
    for _ in sys.stdin:
        middle = os.fork()
        if middle == 0:
            daemon_pid = os.fork()
            if daemon_pid == 0:
                run()
            os.write(1, f"{daemon_pid}\n".encode())
            os._exit(0)
        os.waitpid(middle, 0)


def run() -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    status = 1
    try:
        status = daemon.main()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
