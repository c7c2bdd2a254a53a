"""Builds the images of the test hosts, once for each recipe, into a cache outside the project.

Not for running it (machine.py). Nothing of vgpu-hook goes in. The image appears under its final
name only when it is whole; a run that fails or is stopped leaves no mount, no process and no
part of it, only the logs in last-failure/.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testbed import debian, recipe
from tests.testbed.errors import TestbedError
from tests.testbed.machine import Machine, make_work_directory
from tests.testbed.progress import Command, Progress, run_together
from tests.testbed.recipe import HERE, TRIXIE, Image, Suite, cache_root, image_key

DISK_SIZE = "6G"
NEEDED = ("mmdebstrap", "mke2fs", "qemu-img", recipe.QEMU, "ssh", "ssh-keygen", "setpriv")
PACKAGES_OF_NEEDED = "mmdebstrap e2fsprogs qemu-utils qemu-system-x86 openssh-client util-linux"


def ensure_image(suite: Suite = TRIXIE) -> Image:
    """Return a suite's image of today's recipe, building it first if it is not there."""
    _check_machine()
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    image = Image(root / image_key(suite), suite)
    with _lock(root / "lock"):
        if not image.directory.exists():
            _build(image)
            _remove_others(image)
    return image


def _check_machine() -> None:
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        raise TestbedError(
            f"not installed: {' '.join(missing)}; run: apt-get install {PACKAGES_OF_NEEDED}"
        )
    if os.geteuid() != 0:
        raise TestbedError("the test host's image can be built only by root (mmdebstrap, chroot)")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock file; the kernel lets go of it however this process ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Progress().say("waiting for another process that builds the image")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(image: Image) -> None:
    root = image.directory.parent
    for leftover in root.glob("*.partial-*"):
        shutil.rmtree(leftover)
    partial = Image(root / f"{image.directory.name}.partial-{os.getpid()}", image.suite)
    logs = partial.directory / "logs"
    logs.mkdir(parents=True)
    progress = Progress()
    progress.say(f"building {image.directory} (once; minutes)")
    try:
        _make_key(partial)
        trees = _make_trees(progress, partial, logs)
        _make_disk(progress, partial, trees, logs)
        shutil.rmtree(trees)
        _boot(progress, partial, logs)
        partial.directory.rename(image.directory)
    except BaseException:
        failure = root / "last-failure"
        shutil.rmtree(failure, ignore_errors=True)
        shutil.copytree(logs, failure)
        progress.say(f"failed; logs are in {failure}")
        raise
    finally:
        shutil.rmtree(partial.directory, ignore_errors=True)
    progress.say(f"done: {image.directory}")


def _make_key(image: Image) -> None:
    """Make the key pair with which the test host lets us in; ssh-keygen writes it 0600."""
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", str(image.key)]
    subprocess.run(key, check=True)
    shutil.copy(image.key.with_suffix(".pub"), image.directory / "authorized_keys")


def _make_trees(progress: Progress, image: Image, logs: Path) -> Path:
    """Make the test host's root tree and, in a second tree, the modules; return where they are."""
    trees = image.directory / "trees"
    trees.mkdir()
    sources = trees / "sources.list"
    sources.write_text(debian.sources(image.suite))
    suite, isolated = image.suite.name, debian.isolated()
    host = debian.mmdebstrap("apt", recipe.HOST_PACKAGES, suite, trees / "host")
    build = debian.mmdebstrap("extract", recipe.MODULE_PACKAGES, suite, trees / "modules")
    modules = [str(HERE / "image/modules.sh"), str(trees / "modules"), str(image.directory)]
    # The initrd is made once, at the end, and not by each package that has a say in it.
    env = {**os.environ, "INITRD": "No", "LC_ALL": "C.UTF-8"}
    progress.say("making the root tree of the test host, and the modules beside it")
    temporary = make_work_directory()
    env["TMPDIR"] = str(temporary)
    try:
        run_together(
            progress,
            Command("root tree", isolated + host, logs / "host.log", stdin=sources, env=env),
            Command(
                "modules", isolated + modules + build, logs / "modules.log", stdin=sources, env=env
            ),
        )
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return trees


def _make_disk(progress: Progress, image: Image, trees: Path, logs: Path) -> None:
    """Finish the root tree and make it a disk; kernel and initrd come out beside it."""
    directory = image.directory
    progress.say("setting it up, making the initrd")
    customize = [str(HERE / "image/customize.sh"), str(trees / "host"), *[str(directory)] * 2]
    setup = Command("setting up", debian.isolated() + customize, logs / "customize.log")
    run_together(progress, setup)
    progress.say("making the disk")
    raw = trees / "disk.raw"
    make = ["mke2fs", "-q", "-t", "ext4", "-L", "testhost", "-m", "0"]
    make += ["-d", str(trees / "host"), str(raw), DISK_SIZE]
    run_together(progress, Command("mke2fs", make, logs / "mke2fs.log"))
    convert = ["qemu-img", "convert", "-O", "qcow2", str(raw), str(image.disk)]
    run_together(progress, Command("qemu-img", convert, logs / "qemu-img.log"))


def _boot(progress: Progress, image: Image, logs: Path) -> None:
    """Boot the disk for the first time and put the snapshot of the running machine on it."""
    progress.say("booting it for the first time")
    machine = Machine(image, snapshot=None, in_place=True)
    with progress.beating("the machine is busy"), machine:
        try:
            progress.say("ssh answers; waiting for systemd and libvirt")
            state = machine.wait_settled()
            failed = machine.run("systemctl list-units --failed --plain --no-legend").stdout
            progress.say(f"systemd: {state} {failed}".rstrip())
            progress.say("starting a first guest in it")
            machine.run("sh -s", input=(HERE / "image/warm-up.sh").read_text())
            machine.run("test -d /sys/class/mdev_bus/mtty/mdev_supported_types")
            machine.run("sync")
            progress.say("taking the snapshot")
            machine.snapshot(recipe.SNAPSHOT)
        finally:
            shutil.copy(machine.qemu.serial_log, logs)


def _remove_others(image: Image) -> None:
    """Remove images of older recipes of the suite, of 1 GB each, and the logs of failures."""
    shutil.rmtree(image.directory.parent / "last-failure", ignore_errors=True)
    for other in image.directory.parent.glob(f"{image.suite.name}-*"):
        if other.is_dir() and other != image.directory:
            shutil.rmtree(other)
