"""`vgpu-hook check-migrate` and `check-arrival`: can a VM go to another host with its vGPUs?

check-migrate looks at what libvirt says of both hosts, and has the other host's vgpu-hook look at
its GPUs (check-arrival), as its hook will when the VM comes. Nothing is changed on either host, and
nothing is reserved: what others take meanwhile is found out when the VM comes.

A VM that does not run is only defined there (`virsh migrate --offline`): it needs no room, and what
its start would lack is only noted.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

import libvirt
from lxml import etree

from vgpu_hook import arrival, config, context, domain, placement, remote
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.model import (
    FRAMEWORK,
    VENDOR_VFIO,
    Domain,
    Hostdev,
    Parent,
    VgpuError,
    VgpuRequest,
    shell_word,
)
from vgpu_hook.placement import Candidate
from vgpu_hook.tables import FORMAT_VERSION, as_json, read_input, table

YES, NO, UNKNOWN = "yes", "no", "can't tell"

LIBVIRT_MIGRATES = 8_006_000
QEMU_MIGRATES = 8_001_000
KERNEL_MIGRATES = (5, 18)
"""From which versions a running VM with a VFIO device can migrate at all (facts C4)."""

LIBVIRT_CROSSES = 11_000_000
"""libvirt's version from which a VM may change from an mdev to a VF and back (facts A6)."""

MIG = re.compile(r"-\d+-\d+[A-Z]+\Z")
"""Names of types that need a GPU instance of their own end so (H200X-1-18C)."""

THIS_HOST = "this host"

Versions = dict[str, Any]


class Finding(NamedTuple):
    """One thing that was looked at: does it let the VM go?"""

    what: str
    good: str
    text: str
    fix: str = ""


class Answer(NamedTuple):
    """What another host's check-arrival says; `hostdevs` are the types, by slot."""

    findings: list[Finding]
    hostdevs: dict[str, str]
    kernel: str


def check_migrate(arguments: argparse.Namespace) -> int:
    """Say whether a domain can go to another host with its vGPUs; 1 if it can't.

    1 too if the other host's vgpu-hook can't be asked, so that `check-migrate ... && virsh migrate`
    does not go on. 0 if all that could be looked at is good: whether the device's driver can move
    the state of a running VM can't be told by anybody but QEMU.
    """
    here = Libvirt(arguments.connect)
    found = here.find(arguments.domain)
    active = here.is_active(found)
    kind = libvirt.VIR_DOMAIN_XML_MIGRATABLE if active else libvirt.VIR_DOMAIN_XML_INACTIVE
    # Without passwords (VIR_DOMAIN_XML_SECURE): it is sent to the other host.
    text = str(here.call(found, found.XMLDesc, kind)).encode()
    subject = domain.parse(text)
    if not subject.request:
        return _print_no_request(arguments, subject)
    there = _connect(arguments.uri)
    try:
        findings, untold = _look(arguments.uri, here.connection, there, subject, text, active)
    finally:
        with contextlib.suppress(libvirt.libvirtError):
            there.close()
    return _print(arguments, findings, subject, untold=untold)


def check_arrival(arguments: argparse.Namespace) -> int:
    """Say whether a VM with this XML could come to this host now; 1 if it could not.

    A store or a configuration that can't be used is such an answer too: the hook will refuse.
    """
    text = read_input(arguments.file)
    if os.geteuid() != 0:
        raise VgpuError("check-arrival needs root, as the hook does", "run it as root")
    extra: dict[str, Any] = {"hostdevs": [], "kernel": os.uname().release}
    try:
        subject = domain.parse(text)
    except VgpuError as error:
        return _print(arguments, [_refusal("XML", error)], None, extra)
    if not subject.request:
        return _print_no_request(arguments, subject, extra)
    try:
        findings, hostdevs = _arrive(text, subject)
    except VgpuError as error:
        findings, hostdevs = [_refusal("vGPU", error)], []
    if arguments.stopped:
        findings = [_only_noted(finding) for finding in findings]
    extra["hostdevs"] = [{"slot": h.slot, "type": h.type, "address": h.address} for h in hostdevs]
    return _print(arguments, findings, subject, extra)


# -- on this host -----------------------------------------------------------------------


