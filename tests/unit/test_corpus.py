"""The XML editor on every domain XML of libvirt's own tests: what is not ours stays as it is.

Read from ../shared/corpus (LGPL, so nothing of it is copied here), which the README there
describes. libvirt's RELAX NG schema is the one that this machine's libvirt has, which may be older
than the corpus: it has to accept afterwards what it accepted before, and no more.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from tests.domains import device_of
from tests.testbed.plugin import Show
from vgpu_hook import arrival, definitions, domain
from vgpu_hook.definitions import Plan
from vgpu_hook.model import ALIAS_PREFIX, Domain, DomainXmlError, Hostdev, VgpuRequest

SHARED = Path(__file__).resolve().parents[3] / "shared"
CORPUS = SHARED / "corpus" / "libvirt-11.3-domains.tar.xz"
SCHEMA = "/usr/share/libvirt/schemas/domain.rng"

REQUESTS = (
    VgpuRequest("mdev", "mtty-1", gpu="0000:3b:00.0", display="on", ramfb="on", placement="pack"),
    VgpuRequest("vf", 'L40S-6Q <&"', fork="refuse", params="a=1, b=2"),
)
HOLDERS = ("metadata", "devices")
"""What ours stand in, made where missing. An empty <devices/> stays: libvirt has it anyway."""


class Here:
    """A host that has an mdev and a VF for the two requests."""

    vf = "0000:41:00.4"
    suffix = ""

    def __call__(self, subject: Domain, request: VgpuRequest) -> Plan:
        return Plan(self.hostdev(subject, request.slot), False)

    def hostdev(self, subject: Domain, slot: str, framework: str = "") -> Hostdev:
        """Return what the slot gets, by its name if no framework is given."""
        if (framework or slot) == "vf":
            return Hostdev("pci", self.vf, slot, None, "no")
        return Hostdev("mdev", device_of(subject.uuid, slot + self.suffix), slot, "vfio-pci")

    def owns(self, subject: Domain, hostdev: Hostdev) -> bool:
        return True

    def current(self, subject: Domain, slot: str) -> str | None:
        return None

    def same_type(self, one: VgpuRequest, other: VgpuRequest) -> bool:
        return one == other

    def require_offer(self, request: VgpuRequest) -> None:
        """Everything is offered."""


class There(Here):
    """Another host, which has other devices."""

    vf = "0001:c1:1f.7"
    suffix = "-there"


def corpus() -> Iterator[tuple[str, bytes]]:
    with tarfile.open(CORPUS) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield Path(member.name).name, file.read()


def canonical(text: bytes) -> bytes:
    """Return the XML in C14N, without the white space between elements."""
    root = etree.fromstring(text)
    for node in root.iter():
        if node is not root and not (node.tail or "").strip():
            node.tail = None
        holds = len(node) > 0 or node.tag in HOLDERS
        if holds and not (node.text or "").strip():
            node.text = None
    data: bytes = etree.tostring(root.getroottree(), method="c14n")
    return data


def without_ours(text: bytes, original: bytes) -> bytes:
    """Return the XML without our elements."""
    root = etree.fromstring(text)
    ours = root.findall(f"metadata/{domain.REQUEST}")
    for alias in root.iterfind("devices/hostdev/alias"):
        if alias.get("name", "").startswith(ALIAS_PREFIX):
            ours.append(alias.getparent())
    assert len(ours) == 1 + len(REQUESTS)
    for element in ours:
        take_out(element)
    data: bytes = etree.tostring(root.getroottree())
    return without_made(data, original)


def without_made(text: bytes, original: bytes) -> bytes:
    """Return the XML without empty holders of ours that the original had not."""
    root, before = etree.fromstring(text), etree.fromstring(original)
    for tag in HOLDERS:
        made = root.find(tag) if before.find(tag) is None else None
        if made is not None:
            assert len(made) == 0, f"<{tag}> was made, and holds more than ours"
            take_out(made)
    data: bytes = etree.tostring(root.getroottree())
    return data


def take_out(element: Any) -> None:
    """Remove an element, and not the text behind it."""
    parent, previous, tail = element.getparent(), element.getprevious(), element.tail or ""
    if previous is not None:
        previous.tail = (previous.tail or "") + tail
    else:
        parent.text = (parent.text or "") + tail
    parent.remove(element)


class Editor:
    """Tries one file after the other, and counts."""

    def __init__(self) -> None:
        self._schema = etree.RelaxNG(etree.parse(SCHEMA))
        self.tried = self.accepted = self.refused = 0

    def try_one(self, original: bytes) -> None:
        """Attach, re-point and strip. Raises AssertionError for what must not be."""
        self.tried += 1
        try:
            given = domain.ensure_uuid(original)
            subject = domain.parse(given)
        except DomainXmlError:
            self.refused += 1
            return
        accepted = self._accepts(original)
        self.accepted += accepted
        if b"<uuid>" in original:
            assert canonical(given) == canonical(original), "ensure_uuid changed it"
        domain.volumes(given)
        steps = {"attach": self._attach(given, subject)}
        steps["re-point"] = self._repoint(steps["attach"])
        expected = canonical(given)
        for step, text in steps.items():
            assert canonical(without_ours(text, given)) == expected, step
            assert not accepted or self._accepts(text), f"{step}: {self._schema.error_log}"
        # Not for the schema: before libvirt 10.3 a PCI hostdev has no `display` (facts C3).
        swapped = self._swap(text, subject)
        assert canonical(without_ours(swapped, given)) == expected, "re-point across frameworks"
        stripped = self._strip(swapped)
        assert canonical(without_made(stripped, given)) == expected, "strip"
        assert not accepted or self._accepts(stripped), f"strip: {self._schema.error_log}"

    def _accepts(self, text: bytes) -> bool:
        return bool(self._schema.validate(etree.fromstring(text)))

    def _attach(self, given: bytes, subject: Domain) -> bytes:
        plan, text = Here(), given
        for request in REQUESTS:
            text = domain.attach(text, request, plan.hostdev(subject, request.slot))
        settled = definitions.settle(text, plan)
        assert settled == (text, subject.name, REQUESTS, ()), "attach leaves more to settle"
        return text

    def _repoint(self, attached: bytes) -> bytes:
        plan, subject = There(), domain.parse(attached)
        moved = arrival.rewrite(attached, subject, plan).text
        found = domain.parse(moved)
        for request in REQUESTS:
            assert found.hostdev(request.slot) == plan(subject, request).hostdev
        assert found.request == REQUESTS
        assert arrival.rewrite(moved, found, plan).text is moved, "re-pointed twice"
        return moved

    def _swap(self, text: bytes, subject: Domain) -> bytes:
        there = There()
        for request, framework in zip(REQUESTS, ("vf", "mdev"), strict=True):
            hostdev = there.hostdev(subject, request.slot, framework)
            text = domain.repoint(text, request, hostdev)
        found = domain.parse(text)
        assert found.hostdevs[: len(subject.hostdevs)] == subject.hostdevs
        assert [hostdev.type for hostdev in found.hostdevs[-2:]] == ["pci", "mdev"]
        return text

    def _strip(self, text: bytes) -> bytes:
        settled = definitions.settle(text, There(), keep=())
        for request in REQUESTS:
            text = domain.detach(text, request.slot)
        assert settled.text == text, "settle makes something else than detach"
        return text


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED}, with the corpus, is not there")
def test_what_is_not_ours_stays_in_every_domain_of_libvirts_own_tests(show: Show) -> None:
    editor, failed = Editor(), {}
    for name, text in corpus():
        try:
            editor.try_one(text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this file's
            failed[name] = f"{type(error).__name__}: {error}"
    show(
        f"corpus: {editor.tried} domain XMLs tried, {editor.accepted} accepted by libvirt's schema"
        f" before, {len(failed)} failed ({editor.refused} refused, as no domain, by the editor)"
    )
    assert failed == {}
    assert editor.tried > 1000
    assert editor.accepted > editor.tried / 2
