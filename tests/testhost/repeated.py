"""What the tests do a few times, and `make soak` often: on the test host."""

from __future__ import annotations

from tests.domains import uuid_of
from tests.testbed.guests import domain_xml
from tests.testbed.host import IDLE_DISK
from tests.testhost.kinds import Kind
from tests.testhost.vms import assignments, define_request

LOOP = """\
import random, subprocess, sys
name, events, xml = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random.seed(name)
def virsh(*arguments):
    return subprocess.run(["virsh", "-q", *arguments], capture_output=True, text=True)
for _ in range(events):
    action = random.choice(["define", "define", "undefine", "start", "start", "destroy"])
    done = virsh("define", xml) if action == "define" else virsh(action, name)
    print(action, done.returncode, done.stderr.strip().replace("\\n", " "), flush=True)
"""


def start_and_destroy(kind: Kind, times: int) -> None:
    """Do it so often; nothing is left.

    With the daemon: by itself the hook takes several times as long under TCG.
    """
    kind.host.run("systemctl start vgpu-hookd.socket vgpu-hookd.service")
    kind.define("often", kind.profile)
    kind.host.run(
        f"set -e; for i in $(seq {times}); do virsh -q start often; virsh -q destroy often; done",
        timeout=1800,
    )
    if kind.name == "mdev":
        kind.host.run("systemctl stop vgpu-hookd.socket vgpu-hookd.service")
    assert kind.present() == []
    assert assignments(kind.host) == []


def run_at_random(kind: Kind, *, events: int, reconnects: int) -> None:
    """So many events of each domain; then what runs has its vGPU, and nothing else is there."""
    host = kind.host
    host.machine.write("/root/loop.py", LOOP.encode())
    for name in ("left", "right"):
        asked = [{"profile": kind.profile}]
        xml = domain_xml(name, uuid=uuid_of(name), disk=IDLE_DISK, profiles=asked)
        host.machine.write(f"/root/{name}.xml", xml.encode())
        host.run(
            f"systemd-run --quiet --remain-after-exit --unit=loop-{name}"
            f" --property=StandardOutput=file:/root/{name}.log"
            f" python3 /root/loop.py {name} {events} /root/{name}.xml"
        )
    for number in range(reconnects):
        host.run("sleep 5; systemctl restart libvirtd")
        define_request(host, f"gap{number}", {"profile": kind.other})

    def over() -> bool:
        states = host.run("systemctl show -P SubState loop-left loop-right").stdout.split()
        return states == ["exited", "exited"]

    host.wait_for("both loops have ended", over, timeout=2400)
    log = host.run("cat /root/left.log /root/right.log").stdout.splitlines()
    assert len(log) == 2 * events
    for number in range(reconnects):
        kind.settled(f"gap{number}")
    host.run("vgpu-hook reconcile")
    running = host.virsh("list", "--name").stdout.split()
    devices = [device for name in running for device in kind.settled(name)]
    assert kind.present() == sorted(devices)
    assert sorted(assignments(host)) == sorted((name, "assigned") for name in running)
    for name in running:
        host.virsh("destroy", name)
    assert kind.present() == []
