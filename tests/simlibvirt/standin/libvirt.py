"""Stands in for libvirt-python in the product's processes: talks to tests/simlibvirt.

Constants are the real module's (../test_standin.py compares them). Only what the product uses is
here, so that an AttributeError says what is missing.
"""

# ruff: noqa: N802 - libvirt's own names

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import urllib.parse
from typing import Any, BinaryIO

from tests.simlibvirt import facade

VIR_ERR_INTERNAL_ERROR = 1
VIR_ERR_SYSTEM_ERROR = 38
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_NO_STORAGE_VOL = 50
VIR_CONNECT_LIST_DOMAINS_ACTIVE = 1
VIR_DOMAIN_AFFECT_LIVE = 1
VIR_DOMAIN_METADATA_ELEMENT = 2
VIR_DOMAIN_XML_SECURE = 1
VIR_DOMAIN_XML_INACTIVE = 2
VIR_DOMAIN_XML_MIGRATABLE = 8
VIR_DOMAIN_UNDEFINE_MANAGED_SAVE = 1
VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA = 2
VIR_DOMAIN_UNDEFINE_NVRAM = 4
VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA = 16
VIR_DOMAIN_EVENT_DEFINED = 0
VIR_DOMAIN_EVENT_UNDEFINED = 1
VIR_DOMAIN_EVENT_STARTED = 2
VIR_DOMAIN_EVENT_STOPPED = 5
VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT = 3
VIR_DOMAIN_EVENT_UNDEFINED_RENAMED = 1
VIR_DOMAIN_EVENT_STARTED_MIGRATED = 1
VIR_DOMAIN_EVENT_STARTED_RESTORED = 2
VIR_DOMAIN_EVENT_ID_LIFECYCLE = 0
VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED = 15
VIR_DOMAIN_EVENT_ID_METADATA_CHANGE = 23

Opened = tuple[socket.socket, BinaryIO]

_EVENTS: queue.Queue[tuple[Any, ...]] = queue.Queue()


class libvirtError(Exception):  # noqa: N801 - libvirt's name
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self._code = code
        self._message = message

    def get_error_code(self) -> int:
        return self._code

    def get_error_message(self) -> str:
        return self._message


class _Client(facade.Connection):
    """Two sockets: one for calls, and one for events once somebody registers for them."""

    def __init__(self, uri: str) -> None:
        self._path = urllib.parse.parse_qs(urllib.parse.urlsplit(uri).query)["socket"][0]
        self._lock = threading.Lock()
        self._events: socket.socket | None = None
        self._calls: Opened | None = self._connect()
        super().__init__(uri, self._ask)
        self._ask("open")

    def domainEventRegisterAny(self, domain: None, kind: int, callback: Any, opaque: Any) -> int:
        """Has been registered when it returns, so that nothing that happens later is missed."""
        number = super().domainEventRegisterAny(domain, kind, callback, opaque)
        if self._events is None:
            self._events, lines = self._connect()
            try:
                self._events.sendall(b'["listen"]\n')
                json.loads(lines.readline())
            except (OSError, ValueError) as error:
                raise _gone(error) from None
            threading.Thread(target=self._listen, args=(lines,), daemon=True).start()
        return number

    def close(self) -> int:
        super().close()
        for opened in (self._calls and self._calls[0], self._events):
            if opened is not None:
                with contextlib.suppress(OSError):  # the other side was first
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()
        return 0

    def _connect(self) -> Opened:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(self._path)
        except OSError as error:
            text = f"Failed to connect socket to '{self._path}': {error.strerror}"
            raise libvirtError(VIR_ERR_SYSTEM_ERROR, text) from None
        return peer, peer.makefile("rb")

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            if self._calls is None:
                text = "internal error: client socket is closed"
                raise libvirtError(VIR_ERR_INTERNAL_ERROR, text)
            peer, lines = self._calls
            try:
                peer.sendall(json.dumps([method, *arguments]).encode() + b"\n")
                answer = json.loads(lines.readline())
            except (OSError, ValueError) as error:
                self._calls = None
                raise _gone(error) from None
        if "error" in answer:
            raise libvirtError(*answer["error"])
        return answer["result"]

    def _listen(self, lines: BinaryIO) -> None:
        try:
            for line in lines:
                kind, uuid, name, arguments, number = json.loads(line)["event"]
                happened = facade.Happened(kind, uuid, name, tuple(arguments), number)
                _EVENTS.put((self.happened, happened))
        except (OSError, ValueError):  # closed, by us or in the middle of a line
            pass
        _EVENTS.put((self.lost,))


def open(uri: str) -> _Client:
    return _Client(uri)


def openReadOnly(uri: str) -> _Client:
    return _Client(uri)


def registerErrorHandler(handler: Any, context: Any) -> None:
    return None


def virEventRegisterDefaultImpl() -> int:
    return 0


def virEventAddTimeout(milliseconds: int, callback: Any, opaque: Any) -> int:
    return 0


def virEventRunDefaultImpl() -> int:
    """Hand on one event, in the thread that runs the loop."""
    call, *arguments = _EVENTS.get()
    call(*arguments)
    return 0


def _gone(error: Exception) -> libvirtError:
    text = f"End of file while reading data: {error}"
    return libvirtError(VIR_ERR_SYSTEM_ERROR, text)
