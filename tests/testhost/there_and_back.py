"""Live migration between the two test hosts, there and back."""

from __future__ import annotations

import subprocess
import time

from tests.testbed.host import Host
from tests.testhost.kinds import MdevKind
from tests.testhost.vms import assignments, saveable

NAMES = ("host1", "host2")


def migrate(
    host: Host, name: str, destination: str, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Migrate a running VM as people do."""
    uri = f"qemu+ssh://root@{destination}/system"
    command = ["virsh", "migrate", "--live", "--persistent", "--undefinesource", name, uri]
    return host.run(command, check=check, timeout=1800)


def there_and_back(hosts: tuple[Host, Host], rounds: int) -> str:
    """Migrate a VM there and back so many times; return what was seen, in a line."""
    kind = MdevKind(hosts[0])
    kind.host.define(saveable("traveller"))
    devices = kind.settled("traveller")
    kind.host.virsh("start", "traveller")
    times = []
    for number in range(2 * rounds):
        here, there = hosts[number % 2], hosts[(number + 1) % 2]
        begun = time.monotonic()
        migrate(here, "traveller", NAMES[(number + 1) % 2])
        times.append(time.monotonic() - begun)
        assert there.state("traveller") == "running"
        assert (here.mdevs(), there.mdevs()) == ([], devices)
        assert (assignments(here), assignments(there)) == ([], [("traveller", "assigned")])
        MdevKind(there).settled("traveller")
    hosts[0].virsh("destroy", "traveller")
    for host in hosts:
        assert host.mdevs() == []
        assert assignments(host) == []
    middle = sorted(times)[len(times) // 2]
    return f"there and back {rounds} times: median {middle:.0f} s each way (TCG), no device left"
