"""The two frameworks of the test host, for tests that hold for both.

mdev: the sample driver mtty. vendor-vfio: two GPUs of four VFs each (tests/testbed/gpu.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import pytest

from tests.domains import device_of, uuid_of
from tests.testbed.gpu import plug_gpus
from tests.testbed.guests import domain_xml, mdev_hostdev, pci_hostdev
from tests.testbed.host import IDLE_DISK, Host
from tests.testhost.vms import HOLDER, definition_devices, qemu_pid, query

FOREIGN = "11111111-2222-4333-8444-555555555555"
MTTY_TYPES = "/sys/class/mdev_bus/mtty/mdev_supported_types"

NAMED = """\
import json, sqlite3, subprocess, sys, xml.etree.ElementTree as E
xml = subprocess.run(["virsh", "dumpxml", "--inactive", "--", sys.argv[1]], capture_output=True)
top = E.fromstring(xml.stdout)
keys = ("domain", "bus", "slot", "function")
sources = [h.find("source/address").attrib for h in top.iterfind("devices/hostdev[@type='pci']")]
named = ["%04x:%02x:%02x.%x" % tuple(int(a[k], 16) for k in keys) for a in sources]
given = []
try:
    c = sqlite3.connect("file:/var/lib/vgpu-hook/store.db?mode=ro", uri=True, timeout=60)
    q = "SELECT device FROM reservation WHERE domain_uuid = ? ORDER BY slot"
    given = [row[0] for row in c.execute(q, (top.findtext("uuid"),))]
except sqlite3.OperationalError:
    pass
print(json.dumps([named, given]))
"""
"""Prints the VFs that a definition names, by slot, and those that are reserved for it."""


class Kind:
    """One framework on one host: how to ask for a vGPU, and what the kernel says of it."""

    name: str
    profile: str
    """What a host has room for several times."""
    other: str
    """Another one, that fits beside it."""
    by_name: str
    """The profile, as people read it."""
    type_id: str

    def __init__(self, host: Host) -> None:
        self.host = host

    def define(
        self, name: str, *profiles: str, disk: str = IDLE_DISK, movable: bool = False
    ) -> list[str]:
        """Define a domain with these vGPUs attached; return their devices.

        movable: QEMU can save and migrate it.
        """
        raise NotImplementedError

    def settled(self, name: str, count: int = 1) -> list[str]:
        """Wait until the daemon has put a definition in order; return its devices."""
        raise NotImplementedError

    def present(self) -> list[str]:
        """Return the vGPUs that the kernel has."""
        raise NotImplementedError

    def type_of(self, device: str) -> str:
        """Return the type of a vGPU as the product names it."""
        raise NotImplementedError

    def group_of(self, device: str) -> str:
        """Return the device file of a vGPU's IOMMU group."""
        raise NotImplementedError

    def fill(self, device: str) -> None:
        """Leave room for one vGPU of the profile and no more, by hand: for this one."""
        raise NotImplementedError

    def empty(self) -> None:
        """Undo `fill`."""
        raise NotImplementedError

    def foreign(self) -> tuple[str, Element]:
        """Make a vGPU by hand; return it and a hostdev for it, without an alias."""
        raise NotImplementedError

    def remove(self, device: str) -> None:
        """Take a vGPU away by hand."""
        raise NotImplementedError

    def movable(self, name: str) -> None:
        """Make QEMU save the running VM; for one that was defined `movable`."""

    def hold(self, name: str, device: str) -> None:
        """Have another process keep QEMU's handle on the device open; vms.let_go ends it."""
        self.host.machine.write("/root/holder.py", HOLDER.encode())
        pid, group = qemu_pid(self.host, name), self.group_of(device)
        self.host.run(
            "systemctl stop holder 2>/dev/null; rm -f /run/holder; systemd-run --quiet --collect"
            " --unit=holder --property=StandardOutput=file:/run/holder"
            f" python3 /root/holder.py {pid} {group}"
        )
        self.host.wait_for(
            "the handle is held",
            lambda: "held" in self.host.run("cat /run/holder", check=False).stdout,
        )


