"""To try the product by hand, without a GPU: a simulated host, and what a shell needs to use it.

A folder of its own has the configuration (all roots moved), the store, a domain and the commands;
nothing outside of it is touched. It is gone at the end, with every process that was left in it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .client import SimHost
from .hostfile import BUNDLE, load

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = Path(__file__).with_name("tools")
UUID = "5e0f5ca1-ab1e-4000-8000-000000000001"
PATIENCE = 5.0
"""Seconds that processes have to end before they are killed."""

_CONFIG = """\
[paths]
sysfs = "{root}/sys"
proc = "{root}/proc"
dev = "{root}/dev"
state = "{folder}/state"
runtime = "{folder}/runtime"
journal = "{folder}/no-journal"

[daemon]
libvirt = "qemu+unix:///system?socket={folder}/no-libvirt"

[metrics]
textfile = "{folder}/metrics.prom"
"""
_DOMAIN = """\
<domain type='kvm'>
  <name>vm1</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <vgpu:vgpus xmlns:vgpu="urn:vgpu-hook:domain:1">
      <vgpu:vgpu profile="{profile}"/>
    </vgpu:vgpus>
  </metadata>
  <memory unit='MiB'>512</memory>
  <os><type>hvm</type></os>
  <devices/>
</domain>
"""
_SHORT = """\
vgpu-hook profiles
vgpu-hook status
"""
_LIFE = """\
vgpu-hook profiles
sh hooks/qemu vm1 prepare begin - <vm1.xml
vgpu-hook status
echo 'hold {device} 4242' >host/control
sh hooks/qemu vm1 stopped end - <vm1.xml
vgpu-hook explain vm1
echo 'drop 4242' >host/control
sh hooks/qemu vm1 release end destroyed <vm1.xml
vgpu-hook status
cat host/writes
"""


class Trial(NamedTuple):
    """A simulated host with the product set up for it."""

    sim: SimHost
    folder: Path
    environment: dict[str, str]
    hint: str
    """Commands for a shell in the folder, a line each."""


@contextmanager
def trial(host: str) -> Iterator[Trial]:
    """Set it up, and take it all away at the end. Raises as SimHost.start does."""
    folder = Path(tempfile.mkdtemp(prefix="simhost-try-"))
    try:
        with SimHost.start(host) as sim:
            environment = _environment(sim, folder)
            _fill(sim, folder)
            try:
                if host.endswith(BUNDLE):
                    hint = _restore(Path(host), folder)
                else:
                    hint = _hint(host, sim, folder, environment)
                yield Trial(sim, folder, environment, hint)
            finally:
                _end_processes(folder / "vgpu-hook.toml")
    finally:
        shutil.rmtree(folder)


def _environment(sim: SimHost, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "VGPU_HOOK_CONFIG": str(folder / "vgpu-hook.toml"),
        "VGPU_HOOK_PYTHON": sys.executable,
        "SIMHOST": str(sim.root),
        "PATH": f"{folder / 'bin'}:{TOOLS}:{os.environ['PATH']}",
    }


def _fill(sim: SimHost, folder: Path) -> None:
    text = _CONFIG.format(root=sim.root, folder=folder)
    (folder / "vgpu-hook.toml").write_text(text)
    (folder / "host").symlink_to(sim.root)
    (folder / "hooks").symlink_to(REPOSITORY / "hooks")
    (folder / "bin").mkdir()
    for name, module in (("vgpu-hook", "vgpu_hook"), ("vgpu-hookd", "vgpu_hook.daemon")):
        script = folder / "bin" / name
        python = shlex.quote(sys.executable)
        script.write_text(f'#!/bin/sh\nexec {python} -I -m {module} "$@"\n')
        script.chmod(0o755)


def _restore(path: Path, folder: Path) -> str:
    """Put what else a bundle has into the folder: settings, store, domains; return what to try."""
    from . import bundle

    found = bundle.read(path)
    bundle.restore_store(found, folder / "state")
    with (folder / "vgpu-hook.toml").open("a") as config:
        config.write(bundle.settings_of(found))
    (folder / "domains").mkdir()
    for name, xml in found.domains.items():
        (folder / "domains" / f"{name}.xml").write_text(xml)
    names = [listed["name"] for listed in found.parts["domains"]["listed"]]
    return _SHORT + "".join(f"vgpu-hook explain {shlex.quote(name)}\n" for name in names)


def _hint(host: str, sim: SimHost, folder: Path, environment: dict[str, str]) -> str:
    """The commands to try; where the host offers a vGPU, vm1.xml is a domain that asks for it."""
    off = [gpu for gpu in _gpus_without_vfs(host) if (sim.sys / "bus/pci/devices" / gpu).exists()]
    first = "".join(f"sriov-manage -e {gpu}\n" for gpu in off)
    profile = _offer(sim)
    if profile is None:
        return first + _SHORT
    (folder / "asks.xml").write_text(_DOMAIN.format(uuid=UUID, profile=profile))
    rendered = subprocess.run(
        ["vgpu-hook", "render", "asks.xml"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    (folder / "vm1.xml").write_bytes(rendered.stdout)
    return first + _LIFE.format(device=_device(rendered.stdout.decode()))


def _gpus_without_vfs(host: str) -> list[str]:
    absent = (parent.pci for parent in load(host).parents if parent.absent)
    return sorted({pci.physfn for pci in absent if pci is not None and pci.physfn})


def _offer(sim: SimHost) -> str | None:
    """The first type that there is room for, on the first parent."""
    for types in sim.state()["available"].values():
        for name, left in types.items():
            if left > 0:
                return str(name)
    return None


def _device(xml: str) -> str:
    """What the hostdev in it names: a UUID, or a PCI address."""
    hostdev = xml[xml.index("<hostdev") :]
    words = dict(
        part.split("=", 1) for part in hostdev.split("<address ")[1].split("/>")[0].split()
    )
    values = {key: value.strip("\"'").removeprefix("0x") for key, value in words.items()}
    if "uuid" in values:
        return values["uuid"]
    return "{domain}:{bus}:{slot}.{function}".format(**values)


def run(host: str, command: list[str]) -> int:
    """Print the hint and run the command, or a shell; return its exit status."""
    with trial(host) as made:
        print(f"{host} is a simulated host: /sys, /proc and /dev are in host/. Try:\n")
        print("".join(f"    {line}\n" for line in made.hint.splitlines()))
        print("The commands of host/control: tests/simhost/control.py.", flush=True)
        environment = {**made.environment, "PS1": f"{host} $ "}
        return subprocess.run(command or _shell(), cwd=made.folder, env=environment).returncode


def _shell() -> list[str]:
    bash = shutil.which("bash")
    return [bash, "--norc", "-i"] if bash else ["sh", "-i"]


def _end_processes(config: Path) -> None:
    """End what was started in the shell and goes on, such as vgpu-hookd: it has this variable."""
    left = _processes(config)
    for pid in left:
        _signal(pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while (left := _processes(config)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        _signal(pid, signal.SIGKILL)


def _processes(config: Path) -> list[int]:
    mark = os.fsencode(f"VGPU_HOOK_CONFIG={config}")
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
