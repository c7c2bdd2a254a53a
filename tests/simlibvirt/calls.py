"""What connections ask of the simulated libvirtd, over its socket or in-process."""

# ruff: noqa: N802 - libvirt's own names

from __future__ import annotations

import uuid
from typing import Any

import libvirt

from .errors import SimError, invalid
from .facade import Connection
from .state import SimDomain, SimLibvirt

HOST_UUID = "00000000-0000-4000-8000-00000000c0de"
ACTIVE = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
INACTIVE = libvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE


class Calls:
    """What a connection asks, by libvirt's names. Raises SimError."""

    def __init__(self, simulated: SimLibvirt) -> None:
        self._libvirt = simulated

    def __call__(self, method: str, *arguments: Any) -> Any:
        self._libvirt.serving.wait()
        if self._libvirt.refuses:
            raise SimError(libvirt.VIR_ERR_SYSTEM_ERROR, "Cannot write data: Broken pipe")
        self._libvirt.before(method, *arguments)
        failing = self._libvirt.failing.get(method)
        if failing:
            raise failing.pop(0)
        return getattr(self, f"_{method}")(*arguments)

    # -- virConnect -------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect: refused like everything else while libvirtd is not there."""

    def _getLibVersion(self) -> int:
        return self._libvirt.version

    def _getVersion(self) -> int:
        return 10_000_000

    def _getHostname(self) -> str:
        return "simulated"

    def _getCapabilities(self) -> str:
        return f"<capabilities><host><uuid>{HOST_UUID}</uuid></host></capabilities>"

    def _lookupByName(self, name: str) -> tuple[str, str]:
        with self._libvirt.asked(self._libvirt.find(name=name).uuid) as domain:
            return _pair(domain)

    def _lookupByUUIDString(self, text: str) -> tuple[str, str]:
        try:
            asked = str(uuid.UUID(text))
        except ValueError:
            raise SimError(libvirt.VIR_ERR_INVALID_ARG, "Invalid UUID") from None
        with self._libvirt.asked(asked) as domain:
            return _pair(domain)

    def _listAllDomains(self, flags: int) -> list[tuple[str, str]]:
        found = self._libvirt.list(active=bool(flags & ACTIVE), inactive=bool(flags & INACTIVE))
        return [_pair(domain) for domain in found]

    def _defineXML(self, xml: str) -> tuple[str, str]:
        return _pair(self._libvirt.define(xml))

    # -- virDomain --------------------------------------------------------------------------

    def _isActive(self, uuid: str, name: str) -> int:
        with self._libvirt.asked(uuid, name) as domain:
            return int(domain.live is not None)

    def _isPersistent(self, uuid: str, name: str) -> int:
        with self._libvirt.asked(uuid, name) as domain:
            return int(domain.definition is not None)

    def _XMLDesc(self, uuid: str, name: str, flags: int) -> str:
        with self._libvirt.asked(uuid, name) as domain:
            return self._libvirt.describe(domain, flags)

    def _destroy(self, uuid: str, name: str) -> int:
        with self._libvirt.asked(uuid, name) as domain:
            if domain.live is None:
                raise invalid("domain is not running")
            self._libvirt.on_destroy(domain)
        return 0

    def _undefineFlags(self, uuid: str, name: str, flags: int) -> int:
        with self._libvirt.asked(uuid, name) as domain:
            self._libvirt.undefine(domain, flags)
        return 0

    def _attachDeviceFlags(self, uuid: str, name: str, xml: str, flags: int) -> int:
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE, "the product plugs into what runs only"
        with self._libvirt.asked(uuid, name) as domain:
            self._libvirt.attach(domain, xml)
        return 0

    def _detachDeviceAlias(self, uuid: str, name: str, alias: str, flags: int) -> int:
        assert flags == 0, "the product leaves it to libvirt what is meant"
        with self._libvirt.asked(uuid, name) as domain:
            self._libvirt.detach(domain, alias)
        return 0

    def _setMetadata(
        self, uuid: str, name: str, kind: int, xml: str | None, key: str, uri: str, flags: int
    ) -> int:
        assert kind == libvirt.VIR_DOMAIN_METADATA_ELEMENT, "the product has no title"
        with self._libvirt.asked(uuid, name) as domain:
            self._libvirt.set_metadata(domain, xml, uri, key=key, flags=flags)
        return 0

    # -- storage ----------------------------------------------------------------------------

    def _storagePoolLookupByName(self, name: str) -> str:
        if all(name != pool for pool, _ in self._libvirt.volumes.values()):
            text = f"Storage pool not found: no storage pool with matching name '{name}'"
            raise SimError(libvirt.VIR_ERR_NO_STORAGE_POOL, text)
        return name

    def _storageVolLookupByName(self, pool: str, name: str) -> str:
        for path, found in self._libvirt.volumes.items():
            if found == (pool, name):
                return path
        text = f"Storage volume not found: no storage vol with matching name '{name}'"
        raise SimError(libvirt.VIR_ERR_NO_STORAGE_VOL, text)

    def _storageVolLookupByPath(self, path: str) -> str:
        if path not in self._libvirt.volumes:
            text = f"Storage volume not found: no storage vol with matching path '{path}'"
            raise SimError(libvirt.VIR_ERR_NO_STORAGE_VOL, text)
        return path

    def _volumeDelete(self, path: str) -> int:
        self._storageVolLookupByPath(path)
        del self._libvirt.volumes[path]
        return 0


def _pair(domain: SimDomain) -> tuple[str, str]:
    return domain.uuid, domain.name


def connection(simulated: SimLibvirt) -> Connection:
    """Return a connection for the test's own process, which raises the real module's errors."""
    calls = Calls(simulated)

    def call(method: str, *arguments: Any) -> Any:
        try:
            return calls(method, *arguments)
        except SimError as error:
            raised = libvirt.libvirtError(error.message)
            raised.err = (error.code, 0, error.message, 2, "", None, None, 0, 0)
            raise raised from None

    call("open")
    return Connection("qemu:///system", call)
