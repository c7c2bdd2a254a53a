"""What each command does. The parser is cli.py's; the rules are lifecycle's.

Each function takes the parsed arguments and returns the exit status; errors are raised as
VgpuError and turned into a sentence by cli.main.
"""

from __future__ import annotations

import argparse
import sys

from vgpu_hook import admission, config, domain, log, placement, report, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.host import Host
from vgpu_hook.libvirtd import Libvirt, NoDomain
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.model import (
    Domain,
    Hostdev,
    Parent,
    StoreError,
    VgpuError,
    VgpuRequest,
    derive_device_uuid,
)
from vgpu_hook.store import Store
from vgpu_hook.tables import as_json, table


def attach(arguments: argparse.Namespace) -> int:
    """Write the request and the hostdev into the domain's persistent definition."""
    parents = _parents(config.load())
    libvirt = Libvirt(arguments.connect)
    found = libvirt.find(arguments.domain)
    done: list[VgpuRequest] = []

    def change(text: bytes) -> bytes:
        subject = domain.parse(text)
        request = domain.check_request(
            VgpuRequest(
                arguments.slot or _free_slot(subject),
                arguments.profile,
                arguments.gpu,
                arguments.fork,
                arguments.display,
                arguments.ramfb,
                arguments.params,
            ),
            subject.name,
        )
        done.append(request)
        return domain.attach(text, request, _hostdev(subject, request, parents))

    changed = libvirt.edit(found, change)
    request = done[-1]
    _note_capacity(request, parents)
    when = " It gets it at its next start." if libvirt.is_active(found) else ""
    verb = "attached" if changed else "is already attached"
    print(f"vGPU {request.profile!r} {verb} to domain {found.name()!r}, slot {request.slot}.{when}")
    return 0


def detach(arguments: argparse.Namespace) -> int:
    """Take a slot's request and hostdev out of the domain's persistent definition."""
    libvirt = Libvirt(arguments.connect)
    found = libvirt.find(arguments.domain)
    slots: list[str] = []

    def change(text: bytes) -> bytes:
        subject = domain.parse(text)
        slots[:] = [arguments.slot] if arguments.slot is not None else _only_slot(subject)
        if slots[0] not in _slots(subject):
            raise VgpuError(
                f"domain {subject.name!r} has no vGPU in slot {slots[0]!r}"
                f" (it has: {', '.join(_slots(subject)) or 'none'})"
            )
        return domain.detach(text, slots[0])

    libvirt.edit(found, change)
    when = " It keeps it until it stops." if libvirt.is_active(found) else ""
    print(f"vGPU detached from domain {found.name()!r}, slot {slots[0]}.{when}")
    return 0


def render(arguments: argparse.Namespace) -> int:
    """Print a domain XML with the hostdevs of its requests put in."""
    try:
        if arguments.file == "-":
            text = sys.stdin.buffer.read()
        else:
            with open(arguments.file, "rb") as file:
                text = file.read()
    except OSError as error:
        raise VgpuError(f"{arguments.file}: {error.strerror}") from error
    text = domain.ensure_uuid(text)
    subject = domain.parse(text)
    if not subject.request:
        raise VgpuError(
            f"{arguments.file}: domain {subject.name!r} asks for no vGPU",
            "see `How to ask for a vGPU` in the README",
        )
    parents = _parents(config.load())
    for request in subject.request:
        text = domain.attach(text, request, _hostdev(subject, request, parents))
    sys.stdout.write(text.decode())
    return 0


def status(arguments: argparse.Namespace) -> int:
    """Show GPUs, what they hold, who has it, what is retained and why."""
    settings = config.load()
    parents = _parents(settings)
    problem = ""
    rows = []
    try:
        if (opened := _open(settings)) is not None:
            rows = opened.all()
    except StoreError as error:
        problem = str(error)
    gpus = report.gpus(parents, rows)
    if arguments.format == "json":
        value = {"gpus": gpus, "assignments": report.assignments(rows), "problem": problem or None}
        print(as_json(value))
    else:
        lines = [
            (gpu["gpu"], parent["name"], device["device"], device["domain"] or "(not ours)")
            for gpu in gpus
            for parent in gpu["parents"]
            for device in parent["devices"] or [{"device": "", "domain": "-"}]
        ]
        print(table(("GPU", "Parent", "vGPU", "Domain"), lines))
        titles = ("Domain", "Slot", "Profile", "vGPU", "State", "Reason")
        if rows:
            print(
                table(
                    titles,
                    [(r.domain_name, r.slot, r.profile, r.device, r.state, r.reason) for r in rows],
                )
            )
        for parent in parents:
            if parent.problem:
                print(f"warning: {parent.name} is left out: {parent.problem}", file=sys.stderr)
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problem else 0


def profiles(arguments: argparse.Namespace) -> int:
    """Show which profiles fit where, now."""
    found = report.profiles(_parents(config.load()))
    if arguments.format == "json":
        print(as_json({"profiles": found}))
    else:
        titles = ("Profile", "Name", "GPU", "Free", "In use", "Why none is free")
        keys = ("id", "name", "gpu", "free", "in_use", "why_none")
        print(
            table(
                titles,
                [
                    [entry[key] or "" if key == "why_none" else entry[key] for key in keys]
                    for entry in found
                ],
            )
        )
    return 0


