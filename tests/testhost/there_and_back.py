"""Live migration between the two test hosts, there and back."""

from __future__ import annotations

import subprocess
import time

from tests.testbed.host import Host
from tests.testhost.kinds import Kind
from tests.testhost.vms import assignments

NAMES = ("host1", "host2")


def migrate(
    host: Host, name: str, destination: str, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Migrate a running VM as people do."""
    uri = f"qemu+ssh://root@{destination}/system"
    command = ["virsh", "migrate", "--live", "--persistent", "--undefinesource", name, uri]
    return host.run(command, check=check, timeout=1800)


def there_and_back(kinds: tuple[Kind, Kind], rounds: int) -> str:
    """Migrate a VM there and back so many times; return what was seen, in a line."""
    hosts = tuple(kind.host for kind in kinds)
    kinds[0].define("traveller", kinds[0].profile, movable=True)
    hosts[0].virsh("start", "traveller")
    times, seen = [], list(kinds[0].present())
    for number in range(2 * rounds):
        here, there = kinds[number % 2], kinds[(number + 1) % 2]
        begun = time.monotonic()
        migrate(here.host, "traveller", NAMES[(number + 1) % 2])
        times.append(time.monotonic() - begun)
        assert there.host.state("traveller") == "running"
        assert here.present() == []
        (device,) = there.present()
        assert assignments(here.host) == []
        assert assignments(there.host) == [("traveller", "assigned")]
        # Its definition came past the hook.
        assert there.settled("traveller") == [device]
        seen.append(device)
    hosts[0].virsh("destroy", "traveller")
    hosts[0].virsh("undefine", "traveller")
    for kind in kinds:
        assert kind.present() == []
        assert assignments(kind.host) == []
    middle = sorted(times)[len(times) // 2]
    return (
        f"{kinds[0].name}: there and back {rounds} times, on {', '.join(sorted(set(seen)))}:"
        f" median {middle:.0f} s each way (TCG), no device left"
    )