class MdevKind(Kind):
    name = "mdev"
    profile, other, by_name, type_id = "mtty-1", "mtty-2", "single port serial", "mtty-1"

    def define(
        self, name: str, *profiles: str, disk: str = IDLE_DISK, movable: bool = False
    ) -> list[str]:
        own = uuid_of(name)
        devices = [device_of(own, str(slot)) for slot in range(len(profiles))]
        hostdevs = [mdev_hostdev(d, alias=f"ua-vgpu-{n}") for n, d in enumerate(devices)]
        self.host.define(_asking(name, profiles, hostdevs, disk, movable))
        return devices

    def settled(self, name: str, count: int = 1) -> list[str]:
        own = self.host.virsh("domuuid", name).stdout.strip()
        devices = [device_of(own, str(slot)) for slot in range(count)]
        self.host.wait_for(
            f"{name} has {devices}",
            lambda: definition_devices(self.host, name) == devices,
            timeout=600,
        )
        return devices

    def present(self) -> list[str]:
        return self.host.mdevs()

    def type_of(self, device: str) -> str:
        link = f"/sys/bus/mdev/devices/{device}/mdev_type"
        return self.host.run(f"basename $(readlink {link})").stdout.strip()

    def group_of(self, device: str) -> str:
        return _group(self.host, f"/sys/bus/mdev/devices/{device}")

    def foreign(self) -> tuple[str, Element]:
        self.host.create_mdev(FOREIGN)
        return FOREIGN, mdev_hostdev(FOREIGN)

    def remove(self, device: str) -> None:
        self.host.run(f"echo 1 > /sys/bus/mdev/devices/{device}/remove")

    def fill(self, device: str) -> None:
        create = f"{MTTY_TYPES}/mtty-1/create"
        self.host.run(f"for i in $(seq 23); do cat /proc/sys/kernel/random/uuid > {create}; done")

    def empty(self) -> None:
        self.host.run("for d in /sys/bus/mdev/devices/*; do echo 1 > $d/remove; done")


class VfKind(Kind):
    name = "vendor-vfio"
    profile, other, by_name, type_id = "1148", "1145", "nvidia l40s-2q", "nvidia-1148"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.vfs = plug_gpus(host.machine, gpus=2, vfs=4)
        self._filled: list[str] = []
        host.machine.write("/root/named.py", NAMED.encode())

    def define(
        self, name: str, *profiles: str, disk: str = IDLE_DISK, movable: bool = False
    ) -> list[str]:
        recorded = {row[0] for row in query(self.host, "SELECT device FROM assignment")}
        taken = recorded | set(self.present())
        free = [vf for vf in self.vfs if vf not in taken]
        devices = free[: len(profiles)]
        hostdevs = [pci_hostdev(d, alias=f"ua-vgpu-{n}") for n, d in enumerate(devices)]
        self.host.define(_asking(name, profiles, hostdevs, disk, movable))
        return self.settled(name, len(profiles))

    def settled(self, name: str, count: int = 1) -> list[str]:
        found: list[str] = []

        def reserved() -> bool:
            printed = self.host.run(["python3", "-I", "/root/named.py", name]).stdout
            named, given = json.loads(printed)
            found[:] = named
            return len(named) == count and named == given

        what = f"{name} names {count} VFs that are reserved for it"
        self.host.wait_for(what, reserved, timeout=600)
        return found

    def present(self) -> list[str]:
        files = " ".join(f"/sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type" for vf in self.vfs)
        lines = self.host.run(f"grep -H . {files}").stdout.splitlines()
        return sorted(line.split("/")[5] for line in lines if not line.endswith(":0"))

    def type_of(self, device: str) -> str:
        file = f"/sys/bus/pci/devices/{device}/nvidia/current_vgpu_type"
        return f"nvidia-{self.host.run(['cat', file]).stdout.strip()}"

    def group_of(self, device: str) -> str:
        return _group(self.host, f"/sys/bus/pci/devices/{device}")

    def movable(self, name: str) -> None:
        # While a VM is saved, QEMU takes all that its VF might write to as written to, each time
        # anew, since this IOMMU keeps no log: it must be content with what is left.
        self.host.virsh("migrate-setmaxdowntime", name, "1000000")

    def foreign(self) -> tuple[str, Element]:
        self._set(self.vfs[:1], 1148)
        return self.vfs[0], pci_hostdev(self.vfs[0])

    def remove(self, device: str) -> None:
        self._set([device], 0)

    def fill(self, device: str) -> None:
        self._filled = [vf for vf in self.vfs if vf != device]
        self._set(self._filled, 1148)

    def empty(self) -> None:
        self._set(self._filled, 0)

    def _set(self, vfs: list[str], number: int) -> None:
        for vf in vfs:
            self.host.run(f"echo {number} > /sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type")


KINDS: dict[str, type[Kind]] = {"mdev": MdevKind, "vendor-vfio": VfKind}

ALL = os.environ.get("TESTHOST_KINDS") == "all"
"""Whether each test is done with both kinds: `make soak` has time for it."""


def _usually(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "kind", [*KINDS] if ALL else [name], indirect=True, scope="module"
    )


usually_mdev = _usually("mdev")
usually_vf = _usually("vendor-vfio")
"""For what hardly differs: `make test` does it with one kind, `make soak` with both."""

only_mdev = pytest.mark.parametrize("kind", ["mdev"], indirect=True, scope="module")


def _asking(
    name: str, profiles: Sequence[str], hostdevs: Sequence[Element], disk: str, movable: bool
) -> str:
    return domain_xml(
        name,
        uuid=uuid_of(name),
        disk=disk,
        profiles=[{"profile": profile} for profile in profiles],
        extra_hostdevs=hostdevs,
        migratable=[f"ua-vgpu-{slot}" for slot in range(len(profiles))] if movable else [],
    )


def _group(host: Host, path: str) -> str:
    link = host.run(["readlink", f"{path}/iommu_group"]).stdout.strip()
    return f"/dev/vfio/{link.rsplit('/', 1)[1]}"
