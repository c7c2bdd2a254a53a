"""A domain's XML reduced to what vgpu-hook reads in it, for `vgpu-hook record`. Pure.

It is written anew from the parsed value and never cut out of the original: what vgpu-hook does not
understand can't be in it, be it a password, a disk, a network or SMBIOS strings.
"""

from __future__ import annotations

from lxml import etree

from vgpu_hook import domain, hostdevs
from vgpu_hook.model import (
    ALIAS_PREFIX,
    FRAMEWORK,
    NAMESPACE,
    Domain,
    Hostdev,
    VgpuRequest,
)


def text_of(subject: Domain) -> bytes:
    """Return a domain's XML: name, UUID, request, NUMA binding, and mdev and PCI hostdevs.

    Hostdevs of other kinds are left out. `display` and `ramfb` are those that the request asks for.
    """
    root = etree.Element("domain", type="kvm")
    etree.SubElement(root, "name").text = subject.name
    etree.SubElement(root, "uuid").text = subject.uuid
    if subject.request or subject.refused:
        metadata = etree.SubElement(root, "metadata")
        container = etree.SubElement(metadata, domain.REQUEST, nsmap={"vgpu": NAMESPACE})
        if subject.refused:
            container.set(domain.REFUSED, subject.refused)
        for request in subject.request:
            _add_request(container, request, subject.marks.get(request.slot))
    if subject.cpus:
        tune = etree.SubElement(root, "cputune")
        etree.SubElement(tune, "vcpupin", vcpu="0", cpuset=_list(subject.cpus))
    if subject.nodes:
        tune = etree.SubElement(root, "numatune")
        etree.SubElement(tune, "memory", mode="strict", nodeset=_list(subject.nodes))
    devices = etree.SubElement(root, "devices")
    asked = {request.slot: request for request in subject.request}
    for hostdev in subject.hostdevs:
        if hostdev.type in FRAMEWORK and hostdev.address:
            devices.append(_hostdev(hostdev, asked.get(hostdev.slot or "")))
    etree.indent(root)
    data: bytes = etree.tostring(root, encoding="UTF-8")
    return data + b"\n"


def _add_request(container: etree._Element, request: VgpuRequest, mark: str | None) -> None:
    values = {**request._asdict(), domain.OWNER: mark}
    element = etree.SubElement(container, domain.VGPU, name=values.pop("slot"))
    for attribute, value in values.items():
        if value is not None:
            element.set(attribute, value)


def _hostdev(hostdev: Hostdev, request: VgpuRequest | None) -> etree._Element:
    slot = hostdev.slot if hostdev.slot is not None else "none"
    element = hostdevs.make(request or VgpuRequest(slot, ""), hostdev)
    alias = element.find("alias")
    if hostdev.slot is None:
        element.remove(alias)
    else:
        alias.set("name", f"{ALIAS_PREFIX}{hostdev.slot}")
    if hostdev.managed is not None:
        element.set("managed", hostdev.managed)
    return element


def _list(numbers: frozenset[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
