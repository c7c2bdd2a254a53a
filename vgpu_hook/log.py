"""Events for the journal, each with its fields: structlog in the commands, no import in the hook.

Usage: `log.event("released", level="info", domain_name=..., device=...)`. The fields of
an event are in FIELDS; each kind of event has a MESSAGE_ID of its own (UUIDv5 of its
name), so that `journalctl MESSAGE_ID=...` finds it. Written to journald's native socket,
else dropped: a host without a journal still has the store's history. structlog's import
takes longer than all else that a hook call does, and Fedora has no package of it; then
the same events go out without it.
"""

from __future__ import annotations

import socket
import uuid
from typing import Any, Protocol

from vgpu_hook.model import one_line

MESSAGE_IDS = uuid.UUID("5b1de1c5-3a55-5d0c-9d5d-53d9a7c01e22")
FIELDS = {
    "domain_uuid": "VGPU_DOMAIN_UUID",
    "domain_name": "VGPU_DOMAIN_NAME",
    "slot": "VGPU_SLOT",
    "device": "VGPU_DEVICE",
    "parent": "VGPU_PARENT",
    "operation": "VGPU_OPERATION",
}
PRIORITIES = {"error": 3, "warning": 4, "info": 6, "debug": 7}


class Log(Protocol):
    """Where lifecycle reports what it does."""

    def event(self, name: str, message: str, *, level: str = "info", **fields: str) -> None:
        """Report an event of the kind `name`; never raises."""


class JournalLog:
    """Sends events to journald (protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL)."""

    def __init__(self, path: str, operation: str) -> None:
        self._path = path
        self._operation = operation

    def event(self, name: str, message: str, *, level: str = "info", **fields: str) -> None:
        """Send the event; a journal that is not there, or is full, changes nothing."""
        values = {
            "MESSAGE": one_line(message),
            "MESSAGE_ID": uuid.uuid5(MESSAGE_IDS, name).hex,
            "PRIORITY": str(PRIORITIES[level]),
            "SYSLOG_IDENTIFIER": "vgpu-hook",
            FIELDS["operation"]: self._operation,
        }
        values.update((FIELDS[key], value) for key, value in fields.items() if key in FIELDS)
        data = b"".join(_field(key, value) for key, value in values.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(data, self._path)
        except OSError:
            return


class StructuredLog:
    """The same, through structlog, which also shows it on a terminal's stderr if asked to."""

    def __init__(self, journal: JournalLog, *, verbose: bool) -> None:
        import structlog

        self._journal = journal
        processors: list[Any] = [self._to_journal]
        if verbose:
            import sys

            processors += [
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
            ]
            factory: Any = structlog.PrintLoggerFactory(sys.stderr)
        else:
            processors.append(_drop)
            factory = structlog.ReturnLoggerFactory()
        self._logger = structlog.wrap_logger(factory(), processors=processors)

    def event(self, name: str, message: str, *, level: str = "info", **fields: str) -> None:
        """Report the event to the journal, and to the terminal."""
        self._logger.msg(message, name=name, level=level, **fields)

    def _to_journal(self, logger: Any, method: str, values: Any) -> Any:
        fields = {key: value for key, value in values.items() if key in FIELDS}
        self._journal.event(values["name"], values["event"], level=values["level"], **fields)
        return values


def for_command(path: str, operation: str, *, verbose: bool = False) -> Log:
    """Return the log of a command or daemon: structlog where the distro has it."""
    journal = JournalLog(path, operation)
    try:
        return StructuredLog(journal, verbose=verbose)
    except ImportError:
        return journal


def _drop(logger: Any, method: str, values: Any) -> Any:
    import structlog

    raise structlog.DropEvent


def _field(key: str, value: str) -> bytes:
    """Return one field in journald's framing, which is the binary one for odd values."""
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" in data:
        return key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return key.encode() + b"=" + data + b"\n"
