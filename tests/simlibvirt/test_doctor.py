"""`vgpu-hook doctor` on a healthy host, and on hosts that each have one fault.

Every fault is made for real: in files, modes, processes, the store, the kernel, libvirt. What is
found must be that fault alone, with what mends it; doctor itself changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, uuid_of
from tests.product import REPOSITORY
from tests.simulated.hostile import as_nobody, open_up
from vgpu_hook import protocol

from .doctor import Finding, Patient, foreign_hostdev, mute
from .simulation import Simulation


@pytest.fixture
def patient(simulation: Simulation, tmp_path: Path) -> Iterator[Patient]:
    healthy = Patient(simulation, tmp_path)
    with healthy.stack:
        simulation.start_daemon()
        yield healthy


def test_a_healthy_host(patient: Patient) -> None:
    patient.simulation.libvirt.define(domain_xml("a", {"0": "mtty-1"}, hostdevs=[]).decode())
    patient.simulation.handled()
    patient.product.sim.reset_writes()
    before = patient.contents()
    found = patient.findings()
    assert [finding for finding in found if finding.severity != "ok"] == []
    assert {finding.check for finding in found} == {
        "config",
        "hook-file",
        "hook-python",
        "hook-seen",
        "other-hooks",
        "daemon",
        "store",
        "gpus",
        "libvirt",
        "versions",
        "definitions",
    }
    assert Finding("definitions", "ok", "domain 'a'", "1 vGPUs, in order", "") in found
    answer = patient.doctor()
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.endswith("\n0 errors, 0 warnings.\n")
    assert patient.product.sim.writes() == []
    assert patient.contents() == before


# -- the hook ---------------------------------------------------------------------------


def hook_missing(patient: Patient) -> None:
    patient.hook.unlink()


def hook_not_executable(patient: Patient) -> None:
    patient.hook.chmod(0o644)


def hook_a_link(patient: Patient) -> None:
    target = patient.folder / "libexec-qemu"
    patient.hook.rename(target)
    patient.hook.symlink_to(target)


def hook_others_may_write(patient: Patient) -> None:
    patient.hook.chmod(0o775)


def hook_of_another_user(patient: Patient) -> None:
    os.chown(patient.hook, 1234, 0)


def folder_others_may_write(patient: Patient) -> None:
    patient.hook.parent.chmod(0o777)


def hook_of_another_release(patient: Patient) -> None:
    text = patient.hook.read_text()
    assert f"vgpu-hook {protocol.VERSION} (" in text
    patient.hook.write_text(text.replace(f"vgpu-hook {protocol.VERSION} (", "vgpu-hook 3 ("))


def hook_of_somebody_else(patient: Patient) -> None:
    patient.hook.write_text("#!/bin/sh\nexit 0\n")


def python_of_another_release(patient: Patient) -> None:
    program = patient.folder / "python"
    program.write_text("#!/bin/sh\necho 0.0.9 /opt/vgpu_hook/operations.py\n")
    program.chmod(0o755)
    patient.environment["VGPU_HOOK_PYTHON"] = str(program)


def python_without_the_package(patient: Patient) -> None:
    program = patient.folder / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    patient.environment["VGPU_HOOK_PYTHON"] = str(program)


def python_missing(patient: Patient) -> None:
    patient.environment["VGPU_HOOK_PYTHON"] = "/no/such/python3"


def libvirt_older_than_the_hook(patient: Patient) -> None:
    """It was started a day ago, and has not been reloaded since."""
    patient.libvirtd(started=time.time() - 86400)


def libvirt_reloaded_too_early(patient: Patient) -> None:
    patient.libvirtd(started=time.time() - 86400, reloaded=time.time() - 3600)


# -- other hooks ------------------------------------------------------------------------


def script_calls_virsh(patient: Patient) -> None:
    patient.script("10-network", "#!/bin/bash\n# no virsh here\nvirsh net-start default\n")


def script_imports_libvirt(patient: Patient) -> None:
    patient.script("90-tune.py", "#!/usr/bin/python3\nimport libvirt\n")


def script_left_by_dpkg(patient: Patient) -> None:
    shutil.copy(patient.hook, patient.hook.with_name("50-vgpu-hook.dpkg-old"))


def script_others_may_write(patient: Patient) -> None:
    patient.script("10-network", "#!/bin/sh\n", 0o777)


# -- the daemon, the store, the configuration -------------------------------------------


def daemon_dead(patient: Patient) -> None:
    patient.end_daemon()


def daemon_failed_for_systemd(patient: Patient) -> None:
    patient.end_daemon()
    patient.unit("vgpu-hookd", "ActiveState=failed", "UnitFileState=enabled")


def daemon_mute(patient: Patient) -> None:
    patient.limit(10)
    patient.end_daemon()
    (patient.product.runtime / "hook.sock").unlink()
    process = mute(patient.product.runtime / "hook.sock")
    patient.stack.callback(process.wait)
    patient.stack.callback(process.kill)


def runtime_others_may_write(patient: Patient) -> None:
    patient.product.runtime.chmod(0o777)


def store_garbage(patient: Patient) -> None:
    patient.end_daemon()
    for path in patient.product.state.glob("store.db*"):
        path.unlink()
    (patient.product.state / "store.db").write_bytes(b"not a store at all" * 1000)


def store_of_a_newer_release(patient: Patient) -> None:
    patient.product.query("PRAGMA user_version = 99")


def store_damaged(patient: Patient) -> None:
    """An index lacks what its table has."""
    xml = domain_xml("x", {"0": "mtty-1"})
    for operation in ("prepare", "stopped"):
        assert patient.product.hook("x", operation, xml).status == 0
    with contextlib.closing(sqlite3.connect(patient.product.state / "store.db")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = sql || ' WHERE slot = 1'"
            " WHERE name = 'history_of_domain'"
        )
        connection.commit()
        (version,) = connection.execute("PRAGMA schema_version").fetchone()
        connection.execute(f"PRAGMA schema_version = {version + 1}")


def config_wrong(patient: Patient) -> None:
    patient.product.set_config("[policy]\nplacement = 'tight'\n")


def config_others_may_write(patient: Patient) -> None:
    patient.product.config.chmod(0o666)


# -- libvirt and the definitions --------------------------------------------------------


def libvirt_refuses(patient: Patient) -> None:
    patient.simulation.libvirt.refuses = True


def libvirt_hangs(patient: Patient) -> None:
    patient.simulation.libvirt.serving.clear()


def libvirt_too_old(patient: Patient) -> None:
    patient.simulation.libvirt.version = 8_000_000


def request_without_hostdev(patient: Patient) -> None:
    patient.define("a", "mtty-1")


def hostdev_without_request(patient: Patient) -> None:
    patient.define("a", None, hostdev(device_of(uuid_of("a"))))


def profile_that_nobody_offers(patient: Patient) -> None:
    patient.define("a", "GRID T4-2Q", hostdev(device_of(uuid_of("a"))))


def clones_hostdev(patient: Patient) -> None:
    patient.define("a", "mtty-1", foreign_hostdev())


def request_unreadable(patient: Patient) -> None:
    patient.define("a", "mtty-1", attributes="fork='sideways'")


def libvirt_before_97(patient: Patient) -> None:
    patient.simulation.libvirt.version = 9_000_000


def vf_managed_by_libvirt(patient: Patient) -> None:
    vf = pci_hostdev("0000:41:00.4", managed="yes")
    patient.define("a", "1148", vf, owner=uuid_of("a"))


def nothing(patient: Patient) -> None:
    """The host itself is the fault."""


Fault = Callable[[Patient], None]
FAULTS: list[tuple[Fault, str, str, str, str]] = [
    (
        hook_missing,
        "hook-file",
        "50-vgpu-hook",
        "there is no such file",
        "run: vgpu-hook install-hook",
    ),
    (hook_not_executable, "hook-file", "50-vgpu-hook", "not executable", "run: chmod 0755 /"),
    (hook_a_link, "hook-file", "50-vgpu-hook", "it is a link to", "run: install -m 0755"),
    (hook_others_may_write, "hook-file", "50-vgpu-hook", "mode 0775", "run: chmod go-w /"),
    (hook_of_another_user, "hook-file", "50-vgpu-hook", "uid 1234", "run: chown root:root /"),
    (folder_others_may_write, "hook-file", "hooks/qemu.d", "mode 0777", "run: chmod go-w /"),
    (
        hook_of_another_release,
        "hook-file",
        "50-vgpu-hook",
        "speaks version 3",
        "run: vgpu-hook install-hook",
    ),
    (
        hook_of_somebody_else,
        "hook-file",
        "50-vgpu-hook",
        "not vgpu-hook's",
        "run: vgpu-hook install-hook",
    ),
    (
        python_of_another_release,
        "hook-python",
        "/python",
        "runs vgpu-hook 0.0.9",
        "run: vgpu-hook install-hook",
    ),
    (
        python_without_the_package,
        "hook-python",
        "/python",
        "No module named",
        "run: vgpu-hook install-hook",
    ),
    (
        python_missing,
        "hook-python",
        "/no/such/python3",
        "No such file",
        "run: vgpu-hook install-hook",
    ),
    (libvirt_older_than_the_hook, "hook-seen", "pid 4321", "does not call it", "reload libvirtd"),
    (libvirt_reloaded_too_early, "hook-seen", "pid 4321", "does not call it", "reload libvirtd"),
    (script_calls_virsh, "other-hooks", "10-network", "it calls libvirt ('virsh')", "chmod a-x"),
    (script_imports_libvirt, "other-hooks", "90-tune.py", "'import libvirt'", "chmod a-x"),
    (script_left_by_dpkg, "other-hooks", "hook.dpkg-old", "a left-over copy", "chmod a-x"),
    (script_others_may_write, "other-hooks", "10-network", "mode 0777", "chmod go-w"),
    (daemon_dead, "daemon", "hook.sock", "nobody serves there", "restart vgpu-hookd.socket"),
    (daemon_failed_for_systemd, "daemon", "vgpu-hookd", "(failed)", "journalctl -u vgpu-hookd"),
    (daemon_mute, "daemon", "hook.sock", "has not greeted", "restart vgpu-hookd.socket"),
    (runtime_others_may_write, "daemon", "/runtime", "others may write", "run: chmod 700"),
    (store_of_a_newer_release, "store", "store.db", "format 99", "or newer"),
    (store_damaged, "store", "store.db", "it is damaged", "vgpu-hook store set-aside"),
    (config_others_may_write, "config", "vgpu-hook.toml", "mode 0666", "chmod go-w"),
    (libvirt_refuses, "libvirt", "qemu+unix:///system", "can't connect", "systemctl start"),
    (libvirt_hangs, "libvirt", "qemu+unix:///system", "has not answered", "Do not restart libvirt"),
    (libvirt_too_old, "versions", "libvirt 8.0.0", "needs 9.0.0", "upgrade libvirt"),
    (
        request_without_hostdev,
        "definitions",
        "domain 'a'",
        "(slot '0') is asked for, but has no hostdev yet",
        "run: vgpu-hook attach --profile mtty-1 --slot 0 a",
    ),
    (
        hostdev_without_request,
        "definitions",
        "domain 'a'",
        "in slot '0', without a request for it",
        "run: vgpu-hook detach --slot 0 a",
    ),
    (profile_that_nobody_offers, "definitions", "domain 'a'", "'GRID T4-2Q'", "vgpu-hook profiles"),
    (clones_hostdev, "definitions", "domain 'a'", "has inherited", "run: vgpu-hook attach"),
    (request_unreadable, "definitions", "domain 'a'", "fork", "run: virsh edit a"),
]


@pytest.mark.parametrize(
    ("fault", "check", "subject", "text", "fix"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_a_fault_is_found_and_its_fix_is_named(
    patient: Patient, fault: Fault, check: str, subject: str, text: str, fix: str
) -> None:
    fault(patient)
    before = patient.contents()
    found = [f for f in patient.findings() if f.severity == "error"]
    assert [(f.check, subject in f.object) for f in found] == [(check, True)], found
    assert text in found[0].text
    assert fix in found[0].fix
    assert patient.contents() == before


def on(host: str, *values: object) -> Any:
    """A parameter that runs on this simulated host."""
    return pytest.param(*values, marks=pytest.mark.simhost(host), id=host)


@pytest.mark.simhost("l40s")
@pytest.mark.parametrize("profile", ["1148"])
@pytest.mark.parametrize(
    ("fault", "check", "subject", "text", "fix"),
    [
        (libvirt_before_97, "versions", "libvirt 9.0.0", "9.7.0 can", "upgrade libvirt"),
        (vf_managed_by_libvirt, "definitions", "'a'", "managed='yes'", "vgpu-hook attach"),
    ],
)
def test_a_fault_on_a_host_with_vfs(
    patient: Patient, fault: Fault, check: str, subject: str, text: str, fix: str
) -> None:
    test_a_fault_is_found_and_its_fix_is_named(patient, fault, check, subject, text, fix)


@pytest.fixture
def unserved(simulation: Simulation, tmp_path: Path) -> Patient:
    """Without a daemon: on hosts where nothing can be planned."""
    return Patient(simulation, tmp_path)


def gpus(patient: Patient) -> list[Finding]:
    return [f for f in patient.findings() if f.check in ("gpus", "iommu", "modules")]


@pytest.mark.parametrize(
    ("subject", "severity", "text", "fix"),
    [
        on(
            "vfs-off",
            "0000:41:00.0",
            "error",
            "its 32 VFs are off",
            "run: /usr/lib/nvidia/sriov-manage -e 0000:41:00.0;",
        ),
        on("nvidia-driver-missing", "0000:41:00.0", "error", "to no driver", "install NVIDIA"),
        on("not-for-vgpus", "0000:61:00.0", "warning", "bound to nouveau", "use = false"),
        on("not-for-vgpus", "0000:81:00.0", "warning", "bound to vfio-pci", "use = false"),
        on("not-for-vgpus", "0000:41:00.0", "ok", "it offers vGPUs", ""),
        on("passthrough", "0000:81:00.0", "warning", "bound to vfio-pci", "use = false"),
        on("mig-no-instances", "0000:41:00.0", "error", "GPU instances first", "nvidia-smi mig"),
        on("no-gpu", "this host", "error", "no device that offers vGPUs", "run: lspci"),
        on("i915-no-gvt", "this host", "error", "without GVT-g", "run: modprobe kvmgt"),
        on("xe", "0000:03:00.0", "warning", "driver xe are not supported", "use = false"),
        on("t4-unsupported", "0000:3b:00.0", "warning", "on this kernel", "use = false"),
        on("vf-unreadable", "0000:41:00.6", "warning", "Input/output error", "dmesg"),
        on("mig-h200", "0000:41:00.0", "ok", "GPU instances (MIG)", ""),
        on("l40s-full", "0000:41:00.0", "ok", "in use", ""),
        on("l40s", "IOMMU", "ok", "all 8 VFs have an IOMMU group", ""),
    ],
)
def test_the_state_of_each_gpu(
    unserved: Patient, subject: str, severity: str, text: str, fix: str
) -> None:
    found = [f for f in gpus(unserved) if f.object == subject]
    assert [f.severity for f in found] == [severity], found
    assert text in found[0].text
    assert fix in found[0].fix
    assert unserved.product.sim.writes() == []


@pytest.mark.simhost("not-for-vgpus")
def test_a_host_whose_other_gpus_are_not_for_vgpus_has_no_error(unserved: Patient) -> None:
    """And no warning either, once they are left out as it says."""
    warned = [f for f in gpus(unserved) if f.severity != "ok"]
    assert {f.object for f in warned} == {"0000:61:00.0", "0000:81:00.0"}
    settings = [f.fix.removeprefix("leave it out: ").partition(" in ")[0] for f in warned]
    text = "\n".join(line.replace("] ", "]\n") for line in settings)
    unserved.product.configure(extra=text)
    assert {f.severity for f in gpus(unserved)} == {"ok"}


@pytest.mark.simhost("passthrough")
def test_a_host_that_gives_its_gpus_away_whole_is_not_told_to_change_their_driver(
    unserved: Patient,
) -> None:
    (found,) = (f for f in gpus(unserved) if f.severity == "error")
    assert found.object == "this host"
    assert "as a whole" in found.text
    assert "install" not in found.fix


@pytest.mark.simhost("card-hangs")
def test_i3_a_card_that_hangs_is_named_and_the_rest_is_looked_at(unserved: Patient) -> None:
    unserved.limit(15)
    found = gpus(unserved)
    assert ("0000:41:00.4", "error") in [(f.object, f.severity) for f in found]
    assert ("0000:c1:00.0", "ok") in [(f.object, f.severity) for f in found]


def test_a_configuration_that_is_wrong_does_not_end_it(patient: Patient) -> None:
    """It goes on with the defaults, which are another host's here."""
    config_wrong(patient)
    found = [f for f in patient.findings() if f.check == "config"]
    assert [f.severity for f in found] == ["error"]
    assert "policy.placement" in found[0].text
    assert found[0].fix == f"correct {patient.product.config}"


