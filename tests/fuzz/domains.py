"""Strategies for domains that ask for vGPUs: mostly as libvirt would hand them over, with odd
values here and there. What makes the XML itself odd is in mutations.py.
"""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from hypothesis import strategies as st

from tests.domains import device_of, hostdev, mark_of, pci_hostdev, uuid_of

OPERATIONS = ("prepare", "stopped", "release", "restore", "restore", "migrate")
UUIDS = tuple(uuid_of(f"fuzzed-{number}") for number in range(4))
"""Few, so that the calls meet what earlier ones left."""

ODD = (
    "",
    " ",
    "../../../etc/passwd",
    "..",
    "/dev/null",
    "a/b",
    "$(id)`id`;id",
    "'; DROP TABLE assignment; --",
    "%s%n{0}{x!r}",
    "\n\t",
    "\x7f",
    "\u2028\u0085",
    "\u202edrawkcab",
    "İıſ",
    "٣",
    "😀" * 40,
    "-1",
    "--help",
    "0x" + "f" * 400,
    "9" * 5000,
    "A" * 70000,
    "urn:vgpu-hook:domain:1",
    "ua-vgpu-0",
)
TEXT = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=80),
)
NUMBERS = st.sampled_from(
    ["0", "0-3", "0-3,^2", "1,^1", "0-99999", "^", "99999999999", "3-1", ",,", "-", "0-1," * 200]
)
SLOTS = st.sampled_from(["0", "1", "x", "a-b_C"])
PCI = st.sampled_from(["0000:41:00.4", "0000:41:00.5", "0000:41:01.3", "0000:00:00.0"])


class Subject(NamedTuple):
    """A host of tests/simhost, and what domains on it may well ask for."""

    host: str
    profiles: tuple[str, ...]
    gpus: tuple[str, ...]


SUBJECTS = (
    Subject("mtty", ("mtty-1", "mtty-2", " MTTY-1 "), ("mtty",)),
    Subject("l40s", ("1148", "1145", "nvidia-1148"), ("0000:41:00.0", "41:00.0")),
)


def mostly(draw: st.DrawFn, usual: st.SearchStrategy[str], odd: st.SearchStrategy[str]) -> str:
    return draw(odd if draw(st.integers(0, 9)) == 9 else usual)


def attributes(values: dict[str, str]) -> str:
    return "".join(f" {key}={quoteattr(value)}" for key, value in values.items())


@st.composite
def vgpus(draw: st.DrawFn, subject: Subject, slot: str) -> str:
    """One <vgpu> of a request."""
    optional = {
        "gpu": st.sampled_from(subject.gpus),
        "fork": st.sampled_from(["new", "none", "refuse"]),
        "display": st.sampled_from(["on", "off"]),
        "ramfb": st.sampled_from(["on", "off"]),
        "params": st.sampled_from(["frame_rate_limiter=0", "a=1, b=2"]),
        "placement": st.sampled_from(["spread", "pack"]),
        "owner": st.sampled_from([mark_of(own) for own in UUIDS]),
    }
    values = {"name": mostly(draw, st.just(slot), TEXT)}
    values["profile"] = mostly(draw, st.sampled_from(subject.profiles), TEXT)
    for key in draw(st.lists(st.sampled_from(sorted(optional)), max_size=2, unique=True)):
        values[key] = mostly(draw, optional[key], TEXT)
    if draw(st.integers(0, 9)) == 9:
        del values["name"]
    return f"<vgpu:vgpu{attributes(values)}/>"


@st.composite
def hostdevs(draw: st.DrawFn, subject: Subject, own: str, slot: str) -> str:
    """One <hostdev>: for the slot as it should be, or of another domain, type or form."""
    owner = draw(st.sampled_from([own] * len(UUIDS) + list(UUIDS)))
    device = device_of(owner, slot)
    of_mdev = (subject.host == "mtty") != (draw(st.integers(0, 9)) == 9)
    text = hostdev(device, slot) if of_mdev else pci_hostdev(draw(PCI), slot)
    if draw(st.integers(0, 9)) < 9:
        return text
    odd = {
        "address": f"<hostdev type='pci'><source><address{attributes({'bus': draw(TEXT)})}/>"
        f"</source><alias name='ua-vgpu-{slot}'/></hostdev>",
        "alias": text.replace(f"ua-vgpu-{slot}", escape(draw(TEXT), {"'": "&apos;"})),
        "bare": f"<hostdev><alias name='ua-vgpu-{slot}'/></hostdev>",
        "twice": text + text,
        "uuid": text.replace(device, escape(draw(TEXT), {"'": "&apos;"})),
    }
    return odd[draw(st.sampled_from(sorted(odd)))]


@st.composite
def domains(draw: st.DrawFn, subject: Subject) -> tuple[str, bytes]:
    """A domain's name, and its XML: well-formed but for characters that XML has not."""
    name = mostly(draw, st.sampled_from(["a", "b c", "Übung ☃", "-x"]), TEXT)
    own = draw(st.sampled_from(UUIDS))
    slots = draw(st.one_of(st.just(["0"]), st.lists(SLOTS, min_size=1, max_size=3, unique=True)))
    asked = "".join(draw(vgpus(subject, slot)) for slot in slots)
    if draw(st.integers(0, 19)) == 19:
        asked = ""
    given = "".join(draw(hostdevs(subject, own, slot)) for slot in slots)
    note = attributes({"refused": draw(TEXT)}) if draw(st.integers(0, 9)) == 9 else ""
    written = mostly(draw, st.sampled_from([own, own.upper()]), TEXT)
    nodes, cpus = draw(NUMBERS), draw(NUMBERS)
    return name, (
        f"<domain type='qemu' id='1'><name>{escape(name)}</name><uuid>{escape(written)}</uuid>"
        f"<metadata><vgpu:vgpus xmlns:vgpu='urn:vgpu-hook:domain:1'{note}>{asked}</vgpu:vgpus>"
        "</metadata>"
        f"<memory unit='KiB'>16384</memory><vcpu cpuset='{cpus}'>1</vcpu>"
        f"<numatune><memory mode='strict' nodeset='{nodes}'/></numatune>"
        f"<os><type>hvm</type></os><devices><emulator>/usr/bin/qemu</emulator>{given}</devices>"
        "</domain>\n"
    ).encode()
