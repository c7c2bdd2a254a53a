"""Domain XML as libvirt keeps it: what it adds, drops and refuses, where the product looks.

Text in, text out. Only names, UUIDs, metadata and hostdevs are libvirt's; what it adds elsewhere
(controllers, a CPU) is left out, as nothing of ours looks there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import libvirt
from lxml import etree

from .errors import SimError

OWN_ALIAS = "ua-"
"""libvirt keeps the aliases that users give, and makes all others anew at each start."""
PARTS = (("domain", 4), ("bus", 2), ("slot", 2), ("function", 1))
_PARSER = etree.XMLParser(resolve_entities=False, no_network=True)


class Definition(NamedTuple):
    """A definition that libvirt accepts."""

    uuid: str
    name: str
    xml: str


def accept(xml: str) -> Definition:
    """Return a definition as libvirt keeps it. Raises SimError with what it refuses it for."""
    root = _parse(xml)
    name = root.findtext("name")
    if not name:
        raise SimError(libvirt.VIR_ERR_NO_NAME, "missing name information")
    own = root.find("uuid")
    if own is None:
        own = etree.Element("uuid")
        root.insert(1, own)
        own.text = str(uuid.uuid4())
    own.text = _uuid(own.text)
    root.attrib.pop("id", None)
    _sanitise_metadata(root)
    _drop_aliases(root)
    _require_unique_aliases(root)
    _settle_hostdevs(root)
    return Definition(own.text, name, _text(root))


def running(xml: str, number: int, *, aliases: bool = True) -> str:
    """Return the XML of a running domain: it has an id, and all devices have aliases.

    The latter only when the hook has let it pass (facts A1).
    """
    root = _parse(xml)
    root.set("id", str(number))
    for index, hostdev in enumerate(_hostdevs(root)):
        if aliases and hostdev.find("alias") is None:
            _insert_alias(hostdev, f"hostdev{index}")
    return _text(root)


def at_rest(xml: str, *, aliases: bool = False) -> str:
    """Return a running domain's XML without what it has only while it runs."""
    root = _parse(xml)
    root.attrib.pop("id", None)
    if not aliases:
        _drop_aliases(root)
    return _text(root)


def renamed(xml: str, name: str) -> str:
    """Return the definition under another name."""
    root = _parse(xml)
    root.find("name").text = name
    return _text(root)


def with_metadata(xml: str, metadata: str | None, key: str, uri: str) -> str:
    """Return the XML with the element of a namespace replaced; None takes it away (facts C5)."""
    root = _parse(xml)
    parent = root.find("metadata")
    if parent is None:
        parent = etree.Element("metadata")
        root.insert(_after_uuid(root), parent)
    for old in parent.findall(f"{{{uri}}}*"):
        parent.remove(old)
    if metadata is not None:
        parent.append(_in_namespace(_parse(metadata), key, uri))
    return _text(root)


def with_hostdev(xml: str, hostdev: str) -> str:
    """Return a running domain's XML with one hostdev more."""
    root = _parse(xml)
    added = _parse(hostdev)
    alias = added.find("alias")
    if alias is not None and alias.get("name") in set(_aliases(root)):
        text = f"unsupported configuration: non unique alias detected: {alias.get('name')}"
        raise SimError(libvirt.VIR_ERR_CONFIG_UNSUPPORTED, text)
    if alias is None:
        _insert_alias(added, f"hostdev{len(_hostdevs(root))}")
    root.find("devices").append(added)
    _settle_hostdevs(root)
    return _text(root)


def without_device(xml: str, alias: str) -> str | None:
    """Return the XML without the hostdev of an alias; None if there is none."""
    root = _parse(xml)
    for hostdev in _hostdevs(root):
        found = hostdev.find("alias")
        if found is not None and found.get("name") == alias:
            hostdev.getparent().remove(hostdev)
            return _text(root)
    return None


