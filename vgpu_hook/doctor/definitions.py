"""Domains whose hostdevs and request disagree, or ask for what this host does not have.

vgpu-hookd puts definitions in order by itself: what is found here it has not heard of, or can't do.
"""

from __future__ import annotations

import contextlib
import shlex

from vgpu_hook import context, domain, lint
from vgpu_hook.doctor import records
from vgpu_hook.doctor.findings import Finding, Report, Situation, run
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.model import (
    HOSTDEV_TYPE,
    VENDOR_VFIO,
    Domain,
    DomainXmlError,
    Parent,
    VgpuError,
    VgpuRequest,
    is_ours,
    shell_word,
)
from vgpu_hook.planning import Planner

STARTS = "its start is refused"


def check(situation: Situation) -> list[Finding]:
    """Look at every persistent definition."""
    report = Report("definitions")
    try:
        domains = _definitions(report, Libvirt(situation.uri))
    except VgpuError:
        return report.findings  # the check of libvirt says so
    parents = situation.parents
    for found in lint.check(domains, parents or ()):
        report.error(f"domain {found.domain!r}", f"{found.hostdev}: {found.problem}", found.fix)
    asking = [subject for subject in domains if subject.request or _own(subject)]
    planner = None if parents is None else _planner(situation, parents)
    for subject in asking:
        before = len(report.findings)
        _slots(report, subject, planner)
        if len(report.findings) == before:
            report.ok(f"domain {subject.name!r}", f"{len(subject.request)} vGPUs, in order")
    return report.findings


def _planner(situation: Situation, parents: tuple[Parent, ...]) -> Planner:
    """Return what knows the offers; without the store's records if it can't be used."""
    settings = situation.settings
    with contextlib.suppress(VgpuError), records.opened(settings) as found:
        store = found.store if found is not None else None
        return context.planner(settings, store, parents, reserve=False)
    return context.planner(settings, None, parents, reserve=False)


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


def _own(subject: Domain) -> list[str]:
    return [hostdev.slot for hostdev in subject.hostdevs if hostdev.slot is not None]


def _slots(report: Report, subject: Domain, planner: Planner | None) -> None:
    who, name = f"domain {subject.name!r}", shell_word(subject.name)
    asked = {request.slot for request in subject.request}
    for slot in _own(subject):
        if slot not in asked:
            text = f"slot {slot!r} has a hostdev of vgpu-hook's, but no request: {STARTS}"
            report.error(who, text, f"run: vgpu-hook detach --slot {slot} {name}")
    for request in subject.request:
        _request(report, subject, request)
        if planner is not None:
            try:
                planner.require_offer(request)
            except VgpuError as error:
                text = f"slot {request.slot!r}: {error.message}; {STARTS}"
                report.error(who, text, error.hint or run("vgpu-hook", "profiles"))
    several = [request.slot for request in subject.request if request.ramfb == "on"]
    if len(several) > 1:
        text = f"slots {', '.join(several)} all have ramfb='on': QEMU takes one at the most"
        report.error(who, text, f"run: virsh edit {name}")


def _request(report: Report, subject: Domain, request: VgpuRequest) -> None:
    """Look at the hostdev that is to serve the request."""
    who, slot = f"domain {subject.name!r}", request.slot
    profile = shlex.quote(request.profile)
    options, name = f"--slot {slot} --profile {profile}", shell_word(subject.name)
    again = f"run: vgpu-hook attach {options} {name}"
    there = subject.hostdev(slot)
    if there is None:
        report.error(who, f"slot {slot!r} has a request, but no hostdev: {STARTS}", again)
    elif subject.inherits(there):
        if request.fork == "refuse":
            text = f"slot {slot!r} is of the domain that it was cloned from, and fork is 'refuse'"
            report.warning(
                who, f"{text}: {STARTS}", f"run: vgpu-hook attach --fork new {options} {name}"
            )
        else:
            text = f"slot {slot!r} names the vGPU of the domain that it was cloned from: {STARTS}"
            report.error(who, text, again)
    elif there.type not in HOSTDEV_TYPE.values():
        report.error(who, f"slot {slot!r} is a hostdev of type {there.type!r}: {STARTS}", again)
    elif there.type == HOSTDEV_TYPE[VENDOR_VFIO] and not there.address:
        report.error(who, f"slot {slot!r} has a hostdev without an address: {STARTS}", again)
