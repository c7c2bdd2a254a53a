"""virConnect, virDomain and storage, as far as the product uses them, over anything that answers.

The same classes serve the product's processes (standin/libvirt.py, over a socket) and the test's
own. An attribute that is missing here is one that the product has begun to use.
"""

# ruff: noqa: N802 - libvirt's own names

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

Call = Callable[..., Any]


class Happened(NamedTuple):
    """One event, as the callbacks get it: the kind, the domain, and what else they are given."""

    kind: int
    uuid: str
    name: str
    arguments: tuple[int | str, ...]
    number: int = 0
    """Its place among all that have happened."""


class Connection:
    """virConnect. `call(method, *arguments)` asks the simulated libvirtd, and raises its errors."""

    def __init__(self, uri: str, call: Call) -> None:
        self.uri = uri
        self.call = call
        self.callbacks: dict[int, tuple[int, Call, Any]] = {}
        self.on_close: tuple[Call, Any] | None = None
        self._numbers = itertools.count()

    def getURI(self) -> str:
        return self.uri

    def getType(self) -> str:
        return "QEMU"

    def getLibVersion(self) -> int:
        return int(self.call("getLibVersion"))

    def getVersion(self) -> int:
        return int(self.call("getVersion"))

    def getHostname(self) -> str:
        return str(self.call("getHostname"))

    def getCapabilities(self) -> str:
        return str(self.call("getCapabilities"))

    def lookupByName(self, name: str) -> Domain:
        return self._domain(self.call("lookupByName", name))

    def lookupByUUIDString(self, uuid: str) -> Domain:
        return self._domain(self.call("lookupByUUIDString", uuid))

    def listAllDomains(self, flags: int = 0) -> list[Domain]:
        return [self._domain(found) for found in self.call("listAllDomains", flags)]

    def defineXML(self, xml: str) -> Domain:
        return self._domain(self.call("defineXML", xml))

    def storagePoolLookupByName(self, name: str) -> Pool:
        return Pool(self, self.call("storagePoolLookupByName", name))

    def storageVolLookupByPath(self, path: str) -> Volume:
        return Volume(self, self.call("storageVolLookupByPath", path))

    def setKeepAlive(self, interval: int, count: int) -> int:
        return 0

    def registerCloseCallback(self, callback: Call, opaque: Any) -> int:
        self.on_close = (callback, opaque)
        return 0

    def unregisterCloseCallback(self) -> int:
        self.on_close = None
        return 0

    def domainEventRegisterAny(self, domain: None, kind: int, callback: Call, opaque: Any) -> int:
        number = next(self._numbers)
        self.callbacks[number] = (kind, callback, opaque)
        return number

    def domainEventDeregisterAny(self, number: int) -> int:
        del self.callbacks[number]
        return 0

    def close(self) -> int:
        self.callbacks.clear()
        self.on_close = None
        return 0

    def happened(self, event: Happened) -> None:
        """Call back who has registered for it, as libvirt's event loop does."""
        for kind, callback, opaque in list(self.callbacks.values()):
            if kind == event.kind:
                domain = self._domain((event.uuid, event.name))
                callback(self, domain, *event.arguments, opaque)

    def lost(self) -> None:
        """Tell that the connection has been closed by the other side (VIR_CONNECT_CLOSE_REASON)."""
        if self.on_close is not None:
            callback, opaque = self.on_close
            callback(self, 1, opaque)

    def _domain(self, found: tuple[str, str]) -> Domain:
        return Domain(self, *found)


class Domain:
    """virDomain: holds on to the name that it was found under."""

    def __init__(self, connection: Connection, uuid: str, name: str) -> None:
        self._connection = connection
        self._uuid = uuid
        self._name = name

    def name(self) -> str:
        return self._name

    def UUIDString(self) -> str:
        return self._uuid

    def isActive(self) -> int:
        return int(self._call("isActive"))

    def isPersistent(self) -> int:
        return int(self._call("isPersistent"))

    def XMLDesc(self, flags: int = 0) -> str:
        return str(self._call("XMLDesc", flags))

    def destroy(self) -> int:
        return int(self._call("destroy"))

    def undefineFlags(self, flags: int) -> int:
        return int(self._call("undefineFlags", flags))

    def attachDeviceFlags(self, xml: str, flags: int) -> int:
        return int(self._call("attachDeviceFlags", xml, flags))

    def detachDeviceAlias(self, alias: str, flags: int) -> int:
        return int(self._call("detachDeviceAlias", alias, flags))

    def setMetadata(self, kind: int, xml: str | None, key: str | None, uri: str, flags: int) -> int:
        return int(self._call("setMetadata", kind, xml, key, uri, flags))

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._connection.call(method, self._uuid, self._name, *arguments)


class Pool:
    """virStoragePool."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    def storageVolLookupByName(self, name: str) -> Volume:
        found = self._connection.call("storageVolLookupByName", self._name, name)
        return Volume(self._connection, found)


class Volume:
    """virStorageVol."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def path(self) -> str:
        return self._path

    def delete(self, flags: int = 0) -> int:
        return int(self._connection.call("volumeDelete", self._path))
