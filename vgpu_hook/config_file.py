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

    sysfs: str = Field(default="/sys", description="the kernel's devices")
    proc: str = Field(default="/proc", description="the kernel's processes")
    dev: str = Field(default="/dev", description="device nodes")
    journal: str = Field(
        default="/run/systemd/journal/socket", description="the journal's native socket"
    )
    state: str = Field(default="/var/lib/vgpu-hook", description="the store of assignments")
    runtime: str = Field(default="/run/vgpu-hook", description="locks, and vgpu-hookd's socket")
    hooks: str = Field(default="/etc/libvirt/hooks", description="where libvirt looks for hooks")


class Policy(BaseModel, extra="forbid"):
    """[policy]: which GPU a new vGPU goes to."""

    placement: Literal["spread", "pack"] = Field(
        default="spread",
        description="the GPU that is least loaded (spread), or the one that is most (pack)",
    )


class Deadlines(BaseModel, extra="forbid"):
    """[deadlines]: seconds after which something is answered, whatever the kernel does."""

    hook: float = Field(
        default=30.0,
        ge=0.5,
        le=3600,
        description="for a call of the hook: a start is then refused, a stop goes on and the vGPU"
        " is retained",
    )


class Gpu(BaseModel, extra="forbid"):
    """[gpu."ADDRESS"]: one GPU, by PCI address or name in /sys/class/mdev_bus."""

    use: bool = Field(default=True, description="false: leave this GPU alone")


class Daemon(BaseModel, extra="forbid"):
    """[daemon]: which libvirt vgpu-hookd follows, and how often it looks for orphans (seconds)."""

    libvirt: str = Field(default="qemu:///system", description="URI of this host's libvirt")
    reconcile: float = Field(
        default=60.0,
        ge=1,
        le=86400,
        description="how often it looks for vGPUs that are orphaned or retained",
    )


class Boot(BaseModel, extra="forbid"):
    """[boot]: what is run and waited for (seconds) before VMs are started at boot."""

    commands: list[list[str]] = Field(
        default=[], description="run in this order, each as a list of its words, without a shell"
    )
    timeout: float = Field(
        default=120.0,
        ge=1,
        le=3600,
        description="for these, and then for the profiles that domains ask for, at most",
    )


class Metrics(BaseModel, extra="forbid"):
    """[metrics]: a file for node_exporter ("": none; none either without its folder), an address
    to serve them on by HTTP ("": none), and how often they are collected (seconds)."""

    textfile: str = Field(
        default=Settings().metrics_textfile,
        description="for node_exporter, where its folder is there; empty: none",
    )
    listen: str = Field(
        default="", description="IP address and port to serve them on by HTTP; empty: none"
    )
    interval: float = Field(
        default=30.0, ge=1, le=3600, description="from one collection to the next"
    )


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
    except RecursionError:
        raise config.error(path, "its values are nested too deeply") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise config.error(path, f"{key}: {first['msg']}") from None
    paths = file.paths
    for key in Paths.__annotations__:
        if not getattr(paths, key).startswith("/"):
            raise config.error(path, f"paths.{key}: {getattr(paths, key)!r} is not absolute")
    if not all(command and command[0] for command in file.boot.commands):
        raise config.error(path, "boot.commands: one of them names no program")
    textfile = file.metrics.textfile
    for name in (*vars(paths).values(), textfile):
        if "\0" in name:
            raise config.error(path, f"{name!r} has a NUL in it, which no path can have")
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
        hooks=paths.hooks,
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
