"""Two test hosts with a network and a store of disk images between them, for live migration.

    virsh migrate --live --persistent DOMAIN qemu+ssh://root@host2/system

works on the first for a domain whose writable disks are in SHARED. Not for starting one host
(machine.py), nor for the fixture (plugin.py).
"""

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.host import INSTALLED, Host, build_package, equip
from tests.testbed.machine import Machine, make_work_directory
from tests.testbed.recipe import Image

SHARED = "/var/lib/libvirt/shared"
"""Where both have the same files: the first exports it over NFS, the second mounts it."""

# Both come out of one snapshot: their addresses, names and libvirt's idea of the machine are the
# same until this. Arguments: 1 or 2, and SHARED.
_BECOME_ONE = """
set -eu
number=$1 shared=$2
cat >/etc/systemd/network/20-peer.network <<END
[Match]
Type=ether
Path=*pci-0000:00:07.0*

[Link]
MACAddress=52:54:00:99:00:0$number

[Network]
Address=10.0.99.$number/24
LinkLocalAddressing=no
IPv6AcceptRA=no
END
networkctl reload

echo "host$number" >/etc/hostname
hostname "host$number"
cat >/etc/hosts <<END
127.0.0.1 localhost
10.0.99.1 host1
10.0.99.2 host2
END

key=$(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub)
echo "host1,host2,10.0.99.1,10.0.99.2 $key" >/root/.ssh/known_hosts

# libvirt does not migrate to where it comes from.
cat >>/etc/libvirt/libvirtd.conf <<END
host_uuid = "7e57b0d0-0000-4000-8000-00000000000$number"
END
mkdir -p "$shared"
# What the first exports is a local directory to it, and to migrate with that would be unsafe.
[ "$number" -ne 1 ] || cat >>/etc/libvirt/qemu.conf <<END
shared_filesystems = [ "$shared" ]
END
systemctl restart libvirtd.service
"""

_EXPORT = """
set -eu
echo "$1 10.0.99.0/24(rw,async,no_root_squash,no_subtree_check)" >/etc/exports
systemctl enable --quiet --now nfs-server.service
"""

# No caching of attributes: each sees at once what the other has done.
_KNOW_MOUNT = """
set -eu
echo "host1:$1 $1 nfs4 vers=4.2,actimeo=0,nofail,_netdev 0 0" >>/etc/fstab
systemctl daemon-reload
# For the kernel's modules, so that it is quick after a restore.
mount "$1"
umount "$1"
"""


@dataclass(frozen=True)
class Pair:
    """Two test hosts, host1 and host2, each with the working tree's package installed."""

    first: Host
    second: Host

    def clean(self) -> None:
        """Bring both back to how they were right after the installation."""
        for host in (self.first, self.second):
            host.machine.restore(INSTALLED)
        _mount(self.second)


@contextmanager
def running_pair(image: Image) -> Iterator[Pair]:
    """Start two hosts and make them a pair; both end with the body."""
    with ExitStack() as stack:
        directory = make_work_directory()
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        one, other = directory / "1", directory / "2"
        key = image.key.read_bytes()
        # In this thread, to which the kernel ties the life of both.
        first = stack.enter_context(Machine(image, peer=(one, other)))
        second = stack.enter_context(Machine(image, peer=(other, one)))
        pair = Pair(Host(first), Host(second))
        _install(pair, key)
        yield pair


def _install(pair: Pair, key: bytes) -> None:
    """Make two fresh machines a pair, and snapshot both."""
    with tempfile.TemporaryDirectory(prefix="vgpu-testbed-deb-") as directory:
        package = build_package(Path(directory))
        with ThreadPoolExecutor(2) as pool:
            done = [
                pool.submit(_set_up, host, number, key, package)
                for number, host in enumerate((pair.first, pair.second), start=1)
            ]
        for future in done:
            future.result()
    _script(pair.first, _EXPORT, SHARED)
    _script(pair.second, _KNOW_MOUNT, SHARED)
    # Mounted after each restore: the snapshots are not of one moment, so that nothing may be
    # open between the two in them.
    for host in (pair.first, pair.second):
        host.machine.snapshot(INSTALLED)
    _mount(pair.second)


def _set_up(host: Host, number: int, key: bytes, package: Path) -> None:
    host.machine.write("/root/.ssh/id_ed25519", key, mode=0o600)
    _script(host, _BECOME_ONE, str(number), SHARED)
    equip(host.machine, package)


def _mount(host: Host) -> None:
    host.run(["mount", SHARED])


def _script(host: Host, script: str, *arguments: str) -> None:
    host.run(["sh", "-s", "--", *arguments], input=script)
