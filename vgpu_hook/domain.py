"""Domain XML: reads the request and the hostdevs; attaches and strips hostdevs.

Pure: text in, text out; knows neither libvirt nor the host. Everything outside our own
elements stays canonically the same (C14N). The XML may come from a tenant: no DTD, no
entities, no network, and every value of the request is checked before it is used.
Formats: libvirt's docs/formatdomain.rst; design, section 3; facts C1 and C5.
"""

from __future__ import annotations

import uuid
from typing import Any

from lxml import etree

from vgpu_hook import hostdevs
from vgpu_hook.model import (
    NAMESPACE,
    Domain,
    DomainXmlError,
    Hostdev,
    VgpuRequest,
    one_line,
    owner_mark,
    shell_word,
)
from vgpu_hook.ranges import numbers
from vgpu_hook.request import KNOWN, MAX_VGPUS, check_request, not_allowed

REQUEST = f"{{{NAMESPACE}}}vgpus"
VGPU = f"{{{NAMESPACE}}}vgpu"
OWNER = "owner"
"""Attribute of <vgpu> that we write: the mark of the domain that its VF was chosen for."""
MOST_XML = 16 << 20
"""Bytes. libvirt's own protocol carries 4 MiB (VIR_NET_MESSAGE_STRING_MAX)."""
LONGEST_NAME = 255
"""Bytes. libvirt names files after domains."""
REFUSED = "refused"
"""Attribute of <vgpus> in what a restore goes on with: why the start that follows is refused."""


def parse(text: bytes) -> Domain:
    """Return what a domain's XML says that matters here. Raises DomainXmlError."""
    root = _root(text)
    subject = _identity(root)
    found = tuple(hostdevs.read(element) for element in root.iterfind("devices/hostdev"))
    nodes, cpus = _pinning(root)
    container = _container(root)
    return subject._replace(
        request=_request(root, subject.name),
        hostdevs=found,
        nodes=nodes,
        cpus=cpus,
        marks=_marks(root, subject.name),
        refused=container.get(REFUSED, "") if container is not None else "",
    )


def identity(text: bytes) -> Domain:
    """Return whose XML it is and nothing else, whatever it asks for. Raises DomainXmlError."""
    return _identity(_root(text))


def is_attached(text: bytes, request: VgpuRequest, hostdev: Hostdev) -> bool:
    """Tell whether the XML has exactly this request, and this hostdev for it."""
    subject = parse(text)
    if request not in subject.request or subject.hostdev(request.slot) != hostdev:
        return False
    if hostdev.type == "pci":
        return subject.marks.get(request.slot) == owner_mark(subject.uuid)
    (element,) = hostdevs.of_slot(_root(text), request.slot)[:1]
    return all(
        element.get(attribute) == wanted
        for attribute in ("display", "ramfb")
        if (wanted := getattr(request, attribute)) is not None
    )


def hostdev_xml(request: VgpuRequest, hostdev: Hostdev) -> bytes:
    """Return the <hostdev> alone, for hot-plug."""
    data: bytes = etree.tostring(hostdevs.make(request, hostdev), encoding="UTF-8")
    return data


def request_xml(text: bytes) -> str | None:
    """Return the request as virDomainSetMetadata takes it, without its namespace; None if none."""
    container = _container(_root(text))
    if container is None:
        return None
    plain = etree.Element("vgpus", dict(container.attrib))
    for element in container.iterfind(VGPU):
        etree.SubElement(plain, "vgpu", dict(element.attrib))
    return str(etree.tostring(plain, encoding="unicode"))


def volumes(text: bytes) -> list[tuple[str, str]]:
    """Return (pool, volume) or ("", path) of each disk that is the domain's own to write."""
    found = []
    for disk in _root(text).iterfind("devices/disk"):
        source = disk.find("source")
        shared = disk.find("readonly") is not None or disk.find("shareable") is not None
        if source is None or shared or disk.get("device", "disk") != "disk":
            continue
        if source.get("pool") is not None:
            found.append((source.get("pool"), source.get("volume", "")))
        elif path := source.get("file") or source.get("dev"):
            found.append(("", path))
    return found


