"""The product behind one face: as processes, or called in this one (a hundred times as fast)."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import libvirt
import pytest

from tests.product import PATIENCE, Answer, Product
from tests.simhost import SimHost
from tests.simlibvirt.calls import connection
from tests.simlibvirt.server import PYTHON, Server
from tests.simlibvirt.state import SimLibvirt
from vgpu_hook import (
    bounded,
    cli,
    config,
    context,
    database,
    events,
    hook,
    host,
    operations,
    store_file,
    sysfs,
)
from vgpu_hook.bounded import Deadline
from vgpu_hook.host import Host
from vgpu_hook.lifecycle import Context, Lifecycle
from vgpu_hook.listener import Listener
from vgpu_hook.log import JournalLog
from vgpu_hook.model import VgpuError

OPERATIONS = ("prepare", "stopped", "release", "migrate", "restore")
KILLED = Answer(-9, "", "")
OURS = (b"urn:vgpu-hook:domain:1", b'"ua-vgpu-', b"'ua-vgpu-")


class Driver(Protocol):
    """How the rules reach the product."""

    product: Product

    @property
    def concurrent(self) -> bool:
        """Whether the daemon works at the same time as everything else."""

    def configure(self, extra: str, *, deadline: float = 60) -> None:
        """Change the configuration file; a daemon is told (SIGHUP)."""

    def kill_at(self, number: int) -> None:
        """Have the next call die before its n-th write; where that can't be, do nothing."""

    @property
    def was_killed(self) -> bool:
        """Whether it did."""

    def hook(self, arguments: list[str], xml: bytes) -> Answer:
        """Call the hook as libvirt does."""

    def command(self, *arguments: str) -> Answer:
        """Run `vgpu-hook`."""

    def deliver(self, count: int | None) -> None:
        """Have the listener hear of the oldest events."""

    def start_daemon(self) -> None:
        """Have a listener that has connected."""

    def kill_daemon(self) -> None:
        """End it at once."""

    def disconnect(self) -> None:
        """libvirtd is started again: the listener connects anew."""


