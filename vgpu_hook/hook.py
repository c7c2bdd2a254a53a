"""The hook's own process: does a call that no daemon does.

hooks/qemu asks the daemon, and calls `serve` if that is not there, with libvirt's arguments (NAME
OP SUBOP EXTRA) and the domain's XML. The answer's status: 0, or REFUSED with one line for a start
or an arrival that must not go on. Its output is the XML to go on with, if it is not the one that
was given. Imports little before it is known that there is something to do. Does not filter domains
without a request quickly: hooks/qemu did that before; it hands on restores alone, since a saved
image may be older than the request.
"""

from __future__ import annotations

import time

from vgpu_hook import config
from vgpu_hook.model import is_ours
from vgpu_hook.protocol import Answer

REFUSED = 10
"""hooks/qemu turns it into 1. Python's own failures exit with other numbers."""

START = "prepare"
STOPS = ("stopped", "release")
RESTORE = "restore"
ARRIVALS = (RESTORE, "migrate")
"""What they print is the XML that libvirt goes on with (facts A6)."""


def serve(arguments: list[str], xml: bytes, begun: float = 0.0, *, late: bool = False) -> Answer:
    """Return the answer to one call of the hook.

    `begun`: when libvirt called, in seconds of CLOCK_BOOTTIME; 0 if that is not known. `late`: the
    daemon has the call, and has not answered in time.
    """
    operation = operation_of(tuple(arguments))
    if operation not in (START, *STOPS, *ARRIVALS):
        return Answer(0)
    if is_ours(xml):
        return _answer(tuple(arguments), xml, begun, late=late)
    if operation != RESTORE:
        return Answer(0)
    from vgpu_hook import operations

    return operations.restored_without_request(xml)


def operation_of(arguments: tuple[str, ...]) -> str:
    """Return libvirt's operation, or "" if there is none."""
    return arguments[1] if len(arguments) > 1 else ""


def _answer(arguments: tuple[str, ...], xml: bytes, begun: float, *, late: bool) -> Answer:
    seconds = config.hook_deadline(config.load)
    from vgpu_hook import operations

    if late:
        name = arguments[0][:255]
        text = f"vgpu-hookd has not answered within {seconds:.3g} s"
        hint = "see: journalctl -u vgpu-hookd"
        operation = operation_of(arguments)
        return operations.failure(operation, name, f"domain {name!r}: {text}; {hint}", xml)
    spent = max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun, 0.0) if begun else 0.0
    return operations.in_child(arguments, xml, spent, seconds)