@pytest.mark.parametrize("garbage", [b"not a store at all" * 1000, b""], ids=["text", "empty"])
def test_a_store_that_is_none_does_not_end_it(patient: Patient, garbage: bytes) -> None:
    """vgpu-hookd can't put definitions in order without it, and says so in the journal."""
    patient.end_daemon()
    for path in patient.product.state.glob("store.db*"):
        path.unlink()
    (patient.product.state / "store.db").write_bytes(garbage)
    before = patient.contents()
    found = {f.check: f for f in patient.findings() if f.severity == "error"}
    assert found.keys() == {"daemon", "store"}
    assert "every start with a vGPU is refused" in found["store"].text
    assert "vgpu-hook store set-aside" in found["store"].fix
    assert patient.contents() == before


def test_a_store_of_an_older_release_is_left_as_it_is(patient: Patient) -> None:
    patient.end_daemon()
    patient.product.query("PRAGMA user_version = 1")
    before = patient.contents()
    found = [f for f in patient.findings() if f.check == "store"]
    assert [(f.severity, "format 1" in f.text) for f in found] == [("ok", True)]
    assert patient.contents() == before


def test_what_is_retained_or_half_deleted_is_pointed_to(patient: Patient) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    assert patient.product.hook("a", "prepare", xml).status == 0
    patient.product.sim.hold(device_of(uuid_of("a")))
    patient.product.hook("a", "stopped", xml)
    assert patient.product.rows() == [("a", "0", "retained")]
    patient.product.query(
        "UPDATE domain SET deleting_since = '2026-01-01T00:00:00.000Z' WHERE name = 'a'"
    )
    found = [f for f in patient.findings() if f.check == "store" and f.severity == "warning"]
    assert [f.fix.partition(";")[0] for f in found] == [
        "run: vgpu-hook release a",
        "run: vgpu-hook delete a",
    ]