def ensure_uuid(text: bytes) -> bytes:
    """Return the XML with a random <uuid> if it has none (libvirt would add one too late)."""
    root = _root(text)
    if root.find("uuid") is None:
        element = etree.Element("uuid")
        element.text = str(uuid.uuid4())
        name = root.find("name")
        if name is None:
            raise DomainXmlError("the domain has no <name>")
        _insert_after(name, element)
    return _text(root)


def attach(text: bytes, request: VgpuRequest, hostdev: Hostdev) -> bytes:
    """Put the request and its hostdev in the XML, in place of those of the same slot."""
    root = _root(text)
    of_vf = hostdev.type == "pci"
    _set_request(root, request, owner_mark(parse(text).uuid) if of_vf else None)
    devices = root.find("devices")
    if devices is None:
        devices = etree.SubElement(root, "devices")
    old = hostdevs.of_slot(root, request.slot)
    element = hostdevs.make(request, hostdev)
    if old:
        hostdevs.keep_guest_side(old[0], element)
        element.tail = old[0].tail
        devices.replace(old[0], element)
        for other in old[1:]:
            _remove(other)
    else:
        _append(devices, element)
    return _text(root)


def repoint(text: bytes, request: VgpuRequest, hostdev: Hostdev) -> bytes:
    """Point the slot's hostdev to another device, and put the request as it is now.

    For the XML of a saved or migrating VM: nothing that its guest sees may change (facts A6).
    """
    root = _root(text)
    of_vf = hostdev.type == "pci"
    _set_request(root, request, owner_mark(parse(text).uuid) if of_vf else None)
    for element in hostdevs.of_slot(root, request.slot):
        hostdevs.point(element, hostdev)
    return _text(root)


def set_refused(text: bytes, reason: str) -> bytes:
    """Note in the XML why a start with it is refused, or that it is not, if there is no reason."""
    root = _root(text)
    container = _container(root)
    if container is None:
        container = _new_container(root)
    if reason:
        container.set(REFUSED, one_line(reason))
    else:
        container.attrib.pop(REFUSED, None)
    return _text(root)


def detach(text: bytes, slot: str) -> bytes:
    """Take the slot's request and hostdev out of the XML."""
    root = _root(text)
    for element in hostdevs.of_slot(root, slot):
        _remove(element)
    container = _container(root)
    if container is not None:
        slots = _named(container, root.findtext("name") or "")
        if slot in slots:
            _remove(slots[slot])
        if container.find(VGPU) is None:
            metadata = container.getparent()
            _remove(container)
            if len(metadata) == 0:
                _remove(metadata)
    return _text(root)


