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
import os
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import libvirt
from lxml import etree

from vgpu_hook import admission, arrival, config, context, domain, placement, remote
from vgpu_hook.libvirtd import Libvirt, NoDomain
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
from vgpu_hook.remote import NO, UNKNOWN, YES, Finding
from vgpu_hook.tables import FORMAT_VERSION, as_json, read_input, table

LIBVIRT_MIGRATES = 8_006_000
QEMU_MIGRATES = 8_001_000
KERNEL_MIGRATES = (5, 18)
"""From which versions a running VM with a VFIO device can migrate at all (facts C4)."""

LIBVIRT_CROSSES = 11_000_000
"""libvirt's version from which a VM may change from an mdev to a VF and back (facts A6)."""

MIG = re.compile(r"-\d+-\d+[A-Z]+\Z")
"""Names of types that need a GPU instance of their own end so (H200X-1-18C)."""

THIS_HOST = "this host"


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
        return _print(arguments, [], subject)
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
        return _print(arguments, [], subject, extra)
    try:
        findings, hostdevs = _arrive(text, subject, stopped=arguments.stopped)
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
    host = str(_told(uri.split("?")[0], there.getHostname))
    if (other := _other_driver(host, there)) is not None:
        return [other], ""
    findings = [_same_host(host, here, there), _known_there(host, subject, there)]
    if active:
        findings += _versions(THIS_HOST, here, os.uname().release)
        cause = "only QEMU knows whether the device's driver can move its state"
        findings.append(Finding("device", UNKNOWN, f"{cause}; it says so before anything moves"))
    try:
        answer = remote.check_arrival(uri, text, FORMAT_VERSION, stopped=not active)
    except remote.CannotAsk as error:
        cant = Finding("vGPU", UNKNOWN, error.message, error.hint)
        return [*findings, cant], error.message
    except VgpuError as error:
        return [*findings, _refusal("vGPU", error)], ""
    if active:
        findings += _versions(host, there, answer.kernel)
        findings += _crossings(subject, answer.hostdevs, _told(host, there.getLibVersion))
    return [*findings, *answer.findings], ""


def _connect(uri: str) -> Any:
    host = uri.split("?")[0]
    try:
        return libvirt.openReadOnly(uri)
    except libvirt.libvirtError as error:
        raise VgpuError(
            f"can't connect to libvirt at {host}: {error.get_error_message()}",
            f"try: virsh --connect {shell_word(uri)} version",
        ) from None


def _told(host: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a host's libvirt answers; raise VgpuError (or NoDomain) that names the host."""
    try:
        return method(*arguments)
    except libvirt.libvirtError as error:
        gone = error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
        raise (NoDomain if gone else VgpuError)(
            f"{host}: libvirt: {error.get_error_message()}"
        ) from None


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
    if uuids[0] == uuids[1]:
        return Finding("host", NO, f"{host} is this very host, or has its UUID", "set host_uuid")
    return Finding("host", YES, host)


def _known_there(host: str, subject: Domain, there: Any) -> Finding:
    """Look for domains that are in the way (virDomainObjListAdd)."""
    for look_up, key in (
        (there.lookupByUUIDString, subject.uuid),
        (there.lookupByName, subject.name),
    ):
        try:
            found = _told(host, look_up, key)
            active = _told(host, found.isActive)
        except NoDomain:  # or it is gone meanwhile
            continue
        name = found.name()
        if found.UUIDString() != subject.uuid:
            cause = f"another domain is named {subject.name!r} there"
            return Finding("domain", NO, cause, "rename it, or migrate with --dname")
        if name != subject.name:
            cause = f"its UUID is there under another name, {name!r}"
            fix = f"if it is not needed, run there: virsh undefine {shell_word(name)}"
            return Finding("domain", NO, cause, fix)
        if active:
            return Finding("domain", NO, f"{name!r} runs there already")
    return Finding("domain", YES, "no other is in its way there")


def _versions(host: str, connection: Any, release: str) -> list[Finding]:
    """Compare versions with what the migration of a running VM needs."""
    own, qemu = _told(host, connection.getLibVersion), _told(host, connection.getVersion)
    read = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", release)
    kernel = (int(read[1]), int(read[2])) >= KERNEL_MIGRATES if read else None
    way_out = "upgrade it, or migrate the stopped VM: virsh migrate --offline"
    needs = (
        ("libvirt", own >= LIBVIRT_MIGRATES, _text(own), "8.6"),
        ("QEMU", qemu >= QEMU_MIGRATES, _text(qemu), "8.1"),
        ("kernel", kernel, release, "5.18"),
    )
    return [
        Finding(
            name,
            UNKNOWN if good is None else YES if good else NO,
            f"{host} has {has}" + ("" if good else f"; a running VM needs {since}"),
            way_out if good is False else "",
        )
        for name, good, has, since in needs
    ]


def _text(version: int) -> str:
    return f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}"


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


