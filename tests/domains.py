"""Domain XML for tests: as libvirt hands it to a hook. Knows nothing of the product's parser."""

from __future__ import annotations

import uuid
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

SEED = uuid.UUID("4d9f7c1e-0000-4000-8000-000000000000")


def uuid_of(name: str) -> str:
    """A domain's UUID: the same for the same name."""
    return str(uuid.uuid5(SEED, name))


def device_of(domain_uuid: str, slot: str = "0") -> str:
    """The derived device UUID, computed apart from the product (design, section 3)."""
    namespace = uuid.UUID("9c1b4f0e-6f0b-5a53-8a39-2f4d7f0f7c11")
    return str(uuid.uuid5(namespace, f"{domain_uuid}/{slot}"))


def mark_of(domain_uuid: str) -> str:
    """The mark of a domain that VFs were chosen for, computed apart from the product."""
    namespace = uuid.UUID("9c1b4f0e-6f0b-5a53-8a39-2f4d7f0f7c11")
    return str(uuid.uuid5(namespace, f"{domain_uuid}/vfs:"))


def hostdev(device: str, slot: str | None = "0", model: str = "vfio-pci") -> str:
    alias = f"<alias name='ua-vgpu-{slot}'/>" if slot is not None else ""
    return (
        f"<hostdev mode='subsystem' type='mdev' managed='no' model='{model}'>"
        f"<source><address uuid='{device}'/></source>{alias}</hostdev>"
    )


def pci_hostdev(address: str, slot: str | None = "0", managed: str | None = "no") -> str:
    """A VF (0000:41:00.4) as a hostdev; no `managed` attribute if it is None."""
    alias = f"<alias name='ua-vgpu-{slot}'/>" if slot is not None else ""
    rest, _, function = address.rpartition(".")
    domain, bus, device = rest.split(":")
    attribute = f" managed='{managed}'" if managed is not None else ""
    return (
        f"<hostdev mode='subsystem' type='pci'{attribute}><source><address domain='0x{domain}'"
        f" bus='0x{bus}' slot='0x{device}' function='0x{function}'/></source>{alias}</hostdev>"
    )


def domain_xml(
    name: str,
    requests: dict[str, str] | None = None,
    *,
    domain_uuid: str | None = None,
    hostdevs: list[str] | None = None,
    attributes: str = "",
    owner: str | None = None,
) -> bytes:
    """A domain with vGPU requests {slot: profile} and, unless given, the hostdevs for them.

    `owner`: the UUID of the domain that the VFs were chosen for, for the product's mark.
    """
    own = domain_uuid or uuid_of(name)
    asked = requests or {}
    metadata = ""
    if asked:
        note = f" owner='{mark_of(owner)}'" if owner else ""
        vgpus = "".join(
            f"<vgpu:vgpu name={quoteattr(slot)} profile={quoteattr(profile)} {attributes}{note}/>"
            for slot, profile in asked.items()
        )
        metadata = (
            "<metadata><vgpu:vgpus xmlns:vgpu='urn:vgpu-hook:domain:1'>"
            f"{vgpus}</vgpu:vgpus></metadata>"
        )
    devices = hostdevs if hostdevs is not None else [hostdev(device_of(own, s), s) for s in asked]
    return (
        f"<domain type='qemu' id='1'><name>{escape(name)}</name><uuid>{own}</uuid>{metadata}"
        "<memory unit='KiB'>16384</memory><vcpu>1</vcpu><os><type>hvm</type></os>"
        f"<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{''.join(devices)}</devices>"
        "</domain>\n"
    ).encode()


def renamed(xml: bytes, name: str, new: str) -> bytes:
    """The XML of a domain under another name and UUID, with what that domain was given in it."""
    text = xml.decode().replace(f"<name>{escape(name)}<", f"<name>{escape(new)}<")
    return text.replace(uuid_of(name), uuid_of(new)).encode()


def vgpus_of(xml: bytes | str) -> dict[str, tuple[str, str]]:
    """By slot, the type and the device of each hostdev under the product's alias, in order."""
    found = {}
    for element in etree.fromstring(xml).iterfind("devices/hostdev"):
        alias = element.find("alias")
        if alias is None or not alias.get("name", "").startswith("ua-vgpu-"):
            continue
        address = element.find("source/address")
        device = address.get("uuid")
        if device is None:
            names = ("domain", "bus", "slot", "function")
            parts = (int(address.get(name), 16) for name in names)
            device = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
        found[alias.get("name").removeprefix("ua-vgpu-")] = (element.get("type"), device)
    return found


def besides_vgpus(xml: bytes | str) -> bytes:
    """Canonical XML of all but the request and what stands behind the hostdevs that serve it.

    Their number, order and guest's side (address, boot order, ROM) are in it. White space that is
    only layout is not.
    """
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    for element in root.iter("{urn:vgpu-hook:domain:1}vgpus"):
        element.clear(keep_tail=True)
    for element in root.iterfind("devices/hostdev"):
        alias = element.find("alias")
        if alias is None or not alias.get("name", "").startswith("ua-vgpu-"):
            continue
        for attribute in ("type", "managed", "model"):
            element.attrib.pop(attribute, None)
        for child in [*element.findall("source"), *element.findall("driver")]:
            element.remove(child)
    data: bytes = etree.tostring(root.getroottree(), method="c14n")
    return data
