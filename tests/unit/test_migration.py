"""check-migrate with stand-ins for two libvirts and for ssh."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.domains import domain_xml, hostdev, pci_hostdev, uuid_of
from vgpu_hook import migration, remote
from vgpu_hook.model import VgpuError
from vgpu_hook.remote import NO, UNKNOWN, YES, CannotAsk, Finding, ssh_command

GOOD = Finding("vGPU 0", YES, "mtty-1 (mtty-1) on mtty, 24 free")
MDEV = {"slot": "0", "type": "mdev", "address": "x"}
RECENT = {"libvirt": 11_000_000, "qemu": 9_000_000}


# -- what is answered -------------------------------------------------------------------

Ssh = Callable[[str], str]


@pytest.fixture
def ssh(tmp_path: Path) -> Ssh:
    """A function that makes a stand-in for ssh of a shell script; returns a URI that calls it."""

    def make(script: str) -> str:
        file = tmp_path / "ssh"
        file.write_text(
            f'#!/bin/sh\ncat >{tmp_path}/stdin\nprintf "%s\\n" "$@" >{tmp_path}/argv\n{script}\n'
        )
        file.chmod(0o755)
        return f"qemu+ssh://me@Host2:22/system?command={file}"

    return make


def said(*findings: Finding, hostdevs: Any = (MDEV,), kernel: Any = "6.1.0-2", **more: Any) -> str:
    rows = [finding._asdict() for finding in findings]
    answer = {"version": 1, "findings": rows, "hostdevs": hostdevs, "kernel": kernel, **more}
    return f"cat <<'END'\n{json.dumps(answer)}\nEND"


def test_what_is_asked_and_answered(ssh: Ssh, tmp_path: Path) -> None:
    uri = ssh("echo noise >&2; echo answer; exit 1")
    assert remote.ask(uri, "a line", b"<domain/>\xff") == "answer\n"
    assert (tmp_path / "stdin").read_bytes() == b"<domain/>\xff"
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv == ["-T", "-o", "BatchMode=yes", "-p", "22", "-l", "me", "--", "Host2", "a line"]


@pytest.mark.parametrize(
    ("script", "text"),
    [("exit 127", "Host2 has no vgpu-hook"), ("exit 2", "Host2 has an older vgpu-hook")],
)
def test_a_host_without_this_vgpu_hook(ssh: Ssh, script: str, text: str) -> None:
    with pytest.raises(VgpuError, match=text) as caught:
        remote.ask(ssh(script), "a line", b"")
    assert not isinstance(caught.value, CannotAsk)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo first >&2; echo 'ssh: no route' >&2; exit 255", "ssh: no route"),
        ("echo 'me@Host2: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("exit 0", "exit status 0"),
        ("kill -9 $$", "exit status -9"),
        ("printf 'error: \\033[31mred\\n' >&2; exit 1", r"can't be asked: \?\[31mred"),
    ],
)
def test_the_command_that_failed_is_shown(ssh: Ssh, script: str, cause: str) -> None:
    uri = ssh(script)
    with pytest.raises(CannotAsk, match=cause) as caught:
        remote.ask(uri, "vgpu-hook x -", b"")
    command = shlex.join(ssh_command(uri, "vgpu-hook x -"))
    assert caught.value.hint == f"try: {command} </dev/null"
    assert "-p 22 -l me -- Host2 'vgpu-hook x -'" in command


@pytest.mark.parametrize(
    "script",
    [
        "echo 'error: check-arrival needs root, as the hook does' >&2; exit 1",
        "echo 'sh: vgpu-hook: Permission denied' >&2; exit 126",
    ],
)
def test_root_is_needed_there(ssh: Ssh, script: str) -> None:
    with pytest.raises(CannotAsk) as caught:
        remote.ask(ssh(script), "a line", b"")
    assert caught.value.hint == "root is needed there: use root@Host2"


def test_no_such_ssh() -> None:
    with pytest.raises(CannotAsk, match="/nonexistent: No such file"):
        remote.ask("qemu+ssh://h/system?command=/nonexistent", "a line", b"")


@pytest.mark.parametrize(
    "script",
    [
        "echo Welcome",
        "echo '[]'",
        "echo '{}'",
        "echo null",
        said(),
        said(GOOD, version=2),
        said(GOOD, kernel=6),
        said(GOOD, hostdevs=[1]),
        said(GOOD, hostdevs=None),
        said(GOOD, findings=[{"what": "x"}]),
        said(GOOD._replace(good="maybe")),
        "head -c 100000 /dev/zero | tr '\\0' '['",
    ],
)
def test_an_answer_that_is_not_understood_is_none(ssh: Ssh, script: str) -> None:
    with pytest.raises(CannotAsk, match="is not understood"):
        remote.check_arrival(ssh(script), b"", 1, stopped=False)


def test_texts_of_the_other_host_can_not_steer_the_terminal(ssh: Ssh) -> None:
    uri = ssh(said(GOOD._replace(text="a\x1b[2Jb\n")))
    answer = remote.check_arrival(uri, b"", 1, stopped=False)
    assert answer.findings == [GOOD._replace(text="a?[2Jb?")]
    assert answer.hostdevs == {"0": "mdev"}


# -- check-migrate ----------------------------------------------------------------------


def failure(text: str, code: int = libvirt.VIR_ERR_INTERNAL_ERROR) -> libvirt.libvirtError:
    error = libvirt.libvirtError(text)
    error.err = (code, 0, text, 0, None, None, None, 0, 0)
    return error


class Vm:
    """A domain of a stand-in."""

    def __init__(self, name: str, own: str = "", *, active: bool = False, xml: bytes = b"") -> None:
        self._name, self._uuid, self._active, self._xml = name, own or uuid_of(name), active, xml
        self.flags: list[int] = []

    def name(self) -> str:
        return self._name

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's
        return self._uuid

    def isActive(self) -> bool:  # noqa: N802 - libvirt's
        return self._active

    def XMLDesc(self, flags: int = 0) -> str:  # noqa: N802 - libvirt's
        self.flags.append(flags)
        return self._xml.decode()


class Connection:
    """A libvirt that answers, but for the methods named in `fails`."""

    def __init__(self, host: str, *vms: Vm, uri: str = "qemu:///system") -> None:
        self.host, self.vms = host, vms
        self.fails: set[str] = set()
        self.answers: dict[str, Any] = {
            "getHostname": host,
            "getCapabilities": f"<capabilities><host><uuid>{host}</uuid></host></capabilities>",
            "getLibVersion": RECENT["libvirt"],
            "getVersion": RECENT["qemu"],
            "getType": "QEMU",
            "getURI": uri,
            "close": 0,
        }

    def __getattr__(self, name: str) -> Callable[[], Any]:
        def answer() -> Any:
            if name in self.fails:
                raise failure(f"{name} went wrong")
            return self.answers[name]

        return answer

    def _look_up(self, vms: list[Vm], name: str) -> Vm:
        if name in self.fails:
            raise failure(f"{name} went wrong")
        if not vms:
            raise failure("no domain", libvirt.VIR_ERR_NO_DOMAIN)
        return vms[0]

    def lookupByName(self, name: str) -> Vm:  # noqa: N802 - libvirt's
        return self._look_up([vm for vm in self.vms if vm.name() == name], "lookupByName")

    def lookupByUUIDString(self, own: str) -> Vm:  # noqa: N802 - libvirt's
        return self._look_up([vm for vm in self.vms if vm.UUIDString() == own], "lookupByUUID")


class Pair:
    """Two libvirts, and ssh to the second one's host."""

    def __init__(self, ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ssh = ssh
        self.uri = ssh(said(GOOD))
        self.vm = Vm("a", active=True, xml=domain_xml("a", {"0": "mtty-1"}))
        self.here = Connection("host1", self.vm)
        self.there = Connection("host2", uri="qemu+ssh://me@Host2:22/system?x=1")
        monkeypatch.setattr(libvirt, "open", lambda uri: self.here)
        monkeypatch.setattr(libvirt, "openReadOnly", lambda uri: self.there)

    def stop(self) -> None:
        self.vm._active = False

    def check(self, format_: str = "table") -> int:
        arguments = {"connect": "qemu:///system", "domain": "a", "uri": self.uri}
        return migration.check_migrate(argparse.Namespace(**arguments, format=format_))

    def found(self, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
        """Check, and return what was found, by what was looked at; the last word of each."""
        try:
            status = self.check("json")
        except VgpuError:
            status = 1
        rows = json.loads(capsys.readouterr().out)["findings"]
        bad = any(row["good"] == NO for row in rows)
        asked = any(row["what"] == "vGPU 0" for row in rows)
        assert status == (1 if bad or not asked else 0)
        return {row["what"]: (row["good"], row["text"]) for row in rows}


@pytest.fixture
def pair(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(ssh, monkeypatch)


Out = pytest.CaptureFixture[str]


def test_a_running_vm_can_as_far_as_can_be_told(pair: Pair, capsys: Out, tmp_path: Path) -> None:
    assert pair.check() == 0
    out = capsys.readouterr().out
    assert out.endswith("\nAs far as can be told, domain 'a' can.\n")
    (device,) = (line for line in out.splitlines() if line.startswith(" device"))
    assert UNKNOWN in device
    assert "only QEMU knows" in device
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[-1] == "vgpu-hook check-arrival --format json -"


def test_no_passwords_are_sent(pair: Pair, capsys: Out, tmp_path: Path) -> None:
    pair.check()
    pair.stop()
    pair.check()
    wanted = [libvirt.VIR_DOMAIN_XML_MIGRATABLE, libvirt.VIR_DOMAIN_XML_INACTIVE]
    assert pair.vm.flags == wanted
    assert (tmp_path / "stdin").read_text() == pair.vm.XMLDesc()


def test_a_stopped_vm_needs_no_versions(pair: Pair, capsys: Out, tmp_path: Path) -> None:
    pair.stop()
    pair.there.fails = {"getVersion"}
    pair.uri = pair.ssh(said(GOOD, hostdevs=[{**MDEV, "type": "pci"}], kernel="2.6"))
    assert pair.check() == 0
    assert capsys.readouterr().out.endswith("\nDomain 'a' can.\n")
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[-1] == "vgpu-hook check-arrival --stopped --format json -"


def test_what_the_other_host_says_counts(pair: Pair, capsys: Out) -> None:
    pair.uri = pair.ssh(said(GOOD._replace(good=NO, text="it is full")) + "\nexit 1")
    with pytest.raises(VgpuError, match=r"^domain 'a' can't: it is full$"):
        pair.check()
    assert "it is full" in capsys.readouterr().out


@pytest.mark.parametrize("format_", ["table", "json"])
@pytest.mark.parametrize("script", ["echo no route >&2; exit 255", "echo garbage"])
def test_a_host_that_can_not_be_asked_stops_what_comes_next(
    script: str, format_: str, pair: Pair, capsys: Out
) -> None:
    pair.uri = pair.ssh(script)
    with pytest.raises(VgpuError, match=r"^whether domain 'a' can go can't be told: ") as caught:
        pair.check(format_)
    assert "no route" in str(caught.value) or "is not understood" in str(caught.value)
    assert UNKNOWN in capsys.readouterr().out
    pair.there.vms = (Vm("a", active=True),)
    with pytest.raises(VgpuError, match=r"^domain 'a' can't: 'a' runs there already"):
        pair.check()


def test_a_host_without_vgpu_hook(pair: Pair, capsys: Out) -> None:
    pair.uri = pair.ssh("exit 127")
    assert pair.found(capsys)["vGPU"] == (NO, "Host2 has no vgpu-hook")


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(
    ("vm", "expected", "text"),
    [
        (None, YES, "no other is in its way"),
        (Vm("a"), YES, "no other is in its way"),
        (Vm("a", active=True), NO, "'a' runs there already"),
        (Vm("a", uuid_of("other")), NO, "another domain is named 'a' there"),
        (Vm("b", uuid_of("a")), NO, "its UUID is there under another name, 'b'"),
    ],
    ids=["none", "stopped", "running", "name", "UUID"],
)
def test_domains_in_the_way(
    vm: Vm | None, expected: str, text: str, active: bool, pair: Pair, capsys: Out
) -> None:
    pair.there.vms = (vm,) if vm is not None else ()
    pair.vm._active = active
    good, said_ = pair.found(capsys)["domain"]
    assert good == expected
    assert text in said_


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("getType", "TEST"),
        ("getURI", "qemu+ssh://me@Host2/session"),
        ("getURI", "qemu+ssh://me@Host2/"),
    ],
)
def test_another_driver_is_no_destination(
    method: str, answer: str, pair: Pair, capsys: Out
) -> None:
    pair.there.answers[method] = answer
    found = pair.found(capsys)
    assert list(found) == ["host"]
    assert found["host"] == (NO, "host2 is not the system libvirt of a host's QEMU")


def test_the_same_host(pair: Pair, capsys: Out) -> None:
    pair.there.answers["getCapabilities"] = pair.here.answers["getCapabilities"]
    assert pair.found(capsys)["host"] == (NO, "host2 is this very host, or has its UUID")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("5.18.0", YES),
        ("6.12+", YES),
        ("6.1.0-21-amd64", YES),
        ("5.17.9", NO),
        ("4.18.0-553.el8", NO),
        ("rubbish", UNKNOWN),
        ("", UNKNOWN),
        ("6", UNKNOWN),
        ("9" * 5000 + ".1", UNKNOWN),
    ],
)
def test_kernels(release: str, expected: str, pair: Pair, capsys: Out) -> None:
    pair.uri = pair.ssh(said(GOOD, kernel=release))
    assert pair.found(capsys)["kernel"][0] == expected


