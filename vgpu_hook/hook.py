"""libvirt's hook operations, turned into calls of lifecycle: `python3 -I -m vgpu_hook.hook`.

hooks/qemu runs it for domains with a request, with libvirt's arguments (NAME OP SUBOP
EXTRA) and the domain's XML on stdin. Exit status: 0, or REFUSED with one line on stderr
for a start that must not go on. It never calls libvirt and answers within the deadline. The
daemon does the call if it is there (client.py); else this process does, through the same
function. Does not filter domains without a request quickly: hooks/qemu did that before.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from vgpu_hook import bounded, client, config, domain, log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import ConfigError, DeadlineExceeded, Domain, VgpuError

Run = Callable[[str, Domain, Settings], None]
"""Does an operation for a domain."""

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
    given = tuple(sys.argv[1:] if arguments is None else arguments)
    if operation_of(given) not in (START, *STOPS):
        return 0
    text = sys.stdin.buffer.read() if xml is None else xml
    begun = time.monotonic()
    status, stderr = _ask_daemon(given, text) or answer(
        given, text, lambda *call: _in_child(*call, spent=time.monotonic() - begun)
    )
    if stderr:
        print(stderr, file=sys.stderr)
    return status


def operation_of(arguments: tuple[str, ...]) -> str:
    """Return libvirt's operation, or "" if there is none."""
    return arguments[1] if len(arguments) > 1 else ""


def answer(arguments: tuple[str, ...], xml: bytes, run: Run) -> tuple[int, str]:
    """Return the exit status and the line for stderr of a call, which `run` does.

    Refuses a start, with the reason for virsh; lets everything else go on (R3).
    """
    operation = operation_of(arguments)
    try:
        _serve(operation, xml, run)
        return 0, ""
    except VgpuError as error:
        text = str(error)
    except Exception as error:  # noqa: BLE001 - entry point: libvirt gets a line, no traceback
        text = f"internal error: {type(error).__name__}: {error}"
    return _failure(operation, arguments[0], text)


def work(operation: str, subject: Domain, settings: Settings, seconds: float = 0) -> None:
    """Do what the operation asks for: the one function for the hook and for the daemon.

    `seconds` is how long it may take; by default its share of the deadline.
    """
    deadline = Deadline(seconds or settings.hook_deadline * WORK_SHARE)
    opened = store_file.open_store(
        settings.state, operation, wait=settings.hook_deadline / 4, create=operation == START
    )
    if opened is None:  # no store: nothing was ever assigned
        return
    try:
        host = Host(settings, settings.roots.boot_id())
        events = log.JournalLog(settings.roots.journal, operation)
        lifecycle = Lifecycle(Context(settings, host, opened, events, deadline))
        if operation == START:
            lifecycle.prepare(subject)
        else:
            lifecycle.release_all(subject.uuid)
    finally:
        opened.close()


def _ask_daemon(arguments: tuple[str, ...], xml: bytes) -> tuple[int, str] | None:
    """Have the daemon do the call; None if this process must."""
    try:
        settings = config.load()
        return client.ask(settings.runtime, arguments, xml, Deadline(settings.hook_deadline))
    except ConfigError:
        return None
    except DeadlineExceeded as error:
        return _failure(operation_of(arguments), arguments[0], str(error))


def _failure(operation: str, name: str, text: str) -> tuple[int, str]:
    if operation == START:
        return REFUSED, f"vgpu-hook: {text}"
    log.JournalLog(config.Settings().roots.journal, operation).event(
        "stop-failed", f"{operation} of domain {name!r}: {text}", level="error", domain_name=name
    )
    return 0, ""


def _serve(operation: str, xml: bytes, run: Run) -> None:
    subject = domain.parse(xml)
    if not subject.request and not any(hostdev.slot for hostdev in subject.hostdevs):
        return  # R14: not ours, whatever state we are in
    settings = config.load()
    if os.geteuid() != 0:
        raise VgpuError(
            f"domain {subject.name!r} asks for a vGPU, which needs root", "use qemu:///system"
        )
    run(operation, subject, settings)


def _in_child(operation: str, subject: Domain, settings: Settings, *, spent: float) -> None:
    """Run `work` in a child: whatever hangs there is given up on, and marked as retained."""
    left = max(settings.hook_deadline - spent, settings.hook_deadline * LAST_WORDS)
    deadline = Deadline(left)
    try:
        bounded.run(
            work,
            operation,
            subject,
            settings,
            left * WORK_SHARE,
            deadline=deadline.capped(left * (1 - LAST_WORDS)),
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


def _retain_unfinished(subject: Domain, settings: Settings, reason: str) -> None:
    opened = store_file.open_store(settings.state, "deadline", wait=1, create=False)
    if opened is not None:
        opened.retain_unfinished(subject.uuid, settings.roots.boot_id(), reason)


if __name__ == "__main__":
    sys.exit(main())