@pytest.mark.simhost("vf-wedged")
@pytest.mark.parametrize("profile", ["1148"])
def test_a_vf_in_quarantine_is_pointed_to(unserved: Patient) -> None:
    vf = "0000:41:00.4"
    for name in ("a", "b"):
        xml = domain_xml(name, {"0": "1148"}, hostdevs=[pci_hostdev(vf)], owner=uuid_of(name))
        assert unserved.product.hook(name, "prepare", xml).status == 1
    found = [f for f in unserved.findings() if f.object == vf and f.check == "store"]
    assert [(f.severity, f.fix) for f in found] == [
        ("warning", f"run: vgpu-hook quarantine --clear {vf}")
    ]


def test_other_scripts_and_what_is_odd_about_them(patient: Patient) -> None:
    before = patient.script("10-a", "#!/bin/sh\n# virsh is not called\n")
    after = patient.script("99-z", "#!/bin/sh\nmdevctl start -u X\n")
    off = patient.script("20-off", "#!/bin/sh\n", 0o644)
    old = patient.script("50-vgpu-hook.dpkg-dist", "#!/bin/sh\nvirsh list\n", 0o644)
    found = {f.object: f for f in patient.findings() if f.check == "other-hooks"}
    assert found[str(before)][1:4] == ("ok", str(before), "libvirt runs it before vgpu-hook's")
    assert found[str(after)].severity == "warning"
    assert "works on vGPUs itself" in found[str(after)].text
    assert found[str(off)].severity == "warning"
    assert found[str(off)].fix == f"run: chmod 0755 {off}; or run: rm {off}"
    assert found[str(old)].severity == "ok"


