"""The format of vgpu-hook.toml, as pydantic models. Imported only when a file sets something.

Written in what pydantic 1.10 (Debian 12, Ubuntu 24.04) and 2 (Debian 13, Fedora) share.
An unknown key is an error: it is a typing mistake far more often than the future.
"""

from __future__ import annotations

import ipaddress
import tomllib
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from vgpu_hook import config
from vgpu_hook.config import Settings
from vgpu_hook.model import plain_name
from vgpu_hook.sysfs import Roots


class Paths(BaseModel, extra="forbid"):
    """[paths]: where things are. Tests move them; others leave them alone."""

    sysfs: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    journal: str = "/run/systemd/journal/socket"
    state: str = "/var/lib/vgpu-hook"
    runtime: str = "/run/vgpu-hook"


class Policy(BaseModel, extra="forbid"):
    """[policy]: which GPU a new vGPU goes to."""

    placement: Literal["spread", "pack"] = "spread"


class Deadlines(BaseModel, extra="forbid"):
    """[deadlines]: seconds after which something is answered, whatever the kernel does."""

    hook: float = Field(default=30.0, ge=0.5, le=3600)


class Gpu(BaseModel, extra="forbid"):
    """[gpu."ADDRESS"]: one GPU, by PCI address or name in /sys/class/mdev_bus."""

    use: bool = True


class Daemon(BaseModel, extra="forbid"):
    """[daemon]: which libvirt vgpu-hookd follows, and how often it looks for orphans (seconds)."""

    libvirt: str = "qemu:///system"
    reconcile: float = Field(default=60.0, ge=1, le=86400)


class Boot(BaseModel, extra="forbid"):
    """[boot]: what is run and waited for (seconds) before VMs are started at boot."""

    commands: list[list[str]] = []
    timeout: float = Field(default=120.0, ge=1, le=3600)


class Metrics(BaseModel, extra="forbid"):
    """[metrics]: a file for node_exporter ("": none; none either without its folder), an address
    to serve them on by HTTP ("": none), and how often they are collected (seconds)."""

    textfile: str = Settings().metrics_textfile
    listen: str = ""
    interval: float = Field(default=30.0, ge=1, le=3600)


class File(BaseModel, extra="forbid"):
    """The whole file."""

    paths: Paths = Paths()
    policy: Policy = Policy()
    deadlines: Deadlines = Field(default_factory=Deadlines)
    daemon: Daemon = Field(default_factory=Daemon)
    boot: Boot = Field(default_factory=Boot)
    metrics: Metrics = Field(default_factory=Metrics)
    gpu: dict[str, Gpu] = {}


def settings(text: str, path: str) -> Settings:
    """Return the settings of a file's text. Raises ConfigError, which names the key."""
    try:
        file = File(**tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise config.error(path, error) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise config.error(path, f"{key}: {first['msg']}") from None
    paths = file.paths
    for key in Paths.__annotations__:
        if not getattr(paths, key).startswith("/"):
            raise config.error(path, f"paths.{key}: {getattr(paths, key)!r} is not absolute")
    textfile = file.metrics.textfile
    if textfile and not (textfile.startswith("/") and textfile.endswith(".prom")):
        raise config.error(path, f"metrics.textfile: {textfile!r} is no absolute path to a .prom")
    return Settings(
        roots=Roots(paths.sysfs, paths.proc, paths.dev, paths.journal),
        state=paths.state,
        runtime=paths.runtime,
        placement=file.policy.placement,
        hook_deadline=file.deadlines.hook,
        unused_gpus=frozenset(plain_name(name) for name, gpu in file.gpu.items() if not gpu.use),
        uri=file.daemon.libvirt,
        reconcile_interval=file.daemon.reconcile,
        boot_commands=tuple(tuple(command) for command in file.boot.commands),
        boot_timeout=file.boot.timeout,
        metrics_textfile=textfile,
        metrics_listen=_address(file.metrics.listen, path),
        metrics_interval=file.metrics.interval,
    )


def _address(text: str, path: str) -> tuple[str, int] | None:
    """Return an IP address and a port, such as 127.0.0.1:9843 or [::1]:9843; None of nothing."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    try:
        number = int(port)
        address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        raise config.error(
            path, f"metrics.listen: {text!r} is no IP address and port, as in 127.0.0.1:9843"
        )
    return address, number