def test_versions_that_do_not_migrate(pair: Pair, capsys: Out) -> None:
    pair.there.answers |= {"getLibVersion": 8_005_000, "getVersion": 8_000_050}
    found = pair.found(capsys)
    assert found["libvirt"] == (NO, "host2 has 8.5.0; a running VM needs 8.6")
    assert found["QEMU"] == (NO, "host2 has 8.0.50; a running VM needs 8.1")


def test_crossing_needs_libvirt_11(pair: Pair, capsys: Out) -> None:
    pair.uri = pair.ssh(said(GOOD, hostdevs=[{**MDEV, "type": "pci"}]))
    assert pair.found(capsys)["framework"][0] == YES
    pair.there.answers["getLibVersion"] = 10_010_000
    good, text = pair.found(capsys)["framework"]
    assert good == NO
    assert text.startswith("slot 0 changes from mdev to pci, which libvirt refuses before 11.0")


@pytest.mark.parametrize("format_", ["table", "json"])
def test_a_domain_without_a_request(format_: str, pair: Pair, capsys: Out) -> None:
    pair.vm._xml = domain_xml("a", hostdevs=[hostdev(uuid_of("x"), None), pci_hostdev("0:0:0.0")])
    assert pair.check(format_) == 0
    out = capsys.readouterr().out
    if format_ == "json":
        assert json.loads(out) == {"version": 1, "findings": []}
    else:
        assert out == "Domain 'a' asks for no vGPU.\n"


