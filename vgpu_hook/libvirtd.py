"""libvirt as the commands need it: a domain's persistent definition, and whether it runs.

Never used by the hook, which would deadlock (facts A10), nor under a lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import libvirt

from vgpu_hook.model import VgpuError

TRIES = 5
"""How often a definition that somebody else changes meanwhile is edited anew."""


class NoDomain(VgpuError):
    """libvirt has no domain of this name or UUID."""


class Libvirt:
    """A connection to libvirtd or virtqemud."""

    def __init__(self, uri: str) -> None:
        libvirt.registerErrorHandler(lambda *_: None, None)  # else it prints every error too
        self.uri = uri
        try:
            self._connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            raise VgpuError(
                f"can't connect to libvirt at {uri}: {error.get_error_message()}",
                "is libvirtd or virtqemud running?",
            ) from None

    def find(self, domain: str) -> Any:
        """Return the domain of this name or UUID; raise NoDomain if there is none."""
        lookups = [self._connection.lookupByName]
        if _is_uuid(domain):
            lookups.append(self._connection.lookupByUUIDString)
        for lookup in lookups:
            try:
                return lookup(domain)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise failed(domain, error) from None
        raise NoDomain(f"no domain {domain!r} at {self.uri}", "run: virsh list --all")

    def is_active(self, domain: Any) -> bool:
        """Tell whether the domain runs, starts or stops: waits for a hook that is at work."""
        try:
            return bool(domain.isActive())
        except libvirt.libvirtError as error:
            raise failed(domain.name(), error) from None

    def edit(self, domain: Any, change: Callable[[bytes], bytes]) -> bool:
        """Change the persistent definition; tell whether there was anything to change.

        If somebody else has changed it meanwhile, their change is kept and ours made anew.
        """
        name = domain.name()
        flags = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
        try:
            if not domain.isPersistent():
                raise VgpuError(
                    f"domain {name!r} is transient: it has no definition to change",
                    "put the hostdev in its XML before it is created: vgpu-hook render FILE",
                )
            for _ in range(TRIES):
                before = domain.XMLDesc(flags)
                after = change(before.encode())
                if after.strip() == before.encode().strip():
                    return False
                if domain.XMLDesc(flags) == before:
                    self._connection.defineXML(after.decode())
                    return True
        except libvirt.libvirtError as error:
            raise failed(name, error) from None
        raise VgpuError(f"domain {name!r} is being changed by somebody else", "try again")


def failed(name: str, error: libvirt.libvirtError) -> VgpuError:
    """Return what libvirt said of a domain as our error."""
    return VgpuError(f"domain {name!r}: libvirt: {error.get_error_message()}")


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
