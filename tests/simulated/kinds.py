"""The two frameworks on simulated hosts, for tests that hold for both (the fixture `kind`).

mdev: the sample driver mtty. vendor-vfio: an L40S with 8 VFs. Knows nothing of the product's code.
"""

from __future__ import annotations

from typing import Any

from tests.domains import device_of, domain_xml, hostdev, pci_hostdev, uuid_of
from tests.simhost import SimHost
from tests.simhost.client import Write


class Kind:
    """One framework on one host: how a domain asks for vGPUs, what the kernel has, what fails."""

    name: str
    host: str
    """Where `profile`, `other` and `room` hold."""
    profile: str
    other: str
    """Another one, that fits beside it."""
    type_id: str
    other_id: str
    """The types of `profile` and `other`, as they are recorded."""
    room: int
    """How many vGPUs of the profile an empty host has room for."""
    tries: range
    """How often one release may write."""
    free_file: str
    """Which file tells what a parent has room for; a glob, as for SimHost.fault."""
    spellings: tuple[str, ...]
    """Other words for `profile`."""
    marks: bool
    """Whether a request carries the mark of the domain that its device was chosen for."""

    def __init__(self, sim: SimHost) -> None:
        self.sim = sim

    def device(self, name: str, slot: str = "0") -> str:
        """Return what the hostdev in this slot of the domain names; always the same."""
        raise NotImplementedError

    def hostdev(self, device: str, slot: str = "0") -> str:
        raise NotImplementedError

    def parent(self, device: str) -> str:
        raise NotImplementedError

    def present(self) -> dict[str, str]:
        """Return the vGPUs that the kernel has, with the type of each."""
        raise NotImplementedError

    def free(self) -> int:
        """Return how many more vGPUs of the profile the kernel has room for."""
        raise NotImplementedError

    def fail_create(self, action: str, profile: str | None = None, **options: Any) -> None:
        """Have the kernel fail to make vGPUs, of that profile if given; see SimHost.fault."""
        raise NotImplementedError

    def fail_remove(self, action: str, **options: Any) -> None:
        """Have the kernel fail to take vGPUs away."""
        raise NotImplementedError

    def removals(self) -> list[Write]:
        """Return the writes that were to take a vGPU away."""
        raise NotImplementedError

    def xml(self, name: str, *profiles: str, attributes: str = "", marked: bool = False) -> bytes:
        """Return a domain with vGPUs in slots 0, 1, ...; with one of `profile` if none is given.

        `marked`: with the product's mark, where it writes one, that they were chosen for it.
        """
        asked = {str(slot): p for slot, p in enumerate(profiles or (self.profile,))}
        hostdevs = [self.hostdev(self.device(name, slot), slot) for slot in asked]
        owner = uuid_of(name) if marked and self.marks else None
        return domain_xml(name, asked, hostdevs=hostdevs, attributes=attributes, owner=owner)

    def vgpus(self, *names: str) -> dict[str, str]:
        """Return what `present` is when these domains alone have their one vGPU each."""
        return {self.device(name): self.type_id for name in names}


class MdevKind(Kind):
    name, host = "mdev", "mtty"
    profile, other = type_id, other_id = "mtty-1", "mtty-2"
    room = 24
    tries = range(1, 2)
    free_file = "sys/*/available_instances"
    spellings = ("Single port serial", "1", "MTTY-1")
    marks = False

    def device(self, name: str, slot: str = "0") -> str:
        return device_of(uuid_of(name), slot)

    def hostdev(self, device: str, slot: str = "0") -> str:
        return hostdev(device, slot)

    def parent(self, device: str) -> str:
        return str(self.sim.state()["devices"][device]["parent"])

    def present(self) -> dict[str, str]:
        devices = self.sim.state()["devices"].items()
        return {uuid: d["type"] for uuid, d in devices if d["state"] != "removing"}

    def free(self) -> int:
        return self.sim.available("mtty", self.type_id)

    def fail_create(self, action: str, profile: str | None = None, **options: Any) -> None:
        self.sim.fault("write", f"sys/*/{profile or '*'}/create", action, **options)

    def fail_remove(self, action: str, **options: Any) -> None:
        self.sim.fault("write", "sys/*/remove", action, **options)

    def removals(self) -> list[Write]:
        return self.sim.writes("sys/*/remove")


class VfKind(Kind):
    name, host = "vendor-vfio", "l40s"
    profile, other = "1148", "1145"
    type_id, other_id = "nvidia-1148", "nvidia-1145"
    room = 8
    tries = range(1, 11)
    free_file = "sys/*/creatable_vgpu_types"
    spellings = ("NVIDIA L40S-2Q", "nvidia-1148", "nvidia l40s-2q")
    marks = True

    def __init__(self, sim: SimHost) -> None:
        super().__init__(sim)
        self._undealt = sorted(sim.state()["vfs"], reverse=True)
        self._dealt: dict[tuple[str, str], str] = {}

    def device(self, name: str, slot: str = "0") -> str:
        """Return a VF that no other slot's definition names, dealt when it is first asked for."""
        if (name, slot) not in self._dealt:
            self._dealt[name, slot] = self._undealt.pop()
        return self._dealt[name, slot]

    def hostdev(self, device: str, slot: str = "0") -> str:
        return pci_hostdev(device, slot)

    def parent(self, device: str) -> str:
        return device

    def present(self) -> dict[str, str]:
        return {vf: f"nvidia-{number}" for vf, number in self.sim.current_types().items()}

    def free(self) -> int:
        vfs = self.sim.state()["vfs"].values()
        return sum(int(self.profile) in vf["creatable"] for vf in vfs)

    def fail_create(self, action: str, profile: str | None = None, **options: Any) -> None:
        data = profile or "[1-9]*"
        self.sim.fault("write", "sys/*/current_vgpu_type", action, data=data, **options)

    def fail_remove(self, action: str, **options: Any) -> None:
        self.sim.fault("write", "sys/*/current_vgpu_type", action, data="0", **options)

    def removals(self) -> list[Write]:
        return [w for w in self.sim.writes("sys/*/current_vgpu_type") if w.data.strip() == "0"]


KINDS: tuple[type[Kind], ...] = (MdevKind, VfKind)
