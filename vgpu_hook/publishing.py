"""Where vgpu-hookd's metrics go: node_exporter's textfile, and HTTP if it is asked for.

A thread of its own collects them, with children and connections of its own, so that a GPU that
hangs, a full disk or a slow peer costs nothing but the metrics. Where nobody would read them,
nothing is collected. What fails is told once in the journal, until something else fails or all is
well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from vgpu_hook import metrics
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.config import Settings
from vgpu_hook.exposition import Sample, text_of
from vgpu_hook.host import Host
from vgpu_hook.log import Log
from vgpu_hook.metrics import FAMILIES, Tally
from vgpu_hook.model import StoreError, VgpuError
from vgpu_hook.store import Store

MODE = 0o644
STORE_WAIT = 5.0
PATIENCE = 10
"""Of what a collection took: the least pause after it, so that a host that answers slowly is not
asked all the time."""
LONGEST_PAUSE = 900.0
"""Seconds."""

RESTART = "systemctl restart vgpu-hookd"


class Publisher:
    """Collects and publishes until it is stopped.

    `load`, `open_store` and `run` are the daemon's ways to its settings, its store and its
    children; `connected` tells whether it is connected to libvirt, and `reconciles` how often it
    reconciles, in seconds.
    """

    def __init__(
        self,
        tally: Tally,
        load: Callable[[], Settings],
        open_store: Callable[..., Store | None],
        run: Callable[..., Any],
        connected: Callable[[], bool],
        reconciles: Callable[[], float],
        log: Log,
    ) -> None:
        self._tally = tally
        self._load = load
        self._open_store = open_store
        self._run = run
        self._connected = connected
        self._reconciles = reconciles
        self._log = log
        self._stopping = threading.Event()
        self._collected: list[Sample] = []
        self._settings = Settings()
        self._told = ""
        self._written = ""
        self._writing = threading.Lock()

    def run(self) -> None:
        """Collect and write the textfile, again and again; the thread's function."""
        while not self._stopping.is_set():
            begun = time.monotonic()
            causes: list[str] = []
            path = self._written  # also while the settings can't be read
            try:
                settings = self._settings = self._load()
                path = settings.metrics_textfile
                if settings.metrics_listen is not None or _has_folder(settings.metrics_textfile):
                    self._collect(settings)
            except VgpuError as error:
                causes.append(str(error))
            except Exception as error:  # noqa: BLE001 - entry point of the thread
                causes.append(f"internal error: {type(error).__name__}: {error}")
            took = time.monotonic() - begun
            try:
                self._write(path)  # that it could not be collected, too
            except OSError as error:
                causes.append(_cause(error, path))
            self._tell("; ".join(causes))
            pause = self._settings.metrics_interval
            self._stopping.wait(max(pause, min(PATIENCE * took, LONGEST_PAUSE)))

    def stop(self) -> None:
        """End `run`, and take the textfile away: what it says would not be true any more."""
        self._stopping.set()
        with self._writing, contextlib.suppress(OSError):
            if self._written:
                os.unlink(self._written)

    def text(self) -> str:
        """Return all metrics: what is counted as it is now, all else as it was collected last."""
        samples = self._tally.samples(connected=self._connected())
        samples += metrics.of_settings(self._reconciles(), self._settings.metrics_interval)
        return text_of(FAMILIES, [*samples, *self._collected])

    def _collect(self, settings: Settings) -> None:
        found: list[Sample] = []
        done = False
        try:
            opened = self._open_store(settings.state, "metrics", wait=STORE_WAIT, create=False)
            try:
                found = self._look(settings, opened)
                done = True
            finally:
                if opened is not None:
                    opened.close()
        except StoreError:
            found = [metrics.of_store(usable=False)]
            raise
        finally:
            self._collected = found
            self._tally.collected(done=done)

    def _look(self, settings: Settings, opened: Store | None) -> list[Sample]:
        rows = opened.all() if opened is not None else []
        failures = opened.devices.failures() if opened is not None else []
        host = Host(settings, settings.roots.boot_id(), self._run)
        parents = host.parents(Deadline(settings.hook_deadline))
        parents = completed(parents, opened.devices if opened is not None else None)
        return [metrics.of_store(usable=True), *metrics.of_host(parents, rows, failures)]

    def _write(self, path: str) -> None:
        """Write the textfile in place of the old one; nothing if its folder is not there.

        One under another name, from before the settings were changed, is removed: node_exporter
        would go on to show it.
        """
        temporary = f"{path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._writing:
            if self._stopping.is_set():
                return
            if self._written not in ("", path):
                old, self._written = self._written, ""
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
            if not _has_folder(path):
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            with os.fdopen(os.open(temporary, flags, MODE), "w") as file:
                os.fchmod(file.fileno(), MODE)  # whatever the umask
                file.write(self.text())
            os.rename(temporary, path)
            self._written = path

    def _tell(self, cause: str) -> None:
        """Log what is wrong, if it is news."""
        if cause and cause != self._told:
            self._log.event("metrics-failed", f"metrics: {cause}", level="warning")
        self._told = cause


def _cause(error: OSError, path: str) -> str:
    """Return why the textfile can't be written, and what helps against its unit's ProtectSystem."""
    cause = f"{error.filename or path}: {error.strerror}"
    if error.errno != errno.EROFS:
        return cause
    folder = os.path.dirname(error.filename or path)
    if folder == os.path.dirname(Settings().metrics_textfile):
        return f"{cause}; if the folder is newer than vgpu-hookd, run: {RESTART}"
    return f"{cause}; run: systemctl edit vgpu-hookd (ReadWritePaths={folder}), then: {RESTART}"


def _has_folder(path: str) -> bool:
    """Tell whether there is a place for the textfile."""
    return bool(path) and os.path.isdir(os.path.dirname(path))
