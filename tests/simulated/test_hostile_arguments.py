"""Arguments of the hook that libvirt would not give, or that a domain's name may be (I4, I5)."""

from __future__ import annotations

import subprocess

import pytest

from tests.domains import domain_xml, uuid_of
from tests.product import HOOK, PATIENCE, Product
from tests.simulated.hostile import call, check, plain
from tests.simulated.kinds import Kind

XML = domain_xml("a", {"0": "mtty-1"})
BROKEN = b"<domain xmlns:v='urn:vgpu-hook:domain:1'>"
NAMES: dict[str, bytes] = {
    "empty": b"",
    "newlines": b"a\nb\r\nc",
    "not UTF-8": b"\xff\xfe\x80",
    "a surrogate": b"\xed\xa0\x80",
    "escapes": b"\x1b]0;owned\x07\x1b[2J",
    "8-bit escapes": "\u009b2J\u202emoc".encode(),
    "a path": b"../../etc/passwd",
    "shell": b"$(touch /tmp/owned);`id`|'\"&",
    "format": b"%s%n{0}{x.__class__}%(a)s\\n\\0",
    "huge": b"n" * 100_000,
}


def test_i4_i5_any_name_as_an_argument(served: Product) -> None:
    for name in NAMES.values():
        assert call(served, name, "prepare", BROKEN).status == 1, name
        assert call(served, name, "prepare", XML) == (0, "", ""), name
        assert call(served, name, "stopped", XML) == (0, "", ""), name
    assert served.rows() == []
    assert len(served.sim.writes()) == 2 * len(NAMES)


def test_i5_any_name_when_the_program_is_not_whole(product: Product) -> None:
    """The shell part speaks for itself."""
    environment = product.environment | {"VGPU_HOOK_PYTHON": "/bin/false"}
    for name in NAMES.values():
        done = subprocess.run(
            [str(HOOK), name, "prepare", "begin", "-"],
            input=XML,
            env=environment,
            capture_output=True,
            timeout=PATIENCE,
        )
        error = done.stderr.decode()
        assert (done.returncode, done.stdout) == (1, b"")
        assert "reinstall the package vgpu-hook" in error
        assert plain(error.removesuffix("\n")), name
        assert len(error) < 1000


def test_r13_an_operation_that_is_none_does_nothing(product: Product) -> None:
    for operation in ("", "-h", "PREPARE", "prepare ", "prepare\n", "*", "x" * 99):
        assert product.hook_argv(["a", operation, "begin", "-"], XML) == (0, "", "")
    assert not product.state.exists()
    assert product.sim.writes() == []


def test_arguments_beyond_what_libvirt_gives_change_nothing(product: Product) -> None:
    for operation in ("prepare", "stopped"):
        more = ["--", "-c", "import os", "\x1b[2J", *["more"] * 5000]
        arguments = ["a", operation, *more]
        answer = product.hook_argv(arguments, XML)
        check(answer, operation)
        assert answer == (0, "", "")
    assert product.rows() == []


DOMAIN_NAMES = [
    "a/../../b",
    "two\nlines",
    "'\"%s$(id)`id`",
    "\u009b31m\u202e\u200b",
    "-rf Übung ☃ \U0001d518",
]


@pytest.mark.parametrize("name", DOMAIN_NAMES, ids=ascii)
def test_a_domains_name_is_kept_as_it_is_and_shown_in_one_line(
    product: Product, kind: Kind, name: str
) -> None:
    xml = kind.xml(name)
    refused = call(product, name, "prepare", kind.xml(name, "no such"))
    assert repr(name) in refused.err
    assert call(product, name, "prepare", xml) == (0, "", "")
    assert product.rows("domain_name") == [(name,)]
    for command in (["status"], ["explain", "--", name]):
        shown = product.command(*command)
        assert shown.status == 0, shown
        assert all(map(plain, (shown.out + shown.err).split("\n"))), shown
    found = product.command("status", "--format", "json")
    assert all(map(plain, found.out.split("\n")))
    assert product.json("status")["assignments"][0]["domain_name"] == name
    assert product.json("explain", uuid_of(name))["history"][0]["domain_name"] == name
    assert call(product, name, "release", xml) == (0, "", "")
    assert product.rows() == []


def test_a_name_that_no_domain_can_have_is_refused(product: Product) -> None:
    xml = domain_xml("n" * (1 << 20), {"0": "mtty-1"})
    answer = call(product, "a", "prepare", xml)
    assert "a domain's name can't be 1048576 characters long" in answer.err
    assert call(product, "a", "stopped", xml) == (0, "", "")
    assert product.sim.writes() == []


def test_a_commands_argument_that_is_not_text_is_wrong_usage(product: Product) -> None:
    product.hook("a", "prepare", XML)
    for command in ("explain", "release", "delete", "quarantine --clear"):
        done = product.command(*command.split(), b"\xff\xed\xa0".decode("utf-8", "surrogateescape"))
        assert done.status == 2, command
        assert "is not UTF-8" in done.err
        assert done.out == ""


def test_a_commands_argument_that_names_nothing(product: Product) -> None:
    product.hook("a", "prepare", XML)
    for word in ("\x1b[2J", "", "'; DROP TABLE assignment --", "%", "../../x", "-"):
        for command in (["explain", "--", word], ["quarantine", f"--clear={word}"]):
            done = product.command(*command)
            assert done.status == 1, command
            assert done.err.startswith("error: ")
            assert plain(done.err.removesuffix("\n")), command
    assert product.rows() == [("a", "0", "assigned")]
