"""NVIDIA's vendor-specific VFIO on SR-IOV VFs (kernel 6.8 and later): the files below <VF>/nvidia/.

One kind of parent (see KINDS in host.py). A VF carries at most one vGPU: its type is written to
current_vgpu_type, 0 takes it away. Nothing here blocks; there is no mediated device and no UUID.
Source: facts E2. Where they are silent, NVIDIA's own host driver of the 525 branch
(nvidia-vgpu-vfio/vgpu-vfio-pci-core.c and nvidia-vgpu-vfio.c, public copies): the number's format,
that 0 over 0 is an error, and vgpu_params without a vGPU or with one in use.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from .capacity import Taken
from .hostmodel import ParentConfig, TypeConfig
from .tree import Dir

if TYPE_CHECKING:
    from .host import Host

_NUMBER = re.compile(rb"[+-]?[0-9]+\n?")


class VendorVf:
    """A VF whose driver is NVIDIA's. `vgpu` is what current_vgpu_type stands for."""

    def __init__(self, host: Host, config: ParentConfig) -> None:
        self.host = host
        self.config = config
        self.name = config.name
        self.pool = host.pools[config.pool]
        self.registered = False
        self.unloading = False
        self.dir = Dir(config.name)
        self.group = -1
        self.cdev = -1
        self.vgpu: Taken | None = None
        self._place = 0
        self._params = b""
        self._warm = 0

    # --- coming and going ---

    def register(self) -> None:
        """nv_vfio_pci_core_init: the driver link, vfio-dev, the file below /dev, then nvidia/."""
        assert self.config.pci is not None
        self.dir = self.host.sys.dir("devices/" + self.config.path)
        self.dir.vanish = self.vanish
        self.host.pci.bind(self.config.pci, self.dir)
        self.group = self.host.pci.groups[self.name]
        self.host.vfio.add(self)
        here = self.dir.dir("nvidia")
        here.attr("creatable_vgpu_types", self._show_creatable)
        here.attr("current_vgpu_type", lambda: b"%d\n" % self.type_id, self._store_type)
        here.attr("gpu_instance_id", self._show_instance, self._store_instance)
        here.attr("placement_id", self._show_placement, self._store_placement)
        here.attr("vgpu_params", self._show_params, self._store_params)
        here.attr("warm_update", lambda: b"%d\n" % self._warm, self._store_warm)
        self.registered = True

    def unregister(self) -> None:
        """The driver lets go of the VF, which remains. EBUSY if it is open (really: it waits)."""
        if not self.registered:
            return
        if self.in_use:
            raise OSError(errno.EBUSY, f"{self.name} is open")
        self._let_go()
        for name in ("nvidia", "driver"):
            self.dir.remove(name)

    def vanish(self) -> None:
        """The VF itself is gone, open or not, as with `sriov-manage -d`."""
        self._let_go()
        assert self.config.pci is not None
        self.host.pci.remove(self.config.pci)

    def _let_go(self) -> None:
        self.registered = False
        self._free()
        self.host.vfio.remove(self)

    # --- what a VFIO device is asked ---

    @property
    def argument(self) -> str:
        return f"host={self.name}"

    def check_open(self) -> None:
        if self.vgpu is None:
            refuse(self.config.answers.open, "current_vgpu_type is not set")

    @property
    def in_use(self) -> bool:
        return bool(self.host.vfio.holders(self))

    # --- current_vgpu_type, creatable_vgpu_types ---

    @property
    def type_id(self) -> int:
        return int(self.vgpu.kind.id) if self.vgpu is not None else 0

    def creatable(self) -> list[TypeConfig]:
        """What this VF could be set to now; nothing while it has a type (per_parent is 1)."""
        return [kind for kind in self.config.types if self.pool.available(self.name, kind) > 0]

    def assign(self, kind: str) -> None:
        """Set by somebody else ("0": taken away); not in the write log. OSError as for a write."""
        if not self.registered:
            raise ValueError(f"{self.name} is not there")
        self._store_type(kind.encode())

    def _show_creatable(self) -> bytes:
        if self.config.answers.header:
            lines = ["ID    : vGPU Name", *(f"{k.id:<5} : {k.name}" for k in self.creatable())]
        else:
            lines = [f"{kind.id} : {kind.name}" for kind in self.creatable()]
        return "".join(line + "\n" for line in lines).encode()

    def _store_type(self, data: bytes) -> None:
        number = kstrtol(data) & 0xFFFFFFFF
        if number != 0:
            self._set(number)
        elif self.vgpu is None:
            refuse(self.config.answers.nothing, "no type is set")
        else:
            if self.in_use:
                refuse(self.config.answers.in_use, "it is open")
            self._free()

    def _set(self, number: int) -> None:
        answers = self.config.answers
        before = self.vgpu
        if before is not None:
            refuse(answers.occupied, "a type is set")
            self._free()
        kind = next((k for k in self.creatable() if int(k.id) == number), None)
        if kind is None:
            if before is not None:
                self.vgpu = self.pool.take(self.name, self.name, before.kind)
            raise OSError(getattr(errno, answers.uncreatable), "not creatable")
        self.vgpu = self.pool.take(self.name, self.name, kind)
        self._place = self.vgpu.place

    def _free(self) -> None:
        self.pool.give_back(self.name)
        self.vgpu = None
        self._place, self._params, self._warm = 0, b"", 0

    # --- the other files ---

    def _needs_vgpu(self) -> Taken:
        if self.vgpu is None:
            raise OSError(errno.ENXIO, "no type is set")
        return self.vgpu

    def _show_instance(self) -> bytes:
        """Filled in by the driver. Without MIG there is none: ENXIO is a guess."""
        instance = self._needs_vgpu().instance
        if instance is None:
            raise OSError(errno.ENXIO, "no GPU instance")
        return b"%d\n" % instance

    def _store_instance(self, data: bytes) -> None:
        """The driver chooses it; what a write does is not documented."""
        self._needs_vgpu()
        raise OSError(errno.EPERM, "the driver chooses it")

    def _show_placement(self) -> bytes:
        self._needs_vgpu()
        return b"%d\n" % self._place

    def _store_placement(self, data: bytes) -> None:
        """Its format is not documented: any number is taken, until the VM starts."""
        self._needs_vgpu()
        number = kstrtol(data)
        if self.in_use:
            raise OSError(errno.EPERM, "it is open")
        self._place = number

    def _show_params(self) -> bytes:
        self._needs_vgpu()
        return self._params + b"\n" if self._params else b""

    def _store_params(self, data: bytes) -> None:
        """Without a newline the write succeeds and changes nothing (peers.md row 62)."""
        self._needs_vgpu()
        if self.in_use:
            raise OSError(errno.EPERM, "it is open")
        if data.endswith(b"\n"):
            self._params = data.strip()

    def _store_warm(self, data: bytes) -> None:
        number = kstrtol(data)
        if number not in (0, 1):
            raise OSError(errno.EINVAL, "0 or 1")
        self._warm = number

    def state(self) -> dict[str, object]:
        return {
            "type": self.type_id,
            "creatable": [int(kind.id) for kind in self.creatable()] if self.registered else [],
            "params": self._params.decode("utf-8", "backslashreplace"),
            "group": self.group,
            "cdev": self.cdev,
            "holders": self.host.vfio.holders(self),
            "there": self.registered,
        }


def refuse(name: str, reason: str) -> None:
    """Raise OSError with the errno of that name, unless it is ""."""
    if name:
        raise OSError(getattr(errno, name), reason)


def kstrtol(data: bytes) -> int:
    """lib/kstrtox.c with base 10: a sign and one newline allowed. Raises EINVAL or ERANGE."""
    if _NUMBER.fullmatch(data) is None:
        raise OSError(errno.EINVAL, "not a number")
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise OSError(errno.ERANGE, "too large")
    return number
