"""libvirt's hook operations, turned into calls of lifecycle: `python3 -I -m vgpu_hook.hook`.

hooks/qemu runs it for domains with a request, with libvirt's arguments (NAME OP SUBOP
EXTRA) and the domain's XML on stdin. Exit status: 0, or REFUSED with one line on stderr
for a start that must not go on. It never calls libvirt and answers within the deadline:
all work is done in a child that can be given up on. Does not filter domains without a
request quickly: hooks/qemu did that before.
"""

from __future__ import annotations

import os
import sys

from vgpu_hook import bounded, config, domain, log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import DeadlineExceeded, Domain, VgpuError

REFUSED = 10
"""hooks/qemu turns it into 1. Python's own failures exit with other numbers."""

START = "prepare"
STOPS = ("stopped", "release")

WORK_SHARE = 0.8
"""Of the deadline, for the work; what is left is for giving up on it in good order."""

LAST_WORDS = 0.1
"""Of the deadline, for marking what was given up on."""


def main(arguments: list[str] | None = None, xml: bytes | None = None) -> int:
    """Serve one call of the hook; return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    name, operation = [*given, "", ""][:2]
    if operation not in (START, *STOPS):
        return 0
    try:
        _serve(operation, sys.stdin.buffer.read() if xml is None else xml)
    except VgpuError as error:
        return _answer(operation, name, str(error))
    except Exception as error:  # noqa: BLE001 - entry point: libvirt gets a line, no traceback
        return _answer(operation, name, f"internal error: {type(error).__name__}: {error}")
    return 0


def _answer(operation: str, name: str, text: str) -> int:
    """Refuse a start, with the reason for virsh; let everything else go on (R3)."""
    if operation == START:
        print(f"vgpu-hook: {text}", file=sys.stderr)
        return REFUSED
    log.JournalLog(config.Settings().roots.journal, operation).event(
        "stop-failed", f"{operation} of domain {name!r}: {text}", level="error", domain_name=name
    )
    return 0


def _serve(operation: str, xml: bytes) -> None:
    """Do what the operation asks for, within the deadline."""
    subject = domain.parse(xml)
    if not subject.request and not any(hostdev.slot for hostdev in subject.hostdevs):
        return  # R14: not ours, whatever state we are in
    settings = config.load()
    if os.geteuid() != 0:
        raise VgpuError(
            f"domain {subject.name!r} asks for a vGPU, which needs root", "use qemu:///system"
        )
    deadline = Deadline(settings.hook_deadline)
    try:
        bounded.run(
            _work,
            operation,
            subject,
            settings,
            deadline=deadline.capped(settings.hook_deadline * (1 - LAST_WORDS)),
            doing=f"{operation} of domain {subject.name!r}",
        )
    except DeadlineExceeded as error:
        bounded.run(
            _retain_unfinished,
            subject,
            settings,
            error.message,
            deadline=deadline,
            doing="marking it in the store",
        )
        raise


def _work(operation: str, subject: Domain, settings: Settings) -> None:
    """Run the rules. In a child: whatever hangs here is given up on."""
    deadline = Deadline(settings.hook_deadline * WORK_SHARE)
    opened = store_file.open_store(
        settings.state, operation, wait=settings.hook_deadline / 4, create=operation == START
    )
    if opened is None:  # no store: nothing was ever assigned
        return
    host = Host(settings, settings.roots.boot_id())
    events = log.JournalLog(settings.roots.journal, operation)
    lifecycle = Lifecycle(Context(settings, host, opened, events, deadline))
    if operation == START:
        lifecycle.prepare(subject)
    else:
        lifecycle.release_all(subject.uuid)


def _retain_unfinished(subject: Domain, settings: Settings, reason: str) -> None:
    opened = store_file.open_store(settings.state, "deadline", wait=1, create=False)
    if opened is not None:
        opened.retain_unfinished(subject.uuid, settings.roots.boot_id(), reason)


if __name__ == "__main__":
    sys.exit(main())
