"""Runs `vgpu-hook ARGUMENTS`, which is killed (-9) at the moment that it shows a certain step.

    python3 -I killed_at.py STEP ARGUMENTS...

The program is the real one; only `print` is watched. Killing it from outside would be a race.
"""

import builtins
import os
import signal
import sys


def main() -> None:
    step, arguments = sys.argv[1], sys.argv[2:]
    show = builtins.print

    def watched(*values: object, **options: object) -> None:
        if values and str(values[0]).startswith(step):
            os.kill(os.getpid(), signal.SIGKILL)
        show(*values, **options)  # type: ignore[call-overload]

    builtins.print = watched
    from vgpu_hook import cli

    sys.exit(cli.main(arguments))


if __name__ == "__main__":
    main()