def _look(
    uri: str, here: Any, there: Any, subject: Domain, text: bytes, active: bool
) -> tuple[list[Finding], str]:
    """Return what was found, and why the other host's vgpu-hook can't be asked, if so."""
    host = _plain_uri(uri)
    if (other := _other_driver(host, there)) is not None:
        return [other], ""
    findings = [_same_host(host, here, there), _known_there(host, subject, there)]
    if active:
        findings += _versions(THIS_HOST, _versions_of(THIS_HOST, here, os.uname().release))
        cause = "only QEMU knows whether the device's driver can move its state"
        findings.append(Finding("device", UNKNOWN, f"{cause}; it says so before anything moves"))
    try:
        answer = _ask_there(uri, text, active)
    except remote.CannotAsk as error:
        cant = Finding("vGPU", UNKNOWN, error.message, error.hint)
        return [*findings, cant], error.message
    except VgpuError as error:
        return [*findings, _refusal("vGPU", error)], ""
    if active:
        versions = _versions_of(host, there, answer.kernel)
        findings += _versions(_told(host, there.getHostname), versions)
        findings += _crossings(subject, answer.hostdevs, versions["libvirt"])
    return [*findings, *answer.findings], ""


def _connect(uri: str) -> Any:
    try:
        return libvirt.openReadOnly(uri)
    except libvirt.libvirtError as error:
        raise VgpuError(
            f"can't connect to libvirt at {_plain_uri(uri)}: {error.get_error_message()}",
            f"try: virsh --connect {shell_word(uri)} version",
        ) from None


def _plain_uri(uri: str) -> str:
    """Return the URI without the parameters of its transport."""
    return uri.split("?")[0]


def _told(host: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a host's libvirt answers; raise VgpuError that names the host."""
    try:
        return method(*arguments)
    except libvirt.libvirtError as error:
        raise VgpuError(f"{host}: libvirt: {error.get_error_message()}") from None


def _other_driver(host: str, there: Any) -> Finding | None:
    """Tell if a VM that goes there is none that the hook is called for."""
    path = urllib.parse.urlsplit(_told(host, there.getURI)).path
    if _told(host, there.getType) == "QEMU" and path == "/system":
        return None
    cause = f"{host} is not the system libvirt of a host's QEMU"
    return Finding("host", NO, cause, "use e.g. qemu+ssh://root@HOST/system")


def _same_host(host: str, here: Any, there: Any) -> Finding:
    """Compare what libvirt compares before it migrates anything."""
    uuids = [
        etree.fromstring(_told(whose, connection.getCapabilities)).findtext("host/uuid")
        for whose, connection in ((THIS_HOST, here), (host, there))
    ]
    name = _told(host, there.getHostname)
    if uuids[0] == uuids[1]:
        return Finding("host", NO, f"{name} is this very host, or has its UUID", "set host_uuid")
    return Finding("host", YES, name)


def _known_there(host: str, subject: Domain, there: Any) -> Finding:
    """Look for domains that are in the way (virDomainObjListAdd)."""
    for look_up, key in (
        (there.lookupByUUIDString, subject.uuid),
        (there.lookupByName, subject.name),
    ):
        try:
            found = look_up(key)
            name, uuid, active = found.name(), found.UUIDString(), found.isActive()
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:  # or it is gone meanwhile
                continue
            raise VgpuError(f"{host}: libvirt: {error.get_error_message()}") from None
        if uuid != subject.uuid:
            cause = f"another domain is named {subject.name!r} there"
            return Finding("domain", NO, cause, "rename it, or migrate with --dname")
        if name != subject.name:
            cause = f"its UUID is there under another name, {name!r}"
            fix = f"if it is not needed, run there: virsh undefine {shell_word(name)}"
            return Finding("domain", NO, cause, fix)
        if active:
            return Finding("domain", NO, f"{name!r} runs there already")
    return Finding("domain", YES, "no other is in its way there")


def _versions_of(host: str, connection: Any, kernel: str) -> Versions:
    return {
        "libvirt": _told(host, connection.getLibVersion),
        "qemu": _told(host, connection.getVersion),
        "kernel": kernel,
    }


def _versions(host: str, versions: Versions) -> list[Finding]:
    """Compare versions with what the migration of a running VM needs."""
    release = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", versions["kernel"])
    kernel = (int(release[1]), int(release[2])) >= KERNEL_MIGRATES if release else None
    needs = (
        ("libvirt", versions["libvirt"] >= LIBVIRT_MIGRATES, _text(versions["libvirt"]), "8.6"),
        ("QEMU", versions["qemu"] >= QEMU_MIGRATES, _text(versions["qemu"]), "8.1"),
        ("kernel", kernel, versions["kernel"], "5.18"),
    )
    return [
        Finding(
            name,
            UNKNOWN if good is None else YES if good else NO,
            f"{host} has {has}" + ("" if good else f"; a running VM needs {since}"),
            "upgrade it, or migrate the stopped VM: virsh migrate --offline"
            if good is False
            else "",
        )
        for name, good, has, since in needs
    ]


def _text(version: int) -> str:
    return f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}"