@pytest.mark.parametrize(
    ("side", "method"),
    [
        ("there", "getHostname"),
        ("there", "getURI"),
        ("there", "getType"),
        ("there", "getCapabilities"),
        ("there", "getLibVersion"),
        ("there", "getVersion"),
        ("there", "lookupByName"),
        ("there", "lookupByUUID"),
        ("here", "getCapabilities"),
        ("here", "getLibVersion"),
        ("here", "getVersion"),
    ],
)
def test_what_a_libvirt_can_not_answer_is_a_sentence(side: str, method: str, pair: Pair) -> None:
    getattr(pair, side).fails = {method}
    names = {"there": r"(host2|qemu\+ssh://me@Host2:22/system)", "here": "this host"}
    with pytest.raises(VgpuError, match=f"^{names[side]}: libvirt: {method} went wrong$"):
        pair.check()


def test_a_connection_that_breaks_at_the_end_does_not_matter(pair: Pair) -> None:
    pair.there.fails = {"close"}
    assert pair.check() == 0


def test_a_vm_there_that_goes_away_meanwhile_is_in_nobody_s_way(
    pair: Pair, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = Vm("a", active=True)
    pair.there.vms = (going,)

    def gone() -> bool:
        raise failure("no domain", libvirt.VIR_ERR_NO_DOMAIN)

    monkeypatch.setattr(going, "isActive", gone)
    assert pair.found(capsys)["domain"][0] == YES
