"""Domain XML: what is outside our elements stays canonically the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from vgpu_hook import domain
from vgpu_hook.model import DomainXmlError, Hostdev, VgpuRequest

OWN = uuid_of("a")
ELABORATE = f"""<?xml version='1.0' encoding='UTF-8'?>
<!-- before -->
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>a &amp; b</name>
  <uuid>{OWN}</uuid>
  <title>t</title>
  <description><![CDATA[x < y]]> "quoted"</description>
  <metadata>
    <!-- somebody's -->
    <other:thing xmlns:other='http://example.com/x' other:a="1"><other:b/></other:thing>
  </metadata>
  <devices>
    <!-- a disk --><disk type='file'/> stray text
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
      <source><address uuid='{uuid_of("foreign")}'/></source>
    </hostdev>
  </devices>
  <qemu:commandline><qemu:arg value='-foo'/></qemu:commandline>
</domain>
<!-- after -->
""".encode()

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
PROFILES = st.text(
    st.characters(
        min_codepoint=32, blacklist_characters="/\x7f", blacklist_categories=("Cs", "Cc")
    ),
    min_size=1,
    max_size=40,
)


def c14n(text: bytes) -> bytes:
    """Canonical XML, comments included, without white space that is only layout."""
    tree = etree.fromstring(text, etree.XMLParser(remove_blank_text=True)).getroottree()
    data: bytes = etree.tostring(tree, method="c14n")
    return data


def vgpu(slot: str, profile: str = "mtty-1") -> tuple[VgpuRequest, Hostdev]:
    return VgpuRequest(slot, profile), Hostdev("mdev", device_of(OWN, slot), slot)


@pytest.mark.parametrize("text", [ELABORATE, domain_xml("a"), domain_xml("a", {"x": "p"})])
@given(slots=st.dictionaries(NAMES, PROFILES, min_size=1, max_size=4))
def test_detach_undoes_attach(text: bytes, slots: dict[str, str]) -> None:
    slots.pop("x", None)
    changed = text
    for slot, profile in slots.items():
        changed = domain.attach(changed, *vgpu(slot, profile))
    asked = {r.slot: r.profile for r in domain.parse(changed).request}
    assert {slot: asked[slot] for slot in slots} == slots
    for slot in slots:
        changed = domain.detach(changed, slot)
    assert c14n(changed) == c14n(text)


def test_attach_changes_nothing_else() -> None:
    changed = domain.attach(ELABORATE, *vgpu("0"))
    root = etree.fromstring(changed)
    for element in root.iter(domain.REQUEST):
        element.getparent().remove(element)
    for element in list(root.find("devices")):
        if element.find("alias") is not None:
            root.find("devices").remove(element)
    expected = etree.fromstring(ELABORATE)
    texts = [" ".join(x.itertext()).split() for x in (root, expected)]
    assert texts[0] == texts[1]
    assert [e.tag for e in root.iter()] == [e.tag for e in expected.iter()]


def test_attaching_again_replaces_and_keeps_what_the_guest_sees() -> None:
    once = domain.attach(domain_xml("a"), *vgpu("0", "mtty-1"))
    addressed = once.replace(b"<alias", b"<address type='pci' bus='0x05'/><boot order='2'/><alias")
    twice = domain.attach(addressed, *vgpu("0", "mtty-2"))
    assert twice.count(b"<hostdev") == 1
    assert b'bus="0x05"' in twice
    assert b'order="2"' in twice
    assert [r.profile for r in domain.parse(twice).request] == ["mtty-2"]


def test_what_the_user_set_on_our_hostdev_stays() -> None:
    text = domain.attach(domain_xml("a"), *vgpu("0", "mtty-1"))
    theirs = text.replace(b'type="mdev"', b'type="mdev" display="on" ramfb="on"')
    again = domain.attach(theirs, *vgpu("0", "mtty-2"))
    assert b'display="on"' in again
    assert b'ramfb="on"' in again


def test_volumes_are_the_domains_own_disks() -> None:
    disks = (
        b"<disk device='disk'><source file='/p/a&#10;/p/b'/></disk>"
        b"<disk device='disk'><source pool='p' volume='v'/></disk>"
        b"<disk device='disk'><source dev='/p/lv'/></disk>"
        b"<disk device='disk'><source file='/p/shared'/><shareable/></disk>"
        b"<disk device='disk'><source file='/p/base'/><readonly/></disk>"
        b"<disk device='cdrom'><source file='/p/iso'/></disk></devices>"
    )
    found = domain.volumes(domain_xml("a").replace(b"</devices>", disks))
    assert found == [("", "/p/a\n/p/b"), ("p", "v"), ("", "/p/lv")]


def test_slots_default_to_their_position_and_keep_it_when_one_is_taken_out() -> None:
    text = domain_xml("a", {"x": "p0", "y": "p1", "z": "p2"})
    for name in (b"x", b"y", b"z"):
        text = text.replace(b'name="' + name + b'"', b"")
    assert [r.slot for r in domain.parse(text).request] == ["0", "1", "2"]
    assert [r.slot for r in domain.parse(domain.detach(text, "0")).request] == ["1", "2"]


def test_an_upper_case_or_bare_uuid_is_the_same_device() -> None:
    device = device_of(OWN)
    for spelling in (device.upper(), device.replace("-", "")):
        parsed = domain.parse(domain_xml("a", {"0": "p"}, hostdevs=[hostdev(spelling)]))
        assert parsed.hostdevs[0].address == device


def test_pci_hostdevs_are_read_with_their_domain() -> None:
    text = domain_xml("a").replace(
        b"</devices>",
        b"<hostdev mode='subsystem' type='pci'><source><address domain='0x0001' bus='0x41'"
        b" slot='0x00' function='0x5'/></source></hostdev></devices>",
    )
    assert domain.parse(text).hostdevs == (Hostdev("pci", "0001:41:00.5", None, None, "no"),)


def test_two_requests_of_one_name_are_an_error() -> None:
    text = domain_xml("a", {"x": "p", "y": "p"}).replace(b'"y"', b'"x"')
    with pytest.raises(DomainXmlError, match="asks twice for a vGPU named 'x'"):
        domain.parse(text)


def test_a_uuid_is_added_only_if_there_is_none() -> None:
    text = domain_xml("a")
    assert c14n(domain.ensure_uuid(text)) == c14n(text)
    without = text.replace(f"<uuid>{OWN}</uuid>".encode(), b"")
    assert domain.parse(domain.ensure_uuid(without)).uuid != OWN
