"""vgpu-hookd: one process that serves the hook, follows libvirt's events and reconciles.

The hook works without it. Threads: the main one waits for signals, keeps the watchdog and the
timer; one accepts hook calls (each then has its own); one runs libvirt's event loop; one worker
handles events and reconciles, and is the only one that calls libvirt; one collects metrics.
Settings are read anew when their file is another one, so a reload needs nothing but a look at
whether they are right.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

from vgpu_hook import config, context, events, log, server, store_file
from vgpu_hook.bounded import Deadline
from vgpu_hook.config import Settings
from vgpu_hook.events import Event, Source
from vgpu_hook.host import Host
from vgpu_hook.libvirtd import Libvirt
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.listener import Listener
from vgpu_hook.locks import daemon_lock
from vgpu_hook.log import Log
from vgpu_hook.metrics import Tally
from vgpu_hook.model import VgpuError, one_line
from vgpu_hook.operations import Means, directly
from vgpu_hook.protocol import Answer, LetGoOn
from vgpu_hook.publishing import Publisher
from vgpu_hook.stores import Stores
from vgpu_hook.workers import Workers

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

STOP_WAIT = 40.0
"""Seconds that what is under way may take when the daemon stops: below systemd's limit."""

WORKER_PATIENCE = 600.0
"""Seconds after which an event that is still being handled means that the worker hangs."""

STANDSTILL = 5.0
"""Seconds after which a thread that should move each second counts as one that hangs. systemd then
waits for as long as the unit's WatchdogSec= says, so one that only was slow costs nothing."""


