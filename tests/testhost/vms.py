"""VMs for the test host's libvirt that ask for vGPUs, and what tests look at there."""

from __future__ import annotations

import json
from typing import Any

from tests.domains import device_of, uuid_of
from tests.testbed.guests import domain_xml, mdev_hostdev
from tests.testbed.host import IDLE_DISK, Host

HOLDER = """\
import ctypes, os, sys, time
pid, group = int(sys.argv[1]), sys.argv[2]
for fd in os.listdir(f"/proc/{pid}/fd"):
    if os.readlink(f"/proc/{pid}/fd/{fd}") == group:
        # pidfd_getfd(2): the same open handle, in this process too.
        own = ctypes.CDLL(None).syscall(438, os.pidfd_open(pid), int(fd), 0)
        assert own >= 0
        print("held", flush=True)
        time.sleep(100000)
sys.exit("no such handle")
"""


def define(host: Host, name: str, *profiles: str, disk: str = IDLE_DISK) -> list[str]:
    """Define a domain with these vGPUs attached; return their devices."""
    own = uuid_of(name)
    devices = [device_of(own, str(slot)) for slot in range(len(profiles))]
    host.define(
        domain_xml(
            name,
            uuid=own,
            disk=disk,
            profiles=[{"profile": profile} for profile in profiles],
            extra_hostdevs=[
                mdev_hostdev(device, alias=f"ua-vgpu-{slot}") for slot, device in enumerate(devices)
            ],
        )
    )
    return devices


def define_request(host: Host, name: str, *requests: dict[str, str]) -> None:
    """Define a domain that asks for vGPUs and has no hostdev yet."""
    host.define(domain_xml(name, uuid=uuid_of(name), disk=IDLE_DISK, profiles=requests))


def definition_devices(host: Host, name: str) -> list[str]:
    """Return the mdev UUIDs of a persistent definition."""
    xml = host.virsh("dumpxml", "--inactive", name).stdout
    return [part.split("'")[1] for part in xml.split("<address uuid=")[1:]]


def settled(host: Host, name: str, *devices: str) -> None:
    """Wait until the daemon has put a definition in order."""
    host.wait_for(
        f"{name} has {devices}",
        lambda: definition_devices(host, name) == list(devices),
        timeout=600,
    )


def status(host: Host) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(host.run("vgpu-hook status --format json").stdout)
    return value


def assignments(host: Host) -> list[tuple[str, str]]:
    """Return (domain, state) of each record."""
    return [(row["domain_name"], row["state"]) for row in status(host)["assignments"]]


def qemu_pid(host: Host, name: str) -> int:
    return int(host.run(["cat", f"/run/libvirt/qemu/{name}.pid"]).stdout)


def group_of(host: Host, device: str) -> str:
    """Return the device file of a mediated device's IOMMU group."""
    link = host.run(["readlink", f"/sys/bus/mdev/devices/{device}/iommu_group"]).stdout.strip()
    return f"/dev/vfio/{link.rsplit('/', 1)[1]}"


def hold(host: Host, name: str, device: str) -> None:
    """Have another process keep QEMU's handle on the device open; `let_go` ends it."""
    host.machine.write("/root/holder.py", HOLDER.encode())
    pid, group = qemu_pid(host, name), group_of(host, device)
    host.run(
        "systemctl stop holder 2>/dev/null; rm -f /run/holder;"
        " systemd-run --quiet --collect --unit=holder --property=StandardOutput=file:/run/holder"
        f" python3 /root/holder.py {pid} {group}"
    )
    host.wait_for(
        "the handle is held",
        lambda: "held" in host.run("cat /run/holder", check=False).stdout,
    )


def let_go(host: Host) -> None:
    host.run("systemctl stop holder")
