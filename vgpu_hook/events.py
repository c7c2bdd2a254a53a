"""libvirt's domain events, as a queue that one worker reads.

The event loop runs in a thread of its own and its callbacks only put into the queue: a call to
libvirt in a callback would stall the loop for as long as a hook holds the domain (facts B4).
libvirt's default loop in a thread was chosen over libvirtaio: the worker's calls block, so that
asyncio would need a thread as well (docs/architecture.md has the figures). Reconnects with
back-off, registers before anything is listed, and reports each connection as RESYNC, since what
happened before it is lost.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any, NamedTuple

import libvirt

from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.log import Log
from vgpu_hook.model import ALIAS_PREFIX, VgpuError

RESYNC = "resync"
RECONCILE = "reconcile"
REBALANCE = "rebalance"
DEFINED = "defined"
REVERTED = "reverted"
UNDEFINED = "undefined"
STARTED = "started"
STOPPED = "stopped"
UNPLUGGED = "unplugged"
_CLOSED = "closed"
_STOP = "stop"

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
LASTED = 30.0
"""Seconds after which a connection counts as one that worked, and the pauses begin anew."""

KEEPALIVE = (5, 3)
"""Seconds between probes, and how many may be missed."""

_ARRIVED = (
    libvirt.VIR_DOMAIN_EVENT_STARTED_MIGRATED,
    libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED,
)

_LOOP_STARTED = threading.Event()
_BEAT = 1000
"""Milliseconds between two beats of libvirt's loop."""
_beaten = [0.0]
"""When the loop last came round, by the monotonic clock."""


class Event(NamedTuple):
    """Something that happened. `detail` is the alias for UNPLUGGED."""

    kind: str
    domain_uuid: str = ""
    detail: str = ""


class _Queue(queue.Queue[Event]):
    """First in, first out, but for reverts, which come before all else.

    Whatever else is a reason to look at the domain's definition, an older event of it or a resync,
    would take what the snapshot has brought back for what its owner asks for now (R9).
    """

    def _put(self, item: Event) -> None:
        if item.kind == REVERTED:
            self.queue.appendleft(item)
        else:
            self.queue.append(item)


