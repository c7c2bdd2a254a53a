"""XML that is made to hurt: entities, size, depth, encodings, our elements in odd places.

test_fuzz.py does what nobody thought of; here is what somebody would think of. The address space of
each process is bounded, so that what needs more memory fails.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import HOOK, PATIENCE, Product
from tests.simulated.arrivals import noted
from tests.simulated.hostile import call, check

MEGABYTE = 1 << 20
BESIDE = b"<vcpu>"
A = domain_xml("a", {"0": "mtty-1"})
PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])
SMALL_MEMORY = 300 * MEGABYTE
"""Enough for any XML that libvirt's own protocol could carry."""
DEADLINE = 3.0
GENEROUS = 60.0
"""Seconds by which an answer is there whose deadline is DEADLINE, on the slowest machine."""


def beside(xml: bytes, text: bytes) -> bytes:
    """Put something into the domain, where libvirt has other things."""
    return xml.replace(BESIDE, text + BESIDE)


LAUGHS = b"<!DOCTYPE d [<!ENTITY a0 'ha'>%s]>" % b"".join(
    b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 12)
)
DTDS = {
    "an internal entity": b"<!DOCTYPE d [<!ENTITY x 'mtty-1'>]>",
    "billion laughs": LAUGHS,
    "quadratic blow-up": b"<!DOCTYPE d [<!ENTITY x '%s'>]>" % (b"x" * 60_000),
    "a file": b"<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
    "a parameter entity": b"<!DOCTYPE d [<!ENTITY % p SYSTEM 'file:///etc/passwd'> %p;]>",
    "an external DTD": b"<!DOCTYPE d SYSTEM 'file:///etc/passwd'>",
    "a device that never ends": b"<!DOCTYPE d [<!ENTITY x SYSTEM 'file:///dev/zero'>]>",
}


@pytest.mark.parametrize("dtd", DTDS.values(), ids=DTDS)
def test_a_dtd_is_refused_whatever_it_says(product: Product, dtd: bytes) -> None:
    used = A.replace(b'"mtty-1"', b'"&x;&a11;"').replace(b"<name>a<", b"<name>&x;&a11;&x;<")
    for xml in (dtd + A, dtd + used, dtd + b"<domain>" + b"&x;" * 10_000 + A):
        answer = call(product, "a", "prepare", xml, memory=SMALL_MEMORY)
        assert answer.status == 1
        assert "root:" not in answer.err
    assert "has a DTD" in call(product, "a", "prepare", dtd + A).err
    assert call(product, "a", "stopped", dtd + used, memory=SMALL_MEMORY) == (0, "", "")
    assert product.sim.writes() == []
    plain = dtd + PLAIN.replace(b"<name>plain<", b"<name>&x;&a11;<")
    for operation in ("prepare", "restore"):
        assert call(product, "plain", operation, plain, memory=SMALL_MEMORY) == (0, "", "")


def test_nothing_is_fetched_from_a_network_or_read_from_a_file(
    product: Product, tmp_path: Path
) -> None:
    asked: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as web:
        web.settimeout(PATIENCE)
        port = web.getsockname()[1]

        def accept() -> None:
            connection, peer = web.accept()
            connection.close()
            asked.append(peer)

        waiting = threading.Thread(target=accept)
        waiting.start()
        include = "<x xmlns:i='http://www.w3.org/2001/XInclude'><i:include href='{}'/></x>"
        for where in (f"http://127.0.0.1:{port}/x", f"ftp://127.0.0.1:{port}/x"):
            for head in (
                f"<!DOCTYPE domain SYSTEM '{where}'>",
                f"<!DOCTYPE d [<!ENTITY x SYSTEM '{where}'>]>",
                f"<!DOCTYPE d [<!ENTITY % p SYSTEM '{where}'> %p;]>",
                f"<?xml-stylesheet href='{where}'?>",
            ):
                call(product, "a", "prepare", head.encode() + A.replace(b">a<", b">&x;<"))
            call(product, "a", "prepare", beside(A, include.format(where).encode()))
        assert asked == []
        socket.create_connection(("127.0.0.1", port)).close()  # it would have been seen
        waiting.join(PATIENCE)
        assert len(asked) == 1


