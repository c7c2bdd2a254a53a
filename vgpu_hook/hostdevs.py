"""The <hostdev> element: read, made, and pointed to another device.

libvirt's docs/formatdomain.rst; facts C1 and C3. Not for what stands around it: domain.py.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from lxml import etree

from vgpu_hook.model import ALIAS_PREFIX, HOSTDEV_TYPE, MDEV, Hostdev, VgpuRequest

DEFAULT_MODEL = "vfio-pci"


def read(element: Any) -> Hostdev:
    """Return what a <hostdev> says."""
    alias = element.find("alias")
    name = alias.get("name", "") if alias is not None else ""
    slot = name[len(ALIAS_PREFIX) :] if name.startswith(ALIAS_PREFIX) else None
    kind = element.get("type", "")
    address = element.find("source/address")
    text = ""
    if address is not None and kind == "mdev":
        text = _uuid_text(address.get("uuid", ""))
    elif address is not None and kind == "pci":
        text = _pci_text(address)
    managed = element.get("managed", "no") if kind == "pci" else None
    return Hostdev(kind, text, slot, element.get("model"), managed)


def _uuid_text(text: str) -> str:
    """Return the UUID in the kernel's form; libvirt's own parser is as liberal (facts C1)."""
    try:
        return str(uuid.UUID(re.sub(r"[\s-]", "", text)))
    except ValueError:
        return text


def _pci_text(address: Any) -> str:
    try:
        parts = [int(address.get(key, "0"), 0) for key in ("domain", "bus", "slot", "function")]
    except ValueError:
        return ""
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)


def make(request: VgpuRequest, hostdev: Hostdev) -> Any:
    """Return a new <hostdev> for the request."""
    element = etree.Element("hostdev", mode="subsystem", type=hostdev.type, managed="no")
    if hostdev.type == "mdev":
        element.set("model", hostdev.model or DEFAULT_MODEL)
        # Of a PCI hostdev libvirt drops them before 10.3 (facts C3).
        for attribute in ("display", "ramfb"):
            value = getattr(request, attribute)
            if value is not None:
                element.set(attribute, value)
    source = etree.SubElement(element, "source")
    etree.SubElement(source, "address", _address(hostdev))
    etree.SubElement(element, "alias", name=f"{ALIAS_PREFIX}{request.slot}")
    etree.indent(element, level=2)
    return element


def _address(hostdev: Hostdev) -> dict[str, str]:
    """Return the attributes of the <source>'s address."""
    if hostdev.type == "mdev":
        return {"uuid": hostdev.address}
    rest, _, function = hostdev.address.rpartition(".")
    names = ("domain", "bus", "slot", "function")
    return dict(zip(names, (f"0x{part}" for part in (*rest.split(":"), function)), strict=True))


def keep_guest_side(old: Any, new: Any) -> None:
    """Carry over what the guest sees (address, boot order, ROM): only the source changes."""
    for attribute in ("display", "ramfb"):
        if attribute in old.attrib and attribute not in new.attrib:
            new.set(attribute, old.get(attribute))
    for child in list(old):
        if child.tag not in ("source", "alias"):
            child.tail = None
            new.append(child)


def of_slot(root: Any, slot: str) -> list[Any]:
    """Return the <hostdev> elements under the slot's alias."""
    return [
        element
        for element in root.iterfind("devices/hostdev")
        if (alias := element.find("alias")) is not None
        and alias.get("name") == f"{ALIAS_PREFIX}{slot}"
    ]


def point(element: Any, hostdev: Hostdev) -> None:
    """Point a <hostdev> to another device, of another framework too.

    What the guest sees stays: number, order, guest addresses (libvirt's ABI check, facts A6).
    """
    element.set("type", hostdev.type)
    element.set("managed", "no")
    if hostdev.type == HOSTDEV_TYPE[MDEV]:
        element.set("model", element.get("model") or hostdev.model or DEFAULT_MODEL)
        for driver in element.findall("driver"):  # mdevs have none
            element.remove(driver)
    else:
        element.attrib.pop("model", None)
    address = element.find("source/address")
    if address is None:
        source = element.find("source")
        if source is None:
            source = etree.SubElement(element, "source")
        address = etree.SubElement(source, "address")
    address.attrib.clear()
    address.attrib.update(_address(hostdev))
