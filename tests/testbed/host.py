"""A test host with vgpu-hook's package installed, as a test sees it.

Not for starting the machine (machine.py) and not for fixtures (plugin.py). Everything goes
through commands that a user has: virsh, the package's own tools, files.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.testbed.errors import TestbedError
from tests.testbed.guests import boot_disk
from tests.testbed.machine import COMMAND_TIMEOUT, Machine
from tests.testbed.recipe import APPARMOR_ON, Image

PROJECT = Path(__file__).resolve().parents[2]
INSTALLED = "installed"
IMAGES = "/var/lib/libvirt/images"
IDLE_DISK = f"{IMAGES}/idle.raw"
POWEROFF_DISK = f"{IMAGES}/poweroff.raw"


class Host:
    """The test host, and short ways to do what most tests do."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = COMMAND_TIMEOUT,
        input: str | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as root; see Machine.run."""
        return self.machine.run(command, check=check, timeout=timeout, input=input)

    def virsh(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.run(["virsh", *arguments], check=check)

    def define(self, xml: str) -> None:
        """Define a domain from its XML."""
        self.run("virsh define /dev/stdin", input=xml)

    def state(self, domain: str) -> str:
        """Return a domain's state in virsh's words: running, paused, shut off."""
        return self.virsh("domstate", domain).stdout.strip()

    def mdevs(self) -> list[str]:
        """Return the UUIDs of the mediated devices that the kernel has."""
        return sorted(self.run("ls /sys/bus/mdev/devices").stdout.split())

    def create_mdev(self, uuid: str, kind: str = "mtty-1") -> None:
        """Make a mediated device by hand, as an admin would."""
        types = "/sys/class/mdev_bus/mtty/mdev_supported_types"
        self.run(f"echo {uuid} > {types}/{kind}/create")

    def journal(self, *arguments: str) -> list[dict[str, Any]]:
        """Return this boot's journal entries, chosen by journalctl's arguments."""
        command = ["journalctl", "--boot", "--output=json", "--no-pager", "--all", *arguments]
        return [json.loads(line) for line in self.run(command).stdout.splitlines()]

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = 180.0) -> None:
        """Wait until the condition holds; what it is for is in the error."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TestbedError(f"not seen in {timeout:.0f} s: {what}")
            time.sleep(0.3)


def confined(image: Image) -> Machine:
    """Return the test host, not started yet, with AppArmor enforcing libvirtd's profile.

    Debian 13's boots for it, which takes minutes: the snapshot in its image is of one without.
    """
    if image.suite.kernel_args == APPARMOR_ON:
        return Machine(image)
    return Machine(image, snapshot=None, kernel_args=APPARMOR_ON)


def build_package(directory: Path) -> Path:
    """Build the working tree's .deb into a directory and return its path."""
    build = [str(PROJECT / "packaging/deb/build.sh"), str(directory)]
    done = subprocess.run(build, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"building the package failed:\n{done.stderr}")
    return Path(done.stdout.strip())


def install_package(machine: Machine, package: Path) -> None:
    """Install a .deb as a user would. It needs no network: its dependencies are in the image."""
    remote = f"/root/{package.name}"
    machine.put(package, remote)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", remote]
    machine.run(["env", "DEBIAN_FRONTEND=noninteractive", *install], timeout=900)


def prepare(machine: Machine) -> None:
    """Put the working tree's package and the guests' disks into a machine, and snapshot it."""
    with tempfile.TemporaryDirectory(prefix="vgpu-testbed-deb-") as directory:
        equip(machine, build_package(Path(directory)))
    machine.snapshot(INSTALLED)


def equip(machine: Machine, package: Path) -> None:
    """Put a package and the guests' disks into a machine."""
    install_package(machine, package)
    write_disks(machine)


def write_disks(machine: Machine) -> None:
    """Put the guests' disks into a machine."""
    machine.write(IDLE_DISK, boot_disk("idle"))
    machine.write(POWEROFF_DISK, boot_disk("poweroff"))
