"""The hook's own process: asks the daemon to do a call, or does it.

hooks/qemu calls `serve` for domains with a request, with libvirt's arguments (NAME OP SUBOP EXTRA)
and the domain's XML. The answer's status: 0, or REFUSED with one line for a start or an
arrival that must not go on. Its output is the XML to go on with, if it is not the one that was
given. Imports little before the daemon has been asked: every VM start with a vGPU pays for
it. Does not filter domains without a request quickly: hooks/qemu did that before; it hands on
restores alone, since a saved image may be older than the request.
"""

from __future__ import annotations

import time

from vgpu_hook import client, config
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import ConfigError, DeadlineExceeded, is_ours
from vgpu_hook.protocol import Answer

REFUSED = 10
"""hooks/qemu turns it into 1. Python's own failures exit with other numbers."""

START = "prepare"
STOPS = ("stopped", "release")
RESTORE = "restore"
ARRIVALS = (RESTORE, "migrate")
"""What they print is the XML that libvirt goes on with (facts A6)."""


def serve(arguments: list[str], xml: bytes) -> Answer:
    """Return the answer to one call of the hook."""
    operation = operation_of(tuple(arguments))
    if operation not in (START, *STOPS, *ARRIVALS):
        return Answer(0)
    if is_ours(xml):
        return _answer(tuple(arguments), xml)
    if operation != RESTORE:
        return Answer(0)
    from vgpu_hook import operations

    return operations.restored_without_request(xml)


def operation_of(arguments: tuple[str, ...]) -> str:
    """Return libvirt's operation, or "" if there is none."""
    return arguments[1] if len(arguments) > 1 else ""


def _answer(arguments: tuple[str, ...], xml: bytes) -> Answer:
    """Return the daemon's answer, else our own."""
    begun = time.monotonic()
    settings = config.Settings()
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

        name = arguments[0][:255]
        return operations.failure(operation_of(arguments), name, f"domain {name!r}: {error}", xml)
    from vgpu_hook import operations

    spent = time.monotonic() - begun
    return operations.in_child(arguments, xml, spent, settings.hook_deadline)
