"""Requests that a tenant wrote to get at something else: paths, options, SQL, formats, escapes.

What holds for each value in each attribute: nothing is written to the kernel but the values that
were checked, nothing outside of the product's folders changes, and what people are told is one
readable line.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests.domains import domain_xml, uuid_of
from tests.product import Product
from tests.simulated.hostile import call, plain
from tests.simulated.kinds import Kind, MdevKind, VfKind

VALUES: dict[str, str] = {
    "a path up": "../../../../../../tmp/owned",
    "dots": "..",
    "an option": "-h",
    "SQL": "'; DROP TABLE assignment; --",
    "a format": "%s %n {0} {x.__class__}",
    "shell": "; touch /tmp/owned & | > /tmp/owned",
    "lines": "a\nb\r\nERROR: all is lost",
    "8-bit escapes": "\u009b2J\u0090q\u009c",
    "line separators": "a\u2028b\u2029c\u0085d",
    "one megabyte": "A" * (1 << 20),
    "blanks": " " * 50,
    "nothing": "",
    "commas and more": "a=1\\,b=$(id)",
}
ATTRIBUTES = ("profile", "name", "gpu", "params")
CHOICES = ("fork", "display", "ramfb", "placement", "owner")
"""Attributes of few values, of which a few others are enough."""
TRIED = [
    *itertools.product(ATTRIBUTES, VALUES.items()),
    *itertools.product(CHOICES, list(VALUES.items())[::4]),
]
MAY_BE_FREE = ("owner",)
"""A mark of ours, which is only compared: to none it says nothing."""
WRITABLE = re.compile(r"sys/.*/(create|remove|current_vgpu_type|vgpu_params)")
ALLOWED_DATA = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{1,4}")


def asked(kind: Kind, attribute: str, value: str) -> bytes:
    """Return a domain whose request says `value` there, and is right in all else."""
    given = {"name": "0", "profile": kind.profile, attribute: value}
    # As libvirt writes white space in attributes: as a character reference, or it would be lost.
    words = " ".join(f"{name}={quoteattr(text)}" for name, text in given.items())
    words = words.translate({ord(c): f"&#{ord(c)};" for c in "\n\r\t\u0085\u2028"})
    xml = kind.xml("a").decode()
    return re.sub(r"<vgpu:vgpu .*?/>", lambda _: f"<vgpu:vgpu {words}/>", xml, count=1).encode()


def of(framework: type[Kind]) -> pytest.MarkDecorator:
    """The fixture `kind` for one framework: what is tried is not up to it, and takes time."""
    mark = pytest.mark.simhost(framework.host)
    return pytest.mark.parametrize("kind", [pytest.param(framework, marks=mark)], indirect=True)


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@of(MdevKind)
def test_r13_a_value_that_is_none_reaches_nothing(
    product: Product, kind: Kind, tmp_path: Path
) -> None:
    assert product.hook("seed", "prepare", kind.xml("seed")) == (0, "", "")
    before = files_below(tmp_path)
    for attribute, (what, value) in TRIED:
        xml = asked(kind, attribute, value)
        answer = call(product, "a", "prepare", xml)
        if answer.status:
            assert "'a'" in answer.err, (attribute, what)
        else:
            assert attribute in MAY_BE_FREE, (attribute, what)
            assert call(product, "a", "stopped", xml) == (0, "", "")
    assert product.rows() == [("seed", "0", "assigned")]
    assert kind.present() == kind.vgpus("seed")
    for write in product.sim.writes():
        assert WRITABLE.fullmatch(write.path), write
        assert ALLOWED_DATA.fullmatch(write.data.strip()), write
    made = {Path(path).name for path in files_below(tmp_path) - before}
    assert made <= {uuid_of("a"), kind.device("a")}, "more than its locks"
    assert not Path("/tmp/owned").exists()
    told_of_all(product)


@of(VfKind)
def test_r13_a_value_that_is_none_when_it_wakes_up(product: Product, kind: Kind) -> None:
    for attribute, (_, value) in TRIED[::2]:
        call(product, "a", "restore", asked(kind, attribute, value))
    assert product.sim.writes() == []
    assert product.rows() == []


def told_of_all(product: Product) -> None:
    """Check what the commands say with such values on record."""
    for command in (["status"], ["profiles"], ["explain", "a"], ["explain", "seed"]):
        shown = product.command(*command)
        lines = (shown.out + shown.err).split("\n")
        assert all(map(plain, lines)), command
        assert "Traceback" not in shown.err
    for command in (["status"], ["explain", "seed"]):
        raw = product.command(*command, "--format", "json")
        assert all(map(plain, raw.out.split("\n"))), command
        assert product.json(*command)["version"] == 1


def test_a_record_of_odd_names_is_shown_as_it_is_and_steers_no_terminal(product: Product) -> None:
    """Whatever way they came: an older version, another tool."""
    product.hook("a", "prepare", domain_xml("a", {"0": "mtty-1"}))
    odd = "\x1b[2J\u009b31m'; DROP TABLE x; -- %s {0}\n\u202e" + "x" * 2000
    for column in ("domain_name", "profile", "reason"):
        product.query(f"UPDATE assignment SET {column} = '{odd.replace(chr(39), chr(39) * 2)}'")
    product.query(f"UPDATE history SET detail = '{odd.replace(chr(39), chr(39) * 2)}'")
    told_of_all(product)
    assert product.json("status")["assignments"][0]["reason"] == odd
    assert product.json("explain", uuid_of("a"))["history"][0]["detail"] == odd


@pytest.mark.simhost("nvidia-t4")
def test_params_are_written_as_they_were_checked_in_one_line(product: Product) -> None:
    good = "frame_rate_limiter=0,disable_vnc=1"
    xml = domain_xml("a", {"0": "nvidia-231"}, attributes=f"params='{good}'")
    assert call(product, "a", "prepare", xml) == (0, "", "")
    assert [w.data for w in product.sim.writes("*/vgpu_params")] == [good + "\n"]
    assert call(product, "a", "stopped", xml) == (0, "", "")
    for bad in ("a=1&#10;b=2", "a=1;b", "a=$(id)", "a=1/../x", "a='1'", "a" * 513, "\u00fc=1"):
        xml = domain_xml("a", {"0": "nvidia-231"}, attributes=f'params="{bad}"')
        answer = call(product, "a", "prepare", xml)
        assert "the request's params=" in answer.err, bad
    assert len(product.sim.writes("*/vgpu_params")) == 1


def test_what_a_hint_says_to_run_is_safe_to_run(product: Product, tmp_path: Path) -> None:
    """People paste it into a root shell."""
    name = "x'; touch owned; '$(touch owned)"
    profile = "p'$(touch owned)`touch owned`\""
    xml = domain_xml(name, {"0": profile}, hostdevs=[])
    error = call(product, name, "prepare", xml).err
    command = error[error.index("run: ") + 5 :].rstrip("\n")
    assert command.startswith("vgpu-hook attach ")
    done = subprocess.run(
        ["bash", "-c", f'vgpu-hook() {{ printf "%s\\0" "$@"; }}; {command}'],
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.decode().split("\0")[:-1] == [
        "attach",
        "--profile",
        profile,
        "--slot",
        "0",
        name,
    ]
    assert not (tmp_path / "owned").exists()