class Processes:
    """hooks/qemu, vgpu-hookd and vgpu-hook as processes. tests/crash kills them at every point."""

    folder = None
    was_killed = False

    def __init__(self, sim: SimHost, folder: Path, simulated: SimLibvirt) -> None:
        self._stack = contextlib.ExitStack()
        self._simulated = simulated
        self._server = self._stack.enter_context(Server(simulated, folder))
        self._extra = f"[daemon]\nlibvirt = '{self._server.uri}'\nreconcile = 2\n"
        self._running: subprocess.Popen[bytes] | None = None
        self.product = Product(sim, folder, extra=self._extra)
        self.product.python = PYTHON

    @property
    def concurrent(self) -> bool:
        return self._running is not None

    def configure(self, extra: str, *, deadline: float = 60) -> None:
        self.product.configure(extra=self._extra + extra, deadline=deadline)
        if self._running is not None:
            self._running.send_signal(signal.SIGHUP)

    def kill_at(self, number: int) -> None:
        pass

    def close(self) -> None:
        self.kill_daemon()
        self._stack.close()

    def hook(self, arguments: list[str], xml: bytes) -> Answer:
        return self.product.hook_argv(arguments, xml)

    def command(self, *arguments: str) -> Answer:
        return self.product.command(*arguments, LIBVIRT_DEFAULT_URI=self._server.uri)

    def deliver(self, count: int | None) -> None:
        self._simulated.deliver(count)

    def start_daemon(self) -> None:
        self.kill_daemon()
        (self.product.runtime / "hook.sock").unlink(missing_ok=True)
        self._running = self.product.daemon()
        self.product.wait_for("it has connected", lambda: self._server.listeners == 1)

    def kill_daemon(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None
        if self._server.listeners:
            self.product.wait_for("it has gone", lambda: self._server.listeners == 0)

    def disconnect(self) -> None:
        self._server.disconnect()


class Violation(AssertionError):
    """An invariant that does not hold, and how that was seen."""


class Blocked(BaseException):
    """A write to the kernel has not returned; nothing of the product catches it."""


class Killed(BaseException):
    """Stands for kill -9: nothing of the product catches it, and nothing is written after it."""


class InProcess:
    """The same functions, called here: no process, no socket, no child.

    A crash is one at a moment that is chosen: `kill_at(n)`, for the next call.
    """

    concurrent = False
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None

    def __init__(self, sim: SimHost, folder: Path, simulated: SimLibvirt) -> None:
        self.product = Product(sim, folder)
        self._simulated = simulated
        self._source: events.Source | None = None
        self._libvirt: Any = None
        self._writes_left: int | None = None
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("VGPU_HOOK_CONFIG", str(self.product.config))
        self._patch.setattr(bounded, "run", operations.directly)
        self._patch.setattr(host, "TRY_PAUSE", 0)  # no driver cleans up meanwhile
        self._patch.setattr(libvirt, "open", lambda uri: connection(simulated))
        self._patch.setattr(cli, "parser", functools.cache(cli.parser))  # half of a command's time
        self._patch.setattr(database.Database, "execute", self._watched(database.Database.execute))
        self._patch.setattr(sysfs, "write_text", self._watched(_write))
        simulated.listeners.append(self._happened)

    def close(self) -> None:
        self._simulated.listeners.remove(self._happened)
        self._patch.undo()

    def configure(self, extra: str, *, deadline: float = 60) -> None:
        self.product.configure(extra=extra, deadline=deadline)

    def kill_at(self, number: int) -> None:
        """Have the next call die before its n-th statement to the store or write to the kernel."""
        self._writes_left = number

    @property
    def was_killed(self) -> bool:
        """Whether it did; asked once, after which nothing more dies."""
        killed, self._writes_left = self._writes_left == 0, None
        return killed

    def hook(self, arguments: list[str], xml: bytes) -> Answer:
        operation = arguments[1] if len(arguments) > 1 else ""
        ours = any(word in xml for word in OURS)
        if operation not in OPERATIONS or not (ours or operation == "restore"):
            return Answer(0, "", "")
        try:
            answer = hook.serve(arguments, xml)
        except Killed:
            return KILLED
        except Blocked as blocked:
            raise Violation(f"I3 {arguments}: {blocked}") from None
        refused = operation in ("prepare", "migrate") and answer.status != 0
        return Answer(int(refused), answer.output.decode(), answer.stderr)

    def command(self, *arguments: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main(list(arguments))
            except SystemExit as end:  # argparse
                status = int(end.code or 0)
            except Killed:
                return KILLED
            except Blocked as blocked:
                raise Violation(f"I3 {arguments}: {blocked}") from None
        return Answer(status, out.getvalue(), err.getvalue())

    def deliver(self, count: int | None) -> None:
        self._simulated.deliver(count)
        self._drain()

    def start_daemon(self) -> None:
        self._source = events.Source("qemu:///system", _log())
        self._libvirt = self._source._connect()
        self._drain()

    def kill_daemon(self) -> None:
        self._source = None

    def disconnect(self) -> None:
        if self._source is not None:
            self.start_daemon()

    def _happened(self, event: Any) -> None:
        if self._source is not None:
            self._libvirt.connection.happened(event)

    def _drain(self) -> None:
        """Do what the daemon's worker does with its queue."""
        while self._source is not None and not self._source._queue.empty():
            event = self._source._queue.get()
            self._source._asked.discard(event.kind)
            try:
                with _listener() as listener:
                    listener.handle(self._libvirt, event)
            except VgpuError:
                continue  # as the daemon does, which logs it
            except Killed:
                self._source = None
            except Blocked as blocked:
                raise Violation(f"I3 {event}: {blocked}") from None

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            if self._writes_left is not None:
                self._writes_left = max(0, self._writes_left - 1)
                if self._writes_left == 0:
                    raise Killed
            return call(*arguments)

        return watched


_write_text = sysfs.write_text
_writer = ThreadPoolExecutor(1)


def _write(path: str, text: str) -> None:
    """Write to the kernel, in a thread: what blocks there does so until the host is unmounted."""
    try:
        _writer.submit(_write_text, path, text).result(PATIENCE / 4)
    except TimeoutError:
        raise Blocked(f"{text!r} to {path} has not returned") from None


def _log() -> JournalLog:
    return JournalLog("/nonexistent", "model")


@contextlib.contextmanager
def _listener() -> Iterator[Listener]:
    settings = config.load()
    opened = store_file.open_store(settings.state, "model", wait=30)
    assert opened is not None
    own = Host(settings, settings.roots.boot_id())

    def lifecycle() -> Lifecycle:
        return Lifecycle(Context(settings, own, opened, _log(), Deadline(60)))

    try:
        yield Listener(opened, lifecycle, lambda: context.planner(settings, opened), _log())
    finally:
        opened.close()


def wipe(product: Product) -> None:
    """Take away what the product has written, as on a host where it was never installed."""
    for folder in (product.state, product.runtime):
        shutil.rmtree(folder, ignore_errors=True)


def settled(condition: Callable[[], bool]) -> bool:
    """Wait until something that the daemon does has been done; False if it never is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
