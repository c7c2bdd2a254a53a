"""libvirt as the commands and the daemon need it: definitions, and what runs.

Never used by the hook, which would deadlock (facts A10), nor under a lock of ours.
"""

from __future__ import annotations

import contextlib
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import libvirt

from vgpu_hook import domain as domain_xml
from vgpu_hook.model import Domain, VgpuError

TRIES = 5
"""How often a definition that somebody else changes meanwhile is edited anew."""


class NoDomain(VgpuError):
    """libvirt has no domain of this name or UUID."""


class Known(NamedTuple):
    """What libvirt says of a domain."""

    name: str
    active: bool


class Libvirt:
    """A connection to libvirtd or virtqemud."""

    def __init__(self, uri: str) -> None:
        libvirt.registerErrorHandler(lambda *_: None, None)  # else it prints every error too
        self.uri = uri
        try:
            self.connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            raise VgpuError(
                f"can't connect to libvirt at {uri}: {error.get_error_message()}",
                "is libvirtd or virtqemud running?",
            ) from None
        self._require_this_host()

    def find(self, domain: str) -> Any:
        """Return the domain of this name or UUID; raise NoDomain if there is none."""
        if _is_uuid(domain):
            with contextlib.suppress(NoDomain):
                return self.find_uuid(domain)
        return self._look_up(self.connection.lookupByName, domain)

    def find_uuid(self, domain_uuid: str) -> Any:
        """Return the domain of this UUID, whatever others are named; or raise NoDomain."""
        return self._look_up(self.connection.lookupByUUIDString, domain_uuid)

    def domains(self) -> dict[str, Known]:
        """Return every domain by UUID. Waits for hooks that are at work."""
        try:
            # What starts between the two lists is in the second one.
            found = {
                d.UUIDString(): Known(d.name(), False) for d in self.connection.listAllDomains()
            }
            active = self.connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        except libvirt.libvirtError as error:
            raise VgpuError(f"libvirt: {error.get_error_message()}") from None
        return found | {d.UUIDString(): Known(d.name(), True) for d in active}

    def live(self, domain_uuid: str) -> Domain | None:
        """Return what a running domain has now; None if that can't be told."""
        try:
            found = self.find_uuid(domain_uuid)
            return domain_xml.parse(str(self.call(found, found.XMLDesc)).encode())
        except VgpuError:
            return None

    def parsed(self) -> list[Domain]:
        """Return every definition, without those that go meanwhile or can't be read."""
        found = []
        for domain_uuid in self.domains():
            with contextlib.suppress(VgpuError):
                found.append(domain_xml.parse(self.definition(self.find_uuid(domain_uuid))))
        return found

    def is_active(self, domain: Any) -> bool:
        """Tell whether the domain runs, starts or stops: waits for a hook that is at work."""
        return bool(self.call(domain, domain.isActive))

    def definition(self, domain: Any) -> bytes:
        """Return the persistent definition, or of a transient domain what runs."""
        return str(self.call(domain, domain.XMLDesc, _WHOLE)).encode()

    def shown(self, domain: Any, *, live: bool) -> bytes:
        """Return what runs, or the persistent definition, without the passwords in it."""
        flags = 0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE
        return str(self.call(domain, domain.XMLDesc, flags)).encode()

    def edit(self, domain: Any, change: Callable[[bytes], bytes]) -> bool:
        """Change the persistent definition; tell whether there was anything to change.

        If somebody else has changed it meanwhile, their change is kept and ours made anew.
        """
        name = domain.name()
        if not self.call(domain, domain.isPersistent):
            raise VgpuError(
                f"domain {name!r} is transient: it has no definition to change",
                "put the hostdev in its XML before it is created: vgpu-hook render FILE",
            )
        for _ in range(TRIES):
            before = self.definition(domain)
            after = change(before)
            if after == before:
                return False
            if self.definition(domain) == before:
                self.call(domain, self.connection.defineXML, after.decode())
                return True
        raise VgpuError(f"domain {name!r} is being changed by somebody else", "try again")

    def _look_up(self, method: Callable[[str], Any], domain: str) -> Any:
        try:
            return method(domain)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise failed(domain, error) from None
        raise NoDomain(f"no domain {domain!r} at {self.uri}", "run: virsh list --all")

    def _require_this_host(self) -> None:
        """Refuse another host's libvirt: its domains say nothing of the devices that are here."""
        uri = urllib.parse.urlsplit(self.connection.getURI())
        if self.connection.getType() != "QEMU" or uri.netloc or uri.path != "/system":
            raise VgpuError(
                f"{self.uri} is not the system libvirt of this host's QEMU",
                "use: --connect qemu:///system",
            )

    def call(self, domain: Any, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return what libvirt answers; raise VgpuError that names the domain."""
        try:
            return method(*arguments)
        except libvirt.libvirtError as error:
            raise failed(domain.name(), error) from None


def failed(name: str, error: libvirt.libvirtError) -> VgpuError:
    """Return what libvirt said of a domain as our error."""
    if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
        return NoDomain(f"domain {name!r} is gone", "run: virsh list --all")
    return VgpuError(f"domain {name!r}: libvirt: {error.get_error_message()}")


_WHOLE = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
