"""The configuration: defaults, the file, and what is wrong with it.

`Settings` is what the program uses. The file is validated by pydantic (1.10 and 2), which
is imported only when the file sets something: a hook call on a host that uses the
defaults does not pay for it. VGPU_HOOK_CONFIG names another file, which is how tests move
every root.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from vgpu_hook.model import ConfigError, denied_hint
from vgpu_hook.sysfs import Roots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_PATH = "/etc/vgpu-hook/vgpu-hook.toml"
MAX_SIZE = 1 << 20
SETTLED = 1.0
"""Seconds: more than the steps in which file systems count the time of a change."""


class Settings(NamedTuple):
    """What can be set. Times are in seconds."""

    roots: Roots = Roots()
    state: str = "/var/lib/vgpu-hook"
    runtime: str = "/run/vgpu-hook"
    placement: str = "spread"
    hook_deadline: float = 30.0
    unused_gpus: frozenset[str] = frozenset()
    uri: str = "qemu:///system"
    reconcile_interval: float = 60.0
    boot_commands: tuple[tuple[str, ...], ...] = ()
    boot_timeout: float = 120.0
    hooks: str = "/etc/libvirt/hooks"
    metrics_textfile: str = "/var/lib/prometheus/node-exporter/vgpu-hook.prom"
    metrics_listen: tuple[str, int] | None = None
    metrics_interval: float = 30.0


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings: the file's over the defaults. Raises ConfigError."""
    path = (os.environ if environment is None else environment).get("VGPU_HOOK_CONFIG")
    text = _read(path or DEFAULT_PATH, required=path is not None)
    if all(line.lstrip()[:1] in ("", "#") for line in text.splitlines()):
        return Settings()
    from vgpu_hook import config_file

    return config_file.settings(text, path or DEFAULT_PATH)


def hook_deadline(load: Callable[[], Settings]) -> float:
    """Return what a call of the hook may take, in seconds; the default if `load` can't tell.

    The call may be none of our business: what is wrong is told of where it matters.
    """
    try:
        return load().hook_deadline
    except ConfigError:
        return Settings().hook_deadline


class Kept:
    """The settings, read anew when the file is another one; for a process that goes on."""

    def __init__(self) -> None:
        self._known: tuple[tuple[object, ...], Settings] | None = None

    def load(self) -> Settings:
        """Return the settings as `load` does. Raises ConfigError."""
        path = os.environ.get("VGPU_HOOK_CONFIG") or DEFAULT_PATH
        try:
            found = os.stat(path)
        except OSError:
            return load()
        times = (found.st_mtime_ns, found.st_ctime_ns)
        state = (path, found.st_dev, found.st_ino, found.st_size, times)
        if self._known is not None and self._known[0] == state:
            return self._known[1]
        settings = load()
        # One that was written just now may be written again without looking any different.
        if time.time() - found.st_ctime > SETTLED:
            self._known = (state, settings)
        return settings


def error(path: str, cause: Any, hint: str = "") -> ConfigError:
    """Return the ConfigError for a file and what is wrong with it."""
    return ConfigError(f"configuration {path}: {cause}", hint or f"correct {path}")


def _read(path: str, *, required: bool) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError as missing:
        if required:
            raise error(path, "there is no such file") from missing
        return ""
    except PermissionError as failure:
        raise error(path, failure.strerror, denied_hint(path)) from failure
    except OSError as failure:
        raise error(path, failure.strerror) from failure
    if len(data) > MAX_SIZE:
        raise error(path, f"it is larger than {MAX_SIZE} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as failure:
        raise error(path, f"it is not UTF-8 ({failure.reason} at byte {failure.start})") from None