def _root(text: bytes) -> Any:
    if len(text) > MOST_XML:
        raise DomainXmlError(f"the domain's XML is too large ({len(text)} bytes)")
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_blank_text=False,
        strip_cdata=False,
    )
    try:
        root = etree.fromstring(text, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise DomainXmlError(f"the domain's XML can't be read: {error}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise DomainXmlError("the domain's XML has a DTD, which libvirt never writes")
    if root.tag != "domain":
        raise DomainXmlError(f"a <domain> was expected, not <{root.tag}>")
    return root


def _identity(root: Any) -> Domain:
    name = root.findtext("name") or ""
    if len(name.encode()) > LONGEST_NAME:
        raise DomainXmlError(f"a domain's name can't be {len(name)} characters long")
    try:
        return Domain(str(uuid.UUID(root.findtext("uuid") or "")), name, (), ())
    except ValueError:
        raise DomainXmlError(f"domain {name!r} has no valid <uuid>") from None


def _text(root: Any) -> bytes:
    data: bytes = etree.tostring(root.getroottree(), encoding="UTF-8", xml_declaration=False)
    return data + b"\n"


def _container(root: Any) -> Any:
    return root.find(f"metadata/{REQUEST}")


def _requests(container: Any, domain_name: str) -> list[tuple[str, Any]]:
    """Return (slot, element) of each <vgpu>; the slot defaults to the position."""
    found: dict[str, Any] = {}
    for position, element in enumerate(container.iterfind(VGPU)):
        slot = element.get("name", str(position))
        if slot in found:
            raise DomainXmlError(
                f"domain {domain_name!r} asks twice for a vGPU named {slot!r}",
                f"run: virsh edit {shell_word(domain_name)}",
            )
        found[slot] = element
    return list(found.items())


def _named(container: Any, domain_name: str) -> dict[str, Any]:
    """Return the <vgpu> of each slot, all with their name written out.

    Else an edit would move the positions that the names of others come from.
    """
    slots = dict(_requests(container, domain_name))
    for slot, element in slots.items():
        element.set("name", slot)
    return slots


def _request(root: Any, domain_name: str) -> tuple[VgpuRequest, ...]:
    container = _container(root)
    if container is None:
        return ()
    elements = _requests(container, domain_name)
    if len(elements) > MAX_VGPUS:
        raise DomainXmlError(f"domain {domain_name!r} asks for {len(elements)} vGPUs")
    found = []
    for slot, element in elements:
        for attribute in element.attrib:
            if attribute not in (*KNOWN, OWNER):
                raise not_allowed(domain_name, attribute, element.get(attribute))
        asked = VgpuRequest(
            slot,
            element.get("profile", ""),
            element.get("gpu"),
            element.get("fork", "new"),
            element.get("display"),
            element.get("ramfb"),
            element.get("params"),
            element.get("placement"),
        )
        found.append(check_request(asked, domain_name))
    return tuple(found)


def _marks(root: Any, domain_name: str) -> dict[str, str]:
    container = _container(root)
    elements = _requests(container, domain_name) if container is not None else []
    return {slot: mark for slot, element in elements if (mark := element.get(OWNER)) is not None}


def _set_request(root: Any, request: VgpuRequest, mark: str | None) -> None:
    container = _container(root)
    if container is None:
        container = _new_container(root)
    element = _named(container, root.findtext("name") or "").get(request.slot)
    if element is None:
        element = etree.Element(VGPU, nsmap={"vgpu": NAMESPACE})
        if len(container) == 0:
            container.text, element.tail = "\n      ", "\n    "
            container.append(element)
        else:
            _append(container, element)
    values = {
        "name": request.slot,
        "profile": request.profile,
        "gpu": request.gpu,
        "fork": None if request.fork == "new" else request.fork,
        "display": request.display,
        "ramfb": request.ramfb,
        "params": request.params,
        "placement": request.placement,
        OWNER: mark,
    }
    for attribute, value in values.items():
        if value is not None:
            element.set(attribute, value)
        elif attribute in element.attrib:
            del element.attrib[attribute]


def _new_container(root: Any) -> Any:
    """Return our element in <metadata>, both made where they are missing."""
    container = etree.Element(REQUEST, nsmap={"vgpu": NAMESPACE})
    metadata = root.find("metadata")
    if metadata is None:
        metadata = etree.Element("metadata")
        metadata.text, container.tail = "\n    ", "\n  "
        metadata.append(container)
        after = [root.find(tag) for tag in ("description", "title", "genid", "uuid", "name")]
        before = next((element for element in after if element is not None), None)
        if before is None:
            root.insert(0, metadata)
        else:
            _insert_after(before, metadata)
    else:
        _append(metadata, container)
    return container


def _pinning(root: Any) -> tuple[frozenset[int], frozenset[int]]:
    """Return the NUMA nodes and the CPUs of the host that the domain is bound to, if it is."""
    memory = root.find("numatune/memory")
    nodes = memory.get("nodeset", "") if memory is not None else ""
    pins = [pin.get("cpuset", "") for pin in root.iterfind("cputune/vcpupin")]
    vcpu = root.find("vcpu")
    if not pins and vcpu is not None:
        pins = [vcpu.get("cpuset", "")]
    return numbers(nodes), frozenset().union(*map(numbers, pins))


def _insert_after(place: Any, element: Any) -> None:
    """Insert behind a sibling, with its indentation."""
    parent = place.getparent()
    element.tail = place.tail
    parent.insert(parent.index(place) + 1, element)


def _append(parent: Any, element: Any) -> None:
    """Append with the indentation of what is there already."""
    if len(parent):
        element.tail = parent[-1].tail
        parent[-1].tail = parent.text
    parent.append(element)


def _remove(element: Any) -> None:
    """Remove an element, and the white space before it, but no text that somebody wrote."""
    parent = element.getparent()
    previous = element.getprevious()
    tail = element.tail or ""
    if tail.strip():
        before = (previous.tail if previous is not None else parent.text) or ""
        tail = before + tail
    if previous is not None:
        previous.tail = tail
    else:
        parent.text = tail
    parent.remove(element)