# -- whether libvirt has noticed the hook (facts A8) ------------------------------------


def seen(patient: Patient) -> list[tuple[str, str]]:
    return [(f.severity, f.text) for f in patient.findings() if f.check == "hook-seen"]


def test_a_hook_that_was_there_before_lets_libvirt_see_this_one(patient: Patient) -> None:
    patient.libvirtd(started=time.time() + 5)
    patient.script("10-older", "#!/bin/sh\n")
    patient.product.wait_for("the clock goes on", lambda: time.time() > started(patient) + 1)
    patient.hook.chmod(0o755)
    ((severity, text),) = seen(patient)
    assert severity == "ok"
    assert text.endswith("10-older was there before")


def started(patient: Patient) -> float:
    text = (patient.units / "libvirtd.service").read_text()
    return float(text.split("ExecMainStartTimestamp=@")[1].split()[0])


def test_a_call_on_record_proves_that_libvirt_sees_it(patient: Patient) -> None:
    """An upgrade has put another file in its place."""
    xml = domain_xml("a", {"0": "mtty-1"})
    assert patient.product.hook("a", "prepare", xml).status == 0
    patient.libvirtd(started=time.time() - 86400)
    assert seen(patient) == [("ok", "it has called the hook since it looked for hooks last")]


def test_an_older_call_proves_nothing(patient: Patient) -> None:
    xml = domain_xml("a", {"0": "mtty-1"})
    assert patient.product.hook("a", "prepare", xml).status == 0
    patient.product.query("UPDATE history SET at = '2026-01-01T00:00:00.000Z'")
    patient.libvirtd(started=time.time() - 86400)
    ((severity, text),) = seen(patient)
    assert severity == "warning"
    assert "may not call it" in text


