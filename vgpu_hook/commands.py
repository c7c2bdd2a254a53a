"""The commands that do something. The parser is cli.py's; the rules are lifecycle's.

Each function takes the parsed arguments and returns the exit status; errors are raised as
VgpuError and turned into a sentence by cli.main.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from functools import partial
from typing import Any

from vgpu_hook import (
    bootgate,
    config,
    context,
    domain,
    hotplug,
    placement,
)
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.deletion import Deletion
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.lint import check as check_hostdevs
from vgpu_hook.model import (
    Assignment,
    Domain,
    Hostdev,
    Parent,
    VgpuError,
    VgpuRequest,
    one_line,
    shell_word,
)
from vgpu_hook.planning import Planner
from vgpu_hook.reconcile import Reconciler
from vgpu_hook.request import check_request
from vgpu_hook.store import Store
from vgpu_hook.tables import as_json, read_input, table

VFS_SINCE = 9_007_000
"""libvirt's version from which a VF may stay on its own driver (facts C3)."""


def attach(arguments: argparse.Namespace) -> int:
    """Write the request and the hostdev into the persistent definition, and plug it in if live."""
    settings = config.load()
    opened = context.store(settings)
    parents = context.parents(settings, opened)
    libvirt = Libvirt(arguments.connect)
    found = libvirt.find(arguments.domain)
    request = _request(arguments, domain.parse(libvirt.definition(found)))
    planner = context.planner(settings, opened, parents)
    planner.require_offer(request)
    hostdevs: list[Hostdev] = []
    plugged = True

    def change(text: bytes) -> bytes:
        hostdev = _hostdev(planner, domain.parse(text), request)
        hostdevs.append(hostdev)
        if domain.is_attached(text, request, hostdev):
            return text
        return domain.attach(text, request, hostdev)

    if arguments.live:
        subject = domain.parse(libvirt.definition(found))
        hostdev = _hostdev(planner, subject, request)
        try:
            plugged = hotplug.plug(
                libvirt,
                found,
                opened,
                lambda: context.lifecycle(settings, opened, "attach"),
                request,
                hostdev,
            )
        except VgpuError:
            opened.devices.keep_reservations(subject.uuid, _slots(subject))
            raise
        _note_live(libvirt, found, request)
    if not arguments.live or libvirt.call(found, found.isPersistent):
        libvirt.edit(found, change)
        _record(libvirt, found, opened)
    _note_capacity(request, parents)
    _note_version(libvirt, hostdevs)
    when = ""
    if not arguments.live and libvirt.is_active(found):
        when = " It gets it at its next start."
    elif not plugged:
        when = " It runs with it already; if it is being detached, it still loses it."
    print(
        f"vGPU {request.profile!r} attached to domain {found.name()!r}, slot {request.slot}.{when}"
    )
    return 0


def detach(arguments: argparse.Namespace) -> int:
    """Take a slot's request and hostdev out of the domain's persistent definition."""
    settings = config.load()
    libvirt = Libvirt(arguments.connect)
    found = libvirt.find(arguments.domain)
    slot = _slot_to_detach(libvirt, found, arguments)
    kept: list[str] = []
    left: list[Assignment] | None = []
    records: Store | None
    if arguments.live:
        records = opened = context.store(settings)
        lifecycle_for = partial(context.lifecycle, settings, opened, "detach")
        left = hotplug.unplug(libvirt, found, opened, lifecycle_for, slot)
        when = "" if left is not None else " It goes when the guest lets go of it."
    else:
        records = context.existing_store(settings)
        when = " It keeps it until it stops." if libvirt.is_active(found) else ""

    def change(text: bytes) -> bytes:
        subject = domain.parse(text)
        there = _slots(subject)
        kept[:] = [other for other in there if other != slot]
        if slot in [*there, *_recorded(subject, records)]:
            return domain.detach(text, slot)
        if arguments.live:  # it was in what runs alone
            return text
        raise VgpuError(
            f"domain {subject.name!r} has no vGPU in slot {slot!r}"
            f" (it has: {', '.join(there) or 'none'})"
        )

    if not arguments.live or libvirt.call(found, found.isPersistent):
        libvirt.edit(found, change)
        if records is not None:
            records.devices.keep_reservations(found.UUIDString(), kept)
            _record(libvirt, found, records)
    print(f"vGPU detached from domain {found.name()!r}, slot {slot}.{when}")
    return _tell_retained(left or [])


