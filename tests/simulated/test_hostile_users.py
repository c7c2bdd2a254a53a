"""The hook and the commands as a user who is not root: qemu:///session runs them too.

Quiet and harmless: nothing is made, nothing is told of what is root's, VMs without a request start.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.domains import device_of, domain_xml, hostdev, uuid_of
from tests.product import HOOK, REPOSITORY, Answer, Product
from tests.simulated.arrivals import noted
from tests.simulated.daemons import NO_LIBVIRT
from tests.simulated.hostile import as_nobody, check, open_up

A = domain_xml("a", {"0": "mtty-1"})
PLAIN = domain_xml("plain", hostdevs=[hostdev(device_of(uuid_of("x")), None)])
OPERATIONS = (
    "prepare",
    "start",
    "started",
    "stopped",
    "release",
    "migrate",
    "restore",
    "reconnect",
)
NEEDS_ROOT = "domain 'a' asks for a vGPU, which needs root; use qemu:///system"


class Session:
    """A user's session on a host where the product is installed for root."""

    def __init__(self, product: Product, program: Path) -> None:
        self.product = product
        self.program = program
        self.environment = {
            "VGPU_HOOK_CONFIG": str(product.config),
            "VGPU_HOOK_PYTHON": str(program / "python"),
        }

    def hook(self, name: str, operation: str, xml: bytes, **environment: str) -> Answer:
        sub = "end" if operation in ("stopped", "release") else "begin"
        argv = [str(self.program / "qemu"), name, operation, sub, "-"]
        answer = as_nobody(Path("/"), *argv, xml=xml, **self.environment | environment)
        check(answer, operation)
        return answer


@pytest.fixture
def session(product: Product, tmp_path: Path) -> Session:
    """With a program that everybody may run, as a package has it: the tests' own is root's."""
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(HOOK, program / "qemu")
    shutil.copytree(REPOSITORY / "vgpu_hook", program / "vgpu_hook")
    (program / "python").write_text(
        # As -I does not look beside the program: where the package would be.
        f"#!/bin/sh\nshift\nPYTHONPATH={program}:{':'.join(filter(None, sys.path))}\n"
        f'export PYTHONPATH\nexec /usr/bin/python3 "$@"\n'
    )
    (program / "python").chmod(0o755)
    open_up(tmp_path)
    return Session(product, program)


def untouched(product: Product) -> None:
    assert product.sim.writes() == []
    assert not product.state.exists() or product.rows() == []


def test_r14_a_vm_without_a_request_is_none_of_our_business(session: Session) -> None:
    for operation in OPERATIONS:
        for path in (str(session.product.config), "/root/no/such", "/etc/shadow"):
            answer = session.hook("plain", operation, PLAIN, VGPU_HOOK_CONFIG=path)
            assert answer == (0, "", "")
    untouched(session.product)


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "private"])
def test_a_request_is_refused_for_what_is_the_case(session: Session, readable: bool) -> None:
    """It needs root, whether or not the user may read root's configuration."""
    session.product.config.chmod(0o644 if readable else 0o600)
    for operation in OPERATIONS:
        answer = session.hook("a", operation, A)
        if operation in ("prepare", "migrate"):
            assert answer.err == f"vgpu-hook: {NEEDS_ROOT}\n"
        elif operation == "restore":
            assert noted(answer.out.encode()) == NEEDS_ROOT
        else:
            assert answer == (0, "", "")
    untouched(session.product)


def test_a_daemon_does_not_serve_a_user_who_can_reach_it(session: Session) -> None:
    product = session.product
    product.configure(extra=NO_LIBVIRT)
    daemon = product.daemon()
    try:
        open_up(product.runtime)
        (product.runtime / "hook.sock").chmod(0o666)
        assert session.hook("a", "prepare", A).err == f"vgpu-hook: {NEEDS_ROOT}\n"
        assert session.hook("a", "stopped", A) == (0, "", "")
        assert product.hook("a", "prepare", A) == (0, "", "")
        product.sim.reset_writes()
        assert session.hook("a", "stopped", A) == (0, "", "")
        assert session.hook("a", "release", A) == (0, "", "")
        assert product.rows() == [("a", "0", "assigned")]
        assert product.sim.writes() == []
        assert daemon.poll() is None
    finally:
        daemon.kill()
        daemon.wait()


def test_a_users_own_daemon_and_configuration_give_nothing_of_roots(
    session: Session, tmp_path: Path
) -> None:
    """A user may set the variables: with that user's rights, and no more."""
    own = tmp_path / "own.toml"
    own.write_text(session.product.config.read_text())
    own.chmod(0o644)
    assert session.product.hook("a", "prepare", A) == (0, "", "")
    session.product.sim.reset_writes()
    for operation in ("prepare", "stopped", "release"):
        session.hook("a", operation, A, VGPU_HOOK_CONFIG=str(own))
    assert session.product.rows() == [("a", "0", "assigned")]
    assert session.product.sim.writes() == []


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "profiles",
        "explain a",
        "quarantine",
        "store check",
        "store set-aside",
        "release a",
    ],
)
def test_a_command_of_a_user_says_why_it_can_not(session: Session, command: str) -> None:
    product = session.product
    assert product.hook("a", "prepare", A) == (0, "", "")
    python = str(session.program / "python")
    argv = [python, "-I", "-m", "vgpu_hook", *command.split()]
    answer = as_nobody(Path("/"), *argv, xml=b"", **session.environment)
    assert "Traceback" not in answer.err
    assert answer.status in (0, 1)
    if command != "profiles":
        assert answer.status == 1
        assert "ermission denied" in answer.err or "libvirt" in answer.err
    if "store" in answer.err:
        assert "run it as root" in answer.err
    assert "set-aside" not in answer.err  # the store is as good as ever
    assert product.rows() == [("a", "0", "assigned")]