def _ask_there(uri: str, text: bytes, active: bool) -> Answer:
    """Return what the other host's vgpu-hook says. Raises VgpuError."""
    stopped = "" if active else "--stopped "
    said = remote.ask(uri, f"vgpu-hook check-arrival {stopped}--format json -", text)
    try:
        answer = json.loads(said)
        if answer["version"] != FORMAT_VERSION:
            raise ValueError
        rows = answer["findings"]
        found = [Finding(*(_word(row[name]) for name in Finding._fields)) for row in rows]
        hostdevs = {_word(row["slot"]): _word(row["type"]) for row in answer["hostdevs"]}
        kernel = _word(answer["kernel"])
        if not found or any(finding.good not in (YES, NO, UNKNOWN) for finding in found):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"what vgpu-hook there says is not understood ({type(error).__name__})"
        raise remote.CannotAsk(cause, "have the same version on both hosts") from None
    return Answer(found, hostdevs, kernel)


def _word(value: Any) -> str:
    """Return a text of the other host, with nothing in it that a terminal would obey."""
    if not isinstance(value, str):
        raise TypeError
    return "".join(char if char.isprintable() else "?" for char in value)


def _crossings(subject: Domain, planned: dict[str, str], version: int) -> list[Finding]:
    """Tell of each hostdev that changes its type whether libvirt there lets it."""
    found = []
    for slot, kind in planned.items():
        own = subject.hostdev(slot)
        if own is None or own.type == kind:
            continue
        change = f"slot {slot} changes from {own.type} to {kind}"
        if version >= LIBVIRT_CROSSES:
            good = f"{change}, if the driver can read the other's state"
            found.append(Finding("framework", YES, good))
        else:
            cause = f"{change}, which libvirt refuses before 11.0 (there: {_text(version)})"
            found.append(Finding("framework", NO, cause, "upgrade libvirt there"))
    return found


# -- on the other host ------------------------------------------------------------------


def _arrive(text: bytes, subject: Domain) -> tuple[list[Finding], list[Hostdev]]:
    """Return what is found of each slot, and the hostdevs that it would get; or raise VgpuError."""
    settings = config.load()
    opened = context.existing_store(settings)
    parents = context.parents(settings, opened)
    holders = {row.device: row.domain_name for row in opened.all()} if opened is not None else {}
    planner = context.planner(settings, opened, parents, reserve=False)
    after = domain.parse(arrival.rewrite(text, subject, planner).text)
    hostdevs = [hostdev for hostdev in after.hostdevs if hostdev.slot is not None]
    return _room(after, parents, holders), hostdevs


def _room(subject: Domain, parents: tuple[Parent, ...], holders: dict[str, str]) -> list[Finding]:
    """Tell of each slot whether there is room for it, beside the slots before it."""
    earlier: dict[str, list[Candidate]] = {}
    found = []
    for request in subject.request:
        fitting = _fitting(request, subject.hostdev(request.slot), parents, holders)
        if isinstance(fitting, Finding):
            found.append(fitting)
            continue
        found.append(_beside(request, fitting, earlier))
        earlier[request.slot] = fitting
    return found


def _fitting(
    request: VgpuRequest,
    hostdev: Hostdev | None,
    parents: tuple[Parent, ...],
    holders: dict[str, str],
) -> list[Candidate] | Finding:
    """Return where the slot could be served if it were the only one, or why nowhere."""
    what = f"vGPU {request.slot}"
    if hostdev is None:
        return Finding(what, NO, "it is asked for, but the VM has no hostdev for it")
    fitting = [
        offer
        for offer in placement.candidates(parents, request.profile, request.gpu)
        if offer.parent.framework == FRAMEWORK.get(hostdev.type) and offer.type.available > 0
    ]
    if hostdev.type == "pci":
        named = hostdev.address
        fitting = [o for o in fitting if o.parent.name == named and named not in holders]
    if fitting:
        return fitting
    return _refusal(what, placement.why_not(parents, request.profile, request.gpu, holders))