LARGE = {
    "an attribute": b"<x y='" + b"x" * (100 * MEGABYTE) + b"'/>",
    "elements": b"<x/>" * (25 * MEGABYTE),
    "NULs": b"\0" * (100 * MEGABYTE),
}


@pytest.mark.parametrize("filling", LARGE)
def test_i3_r14_a_hundred_megabytes(product: Product, filling: str) -> None:
    product.configure(deadline=DEADLINE)
    memory = 1024 * MEGABYTE  # it is several times in the shell's hands
    text = LARGE[filling]
    ours, plain = beside(A, text), beside(PLAIN, text)
    assert call(product, "plain", "prepare", plain, memory=memory) == (0, "", "")
    answer = call(product, "a", "prepare", ours, memory=memory)
    if filling == "NULs":  # which no XML can hold, and which a shell drops
        assert answer == (0, "", "")
        assert call(product, "a", "stopped", A) == (0, "", "")
    else:
        # A slow machine takes that long to get it as far as to where its length is looked at.
        told = ("the domain's XML is too large", "no time was left for reading")
        assert any(words in answer.err for words in told)
        assert product.sim.writes() == []
    assert product.rows() == []


def test_r14_a_hundred_megabytes_that_wake_up_without_a_request(product: Product) -> None:
    plain = beside(PLAIN, LARGE["elements"])
    assert call(product, "plain", "restore", plain, memory=1024 * MEGABYTE) == (0, "", "")


DENSE = {
    "depth": b"<x>" * 100_000 + b"</x>" * 100_000,
    "open elements": b"<x>" * 100_000,
    "attributes": b"<x %s/>" % b" ".join(b"a%d=''" % n for n in range(300_000)),
    "namespaces": b"<x %s/>" % b" ".join(b"xmlns:a%d='u%d'" % (n, n) for n in range(50_000)),
    "hostdevs of ours": b"<devices>%s</devices>" % (hostdev("x", "7").encode() * 5_000),
    "comments": b"<!---->" * 100_000,
}


SLOW = ("attributes",)


@pytest.mark.parametrize("served_by", ["hook", "daemon"])
def test_i3_xml_that_takes_long_to_read(product: Product, served_by: str) -> None:
    """libxml2 2.9 compares each attribute with all others: minutes for a megabyte of them."""
    product.configure(deadline=DEADLINE, extra="[daemon]\nlibvirt = 'test:///default'\n")
    daemon = product.daemon() if served_by == "daemon" else None
    try:
        for what, text in DENSE.items():
            for operation in ("prepare", "stopped", "restore")[: 3 if what in SLOW else 1]:
                begun = time.monotonic()
                call(product, "a", operation, beside(A, text), memory=1024 * MEGABYTE)
                assert time.monotonic() - begun < GENEROUS, (what, operation)
            call(product, "a", "stopped", A)
        plain = beside(PLAIN, DENSE[SLOW[0]])
        assert call(product, "plain", "restore", plain) == (0, "", "")
        # What was given up on keeps nobody else waiting.
        assert call(product, "b", "prepare", domain_xml("b", {"0": "mtty-1"})).status == 0
        assert call(product, "b", "stopped", domain_xml("b", {"0": "mtty-1"})).status == 0
    finally:
        if daemon is not None:
            assert daemon.poll() is None
            daemon.kill()
            daemon.wait()
    assert product.rows() == []
    assert product.sim.devices() == []


def declared(xml: bytes, declared_as: str, encoded_as: str) -> bytes:
    head = f"<?xml version='1.0' encoding='{declared_as}'?>"
    return (head + xml.decode()).encode(encoded_as)