def render(arguments: argparse.Namespace) -> int:
    """Print a domain XML with the hostdevs of its requests put in."""
    text = domain.ensure_uuid(read_input(arguments.file))
    subject = domain.parse(text)
    if not subject.request:
        raise VgpuError(
            f"{arguments.file}: domain {subject.name!r} asks for no vGPU",
            "see `How to ask for a vGPU` in the README",
        )
    settings = config.load()
    opened = context.existing_store(settings)
    parents = context.parents(settings, opened)
    planner = context.planner(settings, opened, parents, reserve=False)
    for request in subject.request:
        planner.require_offer(request)
        text = domain.attach(text, request, _hostdev(planner, subject, request))
    sys.stdout.write(text.decode())
    return 0


def release(arguments: argparse.Namespace) -> int:
    """Release what a stopped domain still has on record."""
    settings = config.load()
    opened = context.existing_store(settings)
    # Read before libvirt is asked: what a start makes meanwhile has another generation (R12).
    uuids = context.uuids(arguments.domain, opened)
    rows = [row for uuid in uuids for row in (opened.of_domain(uuid) if opened else [])]
    libvirt = Libvirt(arguments.connect)
    for uuid in {row.domain_uuid for row in rows}:
        _refuse_if_active(libvirt, uuid)
    if opened is None or not rows:
        print(f"Domain {arguments.domain!r} has no vGPU on record.")
        return 0
    lifecycle = context.lifecycle(settings, opened, "release command")
    left = []
    for uuid in {row.domain_uuid for row in rows}:
        left += lifecycle.release_all(uuid, frozenset(row.generation for row in rows))
    print(f"Released {len(rows) - len(left)} of {len(rows)} vGPUs of domain {arguments.domain!r}.")
    return _tell_retained(left)


def reconcile(arguments: argparse.Namespace) -> int:
    """Compare store, kernel and libvirt; release what is orphaned and proved ours."""
    settings = config.load()
    with contextlib.ExitStack() as used:
        opened = context.existing_store(settings) if arguments.dry_run else context.store(settings)
        if opened is None:  # then an empty one elsewhere says what would be done
            elsewhere = used.enter_context(tempfile.TemporaryDirectory())
            opened = context.store(settings._replace(state=elsewhere))
        return _reconcile(arguments, settings, opened)


def _reconcile(arguments: argparse.Namespace, settings: Settings, opened: Store) -> int:
    try:
        libvirt = Libvirt(arguments.connect)
    except VgpuError as error:
        print(f"warning: {error}", file=sys.stderr)
        libvirt = None
    found = Reconciler(
        opened,
        lambda: context.lifecycle(settings, opened, "reconcile command"),
        libvirt.domains if libvirt is not None else lambda: None,
        libvirt.live if libvirt is not None else lambda domain_uuid: None,
        dry_run=arguments.dry_run,
    ).run()
    if arguments.format == "json":
        print(as_json({"findings": [finding._asdict() for finding in found]}))
    else:
        print(table(("vGPU", "Domain", "Action", "Reason"), found))
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """Delete a domain in the order that loses no vGPU; go on with a deletion that was stopped."""
    settings = config.load()
    opened = context.store(settings)

    def lifecycle_for() -> Lifecycle:
        return context.lifecycle(settings, opened, "delete")

    def say(text: str) -> None:
        print(one_line(text), flush=True)

    deletion = Deletion(Libvirt(arguments.connect), opened, lifecycle_for, say)
    if arguments.cancel:
        deletion.cancel(arguments.domain)
    else:
        deletion.run(arguments.domain, remove_storage=arguments.remove_storage)
    return 0


def lint(arguments: argparse.Namespace) -> int:
    """Look for hand-written PCI hostdevs that would break a vGPU host; 1 if there are any."""
    settings = config.load()
    libvirt = Libvirt(arguments.connect)
    parents = context.parents(settings, context.existing_store(settings))
    found = check_hostdevs(libvirt.parsed(), parents)
    if arguments.format == "json":
        print(as_json({"findings": [finding._asdict() for finding in found]}))
    elif found:
        print(table(("Domain", "Hostdev", "Problem", "Fix"), found))
    else:
        print("Nothing found.")
    return 1 if found else 0


def boot_gate(arguments: argparse.Namespace) -> int:
    """Hold the autostart of VMs until what they ask for is there, for a bounded time."""
    settings = config.load()
    deadline = Deadline(settings.boot_timeout)
    done = bootgate.set_up(settings, deadline, print)
    opened = context.existing_store(settings)  # a broken one keeps no command from running
    requests = [r for _, r in opened.domains.all_requests()] if opened is not None else []
    records = opened.devices if opened is not None else None
    there = bootgate.wait(settings, requests, records, deadline, print)
    return 0 if done and there else 1


