"""`make demo`: the main job on a real kernel, step by step, with the commands that a user types.

Everything is checked as it goes, so that a demo that ends well has shown what it says. It
uses its own copy of the test host and leaves nothing running.
"""

from __future__ import annotations

import sys
import time

from tests.domains import device_of, uuid_of
from tests.testbed.build import ensure_image
from tests.testbed.errors import TestbedError
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK, Host, prepare
from tests.testbed.machine import Machine
from tests.testhost.kinds import MdevKind, VfKind
from tests.testhost.vms import let_go

BEGIN = time.monotonic()
DEVICE = device_of(uuid_of("web"))


def say(text: str) -> None:
    """Print a line of narration, with the time since the beginning."""
    print(f"\n[{time.monotonic() - BEGIN:5.0f} s] {text}", flush=True)


def expect(condition: bool, what: str) -> None:
    """Stop the demo if what it is about to claim is not so."""
    if not condition:
        raise TestbedError(f"the demo expected: {what}")
    print(f"  -> {what}", flush=True)


class Demo:
    """The steps, on one test host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._others = host.mdevs()

    def vgpus(self) -> list[str]:
        """Return the mediated devices that were not there before the demo."""
        return [device for device in self.host.mdevs() if device not in self._others]

    def type(self, line: str, *, fails: bool = False) -> str:
        """Show and run a command line; return what it printed."""
        print(f"  # {line}", flush=True)
        done = self.host.run(line, check=False)
        output = (done.stdout + done.stderr).rstrip()
        if output:
            print("\n".join(f"  {text}" for text in output.splitlines()), flush=True)
        if (done.returncode != 0) != fails:
            raise TestbedError(f"the demo did not expect exit status {done.returncode}: {line}")
        return output

    def start(self) -> None:
        say("A domain 'web' is there, without a vGPU. One command asks for one.")
        self.host.define(domain_xml("web", uuid=uuid_of("web"), disk=IDLE_DISK))
        self.type("vgpu-hook profiles")
        self.type("vgpu-hook attach web --profile mtty-1")
        say("Clone it, with vgpu-hookd stopped, so that the clone keeps what it inherits.")
        self.type("systemctl stop vgpu-hookd.socket vgpu-hookd.service")
        self.type("virt-clone --quiet --original web --name web-clone --preserve-data --auto-clone")
        say("From now on plain virsh is enough: the start of 'web' makes its vGPU.")
        self.type("virsh start web")
        self.type("ls /sys/bus/mdev/devices")
        expect(self.vgpus() == [DEVICE], "the kernel has the vGPU")
        found = self.type(
            "tr '\\0' '\\n' < /proc/$(cat /run/libvirt/qemu/web.pid)/cmdline | grep mdev"
        )
        expect(DEVICE in found, "and the running QEMU has it")
        shown = self.type("vgpu-hook status")
        expect("assigned" in shown, "status says whose it is")

    def clone(self) -> None:
        say(
            "The clone names the vGPU of 'web', which runs. With a hook as in circulation, starting"
        )
        print("          the clone takes it away from 'web', and libvirt hangs. Here:")
        refused = self.type("virsh start web-clone", fails=True)
        expect("has inherited" in refused, "the start is refused, with the reason and the remedy")
        listed = self.type("virsh list --all")
        expect("running" in listed, "virsh still answers, and 'web' runs")
        expect(self.vgpus() == [DEVICE], "the original's vGPU is untouched")
        say("vgpu-hookd gives the clone a vGPU of its own, as it would have at once.")
        self.type("systemctl start vgpu-hookd.socket vgpu-hookd.service")
        MdevKind(self.host).settled("web-clone")
        self.type("virsh start web-clone")
        expect(len(self.vgpus()) == 2, "both run, each with its own vGPU")
        self.type("virsh destroy web-clone")

    def stop(self) -> None:
        say("Stop it: the vGPU goes with it.")
        self.type("virsh destroy web")
        expect(self.vgpus() == [], "the kernel has no vGPU left")

    def failed_release(self) -> None:
        say("A release that can't be done: another process holds the vGPU's handle open.")
        self.type("virsh start web")
        MdevKind(self.host).hold("web", DEVICE)
        self.type("virsh destroy web")
        shown = self.type("vgpu-hook status")
        expect("retained" in shown, "the VM has stopped, and the vGPU is retained: nothing is lost")
        self.type("vgpu-hook explain web")
        say("The process lets go. vgpu-hookd would get the vGPU back within a minute; by command:")
        let_go(self.host)
        self.type("vgpu-hook release web")
        expect(self.vgpus() == [], "the kernel has no vGPU left")
        self.type("vgpu-hook status")

    def vfs(self) -> None:
        say("The same on GPUs with vendor-specific VFIO: two cards of four VFs are plugged in.")
        kind = VfKind(self.host)
        self.type("vgpu-hook profiles")
        self.type("vgpu-hook attach --profile 'NVIDIA L40S-2Q' --slot 0 web")
        (vf,) = kind.settled("web")
        self.type("virsh start web")
        expect(kind.present() == [vf], f"{vf} is the vGPU, and 'web' runs on it")
        self.type("vgpu-hook status")
        self.type("virsh destroy web")
        expect(kind.present() == [], "no VF carries a type any more")


def main() -> int:
    """Run the demo; return its exit status."""
    try:
        image = ensure_image()
        say("Starting the test host (Debian 13, its own kernel, libvirt and QEMU, under TCG).")
        with Machine(image) as machine:
            say("Building the package from this tree and installing it there.")
            prepare(machine)
            demo = Demo(Host(machine))
            for step in (demo.start, demo.clone, demo.stop, demo.failed_release, demo.vfs):
                step()
        say("Done. The test host is gone; its image is kept for the next run.")
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "error: interrupted; the test host is gone. To begin anew: make demo", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