def test_without_systemd_the_processes_tell(patient: Patient) -> None:
    """The simulated host's was started right after this machine's boot."""
    patient.without_systemd()
    assert seen(patient) == [("ok", "no daemon runs now: it looks for hooks when it starts")]
    patient.product.sim.add_process(77, "virtqemud")
    found = [f for f in patient.findings() if f.check == "hook-seen"]
    assert [(f.object, f.severity, f.fix) for f in found] == [
        ("virtqemud (pid 77)", "error", "run: kill -HUP 77")
    ]


# -- definitions, against what a start says ---------------------------------------------


def agrees_with_a_start(patient: Patient, xml: bytes, worst: str = "error") -> None:
    """What is said of domain `a` is what its start then says, with the same next command."""
    patient.simulation.libvirt.define(xml.decode())
    found = [f for f in patient.findings() if f.check == "definitions" and "'a'" in f.object]
    answer = patient.product.hook("a", "prepare", xml)
    if answer.status == 0:
        assert [f.severity for f in found] == ["warning"]
        return
    (refusal,) = (f for f in found if f.severity != "ok")
    assert refusal.severity == worst
    assert refusal.text.endswith("; its start is refused")
    assert refusal.text.removesuffix("; its start is refused") in answer.err
    assert refusal.fix.startswith("run: vgpu-hook ")
    assert refusal.fix in answer.err


