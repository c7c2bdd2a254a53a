"""`vgpu-hook record`: what a bundle shows of a host, and that the host can be made of it again."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, uuid_of
from tests.product import Product
from tests.simhost import SimHost
from tests.simhost.bundle import Bundle, read, restore_store, settings_of
from vgpu_hook import cli, store_dump
from vgpu_hook.model import one_line, shell_word

from . import recorded
from .errors import SimError
from .simulation import Simulation

VF, OTHER_VF = "0000:41:00.4", "0000:41:00.5"
BROKEN_VF = "0000:41:00.7"


class Case(NamedTuple):
    host: str
    profile: str
    vfs: tuple[str, ...] = ()
    """The VFs of the two domains; none for mediated devices."""
    broken: str = ""
    """A VF that takes no type."""


CASES = (
    Case("mtty", "mtty-2"),
    Case("mtty-cdev", "mtty-2"),
    Case("old-kernel", "mtty-2"),
    Case("nvidia-two-t4", "nvidia-222"),
    Case("nvidia-ampere-vf", "nvidia-558"),
    Case("mixed-mdev-vendors", "i915-GVTg_V5_4"),
    Case("l40s", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("l40s-same-type", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("mig-h200", "1414", (VF, OTHER_VF)),
    Case("vf-unreadable", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("mixed-mdev-vfio", "1148", (VF, OTHER_VF), BROKEN_VF),
    Case("mixed-vendors", "1148", (VF, OTHER_VF)),
)


def on_each(cases: tuple[Case, ...]) -> list[Any]:
    return [pytest.param(c, marks=pytest.mark.simhost(c.host), id=c.host) for c in cases]


@pytest.fixture
def case(request: pytest.FixtureRequest, simulation: Simulation) -> Case:
    """A host in trouble: a running VM, a retained vGPU, a VF in quarantine, and their history."""
    wanted: Case = request.param
    sim = simulation.product.sim
    start(simulation, "running", wanted, 0)
    start(simulation, "retained", wanted, 1)
    sim.fault("write", "sys/*/remove", "EBUSY")
    sim.fault("write", "sys/*/current_vgpu_type", "EIO", data="0")
    simulation.qemu.destroy(simulation.libvirt.find(name="retained"))
    sim.heal()
    if wanted.broken:
        path = f"sys/bus/pci/devices/{wanted.broken}/nvidia/current_vgpu_type"
        sim.fault("write", path, "EIO", data="[1-9]*")
        for name in ("first", "second"):
            xml = domain_xml(name, {"0": wanted.profile}, hostdevs=[pci_hostdev(wanted.broken)])
            with pytest.raises(SimError):
                simulation.qemu.start(simulation.libvirt.define(xml.decode()))
        sim.heal()
        assert simulation.product.json("quarantine")["quarantine"] != []
    states = dict(simulation.product.query("SELECT domain_name, state FROM assignment"))
    assert states == {"running": "assigned", "retained": "retained"}
    return wanted


def start(simulation: Simulation, name: str, case: Case, number: int) -> None:
    device = case.vfs[number] if case.vfs else device_of(uuid_of(name))
    element = pci_hostdev(device) if case.vfs else hostdev(device)
    xml = domain_xml(name, {"0": case.profile}, hostdevs=[element], owner=uuid_of(name))
    simulation.qemu.start(simulation.libvirt.define(xml.decode()))


def bundle_of(simulation: Simulation, *options: str) -> Path:
    path = simulation.product.state.parent / "host.tar.gz"
    done = simulation.command("record", "--output", str(path), *options)
    assert (done.status, done.err) == (0, "")
    assert str(path) in done.out
    return path


Shown = dict[tuple[str, ...], tuple[int, str, str]]


def shown(simulation: Simulation, device: str, *roots: Path) -> Shown:
    """What the commands say, without where simulated hosts are."""
    found = {}
    both = [("status",), ("explain", "running"), ("explain", "retained")]
    tables = [(*words, "--format", "table") for words in both]
    others = [("explain", device), ("profiles",), ("reconcile", "--dry-run")]
    for words in (*tables, *((*command, "--format", "json") for command in (*both, *others))):
        answer = simulation.command(*words)
        texts = [answer.out, answer.err]
        for root in roots:
            texts = [text.replace(str(root), "") for text in texts]
        found[words] = (answer.status, texts[0], texts[1])
    return found


@pytest.fixture
def replay(
    make_simhost: Callable[..., SimHost], tmp_path: Path
) -> Callable[[Path], tuple[Product, Bundle]]:
    """Makes a host of a bundle, with its store and settings."""

    def make(path: Path) -> tuple[Product, Bundle]:
        folder = tmp_path / "again"
        folder.mkdir()
        bundle = read(path)
        product = Product(make_simhost(path), folder)
        product.configure(extra=settings_of(bundle))
        restore_store(bundle, product.state)
        return product, bundle

    return make


Replay = Callable[[Path], tuple[Product, Bundle]]


@pytest.mark.parametrize("case", on_each(CASES), indirect=True)
def test_a_recorded_host_says_the_same_when_it_is_replayed(
    simulation: Simulation, case: Case, replay: Replay, tmp_path: Path
) -> None:
    device = case.broken or (case.vfs[1] if case.vfs else device_of(uuid_of("retained")))
    root = simulation.product.sim.root
    path = bundle_of(simulation)
    before = shown(simulation, device, root)
    product, bundle = replay(path)
    with Simulation(product, tmp_path / "again", case.profile) as again:
        libvirt = f"[daemon]\nlibvirt = '{again.server.uri}'\n"
        product.configure(extra=settings_of(bundle) + libvirt)
        recorded.fill(again.libvirt, bundle)
        after = shown(again, device, root, product.sim.root)
        assert product.sim.state()["problems"] == []
    status, explained, _ = before["explain", "running", "--format", "table"]
    assert status == 0
    assert "in use by qemu-system-x86 (pid 4000" in explained
    for command, said in before.items():
        assert after[command] == said, command


@pytest.mark.parametrize("case", on_each((CASES[0], CASES[3], CASES[6])), indirect=True)
def test_a_replayed_host_goes_on_like_the_recorded_one(
    simulation: Simulation, case: Case, replay: Replay, tmp_path: Path
) -> None:
    """R4, R6: what was retained is released there, and what is in use is kept."""
    product, bundle = replay(bundle_of(simulation))
    with Simulation(product, tmp_path / "again", case.profile) as again:
        recorded.fill(again.libvirt, bundle)
        product.sim.reset_writes()
        done = again.command("reconcile", "--format", "json")
        assert done.status == 0, done
        assert product.rows() == [("running", "0", "assigned")]
        assert [write.outcome for write in product.sim.writes()] == ["ok"]
        xml = bundle.domains[f"{uuid_of('retained')}.definition"].encode()
        assert product.hook("retained", "prepare", xml) == (0, "", "")
        assert product.rows()[-1] == ("retained", "0", "assigned")
        live = bundle.domains[f"{uuid_of('running')}.live"].encode()
        assert product.hook("running", "stopped", live) == (0, "", "")
        assert ("running", "0", "retained") in product.rows()


SECRETS = {
    "graphics": "<graphics type='vnc' port='5901' passwd='SECRET-vnc'/>",
    "spice": "<graphics type='spice' passwd='SECRET-spice'><listen address='SECRET-ip'/>"
    "</graphics>",
    "disk": "<disk type='network' device='disk'><auth username='SECRET-user'><secret type='ceph'"
    " usage='SECRET-usage'/></auth><source protocol='rbd' name='SECRET-pool/image'><host"
    " name='SECRET-host'/></source><target dev='vda'/><serial>SECRET-serial</serial></disk>",
    "file": "<disk type='file'><source file='/srv/SECRET-path.qcow2'/><target dev='vdb'/></disk>",
    "net": "<interface type='network'><mac address='52:54:00:5e:c2:e7'/><source"
    " network='SECRET-net'/></interface>",
    "channel": "<channel type='unix'><source path='/run/SECRET-socket'/></channel>",
}
ABOVE = (
    "<title>SECRET-title</title><description>SECRET-description</description>"
    "<sysinfo type='smbios'><oemStrings><entry>SECRET-oem ds=nocloud</entry></oemStrings>"
    "<system><entry name='serial'>SECRET-cloud-init</entry></system></sysinfo>"
    "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
    "<qemu:arg value='SECRET-arg'/></qemu:commandline>"
)
OTHERS_METADATA = "<metadata><app:app xmlns:app='urn:app'>SECRET-token</app:app>"


SETTINGS = """
[daemon]
libvirt = 'qemu+ssh://SECRET-user@SECRET-kvm:22/system?keyfile=/SECRET'
[boot]
commands = [['/opt/SECRET-folder/set-up', '--token', 'SECRET-token']]
"""
MESSAGES = (
    {"MESSAGE": "can't serve metrics on 192.0.2.7 port 9843: in use"},
    {"MESSAGE": "can't connect to libvirt at qemu+ssh://SECRET-user@SECRET-kvm:22/system: no"},
    {"MESSAGE": "ssh: could not resolve SECRET-kvm, nor 2001:db8::7"},
    {"MESSAGE": "metrics.listen: 'SECRET-host:1' is no IP address"},
    {"MESSAGE": "not ours", "_CMDLINE": "SECRET-arguments", "_HOSTNAME": "SECRET-name"},
)


def journal_of(
    simulation: Simulation,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *lines: object,
) -> None:
    """Have a journalctl that prints these lines, and a journal."""
    (simulation.product.state.parent / "no-journal").touch()
    programs = folder / "programs"
    programs.mkdir()
    (programs / "lines").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    program = programs / "journalctl"
    program.write_text(f"#!/bin/sh\nexec cat '{programs}/lines'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_what_else_is_in_a_domain_is_in_no_bundle(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of one that asks for a vGPU, nor of any other."""
    for name, asked in (("asks", {"0": "mtty-1"}), ("plain", None)):
        text = domain_xml(name, asked).decode().replace("<memory", f"{ABOVE}<memory")
        text = text.replace("<metadata>", OTHERS_METADATA)
        text = text.replace("</devices>", "".join(SECRETS.values()) + "</devices>")
        simulation.qemu.start(simulation.libvirt.define(text))
    simulation.product.configure(extra=SETTINGS, metrics="listen = '192.0.2.7:9843'\n")
    journal_of(simulation, tmp_path, monkeypatch, *MESSAGES)
    path = tmp_path / "host.tar.gz"
    done = simulation.command("record", "--output", str(path), "--connect", simulation.server.uri)
    assert (done.status, done.err) == (0, "")
    data = gzip.decompress(path.read_bytes())
    assert b"SECRET" not in data
    assert b"192.0.2" not in data
    assert b"2001:db8" not in data
    assert b"52:54:00" not in data
    bundle = read(path)
    assert bundle.parts["domains"]["others"] == 1
    assert sorted(bundle.domains) == [f"{uuid_of('asks')}.{k}" for k in ("definition", "live")]
    assert "mtty-1" in bundle.domains[f"{uuid_of('asks')}.live"]
    settings = bundle.parts["settings"]
    assert settings["uri"] == "qemu+ssh:///system"
    assert settings["metrics_listen"] is True
    assert settings["boot_commands"] == [["set-up"]]
    assert bundle.parts["journal"][0]["MESSAGE"] == (
        "can't serve metrics on ADDRESS port 9843: in use"
    )


