"""VMs that wake up, for tests on simulated hosts: how they arrive, and go on or are refused.

A restore never fails by itself (facts A6): the XML that it goes on with says why, and the start
that follows is refused with just that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from xml.sax.saxutils import quoteattr

import pytest
from lxml import etree

from tests.domains import besides_vgpus, domain_xml, pci_hostdev, uuid_of, vgpus_of
from tests.product import Answer, Product
from vgpu_hook import store_file
from vgpu_hook.model import VgpuRequest
from vgpu_hook.store import Store

ARRIVALS = ["restore", "migrate"]
V4, V5 = "0000:41:00.4", "0000:41:00.5"
AWAY = "0000:c1:00.4"
"""A VF of another host."""
PROFILE = "NVIDIA L40S-2Q"
CONTAINER = "metadata/{urn:vgpu-hook:domain:1}vgpus"
l40s = pytest.mark.simhost("l40s")


@contextmanager
def records(product: Product) -> Iterator[Store]:
    opened = store_file.open_store(str(product.state), "test", wait=60)
    assert opened is not None
    with closing(opened):
        yield opened


def on_record(product: Product, name: str, *requests: VgpuRequest) -> None:
    """Put on record what a domain asks for now, as the listener does at libvirt's events."""
    with records(product) as store:
        store.domains.set_requests(uuid_of(name), name, requests)


def reservations(product: Product) -> list[tuple[str, ...]]:
    return product.query("SELECT * FROM reservation ORDER BY domain_uuid, slot")


def image(name: str, *vfs: str, attributes: str = "") -> bytes:
    """A domain with VFs that were chosen for it, in slots 0, 1, ..."""
    asked = dict.fromkeys(map(str, range(len(vfs))), PROFILE)
    hostdevs = [pci_hostdev(vf, slot) for slot, vf in zip(asked, vfs, strict=True)]
    return domain_xml(name, asked, hostdevs=hostdevs, attributes=attributes, owner=uuid_of(name))


def run(product: Product, name: str, vf: str) -> None:
    assert product.hook(name, "prepare", image(name, vf)) == (0, "", "")


def stop(product: Product, name: str, vf: str) -> None:
    assert product.hook(name, "stopped", image(name, vf)) == (0, "", "")


def goes_on(product: Product, name: str, operation: str, xml: bytes) -> dict[str, tuple[str, str]]:
    """Have the VM arrive, and start with what was printed; return the devices that it got."""
    answer = product.hook(name, operation, xml)
    assert (answer.status, answer.err) == (0, "")
    if answer.out:
        assert besides_vgpus(answer.out) == besides_vgpus(xml)
        assert answer.out.encode() != xml
        xml = answer.out.encode()
    assert product.hook(name, "prepare", xml) == (0, "", "")
    return vgpus_of(xml)


def is_refused(answer: Answer, *told: str) -> None:
    assert (answer.status, answer.out) == (1, "")
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("vgpu-hook: ")
    for text in told:
        assert text in answer.err


def does_not_arrive(
    product: Product, name: str, operation: str, xml: bytes, *told: str, **environment: str
) -> None:
    """Have the VM arrive, and be refused: by the call, or for a restore by the start after it."""
    before = product.sim.writes()
    answer = product.hook_argv([name, operation, "begin", "-"], xml, **environment)
    if operation == "restore":
        assert (answer.status, answer.err) == (0, "")
        going_on = answer.out.encode()
        reason = noted(going_on)
        assert reason
        # Nothing else is changed: neither what the guest sees, nor what it asks for.
        assert besides_note(going_on) == besides_note(xml)
        answer = product.hook_argv([name, "prepare", "begin", "-"], going_on, **environment)
        assert answer.err == f"vgpu-hook: {reason}\n"
    is_refused(answer, *told)
    assert product.sim.writes() == before


def is_left_to_its_start(product: Product, name: str, xml: bytes, *told: str, **env: str) -> None:
    """Have the VM be restored, of which nothing can be said; its start is refused."""
    assert product.hook_argv([name, "restore", "begin", "-"], xml, **env) == (0, "", "")
    is_refused(product.hook_argv([name, "prepare", "begin", "-"], xml, **env), *told)


def noted(xml: bytes) -> str:
    """The reason that a restore has noted in the XML; empty if it has none."""
    container = etree.fromstring(xml).find(CONTAINER)
    return container.get("refused", "") if container is not None else ""


def with_note(xml: bytes, reason: str) -> bytes:
    """The XML of a domain with a request, with a reason noted in it."""
    return xml.replace(b"<vgpu:vgpus", b"<vgpu:vgpus refused=" + quoteattr(reason).encode(), 1)


def besides_note(xml: bytes) -> bytes:
    """Canonical XML without a reason that is noted in it, nor elements that may be made for it.

    White space that is only layout is not in it.
    """
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    container = root.find(CONTAINER)
    if container is not None:
        container.attrib.pop("refused", None)
    for element in (container, root.find("metadata")):
        if element is not None and len(element) == 0 and not element.attrib:
            element.getparent().remove(element)
    data: bytes = etree.tostring(root.getroottree(), method="c14n")
    return data