FORKS = pytest.mark.parametrize(
    ("fork", "worst"), [("new", "error"), ("none", "error"), ("refuse", "warning")]
)
RUNNING = pytest.mark.parametrize("running", [False, True])


@pytest.mark.simhost("l40s")
@pytest.mark.parametrize("profile", ["1148"])
@FORKS
@RUNNING
def test_r8_a_clone_that_names_its_originals_vf(
    patient: Patient, fork: str, worst: str, *, running: bool
) -> None:
    vf = [pci_hostdev("0000:41:00.4")]
    original = domain_xml("b", {"0": "1148"}, hostdevs=vf, owner=uuid_of("b"))
    if running:
        assert patient.product.hook("b", "prepare", original) == (0, "", "")
    asks = f"fork='{fork}'"
    clone = domain_xml("a", {"0": "1148"}, hostdevs=vf, owner=uuid_of("b"), attributes=asks)
    agrees_with_a_start(patient, clone, worst)


@FORKS
@RUNNING
def test_r8_a_clone_that_names_its_originals_mdev(
    patient: Patient, fork: str, worst: str, *, running: bool
) -> None:
    original = domain_xml("b", {"0": "mtty-1"})
    if running:
        assert patient.product.hook("b", "prepare", original) == (0, "", "")
    mdev = [hostdev(device_of(uuid_of("b")))]
    asks = f"fork='{fork}'"
    agrees_with_a_start(
        patient, domain_xml("a", {"0": "mtty-1"}, hostdevs=mdev, attributes=asks), worst
    )