def last_alias(xml: str) -> str:
    """Return the alias of the hostdev that was added last."""
    return str(_hostdevs(_parse(xml))[-1].find("alias").get("name"))


def _parse(xml: str) -> Any:
    try:
        return etree.fromstring(xml.encode(), _PARSER)
    except etree.XMLSyntaxError as error:
        raise SimError(libvirt.VIR_ERR_XML_DETAIL, f"(domain_definition): {error}") from None


def _uuid(text: str | None) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        message = "internal error: malformed uuid element"
        raise SimError(libvirt.VIR_ERR_INTERNAL_ERROR, message) from None


def _text(root: Any) -> str:
    return str(etree.tostring(root, encoding="unicode"))


def _hostdevs(root: Any) -> list[Any]:
    return list(root.iterfind("devices/hostdev"))


def _after_uuid(root: Any) -> int:
    own = root.find("uuid")
    return 0 if own is None else root.index(own) + 1


def _sanitise_metadata(root: Any) -> None:
    """One element for each namespace, the first; none without (virXMLNodeSanitizeNamespaces)."""
    seen = set()
    for child in root.iterfind("metadata/*"):
        namespace = None if callable(child.tag) else etree.QName(child).namespace
        if namespace is None or namespace in seen:
            child.getparent().remove(child)
        seen.add(namespace)


def _in_namespace(element: Any, key: str, uri: str) -> Any:
    """libvirt gives the namespace to what it is handed without one (virXMLInjectNamespace)."""
    made = etree.Element(f"{{{uri}}}{element.tag}", dict(element.attrib), {key: uri})
    made.text = element.text
    for child in element:
        made.append(_in_namespace(child, key, uri))
    return made


def _aliases(root: Any) -> Iterator[str]:
    return (alias.get("name") for alias in root.iterfind("devices/*/alias"))


def _drop_aliases(root: Any) -> None:
    for alias in list(root.iterfind("devices/*/alias")):
        if not alias.get("name", "").startswith(OWN_ALIAS):
            alias.getparent().remove(alias)


def _insert_alias(hostdev: Any, name: str) -> None:
    alias = etree.Element("alias", {"name": name})
    hostdev.insert(1 + hostdev.index(hostdev.find("source")), alias)


def _require_unique_aliases(root: Any) -> None:
    seen = set()
    for alias in _aliases(root):
        if alias in seen:
            text = f"unsupported configuration: non unique alias detected: {alias}"
            raise SimError(libvirt.VIR_ERR_CONFIG_UNSUPPORTED, text)
        seen.add(alias)


def _settle_hostdevs(root: Any) -> None:
    """Write sources and defaults as libvirt does, and give each its place on the guest's bus."""
    sources = set()
    hostdevs = _hostdevs(root)
    taken = {address.get("bus") for h in hostdevs for address in h.findall("address")}
    for hostdev in hostdevs:
        source = hostdev.find("source/address")
        if hostdev.get("managed") is None:
            hostdev.set("managed", "no")
        if hostdev.get("type") == "mdev":
            source.set("uuid", _uuid(source.get("uuid")))
            if hostdev.get("model") == "vfio-pci" and hostdev.get("display") is None:
                hostdev.set("display", "off")
        elif hostdev.get("type") == "pci":
            for part, digits in PARTS:
                source.set(part, f"0x{int(source.get(part, '0'), 0):0{digits}x}")
        identity = (hostdev.get("type"), *sorted(source.attrib.items()))
        if identity in sources:
            text = "XML error: Hostdev already exists in the domain configuration"
            raise SimError(libvirt.VIR_ERR_XML_ERROR, text)
        sources.add(identity)
        if hostdev.find("address") is None:
            bus = next(b for n in range(1, 256) if (b := f"0x{n:02x}") not in taken)
            taken.add(bus)
            place = {"type": "pci", "domain": "0x0000", "bus": bus, "slot": "0x00"}
            etree.SubElement(hostdev, "address", {**place, "function": "0x0"})
