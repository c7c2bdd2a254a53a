"""How a host offers vGPUs, one file for each framework, each with the same few functions."""

from __future__ import annotations

from typing import Protocol

from vgpu_hook.model import Found, Parent

LEFT_OUT = "the configuration leaves this GPU out"
"""The problem of a parent whose files are not even read: they may hang."""


class Framework(Protocol):
    """What lifecycle needs of a framework. Every method may block: callers bound it."""

    name: str

    fixed: bool
    """True if a vGPU is a part of the host under an address of its own (a VF), which a
    definition names and others may use later; False if it is made with a UUID derived for it."""

    destroy_tries: int
    """How often `destroy` may be tried for one release."""

    def parents(self) -> tuple[Parent, ...]:
        """Return the parents of the host; one that can't be read carries a `problem`."""

    def names(self) -> list[str]:
        """Return the names of the parents, without reading them."""

    def parent(self, name: str) -> Parent:
        """Return one parent."""

    def find(self, device: str, parent: str | None = None) -> Found | None:
        """Return the device as the kernel has it now; None only if it is surely absent.

        `parent` helps to see a device that the kernel has begun to take down. Raises
        KernelError when it can't be told.
        """

    def create(self, device: str, parent: str, type_id: str, params: str | None) -> Found:
        """Make the device, read it back and return it.

        Raises NoCapacity, NotAsAsked if something else is there now, or KernelError.
        """

    def destroy(self, device: str, parent: str) -> None:
        """Take the device away and see that it is gone. Raises KernelError."""
