"""The real libvirtd and the simulated one behind one face, and all that can be seen of either.

For test_contract.py, which does the same to both. The hook of both is what the test puts in:
shell, for an operation.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt
from lxml import etree

from tests.domains import uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import PATIENCE, Answer
from vgpu_hook import events

from .calls import connection
from .errors import SimError
from .qemu import Qemu
from .server import Server
from .standin import libvirt as standin
from .state import SimDomain, SimLibvirt

KINDS = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
)
MARKER = "marker"
"""A domain whose events tell that all earlier ones have been heard."""

ERRORS = (libvirt.libvirtError, standin.libvirtError, SimError)


def seen_in(xml: str) -> tuple[Any, ...]:
    """What the product reads in a domain's XML; what libvirt adds elsewhere is not in it."""
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    metadata = [etree.tostring(m, method="c14n").decode() for m in root.iterfind("metadata/*")]
    hostdevs = []
    for hostdev in root.iterfind("devices/hostdev"):
        children = {child.tag for child in hostdev}
        alias = hostdev.find("alias")
        source = sorted(hostdev.find("source/address").attrib.items())
        name = None if alias is None else alias.get("name")
        hostdevs.append((sorted(hostdev.attrib.items()), source, name, sorted(children)))
    running = root.get("id") is not None
    return root.findtext("name"), root.findtext("uuid"), running, metadata, hostdevs