class Daemon:
    """The process. `run` returns its exit status."""

    def __init__(self, settings: Settings, events_log: Log) -> None:
        # Before any thread starts, libvirt's loop included: only the main one takes them, when it
        # waits. One that another thread took would end the process on the spot.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._settings = settings
        self._log = events_log
        self._source = Source(settings.uri, events_log)
        self._busy_since: float | None = None
        self._stores = Stores()
        self._workers = Workers()
        self._tally = Tally()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        means = Means(config.Kept().load, self._stores.open, self._workers.run, directly)
        listening = server.Server(server.listen(self._settings.runtime), means, self._called)
        accepting = threading.Thread(target=listening.run, name="server", daemon=True)
        worker = threading.Thread(
            target=self._source.run, args=(self._handle,), name="worker", daemon=True
        )
        accepting.start()
        worker.start()
        publisher = self._publish()
        self._log.event("ready", "serving the hook")
        notify("READY=1")
        self._wait(partial(self._hanging, listening, accepting, worker))
        notify("STOPPING=1")
        end = Deadline(STOP_WAIT)
        self._source.stop()
        publisher.stop()
        done = listening.stop(end.remaining())
        worker.join(end.remaining())
        self._stores.end()
        if not done or worker.is_alive():
            self._log.event("unfinished", "stopped before everything was done", level="warning")
        return 0

    def _publish(self) -> Publisher:
        """Begin to collect metrics, and to serve them if that is asked for."""
        publisher = Publisher(
            self._tally,
            config.Kept().load,
            self._stores.open,
            self._workers.run,
            lambda: self._source.connected,
            lambda: self._settings.reconcile_interval,
            self._log,
        )
        threading.Thread(target=publisher.run, name="metrics", daemon=True).start()
        if self._settings.metrics_listen is not None:
            from vgpu_hook import metrics_http  # 4 MB and 30 ms that few hosts need

            try:
                metrics_http.serve(*self._settings.metrics_listen, publisher.text)
            except VgpuError as error:
                self._log.event("metrics-failed", str(error), level="error")
        return publisher

    def _called(self, operation: str, answer: Answer, seconds: float) -> None:
        """A call of the hook has been done, and is about to be answered."""
        outcome = "refused" if answer.status else "done"
        outcome = "failed" if isinstance(answer, LetGoOn) else outcome
        self._tally.call(operation, outcome, seconds)
        self._source.ask(events.REBALANCE)

    def _wait(self, hanging: Callable[[], str]) -> None:
        """Keep the timer and the watchdog until a signal says to stop."""
        usec = int(os.environ.get("WATCHDOG_USEC", "0"))
        step = min(usec / 2e6, 5.0) if usec else 5.0
        next_reconcile = time.monotonic() + self._settings.reconcile_interval
        told = ""
        while True:
            caught = signal.sigtimedwait(SIGNALS, step)
            # Python also returns one of no signal, if the process was stopped for longer than that
            # and goes on (CPython's Modules/signalmodule.c: EINTR after the time is over).
            number = caught.si_signo if caught is not None else 0
            if number in (signal.SIGTERM, signal.SIGINT):
                return
            if number == signal.SIGHUP:
                self._reload()
                soon = time.monotonic() + self._settings.reconcile_interval
                next_reconcile = min(next_reconcile, soon)
            hangs = hanging()
            if not hangs:
                notify("WATCHDOG=1")
            elif hangs != told:
                text = f"{hangs} hangs; if it goes on, systemd starts vgpu-hookd again"
                self._log.event("hangs", text, level="error")
            told = hangs
            if time.monotonic() >= next_reconcile:
                self._source.ask(events.RECONCILE)
                next_reconcile = time.monotonic() + self._settings.reconcile_interval

    def _hanging(
        self, listening: server.Server, accepting: threading.Thread, worker: threading.Thread
    ) -> str:
        """Return which part of the daemon hangs or has died, empty if none has.

        A host without a libvirt is no such case: the worker then waits and tries again.
        """
        busy = self._busy_since
        stuck = busy is not None and time.monotonic() - busy > WORKER_PATIENCE
        if stuck or not worker.is_alive():
            return "the thread that handles events"
        if listening.stands_still_for() > STANDSTILL or not accepting.is_alive():
            return "the thread that accepts the hook's calls"
        if events.loop_stands_still_for() > STANDSTILL:
            return "libvirt's event loop"
        return ""

    def _reload(self) -> None:
        """Look whether the settings are right; `systemctl status` shows what is wrong."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        status = ""
        try:
            self._settings = config.load()
            self._log.event("reloaded", "read the configuration again")
        except VgpuError as error:
            status = one_line(str(error))
            self._log.event("bad-config", status, level="error")
        notify(f"READY=1\nSTATUS={status}")

    def _handle(self, libvirt: Libvirt, event: Event) -> bool:
        """Handle one event, in the worker; tell whether it was done. Nothing ends it."""
        self._busy_since = time.monotonic()
        done = False
        try:
            with self._listener() as listener:
                done = listener.handle(libvirt, event)
            if event.kind == events.RECONCILE:
                self._stores.tidy()
        except VgpuError as error:
            self._log.event("event-failed", f"{event.kind}: {error}", level="error")
        except Exception as error:  # noqa: BLE001 - entry point of the worker
            text = f"{event.kind}: internal error: {type(error).__name__}: {error}"
            self._log.event("event-failed", text, level="error")
        finally:
            self._busy_since = None
            self._tally.event(event.kind, done=done)
            if event.kind == events.RECONCILE and not done:
                self._tally.reconcile_failed()
        return done

    @contextlib.contextmanager
    def _listener(self) -> Iterator[Listener]:
        settings = config.load()
        opened = store_file.open_store(settings.state, "daemon", wait=30)
        if opened is None:
            raise VgpuError(f"there is no store in {settings.state}")
        host = Host(settings, settings.roots.boot_id())

        def lifecycle_for() -> Lifecycle:
            deadline = Deadline(settings.hook_deadline)
            return Lifecycle(Context(settings, host, opened, self._log, deadline))

        try:
            planner_for = partial(context.planner, settings, opened)
            yield Listener(opened, lifecycle_for, planner_for, self._log, self._tally.reconciled)
        finally:
            opened.close()


def notify(text: str) -> None:
    """Tell systemd (sd_notify(3)); nothing if it did not start us, or is not to be reached."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.sendto(text.encode(), path.replace("@", "\0", 1) if path[0] == "@" else path)


def main() -> int:
    """Run the daemon; return its exit status."""
    try:
        settings = config.load()
        verbose = sys.stderr.isatty()
        events_log = log.for_command(settings.roots.journal, "daemon", verbose=verbose)
        with daemon_lock(settings.runtime):
            return Daemon(settings, events_log).run()
    except (VgpuError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def process() -> NoReturn:
    """Run the daemon and end the process, without the interpreter's own end.

    libvirt's loop is still there, and a callback of it that comes after the interpreter's end is
    a crash (CPython 3.11, PyGILState_Ensure in Python/pystate.c).
    """
    status = 1
    try:
        status = main()
    except BaseException as error:  # noqa: BLE001 - entry point of the process
        cause = f"{type(error).__name__}: {error}"
        print(f"error: internal error: {cause}", file=sys.stderr)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    process()
