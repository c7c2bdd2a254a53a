"""What the test hosts are made of, where their images are kept, and the keys that name them.

Not for how one is built (build.py) or run (machine.py). There is one image for each suite. Its key
covers the files listed in RECIPE_FILES, so a change to any of them, and to nothing else of the
project, makes new images.
"""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECIPE_FILES = ("recipe.py", "build.py", "debian.py", "image")

QEMU = "qemu-system-x86_64"
SNAPSHOT = "booted"
# The last one on the kernel's command line counts.
APPARMOR_ON = "apparmor=1 security=apparmor"
APPARMOR_OFF = "apparmor=0"


@dataclass(frozen=True)
class Suite:
    """One release of Debian as a test host.

    keys: a pattern for the files in /usr/share/keyrings with its archive's keys.
    kernel_args: added to KERNEL_ARGS, in the image's snapshot as in every boot.
    """

    name: str
    debian: str
    keys: str
    kernel_args: str


# libvirt's AppArmor helper costs seconds per guest start under TCG, and most tests start many.
# A test of AppArmor boots it without the snapshot (host.confined).
TRIXIE = Suite("trixie", "Debian 13", "debian-archive-trixie-*.gpg", APPARMOR_OFF)
# Only for tests of the package, which are about what AppArmor allows too.
BOOKWORM = Suite("bookworm", "Debian 12", "debian-archive-bookworm-*.gpg", APPARMOR_ON)
SUITES = {suite.name: suite for suite in (TRIXIE, BOOKWORM)}

HOST_PACKAGES = (
    "linux-image-amd64",
    "initramfs-tools",
    "lz4",
    "systemd-sysv",
    "udev",
    "dbus",
    "kmod",
    "iproute2",
    "openssh-server",
    "apparmor",
    "libvirt-daemon-system",
    "libvirt-clients",
    "qemu-system-x86",
    "qemu-utils",
    "python3-libvirt",
    "python3-lxml",
    "python3-pydantic",
    "python3-structlog",
    "mdevctl",
    "virtinst",
    # For pair.py: a store of disk images that two hosts share.
    "nfs-kernel-server",
    "nfs-common",
)
# Unpacked only, never configured: enough to run the compiler once.
MODULE_PACKAGES = (
    "linux-headers-amd64",
    "linux-source",
    "make",
    "gcc",
    "libc6-dev",
    "dash",
    "bash",
    "coreutils",
    "sed",
    "grep",
    "mawk",
    "diffutils",
    "findutils",
    "perl-base",
)

KERNEL_ARGS = (
    "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off nowatchdog "
    "systemd.ssh_auto=no intel_iommu=on "
    # A restored snapshot looks like a long stall to the kernel; it is none.
    "rcupdate.rcu_cpu_stall_suppress=1"
)
# Slots are fixed so that a test's extra devices never move these.
HARDWARE = (
    *("-no-user-config", "-nodefaults", "-display", "none"),
    *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3G"),
    *("-rtc", "base=utc"),
    # Before all other devices, or these are not behind it.
    *("-device", "intel-iommu,intremap=off,caching-mode=on"),
    *("-device", "virtio-blk-pci,drive=disk,addr=0x2"),
    *("-device", "virtio-net-pci,netdev=net,addr=0x3,romfile="),
    *("-device", "virtio-rng-pci,addr=0x4"),
    # Where gpu.py plugs in GPUs. QEMU can't have these in a snapshot, but all around them.
    *("-device", "pcie-root-port,id=slot0,chassis=1,slot=1,addr=0x5"),
    *("-device", "pcie-root-port,id=slot1,chassis=2,slot=2,addr=0x6"),
    *("-device", "nvme-subsys,id=subsys0", "-device", "nvme-subsys,id=subsys1"),
    # The network between two hosts (pair.py). A single one has it too, and leaves it down.
    *("-device", "virtio-net-pci,netdev=peer,addr=0x7,romfile="),
)


@dataclass(frozen=True)
class Image:
    """The files of one built image."""

    directory: Path
    suite: Suite = TRIXIE

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"

    @property
    def key(self) -> Path:
        """The private ssh key of the test host's root."""
        return self.directory / "id_ed25519"


def cache_root() -> Path:
    """Return where images are kept: $VGPU_HOOK_CACHE, or the user's cache directory."""
    if own := os.environ.get("VGPU_HOOK_CACHE"):
        return Path(own).absolute() / "testbed"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vgpu-hook" / "testbed"


def image_key(suite: Suite) -> str:
    """Return the name of the image that today's recipe makes of a suite."""
    digest = hashlib.sha256()
    for name in RECIPE_FILES:
        top = HERE / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in files:
            digest.update(f"{path.relative_to(HERE)}\0{path.stat().st_mode & 0o111:o}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    # A snapshot of a running machine can be read back for sure only by the QEMU that wrote it.
    digest.update(subprocess.run([QEMU, "--version"], check=True, capture_output=True).stdout)
    return f"{suite.name}-{digest.hexdigest()[:16]}"
