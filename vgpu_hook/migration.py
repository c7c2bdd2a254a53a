"""`vgpu-hook check-migrate` and `check-arrival`: can a VM go to another host with its vGPUs?

check-migrate looks at what libvirt says of both hosts, and has the other host's vgpu-hook look at
its GPUs (check-arrival), as its hook will when the VM comes. Nothing is changed on either host, and
nothing is reserved: what others take meanwhile is found out when the VM comes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from typing import Any, NamedTuple

import libvirt
from lxml import etree

from vgpu_hook import arrival, config, context, domain, placement, remote
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.model import (
    FRAMEWORK,
    VENDOR_VFIO,
    Assignment,
    Domain,
    Hostdev,
    Parent,
    VgpuError,
    VgpuRequest,
    shell_word,
)
from vgpu_hook.tables import as_json, read_input, table

YES, NO, UNKNOWN = "yes", "no", "can't tell"

LIBVIRT_MIGRATES = 8_006_000
QEMU_MIGRATES = 8_001_000
KERNEL_MIGRATES = (5, 18)
"""From which versions a running VM with a VFIO device can migrate at all (facts C4)."""

LIBVIRT_CROSSES = 11_000_000
"""libvirt's version from which a VM may change from an mdev to a VF and back (facts A6)."""

Versions = dict[str, Any]


class Finding(NamedTuple):
    """One thing that was looked at: does it let the VM go?"""

    what: str
    good: str
    text: str
    fix: str = ""


def check_migrate(arguments: argparse.Namespace) -> int:
    """Say whether a domain can go to another host with its vGPUs; 1 if it can't."""
    here = Libvirt(arguments.connect)
    found = here.find(arguments.domain)
    active = here.is_active(found)
    flags = libvirt.VIR_DOMAIN_XML_SECURE | (
        libvirt.VIR_DOMAIN_XML_MIGRATABLE if active else libvirt.VIR_DOMAIN_XML_INACTIVE
    )
    text = str(here.call(found, found.XMLDesc, flags)).encode()
    subject = domain.parse(text)
    if not subject.request:
        print(f"Domain {subject.name!r} asks for no vGPU.")
        return 0
    there = _connect(arguments.uri)
    findings = [_same_host(here.connection, there), _known_there(subject, there)]
    if active:
        findings += _versions("this host", _versions_here(here.connection))
        findings.append(Finding("device", YES, "QEMU says, before anything moves, if it can't"))
    findings += _ask_there(arguments.uri, there, subject, text, active)
    there.close()
    return _print(arguments, findings, f"domain {subject.name!r}")


def check_arrival(arguments: argparse.Namespace) -> int:
    """Say whether a VM with this XML could come to this host now; 1 if it could not."""
    text = read_input(arguments.file)
    subject = domain.parse(text)
    settings = config.load()
    opened = context.existing_store(settings)
    parents = context.parents(settings, opened)
    rows = opened.all() if opened is not None else []
    planner = context.planner(settings, opened, parents, reserve=False)
    try:
        after = domain.parse(arrival.rewrite(text, subject, planner).text)
    except VgpuError as error:
        findings, hostdevs = [Finding("vGPU", NO, error.message, error.hint)], []
    else:
        hostdevs = [hostdev for hostdev in after.hostdevs if hostdev.slot is not None]
        findings = _room(after, parents, rows)
    extra = {
        "hostdevs": [{"slot": h.slot, "type": h.type, "address": h.address} for h in hostdevs],
        "kernel": os.uname().release,
    }
    return _print(arguments, findings, f"domain {subject.name!r}", extra)


# -- on this host -----------------------------------------------------------------------


def _connect(uri: str) -> Any:
    try:
        return libvirt.openReadOnly(uri)
    except libvirt.libvirtError as error:
        host = uri.split("?")[0]
        raise VgpuError(
            f"can't connect to libvirt at {host}: {error.get_error_message()}",
            f"try: virsh --connect {shell_word(uri)} version",
        ) from None


def _same_host(here: Any, there: Any) -> Finding:
    """Compare what libvirt compares before it migrates anything."""
    uuids = [
        etree.fromstring(connection.getCapabilities()).findtext("host/uuid")
        for connection in (here, there)
    ]
    if uuids[0] == uuids[1]:
        name = there.getHostname()
        return Finding("host", NO, f"{name} is this very host, or has its UUID", "set host_uuid")
    return Finding("host", YES, there.getHostname())


def _known_there(subject: Domain, there: Any) -> Finding:
    """Look for domains that are in the way."""
    for look_up, key in ((there.lookupByName, subject.name), (there.lookupByUUIDString, None)):
        try:
            found = look_up(key or subject.uuid)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                continue
            return Finding("domain", UNKNOWN, error.get_error_message())
        if found.UUIDString() != subject.uuid:
            cause = f"another domain is named {subject.name!r} there"
            return Finding("domain", NO, cause, "rename it, or migrate with --dname")
        if found.isActive():
            return Finding("domain", NO, f"{found.name()!r} runs there already")
    return Finding("domain", YES, "no other is in its way there")