class Side:
    """One libvirtd. `do` writes down what a call answered and what else was to be seen of it."""

    def __init__(self, folder: Path) -> None:
        self.connection = self.connect()
        self.folder = folder
        self.seen: list[tuple[str, Any, list[Any], list[Any]]] = []
        self.images: dict[str, Any] = {}
        self._heard: list[tuple[Any, ...]] = []
        self._marks = itertools.count()
        self.listen()

    def listen(self) -> None:
        """Hear of this side's events."""
        for kind in KINDS:
            self.connection.domainEventRegisterAny(None, kind, self._hears, kind)

    def do(self, title: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call, and write down the answer, the events and the hook's calls."""
        answer = self.answer(call, *arguments)
        self.seen.append((title, answer, self.heard(), self.hook_calls()))

    def answer(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call answers, or its error, in a form that can be compared."""
        try:
            return _comparable(call(*arguments))
        except ERRORS as error:
            return _error(error)

    def heard(self) -> list[tuple[Any, ...]]:
        """Return the events since the last time, when all have come."""
        mark = f"urn:mark:{next(self._marks)}"
        marker = self.connection.lookupByName(MARKER)
        flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
        marker.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, "<m/>", "m", mark, flags)
        self.wait(lambda: any(event[-1] == mark for event in list(self._heard)))
        heard, self._heard = self._heard, []
        return [event for event in heard if event[1] != MARKER and not _is_shutdown(event)]

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)

    def domain(self, name: str) -> Any:
        return self.connection.lookupByName(name)

    def connect(self) -> Any:
        """Return a connection."""
        raise NotImplementedError

    def hook_calls(self) -> list[tuple[list[str], tuple[Any, ...]]]:
        """Return the hook's arguments and input, since the last time."""
        raise NotImplementedError

    def _hears(self, connection: Any, domain: Any, *rest: Any) -> None:
        *arguments, kind = rest
        self._heard.append((kind, domain.name(), domain.UUIDString(), *arguments))


class Real(Side):
    """This machine's libvirtd."""

    def __init__(self, server: LibvirtServer) -> None:
        events._start_loop()
        self.server = server
        self.hooks = server.folder / "hook"
        super().__init__(server.folder)

    def connect(self) -> Any:
        return self.server.connect()

    @staticmethod
    def install(folder: Path) -> None:
        """Put in the hook that writes down how it is called, before libvirtd starts."""
        (folder / "hook").mkdir()
        script = folder / "etc" / "hooks" / "qemu"
        script.parent.mkdir(parents=True)
        script.write_text(
            f'#!/bin/sh\ncd {folder}/hook\nn=$(date +%s%N)\nprintf "%s\\n" "$@" > argv.$n\n'
            "cat > in.$n\n[ -e do.$2 ] && exec sh do.$2 < in.$n\nexit 0\n"
        )
        script.chmod(0o755)

    def hook_does(self, operation: str, script: str) -> None:
        (self.hooks / f"do.{operation}").write_text(script)

    def hook_calls(self) -> list[tuple[list[str], tuple[Any, ...]]]:
        found = []
        for argv in sorted(self.hooks.glob("argv.*")):
            given = argv.with_name(argv.name.replace("argv", "in"))
            found.append((argv.read_text().splitlines(), seen_in(given.read_text())))
            argv.unlink()
            given.unlink()
        return found

    def create(self, xml: str) -> Any:
        return self.connection.createXML(xml, 0)

    def start(self, name: str) -> int:
        return int(self.domain(name).create())

    def rename(self, name: str, new: str) -> int:
        return int(self.domain(name).rename(new, 0))

    def save(self, name: str) -> int:
        self.images[name] = str(self.folder / f"{name}.image")
        return int(self.domain(name).save(self.images[name]))

    def managed_save(self, name: str) -> int:
        return int(self.domain(name).managedSave(0))

    def restore(self, name: str) -> int:
        return int(self.connection.restore(self.images[name]))

    def snapshot(self, name: str) -> None:
        self.domain(name).snapshotCreateXML("<domainsnapshot><name>s</name></domainsnapshot>", 0)

    def revert(self, name: str) -> int:
        domain = self.domain(name)
        return int(domain.revertToSnapshot(domain.snapshotLookupByName("s")))

    def crash(self, name: str) -> None:
        """Kill its QEMU: the one that has the domain's UUID among its arguments."""
        wanted = uuid_of(name).encode()
        for process in Path("/proc").glob("[0-9]*"):
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if b"qemu" in arguments[0] and wanted in arguments:
                os.kill(int(process.name), signal.SIGKILL)
        self.wait(lambda: not self.domain(name).isActive())

    def add_volume(self, pool: str, volume: str) -> str:
        folder = self.folder / pool
        folder.mkdir(exist_ok=True)
        (folder / volume).write_text("x")
        self.connection.storagePoolCreateXML(
            f"<pool type='dir'><name>{pool}</name><target><path>{folder}</path></target></pool>"
        )
        return str(folder / volume)

    def tidy(self) -> None:
        """Take away all domains but the marker, and the connection."""
        for script in self.hooks.glob("do.*"):
            script.unlink()
        flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        for domain in self.connection.listAllDomains():
            if domain.isActive():
                domain.destroy()
            if domain.name() != MARKER and self.answer(domain.isPersistent) == 1:
                domain.undefineFlags(flags | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA)
        self.heard()
        self.hook_calls()
        self.connection.close()


class Simulated(Side):
    """The simulated one, in-process; `hook` is given in shell too."""

    def __init__(self, simulated: SimLibvirt, folder: Path) -> None:
        self.simulated = simulated
        self.qemu = Qemu(simulated, self._hook)
        self.scripts: dict[str, str] = {}
        self.hooks = folder
        self._calls: list[tuple[list[str], tuple[Any, ...]]] = []
        simulated.auto = True
        super().__init__(folder)

    def connect(self) -> Any:
        made = connection(self.simulated)
        self.simulated.listeners.append(made.happened)
        return made

    def _hook(self, arguments: list[str], xml: bytes) -> Answer:
        self._calls.append((arguments, seen_in(xml.decode())))
        script = ["sh", "-c", self.scripts.get(arguments[1], "exit 0")]
        done = subprocess.run(script, input=xml, capture_output=True, cwd=self.hooks)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def hook_does(self, operation: str, script: str) -> None:
        self.scripts[operation] = script

    def hook_calls(self) -> list[tuple[list[str], tuple[Any, ...]]]:
        calls, self._calls = self._calls, []
        return calls

    def known(self, name: str) -> SimDomain:
        return self.simulated.find(name=name)

    def create(self, xml: str) -> SimDomain:
        return self.qemu.create(xml)

    def start(self, name: str) -> int:
        self.qemu.start(self.known(name))
        return 0

    def rename(self, name: str, new: str) -> int:
        self.simulated.rename(self.known(name), new)
        return 0

    def save(self, name: str) -> int:
        self.images[name] = self.qemu.save(self.known(name))
        return 0

    def managed_save(self, name: str) -> int:
        self.qemu.managed_save(self.known(name))
        return 0

    def restore(self, name: str) -> int:
        self.qemu.restore(self.images[name])
        return 0

    def snapshot(self, name: str) -> None:
        self.images[f"snapshot of {name}"] = str(self.known(name).definition)

    def revert(self, name: str) -> int:
        self.qemu.revert(self.known(name), self.images[f"snapshot of {name}"])
        return 0

    def crash(self, name: str) -> None:
        self.qemu.crash(self.known(name))

    def add_volume(self, pool: str, volume: str) -> str:
        path = str(self.folder / pool / volume)
        self.simulated.volumes[path] = (pool, volume)
        return path

    def tidy(self) -> None:
        self.simulated.listeners.clear()


class OverSocket(Simulated):
    """The simulated one as the product's processes have it: the stand-in module, over a socket."""

    def __init__(self, simulated: SimLibvirt, folder: Path) -> None:
        self.server = Server(simulated, folder).__enter__()
        _start_standins_loop()
        super().__init__(simulated, folder)

    def connect(self) -> Any:
        return standin.open(self.server.uri)

    def tidy(self) -> None:
        self.connection.close()
        self.server.__exit__(None, None, None)


AnySide = Real | Simulated

_LOOP = threading.Event()


def _start_standins_loop() -> None:
    """Hand on the stand-in's events, for all its connections in this process."""
    if not _LOOP.is_set():
        _LOOP.set()

        def loop() -> None:
            while True:
                standin.virEventRunDefaultImpl()

        threading.Thread(target=loop, daemon=True).start()


def _comparable(answer: Any) -> Any:
    if isinstance(answer, str) and answer.startswith("<domain"):
        return seen_in(answer)
    if isinstance(answer, SimDomain):
        return answer.name, answer.uuid
    if hasattr(answer, "UUIDString"):
        return answer.name(), answer.UUIDString()
    if isinstance(answer, list):
        return sorted(found for item in answer if (found := _comparable(item))[0] != MARKER)
    return answer


def _error(error: Exception) -> tuple[str, int, str]:
    """Return an error; of what a parser or a command says only the end, or nothing."""
    if isinstance(error, SimError):
        code, text = error.code, error.message
    else:
        code, text = error.get_error_code(), error.get_error_message()  # type: ignore[attr-defined]
    if code == libvirt.VIR_ERR_XML_DETAIL:
        text = ""
    elif code == libvirt.VIR_ERR_HOOK_SCRIPT_FAILED:
        text = text.rpartition(": ")[2].strip()
    return "error", code, text


def _is_shutdown(event: tuple[Any, ...]) -> bool:
    """SHUTDOWN may be lost or not when a VM is destroyed; the product takes no notice of it."""
    shutdown = libvirt.VIR_DOMAIN_EVENT_SHUTDOWN
    return bool(event[0] == libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE and event[3] == shutdown)
