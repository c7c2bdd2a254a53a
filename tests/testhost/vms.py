"""VMs for the test host's libvirt that ask for vGPUs, and what tests look at there."""

from __future__ import annotations

import json
import shlex
from typing import Any

from lxml import etree

from tests.domains import uuid_of
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK, Host

HOLDER = """\
import ctypes, os, sys, time
pid, group = int(sys.argv[1]), sys.argv[2]
for fd in os.listdir(f"/proc/{pid}/fd"):
    if os.readlink(f"/proc/{pid}/fd/{fd}") == group:
        # pidfd_getfd(2): the same open handle, in this process too.
        own = ctypes.CDLL(None).syscall(438, os.pidfd_open(pid), int(fd), 0)
        assert own >= 0
        print("held", flush=True)
        time.sleep(100000)
sys.exit("no such handle")
"""


def define_request(host: Host, name: str, *requests: dict[str, str]) -> None:
    """Define a domain that asks for vGPUs and has no hostdev yet."""
    host.define(domain_xml(name, uuid=uuid_of(name), disk=IDLE_DISK, profiles=requests))


def vgpu_requests(xml: str) -> list[str]:
    """Return the profiles that a domain's XML asks for."""
    request = etree.fromstring(xml.encode()).iter("{urn:vgpu-hook:domain:1}vgpu")
    return [element.get("profile", "") for element in request]


def definition_devices(host: Host, name: str) -> list[str]:
    """Return the mdev UUIDs of a persistent definition."""
    xml = host.virsh("dumpxml", "--inactive", name).stdout
    return [part.split("'")[1] for part in xml.split("<address uuid=")[1:]]


def status(host: Host) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(host.run("vgpu-hook status --format json").stdout)
    return value


def query(host: Host, statement: str) -> list[list[Any]]:
    """Ask the sidecar store, past the product: its own commands take seconds under TCG."""
    program = (
        "import json, sqlite3, sys\n"
        "c = sqlite3.connect('file:/var/lib/vgpu-hook/store.db?mode=ro', uri=True, timeout=60)\n"
        "print(json.dumps(c.execute(sys.argv[1]).fetchall()))\n"
    )
    there = "test -e /var/lib/vgpu-hook/store.db || exec echo []; exec"
    command = shlex.join(["python3", "-I", "-S", "-c", program, statement])
    rows: list[list[Any]] = json.loads(host.run(f"{there} {command}").stdout)
    return rows


def assignments(host: Host) -> list[tuple[str, str]]:
    """Return (domain, state) of each record."""
    found = query(host, "SELECT domain_name, state FROM assignment ORDER BY generation")
    return [(name, state) for name, state in found]


def qemu_pid(host: Host, name: str) -> int:
    return int(host.run(["cat", f"/run/libvirt/qemu/{name}.pid"]).stdout)


def let_go(host: Host) -> None:
    host.run("systemctl stop holder")
