"""On the test host, a real kernel under TCG: the three calls against mdevctl, for one mdev.

Measured inside the guest, whose clock it is: a script that runs both in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.bench.figures import RUNS, Figure, of_pairs
from tests.domains import device_of, domain_xml, uuid_of
from tests.testbed.build import ensure_image
from tests.testbed.host import Host, prepare
from tests.testbed.machine import Machine

NAME = "bench"
OTHER = device_of(uuid_of("mdevctl"))
HOOK = "/etc/libvirt/hooks/qemu.d/50-vgpu-hook"
MEASURE = f"""
import json, os, subprocess, sys, time
xml = sys.argv[1]

def run(argv, stdin=os.devnull):
    begin = time.perf_counter()
    with open(stdin, "rb") as given:
        done = subprocess.run(argv, stdin=given, capture_output=True)
    took = 1000 * (time.perf_counter() - begin)
    assert done.returncode == 0, (argv, done.stderr)
    return took

found = []
for number in range({RUNS} + 3):
    calls = (("prepare", "begin"), ("stopped", "end"), ("release", "end"))
    ours = sum(run(["{HOOK}", "{NAME}", *call, "-"], xml) for call in calls)
    theirs = run(["mdevctl", "start", "-u", "{OTHER}", "-p", "mtty", "--type", "mtty-1"])
    theirs += run(["mdevctl", "stop", "-u", "{OTHER}"])
    if number >= 3:
        found.append((ours, theirs))
print(json.dumps(found))
"""


def figures() -> Iterator[Figure]:
    with Machine(ensure_image()) as machine:
        prepare(machine)
        host = Host(machine)
        host.run("cat > /root/bench.xml", input=domain_xml(NAME, {"0": "mtty-1"}).decode())
        host.run("cat > /root/measure.py", input=MEASURE)
        host.run("systemctl is-active vgpu-hookd.socket")
        done = host.run("python3 /root/measure.py /root/bench.xml", timeout=1800)
        pairs = [(ours, theirs) for ours, theirs in json.loads(done.stdout)]
        version = host.run("mdevctl --version").stdout.strip()
    yield of_pairs(
        "prepare + stopped + release on a real kernel (test host, TCG), one mdev",
        pairs,
        f"mdevctl start + stop ({version})",
        goal="1.5 times at most",
    )