@pytest.mark.parametrize("case", on_each((CASES[3], CASES[6])), indirect=True)
def test_redacted_names_are_gone_and_the_host_is_the_same(
    simulation: Simulation, case: Case, replay: Replay
) -> None:
    path = bundle_of(simulation, "--redact-names")
    data = gzip.decompress(path.read_bytes()).decode()
    known = [uuid_of("running"), uuid_of("retained"), device_of(uuid_of("retained"))]
    for word in (*known, simulation.product.sim.state()["boot_id"], str(path.parent)):
        assert word not in data
    product, bundle = replay(path)
    texts = json.dumps(bundle.parts) + "".join(bundle.domains.values())
    assert not re.search(r"\b(running|retained)'|<name>(running|retained)|\"(running)\"", texts)
    before, after = (p.json("status")["assignments"] for p in (simulation.product, product))
    names = {row["domain_name"]: row["domain_uuid"] for row in after}
    assert [row["state"] for row in after] == [row["state"] for row in before]
    assert all(name.startswith("domain-") for name in names)
    for row in after if not case.vfs else ():
        assert row["device"] == device_of(row["domain_uuid"], row["slot"])
    actions = [explained(simulation.product, row) for row in before]
    assert [explained(product, row) for row in after] == actions


def explained(product: Product, row: dict[str, Any]) -> list[Any]:
    """What the guard says of a record, and what happened, without any names."""
    value = product.json("explain", row["domain_name"])
    guards = [found["guard"]["action"] for found in value["assignments"]]
    return [guards, [entry["event"] for entry in value["history"]]]


