"""Domain XML and write-log lines, as the rules and the checks need them."""

from __future__ import annotations

from lxml import etree

from tests.domains import besides_vgpus, pci_hostdev, uuid_of
from tests.domains import hostdev as mdev_hostdev
from tests.simhost.client import Write

NAMESPACE = "{urn:vgpu-hook:domain:1}"


def any_hostdev(device: str, slot: str | None) -> str:
    """Return the hostdev element of a device, by the look of its name."""
    if is_vf(device):
        return pci_hostdev(device, slot)
    return mdev_hostdev(device, slot)


def is_vf(device: str) -> bool:
    """Tell a VF's address from the UUID of a mediated device."""
    return device.count(":") == 2


def own_devices(xml: str) -> set[str]:
    """Return the devices of hostdevs that are not under the product's alias."""
    found = set()
    for element in etree.fromstring(xml).iterfind("devices/hostdev"):
        alias, address = element.find("alias"), element.find("source/address")
        if alias is None and address is not None:
            parts = [int(address.get(k, "0"), 16) for k in ("domain", "bus", "slot", "function")]
            pci = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
            found.add(address.get("uuid") or pci)
    return found


def besides_ours(xml: str) -> bytes:
    """Canonical XML of what the product may not change: all but its own elements' insides."""
    root = etree.fromstring(besides_vgpus(xml))
    for element in root.findall("metadata"):
        for ours in element.findall(f"{NAMESPACE}vgpus"):
            element.remove(ours)
        if not len(element):
            root.remove(element)
    data: bytes = etree.tostring(root, method="c14n")
    return data


def profiles_of(xml: str | None) -> dict[str, str]:
    """Return what a domain asks for, by slot."""
    requests = etree.fromstring(xml or "<domain/>").iter(f"{NAMESPACE}vgpu")
    return {str(r.get("name", n)): str(r.get("profile")) for n, r in enumerate(requests)}


def name_of(xml: str) -> str:
    """Return the domain's name."""
    return str(etree.fromstring(xml).findtext("name"))


def forked(xml: str, uuid: str, name: str, policy: str = "", own: str = "") -> str:
    """Return what somebody makes of a domain's XML by giving it another name and UUID (`own`)."""
    text = xml.replace(f"<name>{name_of(xml)}</name>", f"<name>{name}</name>")
    root = etree.fromstring(text.replace(uuid, own or uuid_of(name)))
    for request in root.iter(f"{NAMESPACE}vgpu"):
        if policy:
            request.set("fork", policy)
    return str(etree.tostring(root, encoding="unicode"))


def named_by(write: Write, device: str) -> bool:
    """Tell whether a write was to this device, or made or removed it."""
    return device in write.path or device in write.data


def is_removal(write: Write) -> bool:
    """Tell whether a write was to take a vGPU away."""
    if write.path.endswith("/current_vgpu_type"):
        return write.data.strip() == "0"
    return write.path.endswith("/remove")
