"""What is done to a domain's XML: to its elements, and then to its bytes.

Each function takes hypothesis' `draw` and the XML, and returns other XML, well-formed or not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from lxml import etree

from tests.fuzz.domains import TEXT, Subject, domains

Mutation = Callable[[st.DrawFn, bytes], bytes]
ODD_BYTES = (
    b"\x00",
    b"\xff\xfe",
    b"\xc3\x28",
    b"&#0;",
    b"&#xD800;",
    b"&unknown;",
    b"]]>",
    b"<![CDATA[",
    b"<!--",
    b"-->",
    b"<?xml version='1.0'?>",
    b"<x",
    b"</domain>",
    b'"',
    b" xmlns='urn:x'",
    b" xmlns:vgpu='urn:other'",
    b"<vgpu:vgpu/>",
    b"<domain/>",
    b"<domainsnapshot>",
)
PROLOGS = (
    b"<!DOCTYPE domain>",
    b"<!DOCTYPE domain [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
    b"<!DOCTYPE domain SYSTEM 'http://127.0.0.1:9/x.dtd'>",
    b"<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;'>"
    b"<!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;'><!ENTITY x '&c;&c;&c;&c;&c;&c;&c;&c;'>]>",
    b"<?xml version='1.0' encoding='utf-16'?>",
    b"<?xml version='1.0' encoding='ISO-8859-1'?>",
    b"<?xml version='1.0' encoding='no-such'?>",
    b"<?xml version='1.1'?>",
    b"\xef\xbb\xbf",
    b" \n",
    b"<!-- before --><?somebody's?>",
)


def bit_flip(draw: st.DrawFn, xml: bytes) -> bytes:
    changed = bytearray(xml)
    for _ in range(draw(st.integers(1, 3))):
        changed[draw(st.integers(0, len(xml) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def truncation(draw: st.DrawFn, xml: bytes) -> bytes:
    return xml[: draw(st.integers(0, len(xml) - 1))]


def slice_moved(draw: st.DrawFn, xml: bytes) -> bytes:
    """Bytes that are taken out, or repeated, somewhere else or on the spot."""
    first, last, place = sorted(draw(st.integers(0, len(xml))) for _ in range(3))
    if draw(st.booleans()):
        return xml[:first] + xml[last:]
    return xml[:place] + xml[first:last] + xml[place:]


def odd_bytes(draw: st.DrawFn, xml: bytes) -> bytes:
    place = draw(st.integers(0, len(xml)))
    return xml[:place] + draw(st.sampled_from(ODD_BYTES)) + xml[place:]


def prolog(draw: st.DrawFn, xml: bytes) -> bytes:
    """A DTD, an encoding that is not the one, and what else may stand first; an entity used."""
    if draw(st.booleans()):
        xml = xml.replace(b"</name>", b"&x;</name>").replace(b'profile="', b'profile="&x;')
    return draw(st.sampled_from(PROLOGS)) + xml


def other_encoding(draw: st.DrawFn, xml: bytes) -> bytes:
    name = draw(st.sampled_from(["utf-16", "utf-32", "latin-1", "utf-7", "cp037"]))
    return xml.decode("utf-8", "replace").encode(name, "replace")


def huge_value(draw: st.DrawFn, xml: bytes) -> bytes:
    """One attribute, or text, of up to 1 MiB; rarely more than libxml2 takes."""
    sizes = [1000, 70_000, 1 << 20] * 3 + [10_000_100]
    size = draw(st.sampled_from(sizes))
    filler = draw(st.sampled_from([b"A", b"0-9,", b"0-8191,", b"&#65;", "☃".encode(), b" "]))
    places = [match.end() for match in re.finditer(rb"""=["']|>""", xml)]
    place = draw(st.sampled_from(places or [0]))
    return xml[:place] + filler * (size // len(filler)) + xml[place:]


def nested(draw: st.DrawFn, xml: bytes) -> bytes:
    depth = draw(st.sampled_from([3, 200, 300, 20_000]))
    tag = draw(st.sampled_from([b"x", b"devices", b"metadata", b"hostdev", b"vgpu:vgpus"]))
    place = draw(st.sampled_from([m.end() for m in re.finditer(rb">", xml)] or [0]))
    closing = b"</%s>" % tag if draw(st.integers(0, 3)) else b""
    return xml[:place] + b"<%s>" % tag * depth + closing * depth + xml[place:]


def many(draw: st.DrawFn, xml: bytes) -> bytes:
    """One element's text repeated: more vGPUs, hostdevs or names than anybody asks for."""
    pattern = draw(
        st.sampled_from([rb"<vgpu:vgpu .*?/>", rb"<hostdev.*?</hostdev>", rb"<uuid.*?>"])
    )
    match = re.search(pattern, xml, re.DOTALL)
    if match is None:
        return xml
    copies = [
        re.sub(rb"""name=(["'])(ua-vgpu-)?[^"']*""", rb"name=\g<1>\g<2>n%d" % number, match[0])
        for number in range(draw(st.sampled_from([2, 64, 65, 3000])))
    ]
    return xml[: match.start()] + b"".join(copies) + xml[match.end() :]


def element(draw: st.DrawFn, xml: bytes) -> bytes:
    """One element copied, moved, taken out, renamed, or with other attributes or text."""
    try:
        root = etree.fromstring(xml)
    except etree.XMLSyntaxError:
        return xml
    elements = [node for node in root.iter() if isinstance(node.tag, str)]
    chosen, other = draw(st.sampled_from(elements)), draw(st.sampled_from(elements))
    change = draw(st.sampled_from(CHANGES))
    try:
        change(draw, chosen, other)
    except ValueError:  # characters, or a move, that lxml refuses to make
        return xml
    data: bytes = etree.tostring(root)
    return data


def _copy(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    other.append(copy.deepcopy(chosen))


def _take_out(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    if chosen.getparent() is not None:
        chosen.getparent().remove(chosen)


def _rename(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    tags = [other.tag, "x", "{urn:vgpu-hook:domain:1}vgpu", "{urn:vgpu-hook:domain:2}vgpus"]
    chosen.tag = draw(st.sampled_from(tags))


def _set(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    names = ["x", "colour", "{urn:vgpu-hook:domain:1}name", *chosen.attrib, *other.attrib]
    chosen.set(draw(st.sampled_from(names)), draw(TEXT))


def _write(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    chosen.text = draw(TEXT)


def _comment(draw: st.DrawFn, chosen: Any, other: Any) -> None:
    odd = [etree.Comment("c"), etree.ProcessingInstruction("p", "i"), etree.Element("y")]
    chosen.insert(0, draw(st.sampled_from(odd)))


CHANGES = (_copy, _take_out, _rename, _set, _write, _comment)
OF_BYTES: tuple[Mutation, ...] = (
    bit_flip,
    truncation,
    slice_moved,
    odd_bytes,
    prolog,
    other_encoding,
    huge_value,
    nested,
    many,
)


@st.composite
def inputs(draw: st.DrawFn, subject: Subject) -> tuple[str, bytes]:
    """The name that the hook is called with, and its stdin."""
    name, xml = draw(domains(subject))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        xml = element(draw, xml)
    if draw(st.integers(0, 2)) == 0 and xml:
        xml = draw(st.sampled_from(OF_BYTES))(draw, xml)
    return name, xml
