"""Twelve domains on eight VFs, started and stopped at random by two loops."""

from __future__ import annotations

import json
from collections import Counter

from tests.testhost.kinds import VfKind
from tests.testhost.vms import assignments, define_request, query

LOOP = """\
import glob, json, random, subprocess, sys, time
names, end = sys.argv[2:], time.monotonic() + float(sys.argv[1])
random.seed(names[0])
def free():
    files = glob.glob("/sys/bus/pci/devices/*/nvidia/current_vgpu_type")
    return sum(open(file).read().strip() == "0" for file in files)
def virsh(*arguments):
    return subprocess.run(["virsh", "-q", *arguments], capture_output=True, text=True)
running = set()
while time.monotonic() < end:
    name = random.choice(names)
    if name in running:
        done, action = virsh("destroy", name), "destroy"
    else:
        done, action = virsh("start", name), "start"
        if done.returncode and "another VF is free" in done.stderr:
            # Between another domain's start and the new pointing, seconds under TCG.
            print(json.dumps([name, "early", 0, done.stderr, 0]), flush=True)
            for _ in range(20):
                time.sleep(3)
                done = virsh("start", name)
                if "another VF is free" not in done.stderr:
                    break
    left = free() if done.returncode else 0
    print(json.dumps([name, action, done.returncode, done.stderr, left]), flush=True)
    if done.returncode == 0:
        running ^= {name}
for name in running:
    virsh("destroy", name)
"""


def run_twelve(vfs: VfKind, seconds: float) -> str:
    """Run both loops; check that nothing was shared, refused without need, or left behind.

    A start that comes between another domain's start on the same VF and the moment when the
    daemon has pointed the stopped one elsewhere is refused with the word to try again: libvirt has
    read its definition by then. Such are counted apart, and must work within a minute.
    """
    host = vfs.host
    names = [f"t{number}" for number in range(12)]
    for name in names:
        define_request(host, name, {"profile": "1148"})
    for name in names:
        vfs.settled(name)
    host.machine.write("/root/twelve.py", LOOP.encode())
    for unit, those in (("a", names[:6]), ("b", names[6:])):
        host.run(
            f"systemd-run --quiet --remain-after-exit --unit=twelve-{unit}"
            f" --property=StandardOutput=file:/root/twelve-{unit}.log"
            f" python3 /root/twelve.py {seconds} {' '.join(those)}"
        )

    def over() -> bool:
        states = host.run("systemctl show -P SubState twelve-a twelve-b").stdout.split()
        rows = query(host, "SELECT device FROM assignment WHERE state = 'assigned'")
        devices = [row[0] for row in rows]
        assert len(devices) == len(set(devices)), "a VF is shared"
        return states == ["exited", "exited"]

    host.wait_for("both loops have ended", over, timeout=seconds + 1800)
    lines = [json.loads(line) for line in host.run("cat /root/twelve-?.log").stdout.splitlines()]
    # One VF may have been freed by the other loop between the refusal and the look.
    failed = [
        line for line in lines if line[2] and ("no free instance" not in line[3] or line[4] > 1)
    ]
    assert failed == [], failed
    host.wait_for("every record is gone", lambda: assignments(host) == [], timeout=600)
    assert vfs.present() == []
    for name in names:
        host.virsh("undefine", name)
    host.run("systemctl stop twelve-a twelve-b", check=False)
    done = Counter(action for _, action, code, _, _ in lines if not code)
    full = sum(1 for line in lines if line[2])
    return (
        f"12 domains on 8 VFs for {seconds:.0f} s: {done['start']} starts, {done['destroy']} stops;"
        f" {full} starts refused for lack of room, {done['early']} told to try again"
    )
