"""The package as an admin handles it, and what must stay as it is meanwhile."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import TestbedError
from tests.testbed.host import Host
from tests.testhost.vms import qemu_pid

HOOK = "/etc/libvirt/hooks/qemu.d/50-vgpu-hook"
SHIPPED = "usr/share/vgpu-hook/qemu"
CHANGED = "# of a newer version"


@dataclass(frozen=True)
class Running:
    """A running VM as the host's kernel sees it."""

    pid: int
    started: str
    """Field 22 of /proc/PID/stat: a pid alone could have been used again."""
    devices: tuple[str, ...]
    """The VFIO files that it has open."""
    xml: str


@dataclass(frozen=True)
class Standing:
    """What installing, upgrading and removing the package must not change."""

    vms: dict[str, Running]
    mdevs: dict[str, str]
    """By UUID: the type."""
    libvirtd: int


def standing(host: Host) -> Standing:
    """Return how the host's VMs and vGPUs stand now."""
    names = host.virsh("list", "--name").stdout.split()
    types = {
        device: host.run(f"readlink /sys/bus/mdev/devices/{device}/mdev_type").stdout.strip()
        for device in host.mdevs()
    }
    libvirtd = host.run("systemctl show --property=MainPID --value libvirtd.service").stdout
    return Standing({name: _running(host, name) for name in names}, types, int(libvirtd))


def _running(host: Host, name: str) -> Running:
    pid = qemu_pid(host, name)
    stat = host.run(["cat", f"/proc/{pid}/stat"]).stdout
    files = host.run(f"readlink /proc/{pid}/fd/*", check=False).stdout.split()
    devices = sorted(file for file in files if file.startswith("/dev/vfio/"))
    xml = host.virsh("dumpxml", name).stdout
    return Running(pid, stat.rsplit(")", 1)[1].split()[19], tuple(devices), xml)


def apt(host: Host, *arguments: str) -> str:
    """Run apt-get as an admin would; return all that it printed. The host has no network."""
    command = ["apt-get", "-y", "-q", "--no-install-recommends", *arguments]
    done = host.run(["env", "DEBIAN_FRONTEND=noninteractive", *command], timeout=1800)
    return done.stdout + done.stderr


def installed_version(host: Host) -> str:
    """Return the version of the package that is installed; empty if none is."""
    shown = host.run("dpkg-query -W -f='${Status},${Version}' vgpu-hook", check=False).stdout
    status, _, version = shown.partition(",")
    return version if status == "install ok installed" else ""


def executable(host: Host) -> bool:
    """Return whether libvirt runs the hook."""
    return host.run(["test", "-x", HOOK], check=False).returncode == 0


def confinement(host: Host) -> str:
    """Return how AppArmor holds the libvirtd that runs, in aa-status's words."""
    shown = json.loads(host.run("aa-status --json").stdout)
    found = shown["processes"].get("/usr/sbin/libvirtd", [])
    return " ".join(f"{process['profile']}:{process['status']}" for process in found)


def denied(host: Host) -> list[str]:
    """Return what AppArmor has denied since the boot that is about us.

    That is libvirtd's own profile, in which the hook's sh runs until it starts another program;
    any profile, if our files are named; and a VM's profile, if it is about a vGPU.
    """
    kernel = host.run("journalctl --boot --no-pager --quiet --dmesg --output=cat").stdout
    lines = [line for line in kernel.splitlines() if 'apparmor="DENIED"' in line]
    about = ('profile="libvirtd', "vgpu", "/dev/vfio")
    return [line for line in lines if any(word in line for word in about)]


def newer(package: Path, version: str) -> Path:
    """Return a copy of a package with this version and another hook, beside it."""
    tree = package.parent / "newer"
    _run("dpkg-deb", "--raw-extract", str(package), str(tree))
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    versioned = [f"Version: {version}" if x.startswith("Version:") else x for x in lines]
    control.write_text("\n".join(versioned) + "\n")
    with open(tree / SHIPPED, "a") as hook:
        hook.write(f"{CHANGED}\n")
    made = package.parent / f"vgpu-hook_{version}_all.deb"
    _run("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(made))
    return made


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"{' '.join(command)}:\n{done.stderr}")