@pytest.mark.parametrize("own", [True, False])
@RUNNING
def test_a_hostdev_that_is_not_asked_for(patient: Patient, *, own: bool, running: bool) -> None:
    if running:
        assert patient.product.hook("b", "prepare", domain_xml("b", {"0": "mtty-1"})).status == 0
    device = device_of(uuid_of("a" if own else "b"))
    agrees_with_a_start(patient, domain_xml("a", hostdevs=[hostdev(device)]))


# -- a libvirt that does not answer -----------------------------------------------------


def test_g9_the_hook_that_libvirt_waits_for_is_found_and_ended(patient: Patient) -> None:
    """By the commands of the finding. A restart of libvirt would kill VMs (facts A13)."""
    libvirt_hangs(patient)
    script = patient.script("60-hangs", "#!/bin/sh\nread never <>/dev/ptmx\n")
    hook = subprocess.Popen([script, "a", "stopped", "end", "-"])
    patient.stack.callback(hook.kill)
    (fix,) = (f.fix for f in patient.findings() if f.check == "libvirt")
    look, _, rest = fix.removeprefix("run: ").partition("; then ")
    found = subprocess.run(["sh", "-c", look], capture_output=True, text=True, check=True)
    (line,) = (line for line in found.stdout.splitlines() if str(script) in line)
    pid = line.split()[0]
    assert pid == str(hook.pid)
    children, end = re.findall(r"pgrep -laP PID|kill PID", rest)
    subprocess.run(["sh", "-c", children.replace("PID", pid)], check=False)
    subprocess.run(["sh", "-c", end.replace("PID", pid)], check=True)
    assert hook.wait() == -signal.SIGTERM
    assert "systemctl" not in fix


def test_a_libvirt_that_is_only_slow_does_not_hang(patient: Patient) -> None:
    """However short a call of the hook may be."""
    patient.limit(0.5)
    libvirt = patient.simulation.libvirt
    libvirt.serving.clear()
    timer = threading.Timer(3, libvirt.serving.set)
    timer.start()
    found = [f for f in patient.findings() if f.check in ("libvirt", "hook-python", "daemon")]
    timer.join()
    assert [(f.check, f.severity) for f in found] == [
        ("hook-python", "ok"),
        ("daemon", "ok"),
        ("libvirt", "ok"),
    ]


# -- who asks, and what can't be looked at ----------------------------------------------


def test_without_root_it_says_what_it_could_not_look_at(patient: Patient, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    shutil.copytree(REPOSITORY / "vgpu_hook", program / "vgpu_hook")
    paths = [str(program), *(path for path in sys.path if "dist-packages" in path)]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; from vgpu_hook.cli import main; sys.exit(main())"
    )
    open_up(tmp_path)
    answer = as_nobody(
        Path("/"),
        *("/usr/bin/python3", "-I", "-c", script, "doctor", "--connect", "qemu:///no"),
        VGPU_HOOK_CONFIG=str(patient.product.config),
    )
    assert answer.err == ""
    assert "Traceback" not in answer.out
    lines = [line for line in answer.out.splitlines() if "could not be looked at" in line]
    assert {line.split()[1] for line in lines} >= {"store"}
    assert all(line.startswith(" warning") and "sudo vgpu-hook doctor" in line for line in lines)


def test_the_table_says_what_json_says(patient: Patient) -> None:
    hook_not_executable(patient)
    answer = patient.doctor()
    assert answer.status == 1
    assert answer.out.endswith("\n1 errors, 0 warnings.\n")
    lines = [line for line in answer.out.splitlines() if line.startswith(" error")]
    assert len(lines) == 1
    assert f"run: chmod 0755 {patient.hook}" in lines[0]