def _request(arguments: argparse.Namespace, subject: Domain) -> VgpuRequest:
    """Return the slot's request with what the arguments say; the rest of it stays as it is."""
    slot = arguments.slot or _free_slot(subject)
    there = next((request for request in subject.request if request.slot == slot), None)
    request = there or VgpuRequest(slot, arguments.profile)
    given = {
        name: value
        for name in VgpuRequest._fields[1:]
        if (value := getattr(arguments, name)) is not None
    }
    return check_request(request._replace(**given), subject.name)


def _record(libvirt: Libvirt, found: Any, opened: Store) -> None:
    """Record what the definition asks for now: vgpu-hookd hears of it a moment later (R9)."""
    subject = domain.parse(libvirt.definition(found))
    opened.domains.set_requests(subject.uuid, subject.name, subject.request)


def _note_live(libvirt: Libvirt, found: Any, request: VgpuRequest) -> None:
    """Note the request in the running domain; it has its vGPU even if that fails."""
    try:
        hotplug.note_request(libvirt, found, request.slot, request)
    except VgpuError as error:
        print(f"warning: it can't be restored or migrated with it: {error}", file=sys.stderr)


def _hostdev(planner: Planner, subject: Domain, request: VgpuRequest) -> Hostdev:
    """Return the hostdev that the request is to have, whatever is there."""
    hostdev = planner(subject, request._replace(fork="new")).hostdev
    if hostdev is None:
        raise VgpuError(f"no device for profile {request.profile!r}", "run: vgpu-hook profiles")
    return hostdev


def _note_capacity(request: VgpuRequest, parents: tuple[Parent, ...]) -> None:
    """Tell of a profile that has no room now: the start will be refused if it stays so."""
    offers = placement.candidates(parents, request.profile, request.gpu)
    if not placement.order(offers, placement.Wishes()):
        cause = placement.why_not(parents, request.profile, request.gpu)
        print(f"warning: at present there is {one_line(cause.message)}", file=sys.stderr)


def _note_version(libvirt: Libvirt, hostdevs: list[Hostdev]) -> None:
    """Tell of a libvirt that can't start a VF that is bound to NVIDIA's driver (facts C3)."""
    version = libvirt.connection.getLibVersion()
    if hostdevs and hostdevs[-1].type == "pci" and version < VFS_SINCE:
        found = f"{version // 1000000}.{version // 1000 % 1000}"
        print(f"warning: libvirt {found} can't start VMs on such VFs: 9.7 can", file=sys.stderr)


def _slots(subject: Domain) -> list[str]:
    slots = [request.slot for request in subject.request]
    return slots + [h.slot for h in subject.hostdevs if h.slot is not None and h.slot not in slots]


def _free_slot(subject: Domain) -> str:
    taken = _slots(subject)
    return next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)


def _recorded(subject: Domain, records: Store | None) -> list[str]:
    """Return the slots that the domain is on record with: its definition may have changed since."""
    return [r.slot for r in records.domains.requests(subject.uuid)] if records is not None else []


def _tell_retained(rows: list[Assignment]) -> int:
    """Say what could not be released; return the exit status."""
    for row in rows:
        print(f"error: vGPU {row.device} is retained: {one_line(row.reason)}", file=sys.stderr)
    return 1 if rows else 0


def _slot_to_detach(libvirt: Libvirt, found: Any, arguments: argparse.Namespace) -> str:
    """Return the slot that is named; else the only one of what runs, or of the definition."""
    if arguments.slot is not None:
        return str(arguments.slot)
    if arguments.live:
        subject = hotplug.live(libvirt, found)
        if _slots(subject):
            return _only_slot(subject)
    return _only_slot(domain.parse(libvirt.definition(found)))


def _only_slot(subject: Domain) -> str:
    slots = _slots(subject)
    if len(slots) == 1:
        return slots[0]
    if not slots:
        raise VgpuError(f"domain {subject.name!r} has no vGPU", "run: vgpu-hook status")
    name = shell_word(subject.name)
    raise VgpuError(
        f"domain {subject.name!r} has several vGPUs: slots {', '.join(slots)}",
        f"run: vgpu-hook detach --slot {slots[0]} {name}",
    )


def _refuse_if_active(libvirt: Libvirt, domain_uuid: str) -> None:
    """A running domain's vGPU is released when it stops; unknown counts as running (I2)."""
    try:
        found = libvirt.find_uuid(domain_uuid)
    except NoDomain:
        return
    if libvirt.is_active(found):
        raise VgpuError(
            f"domain {found.name()!r} is running: its vGPU is released when it stops",
            f"run: virsh shutdown {shell_word(found.name())}",
        )