class Source:
    """Connects to libvirt and hands its events, one at a time, to `handle`."""

    def __init__(self, uri: str, log: Log) -> None:
        _start_loop()
        self._uri = uri
        self._log = log
        self._queue = _Queue()
        self._stopping = threading.Event()
        self._asking = threading.Lock()
        self._asked: set[str] = set()
        """What `ask` has put into the queue, and nobody has taken out."""
        self._number = 0
        """Of the connection that events are taken from."""
        self.connected = False
        self._callbacks: list[int] = []

    def run(self, handle: Any) -> None:
        """Call `handle(libvirt, event)` for every event, until `stop`; it tells what is done."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                connected = self._connect()
                self.connected = True
                self._serve(connected, handle)
                cause = "the connection was lost"
            except (VgpuError, libvirt.libvirtError) as error:
                cause = str(error)
            self.connected = False
            if self._stopping.is_set():
                return
            self._log.event("disconnected", f"no libvirt: {cause}", level="warning")
            if time.monotonic() - begun > LASTED:
                pause = FIRST_PAUSE
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def ask(self, kind: str) -> None:
        """Have something done, soon, in the worker: RESYNC, RECONCILE or REBALANCE.

        Once is enough if it has not been begun.
        """
        with self._asking:
            if kind not in self._asked:
                self._asked.add(kind)
                self._queue.put(Event(kind))

    def stop(self) -> None:
        """End `run` after the event that it is at."""
        self._stopping.set()
        self._queue.put(Event(_STOP))

    def _serve(self, libvirt_: Libvirt, handle: Any) -> None:
        undone = []
        while True:
            event = self._queue.get()
            with self._asking:
                self._asked.discard(event.kind)
            if event.kind in (_CLOSED, _STOP):
                break
            if not handle(libvirt_, event) and event.kind == REVERTED:
                undone.append(event)  # perhaps since libvirt has gone
        for event in undone:
            self._queue.put(event)
        self._number += 1  # what the old connection may still say is of no interest
        with contextlib.suppress(libvirt.libvirtError):  # it was lost
            for callback in self._callbacks:
                libvirt_.connection.domainEventDeregisterAny(callback)
            libvirt_.connection.unregisterCloseCallback()
            libvirt_.connection.close()

    def _connect(self) -> Libvirt:
        """Open and register; what was queued for an older connection is of no use, but for reverts:

        a look at everything (RESYNC) would take what a snapshot has brought back for a wish (R9).
        """
        libvirt_ = Libvirt(self._uri)
        connection = libvirt_.connection
        kept = []
        while not self._queue.empty():
            kept.append(self._queue.get())
        for event in kept:
            if event.kind in (REVERTED, _STOP):
                self._queue.put(event)
        with self._asking:
            self._asked.clear()
        number = self._number
        connection.registerCloseCallback(self._closed, number)
        connection.setKeepAlive(*KEEPALIVE)
        self._callbacks = [
            connection.domainEventRegisterAny(None, kind, callback, number)
            for kind, callback in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
                (libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, self._metadata),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._removed),
            )
        ]
        self._log.event("connected", f"connected to {self._uri}")
        self._queue.put(Event(RESYNC))
        return libvirt_

    # -- called by the event loop: only put into the queue ------------------------------

    def _put(self, number: int, event: Event) -> None:
        if number == self._number:
            self._queue.put(event)

    def _closed(self, connection: Any, reason: int, number: int) -> None:
        self._put(number, Event(_CLOSED))

    def _lifecycle(
        self, connection: Any, domain: Any, event: int, detail: int, number: int
    ) -> None:
        kind = {
            libvirt.VIR_DOMAIN_EVENT_DEFINED: DEFINED,
            libvirt.VIR_DOMAIN_EVENT_UNDEFINED: UNDEFINED,
            libvirt.VIR_DOMAIN_EVENT_STARTED: STARTED,
            libvirt.VIR_DOMAIN_EVENT_STOPPED: STOPPED,
        }.get(event)
        if kind == DEFINED and detail == libvirt.VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT:
            kind = REVERTED
        if kind == UNDEFINED and detail == libvirt.VIR_DOMAIN_EVENT_UNDEFINED_RENAMED:
            return  # DEFINED follows, under the new name
        if kind == STARTED and detail in _ARRIVED:
            # It may have another VF than its definition names: `restore` and `migrate` see no
            # definition.
            self._put(number, Event(DEFINED, domain.UUIDString()))
        elif kind not in (None, STARTED):
            self._put(number, Event(str(kind), domain.UUIDString()))
        if kind in (STARTED, STOPPED, UNDEFINED) and number == self._number:
            self.ask(REBALANCE)

    def _metadata(self, connection: Any, domain: Any, kind: int, uri: str, number: int) -> None:
        self._put(number, Event(DEFINED, domain.UUIDString()))

    def _removed(self, connection: Any, domain: Any, alias: str, number: int) -> None:
        if alias.startswith(ALIAS_PREFIX):
            self._put(number, Event(UNPLUGGED, domain.UUIDString(), alias))
            if number == self._number:
                self.ask(REBALANCE)


def loop_stands_still_for() -> float:
    """Return the seconds for which libvirt's loop has not come round: one at most, if it is well.

    For who has made a Source, which starts the loop.
    """
    return time.monotonic() - _beaten[0]


def _start_loop() -> None:
    """Start libvirt's default event loop, once for the process and before any connection."""
    if _LOOP_STARTED.is_set():
        return
    _LOOP_STARTED.set()
    libvirt.virEventRegisterDefaultImpl()

    def beat(timer: Any, opaque: Any) -> None:
        _beaten[0] = time.monotonic()

    beat(None, None)
    # Without a timer the loop sleeps for ever when nothing is registered.
    libvirt.virEventAddTimeout(_BEAT, beat, None)

    def loop() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=loop, name="libvirt-events", daemon=True).start()