def _beside(
    request: VgpuRequest, fitting: list[Candidate], earlier: dict[str, list[Candidate]]
) -> Finding:
    """Tell whether the room is there still when the slots before it have been served."""
    best = fitting[0]
    where = "" if best.parent.framework == VENDOR_VFIO else f", {best.type.available} free"
    text = f"{request.profile} ({best.type.id}) on {best.parent.name}{where}"
    gpus = {offer.parent.gpu for offer in fitting}
    rivals = {
        slot: offers
        for slot, offers in earlier.items()
        if gpus & {offer.parent.gpu for offer in offers}
    }
    if _suffices(fitting, list(rivals.values())):
        return Finding(f"vGPU {request.slot}", YES, text)
    slots = ", ".join(rivals)
    return Finding(f"vGPU {request.slot}", UNKNOWN, f"{text}, but perhaps not beside slot {slots}")


def _suffices(fitting: list[Candidate], rivals: list[list[Candidate]]) -> bool:
    """Tell whether there surely is room for one more vGPU, wherever each rival goes.

    vGPUs of different types on one GPU never surely fit: it may take only one type or size, and
    the framebuffer that is left may be in pieces.
    """
    offers: dict[str, list[Candidate]] = {}
    for offer in fitting:
        offers.setdefault(offer.parent.gpu, []).append(offer)
    wanted = {offer.parent.gpu for rival in rivals for offer in rival}
    if len(offers) > len(rivals) or offers.keys() - wanted:
        return True
    types = {offer.type.id for offer in itertools.chain(fitting, *rivals)}
    return len(types) == 1 and sum(map(_sure_room, offers.values())) > len(rivals)


def _sure_room(offers: list[Candidate]) -> int:
    """Return how many vGPUs of one type a GPU surely has room for, as it is now.

    A parent of mdevs counts them itself, unless it is a VF: VFs share the framebuffer. As much of
    it is free in one piece as the largest type takes that could be made; of vGPUs of one size there
    fit into it at least the next lower power of two, whatever the mode (NVIDIA's vGPU guide, vGPU
    placements of GPUs in mixed-size mode).
    """
    first = offers[0]
    if first.parent.name == first.parent.gpu:
        return first.type.available
    size = first.type.framebuffer
    if not size or MIG.search(first.type.name):
        return 1
    free = max(t.framebuffer for offer in offers for t in offer.parent.types if t.available)
    room = 1 << (max(1, free // size).bit_length() - 1)
    return room if first.parent.framework == VENDOR_VFIO else min(room, len(offers))


# -- the answer -------------------------------------------------------------------------


def _refusal(what: str, error: VgpuError) -> Finding:
    return Finding(what, NO, error.message, error.hint)


def _only_noted(finding: Finding) -> Finding:
    """Return what would keep a VM from starting, for one that only comes to be defined."""
    if finding.good != NO:
        return finding
    text = f"it can come; its start would be refused now: {finding.text}"
    return finding._replace(good=UNKNOWN, text=text)


def _print_no_request(
    arguments: argparse.Namespace, subject: Domain, extra: dict[str, Any] | None = None
) -> int:
    if arguments.format == "json":
        print(as_json({"findings": [], **(extra or {})}))
    else:
        print(f"Domain {subject.name!r} asks for no vGPU.")
    return 0


def _print(
    arguments: argparse.Namespace,
    findings: list[Finding],
    subject: Domain | None,
    extra: dict[str, Any] | None = None,
    untold: str = "",
) -> int:
    """Print what was found, and return the exit status. `untold`: why it can't be told, if so."""
    name = f"domain {subject.name!r}" if subject is not None else "this domain"
    if arguments.format == "json":
        print(as_json({"findings": [f._asdict() for f in findings], **(extra or {})}))
    else:
        print(table(("Looked at", "Good", "What", "Fix"), findings))
    failed = next((finding for finding in findings if finding.good == NO), None)
    if failed is not None:
        print(f"error: {name} can't: {_line(failed.text)}", file=sys.stderr)
        return 1
    if untold:
        print(f"error: whether {name} can go can't be told: {_line(untold)}", file=sys.stderr)
        return 1
    if arguments.format == "table":
        unknown = any(finding.good == UNKNOWN for finding in findings)
        ending = f"As far as can be told, {name}" if unknown else f"{name[0].upper()}{name[1:]}"
        print(f"{ending} can.")
    return 0


def _line(text: str) -> str:
    return " ".join(text.split())
