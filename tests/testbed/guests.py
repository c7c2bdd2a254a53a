"""Guests for the libvirt in the test host: boot disks of a few bytes, and domain XML.

Pure: returns bytes and text, starts nothing. The guests have no system, so that they start in
the time that QEMU itself needs.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Literal

REQUEST_NAMESPACE = "urn:vgpu-hook:domain:1"
QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"

# SeaBIOS boots no smaller disk.
DISK_SIZE = 1 << 20
TICKS_PER_SECOND = 18.2

Kind = Literal["idle", "poweroff"]


def boot_disk(kind: Kind, *, ticks: int = 91) -> bytes:
    """Return a raw disk image whose boot sector is the whole guest.

    idle: halts for ever. poweroff: waits so many BIOS ticks (18.2 a second; 91 are 5 s), then
    powers a q35 machine off; the domain needs the acpi feature for that.
    """
    code = _IDLE if kind == "idle" else _wait(ticks) + _POWER_OFF
    sector = code.ljust(510, b"\0") + b"\x55\xaa"
    return sector.ljust(DISK_SIZE, b"\0")


_IDLE = bytes.fromhex("fb f4 eb fd")  # sti; 1: hlt; jmp 1b
# mov dx, 0x604; mov ax, 0x2000; out dx, ax: ACPI's PM1a control register of a q35, "sleep, S5".
_POWER_OFF = bytes.fromhex("ba 04 06 b8 00 20 ef f4 eb fd")


def _wait(ticks: int) -> bytes:
    """Return code that waits; by difference, since the low word of the count wraps hourly."""
    if not 0 <= ticks < 1 << 15:
        raise ValueError(f"ticks must fit 15 bits: {ticks}")
    start = bytes.fromhex("fb b4 00 cd 1a 89 d3")  # sti; ticks to dx; mov bx, dx
    now = bytes.fromhex("b4 00 cd 1a 29 da 81 fa")  # 1: ticks to dx; sub dx, bx; cmp dx, ...
    return start + now + ticks.to_bytes(2, "little") + bytes.fromhex("72 f4")  # jb 1b


def mdev_hostdev(uuid: str, *, alias: str | None = None) -> ET.Element:
    """Return the hostdev for a mediated device."""
    hostdev = ET.Element("hostdev", mode="subsystem", type="mdev", model="vfio-pci")
    ET.SubElement(ET.SubElement(hostdev, "source"), "address", uuid=uuid)
    return _with_alias(hostdev, alias)


def pci_hostdev(address: str, *, alias: str | None = None) -> ET.Element:
    """Return the unmanaged hostdev for a PCI address such as 0000:01:00.1."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    hostdev = ET.Element("hostdev", mode="subsystem", type="pci", managed="no")
    parts = {"domain": domain, "bus": bus, "slot": slot, "function": function}
    where = {name: f"0x{value}" for name, value in parts.items()}
    ET.SubElement(ET.SubElement(hostdev, "source"), "address", where)
    return _with_alias(hostdev, alias)


def _with_alias(hostdev: ET.Element, alias: str | None) -> ET.Element:
    if alias is not None:
        ET.SubElement(hostdev, "alias", name=alias)
    return hostdev


def domain_xml(
    name: str,
    *,
    uuid: str,
    disk: str,
    profiles: Sequence[Mapping[str, str]] = (),
    extra_hostdevs: Sequence[ET.Element] = (),
    migratable: Sequence[str] = (),
    memory_mib: int = 32,
    spare_ports: int = 0,
) -> str:
    """Return the XML of a domain with as few devices as libvirt allows.

    disk: path of a raw image; read-only, so that many guests can share it.
    profiles: the request: the attributes of each <vgpu>, such as {"profile": "mtty-1"}. With
        none there is no <metadata> at all.
    spare_ports: PCIe root ports with nothing in them, for hot-plug.
    migratable: aliases of hostdevs that are an mtty or one of gpu.py's VFs, for a guest that will
        be saved or migrated: QEMU refuses that otherwise. libvirt's own aliases are hostdev0
        and up.
    """
    domain = ET.Element("domain", type="qemu")
    ET.SubElement(domain, "name").text = name
    ET.SubElement(domain, "uuid").text = uuid
    if profiles:
        domain.append(_metadata(profiles))
    ET.SubElement(domain, "memory", unit="MiB").text = str(memory_mib)
    ET.SubElement(domain, "vcpu").text = "1"
    system = ET.SubElement(domain, "os")
    ET.SubElement(system, "type", arch="x86_64", machine="q35").text = "hvm"
    ET.SubElement(system, "boot", dev="hd")
    ET.SubElement(ET.SubElement(domain, "features"), "acpi")
    domain.append(_devices(disk, extra_hostdevs))
    for index in range(spare_ports + 1 if spare_ports else 0):
        model = "pcie-root-port" if index else "pcie-root"
        where = {"type": "pci", "index": str(index), "model": model}
        ET.SubElement(domain.findall("devices")[0], "controller", where)
    if migratable:
        domain.append(_override(migratable))
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def _metadata(profiles: Sequence[Mapping[str, str]]) -> ET.Element:
    metadata = ET.Element("metadata")
    # The declaration stands where a person would write it; ElementTree would move it to <domain>.
    request = ET.SubElement(metadata, "vgpu:vgpus", {"xmlns:vgpu": REQUEST_NAMESPACE})
    for attributes in profiles:
        ET.SubElement(request, "vgpu:vgpu", dict(attributes))
    return metadata


def _devices(disk: str, hostdevs: Sequence[ET.Element]) -> ET.Element:
    devices = ET.Element("devices")
    drive = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(drive, "driver", name="qemu", type="raw", cache="unsafe")
    ET.SubElement(drive, "source", file=disk)
    ET.SubElement(drive, "target", dev="vda", bus="virtio")
    ET.SubElement(drive, "readonly")
    ET.SubElement(devices, "controller", type="usb", model="none")
    ET.SubElement(devices, "memballoon", model="none")
    devices.extend(hostdevs)
    return devices


def _override(aliases: Sequence[str]) -> ET.Element:
    properties = {
        "enable-migration": "on",
        # Without a log of its dirty pages, a VF's guest would be copied again and again.
        "x-pre-copy-dirty-page-tracking": "off",
    }
    override = ET.Element("qemu:override", {"xmlns:qemu": QEMU_NAMESPACE})
    for alias in aliases:
        device = ET.SubElement(override, "qemu:device", alias=alias)
        frontend = ET.SubElement(device, "qemu:frontend")
        for name, value in properties.items():
            ET.SubElement(frontend, "qemu:property", name=name, type="string", value=value)
    return override