def release(arguments: argparse.Namespace) -> int:
    """Release what a stopped domain still has on record."""
    settings = config.load()
    opened = _open(settings)
    uuids = _uuids(arguments.domain, opened)
    # Read before libvirt is asked: what a start makes meanwhile has another generation (R12).
    rows = [row for uuid in uuids for row in (opened.of_domain(uuid) if opened else [])]
    _refuse_if_active(arguments)
    if opened is None or not rows:
        print(f"Domain {arguments.domain!r} has no vGPU on record.")
        return 0
    lifecycle = _lifecycle(settings, opened, "release command")
    left = []
    for uuid in uuids:
        left += lifecycle.release_all(uuid, frozenset(row.generation for row in rows))
    for row in left:
        print(f"error: vGPU {row.device} is retained: {row.reason}", file=sys.stderr)
    print(f"Released {len(rows) - len(left)} of {len(rows)} vGPUs of domain {arguments.domain!r}.")
    return 1 if left else 0


def explain(arguments: argparse.Namespace) -> int:
    """Show the recorded history, and the guard's present answer, fact by fact."""
    settings = config.load()
    opened = _open(settings)
    if opened is None:
        raise VgpuError("nothing has been recorded yet", "start a domain that asks for a vGPU")
    lifecycle = _lifecycle(settings, opened, "explain")
    subject = arguments.subject
    value = report.explanation(lifecycle, opened, subject.lower(), _uuids(subject, opened))
    value["subject"] = subject
    if arguments.format == "json":
        print(as_json(value))
        return 0
    if not value["assignments"] and not value["history"]:
        raise VgpuError(f"nothing is on record of {subject!r}", "run: vgpu-hook status")
    if value["deleting_since"]:
        print(f"The domain is being deleted since {value['deleting_since']}.\n")
    for row in value["assignments"]:
        guard = row["guard"]
        print(
            f"vGPU {row['device']} ({row['type']} on {row['parent']}), slot {row['slot']} of"
            f" domain {row['domain_name']!r}: {row['state']}"
            + (f", because {row['reason']}" if row.get("reason") else "")
        )
        print(f"If it were to be released now, the guard would say: {guard['action']}")
        for fact in guard["facts"]:
            print(f"  {'+' if fact['good'] else '!'} {fact['text']}")
        print()
    titles = ("Time (UTC)", "By", "Event", "Domain", "Slot", "vGPU", "Detail")
    keys = ("at", "operation", "event", "domain_name", "slot", "device", "detail")
    print(table(titles, [[entry[key] for key in keys] for entry in value["history"]]))
    return 0


def store_check(arguments: argparse.Namespace) -> int:
    """Check the sidecar store."""
    settings = config.load()
    found = store_file.check(settings.state)
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    print(f"Store in {settings.state}: {'damaged' if found else 'no fault found'}.")
    return 1 if found else 0


def store_set_aside(arguments: argparse.Namespace) -> int:
    """Move the store out of the way, so that a new one is begun."""
    settings = config.load()
    target = store_file.set_aside(settings.state)
    if target is None:
        print(f"There is no store in {settings.state}.")
    else:
        print(f"The store is now {target}. vGPUs that were on record there are not released.")
    return 0


def _parents(settings: Settings) -> tuple[Parent, ...]:
    host = Host(settings, settings.roots.boot_id())
    return host.parents(Deadline(settings.hook_deadline))


def _open(settings: Settings) -> Store | None:
    return store_file.open_store(settings.state, "command", wait=5, create=False)


def _lifecycle(settings: Settings, opened: Store, operation: str) -> Lifecycle:
    host = Host(settings, settings.roots.boot_id())
    events = log.for_command(settings.roots.journal, operation)
    return Lifecycle(Context(settings, host, opened, events, Deadline(settings.hook_deadline)))


def _hostdev(subject: Domain, request: VgpuRequest, parents: tuple[Parent, ...]) -> Hostdev:
    """Return the hostdev that serves the request on this host; raise if nothing offers it."""
    offers = placement.candidates(parents, request.profile, request.gpu)
    if not offers:
        raise placement.why_not(parents, request.profile, request.gpu)
    device = derive_device_uuid(subject.uuid, request.slot)
    return Hostdev("mdev", device, request.slot, offers[0].type.device_api)


def _note_capacity(request: VgpuRequest, parents: tuple[Parent, ...]) -> None:
    """Tell of a profile that has no room now: the start will be refused if it stays so."""
    offers = placement.candidates(parents, request.profile, request.gpu)
    if not placement.order(offers, "spread"):
        cause = placement.why_not(parents, request.profile, request.gpu)
        print(f"warning: at present there is {cause.message}", file=sys.stderr)


def _slots(subject: Domain) -> list[str]:
    slots = [request.slot for request in subject.request]
    return slots + [h.slot for h in subject.hostdevs if h.slot is not None and h.slot not in slots]


def _free_slot(subject: Domain) -> str:
    taken = _slots(subject)
    return next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)


def _only_slot(subject: Domain) -> list[str]:
    slots = _slots(subject)
    if len(slots) == 1:
        return slots
    if not slots:
        raise VgpuError(f"domain {subject.name!r} has no vGPU")
    name = admission.name_argument(subject.name)
    raise VgpuError(
        f"domain {subject.name!r} has several vGPUs: slots {', '.join(slots)}",
        f"run: vgpu-hook detach --slot {slots[0]} {name}",
    )


def _uuids(name: str, opened: Store | None) -> list[str]:
    """Return the UUIDs that a domain's name, or UUID, stands for in the store."""
    return [name.lower(), *(opened.domains.uuids_of_name(name) if opened is not None else [])]


def _refuse_if_active(arguments: argparse.Namespace) -> None:
    """A running domain's vGPU is released when it stops; unknown counts as running (I2)."""
    libvirt = Libvirt(arguments.connect)
    try:
        found = libvirt.find(arguments.domain)
    except NoDomain:
        return
    if libvirt.is_active(found):
        raise VgpuError(
            f"domain {found.name()!r} is running: its vGPU is released when it stops",
            f"run: virsh shutdown {admission.name_argument(found.name())}",
        )
