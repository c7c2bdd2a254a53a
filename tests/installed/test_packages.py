"""The package on fresh hosts of Debian 12 and 13, with AppArmor enforcing libvirtd's profile.

Two VMs run all the while, one of them with a vGPU that the admin made by hand: nothing that is
done to the package may touch them, nor libvirtd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.domains import uuid_of
from tests.installed.packages import (
    CHANGED,
    HOOK,
    Standing,
    apt,
    confinement,
    denied,
    executable,
    installed_version,
    newer,
    standing,
)
from tests.testbed.demo import Demo
from tests.testbed.guests import domain_xml, mdev_hostdev
from tests.testbed.host import IDLE_DISK, Host, build_package, write_disks
from tests.testbed.plugin import Show
from tests.testbed.recipe import TRIXIE
from tests.testhost.kinds import FOREIGN, MdevKind
from tests.testhost.vms import assignments, define_request, query

STATE = "/var/lib/vgpu-hook"
UNITS = "vgpu-hookd.service vgpu-hookd.socket"
NEWER = "99.0"
CLEAN = "package-installed"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def upgrade(package: Path) -> Path:
    return newer(package, NEWER)


@pytest.fixture(scope="module")
def with_vms(bare: Host) -> Host:
    """The bare host with two VMs that run: one is plain, one has a vGPU made by hand."""
    write_disks(bare.machine)
    bare.define(domain_xml("plain", uuid=uuid_of("plain"), disk=IDLE_DISK))
    bare.create_mdev(FOREIGN)
    own = [mdev_hostdev(FOREIGN)]
    bare.define(domain_xml("by-hand", uuid=uuid_of("by-hand"), disk=IDLE_DISK, extra_hostdevs=own))
    for name in ("plain", "by-hand"):
        bare.virsh("start", name)
    return bare


class Installed:
    """The host with the package, and how things stood before and after it came."""

    def __init__(self, host: Host, package: Path) -> None:
        self.host = host
        self.before = standing(host)
        self.printed = _install(host, package)
        self.after = standing(host)
        host.machine.snapshot(CLEAN)
        self._used = False

    def clean(self) -> Host:
        """Return the host as it was right after the installation."""
        if self._used:
            self.host.machine.restore(CLEAN)
        self._used = True
        return self.host


@pytest.fixture(scope="module")
def installed(with_vms: Host, package: Path) -> Installed:
    return Installed(with_vms, package)


@pytest.fixture
def host(installed: Installed) -> Iterator[Host]:
    """The host with the package; AppArmor has had nothing to deny when the test ends."""
    host = installed.clean()
    yield host
    assert confinement(host) == "libvirtd:enforce"
    assert denied(host) == []


@pytest.fixture
def worker(host: Host) -> str:
    """A third VM that runs, with a vGPU that it asked for; returns the vGPU."""
    define_request(host, "worker", {"profile": "mtty-1"})
    (device,) = MdevKind(host).settled("worker")
    host.virsh("start", "worker")
    assert sorted(host.mdevs()) == sorted([FOREIGN, device])
    assert assignments(host) == [("worker", "assigned")]
    return device


def _install(host: Host, package: Path) -> str:
    remote = f"/root/{package.name}"
    host.machine.put(package, remote)
    return apt(host, "install", remote)


def _records(host: Host) -> list[list[object]]:
    return query(host, "SELECT generation, domain_uuid, slot, device, state FROM assignment")


def _plain_vms_start(host: Host, name: str) -> None:
    """A VM that asks for nothing starts and stops."""
    host.define(domain_xml(name, uuid=uuid_of(name), disk=IDLE_DISK))
    host.virsh("start", name)
    host.virsh("destroy", name)
    host.virsh("undefine", name)


def test_r14_installing_disturbs_no_vm_and_the_hook_is_seen(
    installed: Installed, host: Host, show: Show
) -> None:
    assert set(installed.before.vms) == {"plain", "by-hand"}
    assert installed.before.vms["by-hand"].devices
    assert list(installed.before.mdevs) == [FOREIGN]
    assert installed.after == installed.before
    _shown(show, host, "install", installed.before, installed.after)
    assert executable(host)
    assert host.run(f"systemctl is-active {UNITS}").stdout.split() == ["active", "active"]
    # libvirt has seen it without a restart, and calls it: no vGPU can be made of this profile.
    host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")
    asked = [{"profile": "none-such"}]
    host.define(domain_xml("asks", uuid=uuid_of("asks"), disk=IDLE_DISK, profiles=asked))
    refused = host.virsh("start", "asks", check=False)
    assert refused.returncode == 1
    assert "domain 'asks'" in refused.stderr
    assert "run: vgpu-hook" in refused.stderr
    _plain_vms_start(host, "another")
    assert standing(host) == installed.before


def test_the_demo_through_plain_virsh(installed: Installed, host: Host) -> None:
    demo = Demo(host)
    steps: list[Callable[[], None]] = [demo.start, demo.clone, demo.stop, demo.failed_release]
    # VFs with vendor-specific VFIO need libvirt 9.7 and kernel 6.8.
    if host.machine.suite is TRIXIE:
        steps.append(demo.vfs)
    for step in steps:
        step()
    assert standing(host) == installed.before


def test_an_upgrade_with_a_vgpu_in_use(host: Host, worker: str, upgrade: Path, show: Show) -> None:
    before, records = standing(host), _records(host)
    assert worker in before.mdevs
    _install(host, upgrade)
    assert installed_version(host) == NEWER
    after = standing(host)
    assert after == before
    assert _records(host) == records
    _shown(show, host, "upgrade", before, after)
    assert executable(host)
    assert host.run(["tail", "-n1", HOOK]).stdout.strip() == CHANGED
    assert host.run(f"ls {HOOK.rsplit('/', 1)[0]}").stdout.split() == [HOOK.rsplit("/", 1)[1]]
    assert host.run(f"systemctl is-active {UNITS}").stdout.split() == ["active", "active"]
    host.virsh("destroy", "worker")
    assert host.mdevs() == [FOREIGN]
    assert assignments(host) == []


def test_removed_and_installed_again_with_a_vgpu_in_use(
    host: Host, worker: str, package: Path, show: Show
) -> None:
    before, records = standing(host), _records(host)
    # What dpkg does first, before it takes any of the code: from then on libvirt calls no hook.
    host.run("/var/lib/dpkg/info/vgpu-hook.prerm remove")
    assert not executable(host)
    host.run("python3 -I -c 'import vgpu_hook.hook'")
    _plain_vms_start(host, "between")
    apt(host, "remove", "vgpu-hook")
    assert host.run("python3 -I -c 'import vgpu_hook.hook'", check=False).returncode == 1
    assert not executable(host)
    after = standing(host)
    assert after == before
    _shown(show, host, "remove", before, after)
    _plain_vms_start(host, "without")
    _install(host, package)
    assert executable(host)
    assert standing(host) == before
    assert _records(host) == records
    host.virsh("destroy", "worker")
    assert host.mdevs() == [FOREIGN]
    assert assignments(host) == []


def test_purging_says_what_it_leaves(host: Host, worker: str, show: Show) -> None:
    before = standing(host)
    printed = apt(host, "purge", "vgpu-hook")
    told = [line for line in printed.splitlines() if line.startswith("vgpu-hook: ")]
    assert told == [
        f"vgpu-hook: left in place: {STATE}, the record of its vGPUs.",
        f"vgpu-hook: when no vGPU is left: rm -r {STATE}",
    ]
    assert installed_version(host) == ""
    assert host.run(["test", "-e", HOOK], check=False).returncode == 1
    assert _records(host)[0][3] == worker
    after = standing(host)
    assert after == before
    _shown(show, host, "purge", before, after)
    _plain_vms_start(host, "without")
    # Stopping it leaves its vGPU, of which nobody knows now but the record.
    host.virsh("destroy", "worker")
    assert worker in host.mdevs()


def _shown(show: Show, host: Host, what: str, before: Standing, after: Standing) -> None:
    for name, vm in before.vms.items():
        now = after.vms[name]
        show(
            f"{host.machine.suite.debian}, {what}: VM '{name}': pid {vm.pid} -> {now.pid},"
            f" devices {' '.join(vm.devices) or 'none'} -> {' '.join(now.devices) or 'none'}"
        )