UMLAUT = domain_xml("Ü", {"0": "mtty-1"})
READ = {
    "a byte order mark": b"\xef\xbb\xbf" + UMLAUT,
    "UTF-8, said": declared(UMLAUT, "utf-8", "utf-8"),
    "latin-1, said": declared(UMLAUT, "latin-1", "latin-1"),
}
NOT_READ = {
    "UTF-8 said to be UTF-16": declared(UMLAUT, "utf-16", "utf-8"),
    "latin-1 said to be UTF-8": declared(UMLAUT, "utf-8", "latin-1"),
    "no such encoding": declared(UMLAUT, "no-such", "utf-8"),
    "two heads": b"<?xml version='1.0'?>" * 2 + UMLAUT,
    "bytes of no text": UMLAUT.replace("Ü".encode(), b"\xff\xfe\xed\xa0\x80"),
    "characters that XML has not": UMLAUT.replace("Ü".encode(), b"&#27;[2J&#0;"),
    "a raw escape": UMLAUT.replace("Ü".encode(), b"\x1b[2J"),
    "nothing but our name": b"urn:vgpu-hook:domain:1",
    "cut off": UMLAUT[: len(UMLAUT) // 2] + b"<!-- ua-vgpu-",
}
OTHERS = ("utf-16", "utf-32", "cp037")
"""libvirt writes UTF-8. In these no request is seen, or it is refused: that is up to the shell."""


def test_encodings_that_can_be_read(product: Product) -> None:
    for what, xml in READ.items():
        assert call(product, "Ü", "prepare", xml) == (0, "", ""), what
        assert product.rows("domain_name") == [("Ü",)], what
        assert call(product, "Ü", "stopped", xml) == (0, "", ""), what
    assert product.rows() == []


def test_encodings_and_bytes_that_can_not_be_read(product: Product) -> None:
    for what, xml in NOT_READ.items():
        answer = call(product, "Ü", "prepare", xml)
        assert "XML can't be read" in answer.err, what
        assert call(product, "Ü", "stopped", xml) == (0, "", ""), what
        assert call(product, "Ü", "restore", xml) == (0, "", ""), what
    for encoding in OTHERS:
        call(product, "Ü", "prepare", declared(UMLAUT, encoding, encoding))
    assert product.sim.writes() == []


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_r14_nuls_are_no_news_to_any_shell(product: Product, shell: str) -> None:
    """bash says on stderr that it drops them."""
    assert shutil.which(shell)
    for xml in (PLAIN.replace(b"<vcpu>", b"\0<vcpu>"), b"\0" * 1000, b"urn:vgpu-hook\0:domain:2"):
        done = subprocess.run(
            [shell, str(HOOK), "plain", "prepare", "begin", "-"],
            input=xml,
            env=product.environment,
            capture_output=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


REQUEST = b"<v:vgpus xmlns:v='urn:vgpu-hook:domain:1'><v:vgpu name='0' profile='mtty-2'/></v:vgpus>"
ELSEWHERE = {
    "in devices": b"<devices>%s</devices>" % REQUEST,
    "in the description": b"<description>%s</description>" % REQUEST,
    "at the top": REQUEST,
    "deep in metadata": b"<metadata><x>%s</x></metadata>" % REQUEST,
    "in another's metadata": b"<backup><metadata>%s</metadata></backup>" % REQUEST,
    "in a comment": b"<!-- %s -->" % REQUEST,
    "as text": b"<description><![CDATA[%s]]></description>" % REQUEST,
}


def test_our_element_counts_in_its_place_alone(product: Product) -> None:
    for what, text in ELSEWHERE.items():
        product.sim.reset_writes()
        assert call(product, "plain", "prepare", beside(PLAIN, text)) == (0, "", ""), what
        assert product.sim.writes() == [], what
        assert call(product, "a", "prepare", beside(A, text)) == (0, "", ""), what
        assert product.rows("profile") == [("mtty-1",)], what
        assert call(product, "a", "stopped", A) == (0, "", ""), what


def test_r13_requests_without_number(product: Product) -> None:
    for count in (65, 5_000, 150_000):
        more = b"<vgpu:vgpu profile='mtty-1'/>" * (count - 1)
        xml = A.replace(b"</vgpu:vgpus>", more + b"</vgpu:vgpus>")
        answer = call(product, "a", "prepare", xml, memory=SMALL_MEMORY * 2)
        assert f"domain 'a' asks for {count} vGPUs" in answer.err
        assert call(product, "a", "stopped", xml, memory=SMALL_MEMORY * 2) == (0, "", "")
    answer = call(product, "a", "restore", xml, memory=SMALL_MEMORY * 2)
    check(answer, "restore")
    assert answer.out == "" or "asks for 150000 vGPUs" in noted(answer.out.encode())
    assert product.sim.writes() == []
    assert not product.state.exists() or product.rows() == []
