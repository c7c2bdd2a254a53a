"""The commands that show something: status, profiles, explain, and the store's own.

Each takes the parsed arguments and returns the exit status. None writes to a device.
"""

from __future__ import annotations

import argparse
import sys

from vgpu_hook import config, context, report, store_file
from vgpu_hook.model import Assignment, StoreError, VgpuError, one_line, plain_name
from vgpu_hook.store_devices import Failure
from vgpu_hook.tables import as_json, table


def status(arguments: argparse.Namespace) -> int:
    """Show GPUs, what they hold, who has it, what is retained and why."""
    settings = config.load()
    problem = ""
    rows: list[Assignment] = []
    failures: list[Failure] = []
    opened = None
    try:
        if (opened := context.existing_store(settings)) is not None:
            rows, failures = opened.all(), opened.devices.failures()
    except StoreError as error:
        problem, opened = str(error), None
    parents = context.parents(settings, opened)
    aside = report.quarantine(failures)
    if arguments.format == "json":
        value = {
            "gpus": report.gpus(parents, rows),
            "assignments": report.assignments(rows),
            "quarantine": aside,
            "problem": problem or None,
        }
        print(as_json(value))
    else:
        out = {failure["device"] for failure in aside}
        lines = report.device_lines(parents, rows, out)
        print(table(("GPU", "Parent", "vGPU", "Domain"), lines))
        titles = ("Domain", "Slot", "Profile", "vGPU", "State", "Reason")
        if rows:
            print(
                table(
                    titles,
                    [(r.domain_name, r.slot, r.profile, r.device, r.state, r.reason) for r in rows],
                )
            )
        _print_quarantine(aside)
        for parent in parents:
            if parent.problem:
                print(
                    f"warning: {parent.name} is left out: {one_line(parent.problem)}",
                    file=sys.stderr,
                )
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problem else 0


def profiles(arguments: argparse.Namespace) -> int:
    """Show which profiles fit where, now, and the state of each GPU."""
    settings = config.load()
    try:
        opened = context.existing_store(settings)
        rows = opened.all() if opened is not None else []
    except StoreError as error:  # it adds names only: what the cards offer is asked of the kernel
        print(f"warning: {error}", file=sys.stderr)
        opened, rows = None, []
    parents = context.parents(settings, opened)
    gpus = report.gpu_states(parents)
    found = report.profiles(parents, rows, gpus)
    if arguments.format == "json":
        print(as_json({"profiles": found, "gpus": gpus}))
    else:
        titles = ("Profile", "Name", "GPU", "Free", "In use", "Why none is free")
        keys = ("id", "name", "gpu", "free", "in_use", "why_none")
        print(table(titles, [[_cell(entry[key]) for key in keys] for entry in found]))
        titles = ("GPU", "State", "In use (MiB)", "Free (MiB)", "Stranded (MiB)", "Why")
        keys = ("gpu", "state", "used", "free", "stranded", "why")
        print(table(titles, [[_cell(gpu[key]) for key in keys] for gpu in gpus]))
    return 0


def quarantine(arguments: argparse.Namespace) -> int:
    """Show the VFs that are set aside, or put one back into service."""
    settings = config.load()
    opened = context.existing_store(settings)
    if arguments.clear is not None:
        for vf in arguments.clear:
            if opened is None or not opened.devices.clear_failures(plain_name(vf)):
                raise VgpuError(f"no failure of {vf!r} is on record", "run: vgpu-hook quarantine")
            print(f"{vf} may be used again.")
        return 0
    aside = report.quarantine(opened.devices.failures() if opened is not None else [])
    if arguments.format == "json":
        print(as_json({"quarantine": aside}))
    elif aside:
        _print_quarantine(aside)
    else:
        print("No VF is in quarantine.")
    return 0


def _print_quarantine(aside: list[report.Value]) -> None:
    titles = ("In quarantine", "Failed at", "Domain", "Slot", "Time (UTC)", "Reason")
    keys = ("device", "doing", "domain_name", "slot", "at", "reason")
    if aside:
        print(table(titles, [[failure[key] for key in keys] for failure in aside]))


def _cell(value: object) -> object:
    return "" if value is None else value


def explain(arguments: argparse.Namespace) -> int:
    """Show the recorded history, and the guard's present answer, fact by fact."""
    settings = config.load()
    opened = context.existing_store(settings)
    if opened is None:
        raise VgpuError("nothing has been recorded yet", "start a domain that asks for a vGPU")
    lifecycle = context.lifecycle(settings, opened, "explain")
    subject = arguments.subject
    value = report.explanation(
        lifecycle, opened, plain_name(subject), context.uuids(subject, opened)
    )
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
            + (f", because {one_line(row['reason'])}" if row.get("reason") else "")
        )
        print(f"If it were to be released now, the guard would say: {guard['action']}")
        for fact in guard["facts"]:
            print(f"  {'+' if fact['good'] else '!'} {one_line(fact['text'])}")
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
    if arguments.format == "json":
        print(as_json({"store": settings.state, "damage": found}))
        return 1 if found else 0
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