def test_names_that_only_the_journal_knows_are_gone_too(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that is broken and a libvirt that does not answer, nobody else knows them."""
    product = simulation.product
    product.state.mkdir(mode=0o700)
    (product.state / "store.db").write_bytes(b"no store" * 1000)
    simulation.libvirt.refuses = True
    gone, odd = "gone-customer", "customer's \x07vm"
    lines = (
        {
            "MESSAGE": f"domain {gone!r}: no; run: vgpu-hook release {gone}",
            "VGPU_DOMAIN_UUID": uuid_of(gone),
            "VGPU_DOMAIN_NAME": gone,
        },
        {
            "MESSAGE": one_line(f"definition of {odd!r}; {shell_word(odd)}; {odd}"),
            "VGPU_DOMAIN_NAME": list(odd.encode()),
        },
        {"MESSAGE": "0000:41:00.4 is in use by domain 'other-customer'"},
        {"MESSAGE": "in use by qemu:third-cust (pid 7, /dev/vfio/7)", "_BOOT_ID": "0" * 32},
        {"MESSAGE": "/srv/My customer/a.img: No such file"},
        ["no line at all"],
        {"MESSAGE": None, "VGPU_DOMAIN_NAME": ["twice", "customer"]},
    )
    journal_of(simulation, tmp_path, monkeypatch, *lines)
    path = tmp_path / "host.tar.gz"
    assert simulation.command("record", "-o", str(path), "--redact-names").status == 0
    data = gzip.decompress(path.read_bytes()).decode()
    assert uuid_of(gone) not in data
    assert "cust" not in data
    first, second, third, fourth, fifth, _ = read(path).parts["journal"]
    name = first["VGPU_DOMAIN_NAME"]
    assert re.fullmatch(r"domain-\d", name)
    assert first["MESSAGE"] == f"domain '{name}': no; run: vgpu-hook release {name}"
    other = second["VGPU_DOMAIN_NAME"]
    assert re.sub("['\"]", "", second["MESSAGE"]) == f"definition of {other}; {other}; {other}"
    assert third["MESSAGE"].endswith(" by domain 'domain-3'")
    assert fourth["MESSAGE"] == "in use by qemu:domain-unknown (pid 7, /dev/vfio/7)"
    assert re.fullmatch(r"/path-\d: No such file", fifth["MESSAGE"])


# --- the file itself ---


def test_a_bundle_is_for_its_owner_and_overwrites_nothing(simulation: Simulation) -> None:
    path = bundle_of(simulation)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("mine")
    refused = simulation.command("record", "-o", str(path))
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == f"error: {path} exists already; name another file, or use --force\n"
    assert path.read_text() == "mine"
    assert simulation.command("record", "-o", str(path), "--force").status == 0
    assert read(path).parts["manifest"]["format"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.parent.glob("host.tar.gz*")) == [path]


def test_a_bundle_of_a_second_that_has_one_gets_another_name(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    now = int(time.time())
    for second in range(now, now + 600):  # whenever the command comes to it
        name = time.strftime("vgpu-hook-record-%Y%m%dT%H%M%SZ", time.gmtime(second))
        Path(f"{name}.tar.gz").write_text("the first of that second")
    answer = simulation.command("record")
    assert answer.status == 0, answer.err
    (path,) = Path().glob("*Z-2.tar.gz")
    assert f"Recorded in {path} " in answer.out
    assert read(path).parts["manifest"]["format"] == 1
    others = [other for other in Path().iterdir() if other != path]
    assert {other.read_text() for other in others} == {"the first of that second"}


def test_its_order_is_the_same_and_it_names_nobody(simulation: Simulation) -> None:
    with tarfile.open(bundle_of(simulation)) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert not any(name.startswith(("/", "..")) for name in (m.name for m in members))


@pytest.mark.simhost("l40s")
@pytest.mark.parametrize("profile", ["1148"])
def test_a_file_that_hangs_is_noted_and_all_else_is_there(
    simulation: Simulation, replay: Replay
) -> None:
    sim, product = simulation.product.sim, simulation.product
    hanging = f"sys/devices/pci0000:40/0000:40:01.1/{VF}/nvidia/current_vgpu_type"
    sim.fault("read", hanging, "hang")
    product.configure(deadline=10, extra=f"[daemon]\nlibvirt = '{simulation.server.uri}'\n")
    path = product.state.parent / "host.tar.gz"
    done = simulation.command("record", "-o", str(path))
    sim.heal()
    assert done.status == 0
    assert done.err == f"warning: not recorded: {hanging} does not answer\n"
    bundle = read(path)
    assert bundle.parts["errors"][hanging] == ["file", "hangs"]
    assert bundle.parts["manifest"]["problems"] == [f"{hanging} does not answer"]
    types = [p for p in bundle.entries if p.endswith("/current_vgpu_type")]
    assert len(types) == 8
    again, _ = replay(path)
    again.configure(deadline=10)
    parents = [p for gpu in again.json("status")["gpus"] for p in gpu["parents"]]
    problems = {p["name"]: p["problem"] for p in parents if p["problem"]}
    again.sim.heal()
    assert len(parents) == 8
    assert list(problems) == [VF]
    assert "has not returned" in problems[VF]


def test_what_can_not_be_asked_is_named_and_the_rest_recorded(simulation: Simulation) -> None:
    product = simulation.product
    product.state.mkdir(mode=0o700)
    (product.state / "store.db").write_bytes(b"no store" * 1000)
    simulation.libvirt.refuses = True
    path = product.state.parent / "host.tar.gz"
    done = simulation.command("record", "-o", str(path))
    assert done.status == 0
    lines = done.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("warning: not recorded: the store: ")
    assert lines[1].startswith("warning: not recorded: the domains: can't connect to libvirt")
    bundle = read(path)
    assert bundle.parts["store"] is None
    assert len(bundle.parts["manifest"]["problems"]) == 2
    assert "sys/class/mdev_bus/mtty" in bundle.entries


def test_an_unusable_configuration_is_named(simulation: Simulation, tmp_path: Path) -> None:
    simulation.product.set_config("[nonsense]\n")
    path = tmp_path / "host.tar.gz"
    done = simulation.command("record", "-o", str(path))
    assert done.status == 0
    assert "the settings are the defaults: configuration" in done.err
    assert "nonsense" in done.err


@pytest.mark.parametrize("uri", ["qemu+ssh://[host/system", "host", "", "://", "\\u0000"])
def test_a_typing_mistake_in_the_uri_keeps_nothing_out(
    simulation: Simulation, tmp_path: Path, uri: str
) -> None:
    simulation.product.configure(extra=f'[daemon]\nlibvirt = "{uri}"\n')
    path = tmp_path / "host.tar.gz"
    done = simulation.command("record", "-o", str(path), "--connect", simulation.server.uri)
    assert (done.status, done.err) == (0, "")
    assert "host" not in read(path).parts["settings"]["uri"]


def test_what_nobody_has_thought_of_is_named_and_the_rest_recorded(
    simulation: Simulation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(state: str) -> None:
        raise ZeroDivisionError(state)

    monkeypatch.setattr(store_dump, "dump", fails)
    for name, value in simulation.product.environment.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "host.tar.gz"
    assert cli.main(["record", "-o", str(path), "--connect", "none:///"]) == 0
    state = simulation.product.state
    told = f"warning: not recorded: the store: internal error: ZeroDivisionError: {state}\n"
    assert told in capsys.readouterr().err
    assert "sys/class/mdev_bus/mtty" in read(path).entries


def test_where_nothing_can_be_written_is_one_line(simulation: Simulation) -> None:
    done = simulation.command("record", "-o", "/no/such/folder/x.tar.gz")
    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        "error: /no/such/folder/x.tar.gz can't be written: No such file or directory"
    )
