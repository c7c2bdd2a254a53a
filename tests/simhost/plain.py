"""SR-IOV VFs of a GPU without any vGPU types: Intel's xe, AMD's GIM, NVIDIA's without vGPU.

One kind of parent (see KINDS in host.py). It is here to be recognised: a VF is given to a VM as it
is. On vfio-pci it can be opened.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .hostmodel import ParentConfig
from .tree import Dir

if TYPE_CHECKING:
    from .host import Host

OPENABLE = "vfio-pci"


class PlainVf:
    def __init__(self, host: Host, config: ParentConfig) -> None:
        self.host = host
        self.config = config
        self.name = config.name
        self.registered = False
        self.unloading = False
        self.dir = Dir(config.name)
        self.group = -1
        self.cdev = -1

    def register(self) -> None:
        assert self.config.pci is not None
        self.dir = self.host.sys.dir("devices/" + self.config.path)
        self.dir.vanish = self.vanish
        self.host.pci.bind(self.config.pci, self.dir)
        self.group = self.host.pci.groups[self.name]
        if self.config.driver == OPENABLE:
            self.host.vfio.add(self)
        self.registered = True

    def unregister(self) -> None:
        if self.in_use:
            raise OSError(errno.EBUSY, f"{self.name} is open")
        self.host.vfio.remove(self)
        self.dir.remove("driver")
        self.registered = False

    def vanish(self) -> None:
        """The VF itself is gone, open or not."""
        self.host.vfio.remove(self)
        self.registered = False
        assert self.config.pci is not None
        self.host.pci.remove(self.config.pci)

    @property
    def in_use(self) -> bool:
        return bool(self.host.vfio.holders(self))

    @property
    def argument(self) -> str:
        return f"host={self.name}"

    def check_open(self) -> None:
        """vfio-pci needs nothing to be set first."""
