"""The hook's own process: asks the daemon to do a call, or does it: `python3 -I -m vgpu_hook.hook`.

hooks/qemu runs it for domains with a request, with libvirt's arguments (NAME OP SUBOP EXTRA) and
the domain's XML on stdin. Exit status: 0, or REFUSED with one line on stderr for a start that must
not go on. Imports little before the daemon has been asked: every VM start with a vGPU pays for
it. Does not filter domains without a request quickly: hooks/qemu did that before.
"""

from __future__ import annotations

import sys
import time

from vgpu_hook import client, config
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import ConfigError, DeadlineExceeded

REFUSED = 10
"""hooks/qemu turns it into 1. Python's own failures exit with other numbers."""

START = "prepare"
STOPS = ("stopped", "release")


def main(arguments: list[str] | None = None, xml: bytes | None = None) -> int:
    """Serve one call of the hook; return its exit status."""
    given = tuple(sys.argv[1:] if arguments is None else arguments)
    if operation_of(given) not in (START, *STOPS):
        return 0
    text = sys.stdin.buffer.read() if xml is None else xml
    status, stderr = _answer(given, text)
    if stderr:
        print(stderr, file=sys.stderr)
    return status


def operation_of(arguments: tuple[str, ...]) -> str:
    """Return libvirt's operation, or "" if there is none."""
    return arguments[1] if len(arguments) > 1 else ""


def _answer(arguments: tuple[str, ...], xml: bytes) -> tuple[int, str]:
    """Return the exit status and the line for stderr: the daemon's, else our own."""
    begun = time.monotonic()
    try:
        settings = config.load()
        deadline = Deadline(settings.hook_deadline)
        found = client.ask(settings.runtime, arguments, xml, deadline)
        if found is not None:
            return found
    except ConfigError:  # it may be none of our business: that is found out below
        pass
    except DeadlineExceeded as error:
        from vgpu_hook import operations

        return operations.failure(operation_of(arguments), arguments[0], str(error))
    from vgpu_hook import operations

    return operations.in_child(arguments, xml, time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
