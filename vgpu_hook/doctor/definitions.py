"""Domains whose hostdevs and request disagree, or ask for what this host does not have.

vgpu-hookd puts definitions in order by itself: what is found here it has not heard of, or can't do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vgpu_hook import admission, context, domain, lint
from vgpu_hook.admission import Records
from vgpu_hook.config import Settings
from vgpu_hook.doctor import records
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.lifecycle import records_of
from vgpu_hook.model import (
    Domain,
    DomainXmlError,
    Hostdev,
    Refused,
    StoreError,
    VgpuError,
    is_ours,
    shell_word,
)
from vgpu_hook.planning import Planner
from vgpu_hook.store import Store

STARTS = "its start is refused"


def check(situation: Situation) -> list[Finding]:
    """Look at every persistent definition."""
    report = Report("definitions")
    try:
        domains = _definitions(report, Libvirt(situation.uri))
    except VgpuError:
        return report.findings  # the check of libvirt says so
    refused: set[tuple[str, str]] = set()
    with _store(situation.settings) as store:
        planner = _planner(situation, store)
        for subject in domains:
            if not subject.request and not _own(subject):
                continue
            before = len(report.findings)
            addresses = _slots(report, subject, _records(situation, subject, store))
            refused |= {(subject.name, address) for address in addresses}
            _offers(report, subject, planner)
            if len(report.findings) == before:
                report.ok(f"domain {subject.name!r}", f"{len(subject.request)} vGPUs, in order")
    for found in lint.check(domains, situation.parents or ()):
        if (found.domain, found.hostdev) not in refused:
            text = f"{found.hostdev}: {found.problem}"
            report.error(f"domain {found.domain!r}", text, found.fix)
    return report.findings


@contextlib.contextmanager
def _store(settings: Settings) -> Iterator[Store | None]:
    """Open the store; None if there is none, or if it can't be used, which is said elsewhere."""
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(VgpuError):
            found = stack.enter_context(records.opened(settings))
        yield found.store if found is not None else None


def _planner(situation: Situation, store: Store | None) -> Planner | None:
    """Return what knows the offers; without the store's records if they can't be read."""
    if situation.parents is None:
        return None
    if store is not None:
        with contextlib.suppress(VgpuError):
            return context.planner(situation.settings, store, situation.parents, reserve=False)
    return context.planner(situation.settings, None, situation.parents, reserve=False)


def _records(situation: Situation, subject: Domain, store: Store | None) -> Records:
    """Return what a start is told of other domains' devices; nothing if that can't be read."""
    if store is not None:
        with contextlib.suppress(StoreError):
            store.all()
            return records_of(subject, store, situation.settings.roots.boot_id())
    return Records(lambda _: [], lambda _: None)


def _definitions(report: Report, libvirt: Libvirt) -> list[Domain]:
    found = []
    for domain_uuid, known in libvirt.domains().items():
        try:
            text = libvirt.definition(libvirt.find_uuid(domain_uuid))
            found.append(domain.parse(text))
        except NoDomain:
            continue  # it has gone meanwhile
        except DomainXmlError as error:
            if is_ours(text):
                fix = f"run: virsh edit {shell_word(known.name)}"
                report.error(f"domain {known.name!r}", f"{error.message}; {STARTS}", fix)
        except VgpuError as error:
            report.warning(f"domain {known.name!r}", f"it could not be read: {error.message}")
    return found


def _own(subject: Domain) -> list[Hostdev]:
    return [hostdev for hostdev in subject.hostdevs if hostdev.slot is not None]


def _slots(report: Report, subject: Domain, known: Records) -> list[str]:
    """Say what a start would, which is asked; return the addresses of which something is said."""
    who, said = f"domain {subject.name!r}", []
    asked = {request.slot for request in subject.request}
    for hostdev in _own(subject):
        if hostdev.slot in asked:
            continue
        said.append(hostdev.address)
        try:
            admission.check_unasked(subject, hostdev, known)
            text = f"slot {hostdev.slot!r} has a hostdev under vgpu-hook's alias, but no request"
            fix = f"run: {admission.detach_command(subject.name, hostdev.slot or '')}"
            report.warning(who, f"{text}: a start leaves it as it is", fix)
        except Refused as refusal:
            report.error(who, _text(subject, refusal), refusal.hint)
    for request in subject.request:
        there = subject.hostdev(request.slot)
        address = there.address if there is not None else ""
        try:
            admission.hostdev_for(subject, request, known)
        except Refused as refusal:
            say = report.warning if request.fork == "refuse" and address else report.error
            say(who, _text(subject, refusal), refusal.hint)
            said.append(address)
            continue
        again = f"run: {admission.attach_command(subject.name, request)}"
        if not address:
            report.error(who, f"slot {request.slot!r} has a hostdev without an address", again)
        elif there is not None and subject.inherits(there):
            text = f"slot {request.slot!r} names {address}, which was chosen for the domain that"
            report.warning(who, f"{text} it was made from: one of the two can run at a time", again)
    return said


def _text(subject: Domain, refusal: Refused) -> str:
    return f"{refusal.message.removeprefix(f'domain {subject.name!r}: ')}; {STARTS}"


def _offers(report: Report, subject: Domain, planner: Planner | None) -> None:
    """Look whether this host has what is asked for, and QEMU can show it."""
    who, name = f"domain {subject.name!r}", shell_word(subject.name)
    for request in subject.request:
        if planner is None:
            break
        try:
            planner.require_offer(request)
        except VgpuError as error:
            text = f"slot {request.slot!r}: {error.message}; {STARTS}"
            report.error(who, text, error.hint or run("vgpu-hook", "profiles"))
    several = [request.slot for request in subject.request if request.ramfb == "on"]
    if len(several) > 1:
        text = f"slots {', '.join(several)} all have ramfb='on': QEMU takes one at the most"
        report.error(who, text, f"run: virsh edit {name}")
