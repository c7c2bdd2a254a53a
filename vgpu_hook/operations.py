"""One call of the hook: libvirt's operations, turned into calls of lifecycle.

The same functions serve the daemon and, when it does not answer, the hook's own process
(hook.py). Whatever happens becomes an exit status and a line: 0, or REFUSED with the reason for
a start that must not go on. Never calls libvirt.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from vgpu_hook import bounded, config, domain, log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.hook import REFUSED, START, STOPS, operation_of
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import DeadlineExceeded, Domain, VgpuError

Run = Callable[[str, Domain, Settings], None]
"""Does an operation for a domain."""

WORK_SHARE = 0.8
"""Of the deadline, for the work; what is left is for giving up on it in good order."""

LAST_WORDS = 0.1
"""Of the deadline, for marking what was given up on."""


def answer(arguments: tuple[str, ...], xml: bytes, run: Run) -> tuple[int, str]:
    """Return the exit status and the line for stderr of a call, which `run` does.

    Refuses a start, with the reason for virsh; lets everything else go on (R3).
    """
    operation = operation_of(arguments)
    if operation not in (START, *STOPS):
        return 0, ""
    name = repr(arguments[0])
    try:
        _serve(operation, xml, run)
        return 0, ""
    except VgpuError as error:
        text = str(error) if name in str(error) else f"domain {name}: {error}"
    except Exception as error:  # noqa: BLE001 - entry point: libvirt gets a line, no traceback
        text = f"domain {name}: internal error: {type(error).__name__}: {error}"
    return failure(operation, arguments[0], text)


def work(operation: str, subject: Domain, settings: Settings, seconds: float) -> None:
    """Do what the operation asks for, in `seconds`: the same for the hook and for the daemon."""
    deadline = Deadline(seconds)
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


def in_thread(arguments: tuple[str, ...], xml: bytes, seconds: float) -> tuple[int, str]:
    """Return the answer of a call that the daemon does, of which `seconds` are left."""

    def run(operation: str, subject: Domain, settings: Settings) -> None:
        if seconds <= 0:
            raise DeadlineExceeded("the call came too late: its time was over")
        work(operation, subject, settings, seconds * WORK_SHARE)

    return answer(arguments, xml, run)


def in_child(arguments: tuple[str, ...], xml: bytes, spent: float) -> tuple[int, str]:
    """Return the answer of a call that this process does, `spent` seconds after it came."""
    return answer(arguments, xml, lambda *call: _bounded_work(*call, spent=spent))


def failure(operation: str, name: str, text: str) -> tuple[int, str]:
    """Return the answer to a call that could not be done."""
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


def _bounded_work(operation: str, subject: Domain, settings: Settings, *, spent: float) -> None:
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