def _versions_here(connection: Any) -> Versions:
    return {
        "libvirt": connection.getLibVersion(),
        "qemu": connection.getVersion(),
        "kernel": os.uname().release,
    }


def _versions(host: str, versions: Versions) -> list[Finding]:
    """Compare versions with what the migration of a running VM needs."""
    kernel = tuple(int(part) for part in versions["kernel"].split("-")[0].split(".")[:2])
    needs = (
        ("libvirt", versions["libvirt"] >= LIBVIRT_MIGRATES, _text(versions["libvirt"]), "8.6"),
        ("QEMU", versions["qemu"] >= QEMU_MIGRATES, _text(versions["qemu"]), "8.1"),
        ("kernel", kernel >= KERNEL_MIGRATES, versions["kernel"], "5.18"),
    )
    return [
        Finding(
            f"{name}",
            YES if good else NO,
            f"{host} has {has}" + ("" if good else f"; a running VM needs {since}"),
            "" if good else "upgrade it, or migrate the stopped VM: virsh migrate --offline",
        )
        for name, good, has, since in needs
    ]


def _text(version: int) -> str:
    return f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}"


def _ask_there(uri: str, there: Any, subject: Domain, text: bytes, active: bool) -> list[Finding]:
    """Return what the other host's vgpu-hook says."""
    try:
        answer = json.loads(remote.ask(uri, "vgpu-hook check-arrival --format json -", text))
        found = [Finding(*(row[name] for name in Finding._fields)) for row in answer["findings"]]
        planned = {row["slot"]: row["type"] for row in answer["hostdevs"]}
        kernel = str(answer["kernel"])
    except remote.CannotAsk as error:
        return [Finding("vGPU", UNKNOWN, error.message, error.hint)]
    except VgpuError as error:
        return [Finding("vGPU", NO, error.message, error.hint)]
    except (ValueError, KeyError, TypeError) as error:
        cause = f"what vgpu-hook there says is not understood ({type(error).__name__})"
        return [Finding("vGPU", UNKNOWN, cause, "have the same version on both hosts")]
    if active:
        versions = _versions_here(there) | {"kernel": kernel}
        found = [*_versions(there.getHostname(), versions), *found]
    for slot, kind in planned.items():
        own = subject.hostdev(slot)
        if own is not None and own.type != kind:
            found.append(_crossing(slot, own, kind, there.getLibVersion()))
    return found


def _crossing(slot: str, own: Hostdev, kind: str, version: int) -> Finding:
    """Tell whether libvirt there lets a hostdev change its type."""
    change = f"slot {slot} changes from {own.type} to {kind}"
    if version >= LIBVIRT_CROSSES:
        return Finding("framework", YES, f"{change}, if the driver can read the other's state")
    cause = f"{change}, which libvirt refuses before 11.0 (there: {_text(version)})"
    return Finding("framework", NO, cause, "upgrade libvirt there")


# -- on the other host ------------------------------------------------------------------


def _room(subject: Domain, parents: tuple[Parent, ...], rows: list[Assignment]) -> list[Finding]:
    """Tell of each slot whether there is room for it, beside the slots before it."""
    holders = {row.device: row.domain_name for row in rows}
    used: Counter[str] = Counter()
    return [
        _room_of(request, subject.hostdev(request.slot), parents, holders, used)
        for request in subject.request
    ]


def _room_of(
    request: VgpuRequest,
    hostdev: Hostdev | None,
    parents: tuple[Parent, ...],
    holders: dict[str, str],
    used: Counter[str],
) -> Finding:
    what = f"vGPU {request.slot}"
    if hostdev is None:
        return Finding(what, NO, "it is asked for, but the VM has no hostdev for it")
    fitting = [
        offer
        for offer in placement.candidates(parents, request.profile, request.gpu)
        if offer.parent.framework == FRAMEWORK.get(hostdev.type)
        and offer.type.available > used[offer.parent.name]
    ]
    if hostdev.type == "pci":
        named = hostdev.address
        fitting = [o for o in fitting if o.parent.name == named and named not in holders]
    if not fitting:
        why = placement.why_not(parents, request.profile, request.gpu, holders)
        return Finding(what, NO, why.message, why.hint)
    best = fitting[0]
    used[best.parent.name] += 1
    where = "" if best.parent.framework == VENDOR_VFIO else f", {best.type.available} free"
    return Finding(what, YES, f"{request.profile} ({best.type.id}) on {best.parent.name}{where}")


def _print(
    arguments: argparse.Namespace,
    findings: list[Finding],
    name: str,
    extra: dict[str, Any] | None = None,
) -> int:
    failed = [finding for finding in findings if finding.good == NO]
    if arguments.format == "json":
        print(as_json({"findings": [f._asdict() for f in findings], **(extra or {})}))
        return 1 if failed else 0
    print(table(("Looked at", "Good", "What", "Fix"), findings))
    if failed:
        print(f"error: {name} can't: {failed[0].text}", file=sys.stderr)
        return 1
    unknown = any(finding.good == UNKNOWN for finding in findings)
    print(f"As far as can be told, {name} can." if unknown else f"{name[0].upper()}{name[1:]} can.")
    return 0
