"""events.Source in the test's process: in which order the worker gets what libvirt tells."""

from __future__ import annotations

import threading
from typing import Any

import libvirt
import pytest

from tests.domains import domain_xml, uuid_of
from vgpu_hook import events
from vgpu_hook.events import Event
from vgpu_hook.log import JournalLog

from .calls import connection
from .facade import Connection
from .state import SimLibvirt

PATIENCE = 60


class Worker:
    """A Source whose worker is busy with what it connected for, until it may go on."""

    def __init__(self, simulated: SimLibvirt) -> None:
        self.simulated = simulated
        self.got: list[Event] = []
        self.fails: set[str] = set()
        """Kinds of events that are not done."""
        self.busy = threading.Event()
        self.again = threading.Event()
        """Set when it has connected for a second time."""
        self.go_on = threading.Event()
        self.source = events.Source("qemu:///system", JournalLog("/nonexistent", "test"))
        self._thread = threading.Thread(target=self.source.run, args=(self._handle,))

    def __enter__(self) -> Worker:
        self._thread.start()
        assert self.busy.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self.go_on.set()
        self._thread.join()

    def _handle(self, libvirt_: Any, event: Event) -> bool:
        self.got.append(event)
        self.busy.set()
        assert self.go_on.wait(PATIENCE)
        if [event.kind for event in self.got].count(events.RESYNC) > 1:
            self.again.set()
        return event.kind not in self.fails


@pytest.fixture
def opened() -> list[Connection]:
    """The connections that were made, the oldest first."""
    return []


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, opened: list[Connection]) -> SimLibvirt:
    """In the place of libvirtd; its events are delivered at once."""
    made = SimLibvirt()
    made.auto = True

    def connect(uri: str) -> Any:
        found = connection(made)
        made.listeners.append(found.happened)
        opened.append(found)
        return found

    monkeypatch.setattr(libvirt, "open", connect)
    return made


def test_events_come_in_order(simulated: SimLibvirt) -> None:
    with Worker(simulated) as worker:
        domain = simulated.define(domain_xml("a").decode())
        simulated.rename(domain, "b")
        simulated.started(domain, str(domain.definition))
        simulated.stopped(domain)
        simulated.undefine(domain)
    kinds = [event.kind for event in worker.got]
    asked = [kind for kind in kinds if kind != events.REBALANCE]
    assert asked == ["resync", "defined", "defined", "stopped", "undefined"]
    assert kinds.count(events.REBALANCE) == 1


def test_r9_a_revert_is_handled_before_what_else_would_look_at_the_definition(
    simulated: SimLibvirt,
) -> None:
    """An older event of the domain would take what the snapshot has for what its owner wants."""
    text = domain_xml("a", {"0": "mtty-1"}).decode()
    with Worker(simulated) as worker:
        simulated.define(text)
        simulated.define(text)
        simulated.define(text, libvirt.VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT)
    assert [event.kind for event in worker.got] == ["resync", "reverted", "defined", "defined"]


@pytest.mark.parametrize("begun", [True, False], ids=["it failed", "it was not begun"])
def test_r9_a_revert_that_was_not_handled_when_libvirt_went_is_handled_after_it(
    simulated: SimLibvirt, opened: list[Connection], *, begun: bool
) -> None:
    """Before the look at everything, which would take what the snapshot has for a wish."""
    text = domain_xml("a", {"0": "mtty-1"}).decode()
    simulated.define(text)
    with Worker(simulated) as worker:
        worker.fails = {events.REVERTED} if begun else set()
        if begun:
            simulated.define(text, libvirt.VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT)
        opened[0].lost()
        if not begun:
            worker.source._queue.queue.append(Event(events.REVERTED, uuid_of("a")))
        worker.go_on.set()
        assert worker.again.wait(PATIENCE)
    kinds = [event.kind for event in worker.got]
    assert kinds == ["resync", *["reverted"] * begun, "reverted", "resync"]
