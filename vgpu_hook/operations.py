"""One call of the hook: libvirt's operations, turned into calls of lifecycle.

The same functions serve the daemon and, when it does not answer, the hook's own process
(hook.py). Whatever happens becomes an Answer: exit status 0, or REFUSED with the reason for what
must not go on. Never calls libvirt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from vgpu_hook import arrival, bounded, config, domain, log, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.hook import ARRIVALS, REFUSED, RESTORE, START, STOPS, operation_of
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import (
    DeadlineExceeded,
    Domain,
    Refused,
    VgpuError,
    VgpuRequest,
    one_line,
)
from vgpu_hook.protocol import Answer, LetGoOn
from vgpu_hook.store import Store

T = TypeVar("T")
Run = Callable[[str, Domain, bytes, Settings], bytes]
"""Does an operation for a domain with this XML; returns the XML to go on with, or nothing."""


class Means(NamedTuple):
    """How a process does its calls: one that goes on keeps what it can for the next one."""

    load: Callable[[], Settings] = config.load
    open_store: Callable[..., Store | None] = store_file.open_store
    run: Callable[..., Any] | None = None
    """Does what asks the kernel; None: bounded.run."""
    read: Callable[..., Any] | None = None
    """Does what asks the store; None: bounded.run. A process that keeps the store open must not
    have a child do it (stores.py)."""


def directly(call: Callable[..., T], *args: Any, **limits: Any) -> T:
    """Return `call(*args)`, done here and now."""
    return call(*args)


DO_ALL_ANEW = Means()

WORK_SHARE = 0.8
"""Of the deadline, for the work; what is left is for giving up on it in good order."""

LAST_WORDS = 0.1
"""Of the deadline, for marking what was given up on."""

SMALL = 1 << 16
"""Bytes of XML that are parsed at once. More may take minutes: libxml2 2.9 compares each attribute
of an element with all others."""


def answer(
    arguments: tuple[str, ...],
    xml: bytes,
    run: Run,
    seconds: float,
    means: Means = DO_ALL_ANEW,
) -> Answer:
    """Return the answer to a call, which `run` does; its XML is to be read in `seconds`.

    Refuses a start or an arrival, with the reason for virsh; lets everything else go on (R3). A
    restore is refused by the start that follows (`failure`).
    """
    operation = operation_of(arguments)
    if operation not in (START, *STOPS, *ARRIVALS):
        return Answer(0)
    plain = arguments[0][: domain.LONGEST_NAME]
    name = repr(plain)
    try:
        # A stop gives back what is on record, whatever the VM asks for by now (R1).
        read = domain.identity if operation in STOPS else domain.parse
        subject = _unhurried(read, xml, seconds=seconds)
        return Answer(0, "", _serve(operation, subject, xml, run, means))
    except VgpuError as error:
        text = str(error) if name in str(error) else f"domain {name}: {error}"
    except Exception as error:  # noqa: BLE001 - entry point: libvirt gets a line, no traceback
        text = one_line(f"domain {name}: internal error: {type(error).__name__}: {error}")
    return failure(operation, plain, text, xml)


def work(
    operation: str,
    subject: Domain,
    xml: bytes,
    settings: Settings,
    seconds: float,
    means: Means = DO_ALL_ANEW,
) -> bytes:
    """Do what the operation asks for, in `seconds`: the same for the hook and for the daemon.

    Returns the XML to go on with if it is not the one that was given, else nothing.
    """
    deadline = Deadline(seconds)
    opened = means.open_store(
        settings.state, operation, wait=settings.hook_deadline / 4, create=operation not in STOPS
    )
    if opened is None:  # no store: nothing was ever assigned
        return b""
    try:
        host = Host(settings, settings.roots.boot_id(), means.run)
        events = log.JournalLog(settings.roots.journal, operation)
        lifecycle = Lifecycle(Context(settings, host, opened, events, deadline))
        if operation in ARRIVALS:
            text = lifecycle.arrive(subject, xml, restored=operation == RESTORE)
            return text if text != xml else b""
        if operation == START:
            lifecycle.prepare(subject)
        else:
            lifecycle.release_all(subject.uuid)
        return b""
    finally:
        opened.close()


def in_thread(
    arguments: tuple[str, ...], xml: bytes, seconds: float, means: Means = DO_ALL_ANEW
) -> Answer:
    """Return the answer of a call that the daemon does, of which `seconds` are left."""

    deadline = Deadline(seconds)

    def run(operation: str, subject: Domain, text: bytes, settings: Settings) -> bytes:
        left = deadline.remaining()
        if not left:
            raise DeadlineExceeded("the call came too late: its time was over")
        return work(operation, subject, text, settings, left * WORK_SHARE, means)

    return answer(arguments, xml, run, seconds * WORK_SHARE, means)


def in_child(arguments: tuple[str, ...], xml: bytes, spent: float, seconds: float) -> Answer:
    """Return the answer of a call that this process does; `spent` of its `seconds` are over."""
    begun = time.monotonic() - spent
    seconds = (seconds - spent) * WORK_SHARE
    return answer(arguments, xml, partial(_bounded_work, begun=begun), seconds)


def restored_without_request(xml: bytes) -> Answer:
    """Return the answer to the restore of an image that has no request of ours."""
    try:
        wait = config.hook_deadline(config.load) / 4
        subject = _unhurried(domain.parse, xml, seconds=wait)
    except VgpuError:
        return Answer(0)
    try:
        _refuse_older_image(subject, DO_ALL_ANEW)
        return Answer(0)
    except Refused as error:
        return failure(RESTORE, subject.name, str(error), xml)


def failure(operation: str, name: str, text: str, xml: bytes) -> Answer:
    """Return the answer to a call that could not be done.

    A restore hook must not fail: libvirt 11.3 then says that a domain with a managed save has
    started, and removes the image (measured). So the restore goes on, with the reason noted in its
    XML, and the start that follows is refused with it; that keeps the image.
    """
    if operation == RESTORE:
        try:
            wait = config.hook_deadline(config.load) * LAST_WORDS
            noted = _unhurried(domain.set_refused, xml, text, seconds=wait)
            return LetGoOn(0, "", noted)
        except VgpuError:  # which the start that follows finds too
            return LetGoOn(0)
    if operation not in STOPS:
        return Answer(REFUSED, f"vgpu-hook: {text}")
    try:
        settings = config.load()
    except VgpuError:  # which may be why
        settings = config.Settings()
    log.JournalLog(settings.roots.journal, operation).event(
        "stop-failed", f"{operation} of domain {name!r}: {text}", level="error", domain_name=name
    )
    return LetGoOn(0)


def _unhurried(call: Callable[..., T], xml: bytes, *args: str, seconds: float) -> T:
    """Return `call(xml, *args)`; in a child that can be given up on if the XML may take long."""
    if len(xml) <= SMALL:
        return call(xml, *args)
    doing = f"reading {len(xml)} bytes of XML"
    return bounded.run(call, xml, *args, deadline=Deadline(seconds), doing=doing)


def _serve(operation: str, subject: Domain, xml: bytes, run: Run, means: Means) -> bytes:
    ours = subject.request or subject.refused or any(h.slot for h in subject.hostdevs)
    if not ours and operation not in STOPS:
        if operation == RESTORE:
            _refuse_older_image(subject, means)
        return b""  # R14: not ours, whatever state we are in
    if os.geteuid() != 0:  # who may not even read the configuration
        raise VgpuError(
            f"domain {subject.name!r} asks for a vGPU, which needs root", "use qemu:///system"
        )
    return run(operation, subject, xml, means.load())


def _bounded_work(
    operation: str, subject: Domain, xml: bytes, settings: Settings, *, begun: float
) -> bytes:
    """Run `work` in a child: whatever hangs there is given up on, and marked as retained."""
    spent = time.monotonic() - begun
    left = max(settings.hook_deadline - spent, settings.hook_deadline * LAST_WORDS)
    deadline = Deadline(left)
    try:
        return bounded.run(
            work,
            operation,
            subject,
            xml,
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


def _refuse_older_image(subject: Domain, means: Means) -> None:
    """Refuse an image without a vGPU if its domain asks for one by now: it would come back without.

    R14: for any other domain nothing is done, whatever state we are in.
    """
    try:
        settings = means.load()
        deadline = Deadline(settings.hook_deadline / 4)
        doing = f"looking what domain {subject.name!r} asks for"
        asked = (_on_record, subject, settings, means.open_store)
        stands = (means.read or bounded.run)(*asked, deadline=deadline, doing=doing)
    except Exception:  # noqa: BLE001 - R14: it may be none of our business
        return
    arrival.check_saved(subject, stands, None)


def _on_record(
    subject: Domain, settings: Settings, open_store: Callable[..., Store | None]
) -> tuple[VgpuRequest, ...]:
    wait = settings.hook_deadline / 4
    opened = open_store(settings.state, RESTORE, wait=wait, create=False)
    if opened is None:
        return ()
    try:
        return opened.domains.requests(subject.uuid)
    finally:
        opened.close()


def _retain_unfinished(subject: Domain, settings: Settings, reason: str) -> None:
    opened = store_file.open_store(settings.state, "deadline", wait=1, create=False)
    if opened is not None:
        opened.retain_unfinished(subject.uuid, settings.roots.boot_id(), reason)