def _arrive(text: bytes, subject: Domain, *, stopped: bool) -> tuple[list[Finding], list[Hostdev]]:
    """Return what is found of each slot, and the hostdevs that it would get; or raise VgpuError."""
    settings = config.load()
    opened = context.existing_store(settings)
    parents = context.parents(settings, opened)
    rows = opened.all() if opened is not None else []
    planner = context.planner(settings, opened, parents, reserve=False)
    after = domain.parse(arrival.rewrite(text, subject, planner).text)
    left = set(subject.request) - set(after.request)
    if stopped:  # its definition comes past the hook, so that its request stays as it is
        after, left = after._replace(request=subject.request), set()

    def others(device: str) -> list[str]:
        return [r.domain_name for r in rows if r.device == device and r.domain_uuid != after.uuid]

    records = admission.Records(others, lambda slot: planner.current(after, slot))
    served = admission.admit(after, records)
    holders = {row.device: row.domain_name for row in rows}
    without = "it is asked for, but the VM runs without it, and will there"
    found = [Finding(f"vGPU {r.slot}", YES, without) for r in subject.request if r in left]
    return [*found, *_room(served, parents, holders)], [hostdev for _, hostdev in served]


def _room(
    served: list[tuple[VgpuRequest, Hostdev]], parents: tuple[Parent, ...], holders: dict[str, str]
) -> list[Finding]:
    """Tell of each slot whether there is room for it, beside the slots before it."""
    earlier: dict[str, list[Candidate]] = {}
    found = []
    for request, hostdev in served:
        fitting = _fitting(request, hostdev, parents, holders)
        if fitting:
            found.append(_beside(request, fitting, earlier))
            earlier[request.slot] = fitting
        else:
            why = placement.why_not(parents, request.profile, request.gpu, holders)
            found.append(_refusal(f"vGPU {request.slot}", why))
    return found


def _fitting(
    request: VgpuRequest,
    hostdev: Hostdev,
    parents: tuple[Parent, ...],
    holders: dict[str, str],
) -> list[Candidate]:
    """Return where the slot could be served if it were the only one."""
    fitting = [
        offer
        for offer in placement.candidates(parents, request.profile, request.gpu)
        if offer.parent.framework == FRAMEWORK.get(hostdev.type) and offer.type.available > 0
    ]
    if hostdev.type == "pci":
        named = hostdev.address
        fitting = [o for o in fitting if o.parent.name == named and named not in holders]
    return fitting


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
    it is free in one piece as the largest type takes that could be made. Of what fits into that by
    size only a power of two is counted on, since a GPU in mixed-size mode has places for fewer.
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


def _print(
    arguments: argparse.Namespace,
    findings: list[Finding],
    subject: Domain | None,
    extra: dict[str, Any] | None = None,
    untold: str = "",
) -> int:
    """Print what was found; raise VgpuError if something is in the way, or can't be told.

    Nothing is looked at for a domain without a request. `untold`: why it can't be told, if so.
    """
    name = f"domain {subject.name!r}" if subject is not None else "a domain with this XML"
    if arguments.format == "json":
        print(as_json({"findings": [f._asdict() for f in findings], **(extra or {})}))
    elif findings:
        print(table(("Looked at", "Good", "What", "Fix"), findings))
    else:
        print(f"D{name[1:]} asks for no vGPU.")
    failed = next((finding for finding in findings if finding.good == NO), None)
    if failed is not None:
        raise VgpuError(f"{name} can't: {failed.text}")
    if untold:
        raise VgpuError(f"whether {name} can go can't be told: {untold}")
    if arguments.format == "table" and findings:
        unknown = any(finding.good == UNKNOWN for finding in findings)
        ending = f"As far as can be told, {name}" if unknown else f"D{name[1:]}"
        print(f"{ending} can.")
    return 0
