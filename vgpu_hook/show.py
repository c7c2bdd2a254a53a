"""The commands that show something: status, profiles, explain, and the store's own.

Each takes the parsed arguments and returns the exit status. None writes to a device.
"""

from __future__ import annotations

import argparse
import sys

from vgpu_hook import config, context, report, store_file
from vgpu_hook.model import StoreError, VgpuError
from vgpu_hook.tables import as_json, table


def status(arguments: argparse.Namespace) -> int:
    """Show GPUs, what they hold, who has it, what is retained and why."""
    settings = config.load()
    parents = context.parents(settings)
    problem = ""
    rows = []
    try:
        if (opened := context.existing_store(settings)) is not None:
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
    found = report.profiles(context.parents(config.load()))
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


def explain(arguments: argparse.Namespace) -> int:
    """Show the recorded history, and the guard's present answer, fact by fact."""
    settings = config.load()
    opened = context.existing_store(settings)
    if opened is None:
        raise VgpuError("nothing has been recorded yet", "start a domain that asks for a vGPU")
    lifecycle = context.lifecycle(settings, opened, "explain")
    subject = arguments.subject
    value = report.explanation(lifecycle, opened, subject.lower(), context.uuids(subject, opened))
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
