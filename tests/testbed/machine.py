"""A running test host: starts it from its image, runs commands in it, snapshots it.

Not for building the image (build.py), and it knows nothing of vgpu-hook (host.py does).
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.testbed import recipe
from tests.testbed.errors import TestbedError
from tests.testbed.qemu import Qemu
from tests.testbed.recipe import Image
from tests.testbed.ssh import Ssh, as_line

# Not /tmp, which is memory on many machines: a copy of the disk takes 2 GB.
WORK = Path("/var/tmp")
_PREFIX = "vgpu-testbed-"

# Three times what a slow machine was seen to need.
BOOT_TIMEOUT = 900.0
RESUME_TIMEOUT = 180.0
MONITOR_TIMEOUT = 300.0
COMMAND_TIMEOUT = 300.0


class Machine:
    """The test host, as a context manager.

    snapshot: the state in the image to go on from; None boots from the disk, which takes a
        minute or more. A test that adds hardware or kernel arguments needs None: a snapshot
        fits only the hardware that it was taken with.
    qemu_args, kernel_args: added to those of the recipe and of the image's suite.
    peer: the sockets to receive from and to send to on the second network card; without them
        nobody is on that network.
    in_place: use the image's own disk rather than a copy. Only for building it.
    """

    def __init__(
        self,
        image: Image,
        *,
        snapshot: str | None = recipe.SNAPSHOT,
        qemu_args: Sequence[str] = (),
        kernel_args: str = "",
        peer: tuple[Path, Path] | None = None,
        in_place: bool = False,
    ) -> None:
        self._image = image
        self._snapshot = snapshot
        self._extra_args = tuple(qemu_args)
        self._kernel_args = f"{recipe.KERNEL_ARGS} {image.suite.kernel_args} {kernel_args}".strip()
        self._peer = peer
        self._in_place = in_place
        self._directory: Path | None = None
        self._qemu: Qemu | None = None
        self._ssh: Ssh | None = None
        self._plugged: list[str] = []

    def __enter__(self) -> "Machine":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until commands can be run in it."""
        directory = self._directory = make_work_directory()
        # A newer recipe's build removes this image, while this machine may still run.
        own = Image(directory, self._image.suite)
        for file, copy in (
            (self._image.kernel, own.kernel),
            (self._image.initrd, own.initrd),
            (self._image.key, own.key),
        ):
            shutil.copy(file, copy)
        if not self._in_place:
            copy_disk = ["cp", "--reflink=auto", "--sparse=always"]
            subprocess.run([*copy_disk, str(self._image.disk), str(own.disk)], check=True)
        self._launch(own, self._snapshot)

    def _launch(self, own: Image, snapshot: str | None) -> None:
        """Start QEMU, from a snapshot or by booting, and connect."""
        self._qemu = Qemu(self._command(own, snapshot), own.directory)
        self._qemu.start(MONITOR_TIMEOUT)
        self._ssh = Ssh(self._qemu.forwarded_port(), own.key, own.directory)
        self._connect(RESUME_TIMEOUT if snapshot else BOOT_TIMEOUT)

    def _command(self, own: Image, snapshot: str | None) -> list[str]:
        command = [recipe.QEMU, *recipe.HARDWARE]
        disk = self._image.disk if self._in_place else own.disk
        # cache=unsafe: a copy that nobody needs after a crash.
        command += ["-drive", f"id=disk,if=none,format=qcow2,cache=unsafe,file={disk}"]
        command += ["-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"]
        # The same kind for all, since a snapshot is for all; what is sent to nobody is dropped.
        here, there = self._peer or (own.directory / "peer", own.directory / "nobody")
        ends = f"local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        command += ["-netdev", f"dgram,id=peer,{ends}"]
        command += ["-kernel", str(own.kernel), "-initrd", str(own.initrd)]
        command += ["-append", self._kernel_args, *self._extra_args]
        return [*command, *(["-loadvm", snapshot] if snapshot else [])]

    @property
    def suite(self) -> recipe.Suite:
        """The release of Debian that it is."""
        return self._image.suite

    @property
    def qemu(self) -> Qemu:
        """The QEMU process and its monitor: to plug in devices, or to look at the serial log."""
        if self._qemu is None:
            raise TestbedError("the machine is not running")
        return self._qemu

    @property
    def ssh(self) -> Ssh:
        if self._ssh is None:
            raise TestbedError("the machine is not running")
        return self._ssh

    def _connect(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.ssh.try_connect():
            self.qemu.check_alive()
            if time.monotonic() > deadline:
                raise TestbedError(
                    f"the machine did not answer ssh in {timeout:.0f} s\n{self.ssh.log()}"
                    f"{self.qemu.tail()}"
                )
            time.sleep(0.2)
        # After a snapshot the guest's clock is as old as the snapshot.
        self.run(f"date -u -s @{time.time():.3f} >/dev/null")

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = COMMAND_TIMEOUT,
        input: str | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as root; a str is a shell line, a sequence is an argv.

        Bytes that are not UTF-8 come and go as surrogates, as in file names.
        """
        line = as_line(command)
        done = self._run_bytes(line, timeout, None if input is None else _encode(input))
        stdout, stderr = _decode(done.stdout), _decode(done.stderr)
        if check and done.returncode:
            raise TestbedError(
                f"exit status {done.returncode} in the test host: {line}\n"
                f"--- stdout:\n{stdout}\n--- stderr:\n{stderr}"
            )
        return subprocess.CompletedProcess(line, done.returncode, stdout, stderr)

    def _run_bytes(
        self, line: str, timeout: float, stdin: bytes | None
    ) -> "subprocess.CompletedProcess[bytes]":
        if not self.ssh.connected():
            self.qemu.check_alive()
        try:
            done = self.ssh.run(line, timeout=timeout, stdin=stdin)
        except subprocess.TimeoutExpired as error:
            printed = _decode((error.stdout or b"") + (error.stderr or b""))
            raise TestbedError(
                f"no end after {timeout:.0f} s in the test host: {line}\n"
                f"--- so far:\n{printed}{self.qemu.tail()}"
            ) from error
        if done.returncode == 255 and not self.ssh.connected():
            raise TestbedError(
                f"connection lost in the test host: {line}\n{_decode(done.stderr)}"
                f"{self.ssh.log()}{self.qemu.tail()}"
            )
        return done

    def write(self, remote: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file in the machine; missing directories are made."""
        parent = str(Path(remote).parent)
        line = " && ".join(
            [
                as_line(["mkdir", "-p", parent]),
                f"cat > {as_line([remote])}",
                as_line(["chmod", f"{mode:o}", remote]),
            ]
        )
        done = self._run_bytes(line, COMMAND_TIMEOUT, data)
        if done.returncode:
            raise TestbedError(f"writing {remote} in the test host: {_decode(done.stderr)}")

    def read(self, remote: str) -> bytes:
        """Read a file of the machine."""
        done = self._run_bytes(as_line(["cat", "--", remote]), COMMAND_TIMEOUT, None)
        if done.returncode:
            raise TestbedError(f"reading {remote} in the test host: {_decode(done.stderr)}")
        return done.stdout

    def put(self, local: Path | str, remote: str) -> None:
        """Copy a file into the machine, with its mode."""
        path = Path(local)
        self.write(remote, path.read_bytes(), mode=path.stat().st_mode & 0o7777)

    def get(self, remote: str, local: Path | str) -> None:
        """Copy a file out of the machine."""
        Path(local).write_bytes(self.read(remote))

    def snapshot(self, name: str) -> None:
        """Save the whole machine, memory and disk, under a name. An older one is replaced."""
        self._check_name(name)
        # A connection that is part of a snapshot is a dead one after every restore.
        self.ssh.close()
        self.qemu.monitor_quiet(f"savevm {name}")
        self._connect(RESUME_TIMEOUT)

    def restore(self, name: str) -> None:
        """Go back to a snapshot; its clock is set to now. What was plugged in is then out.

        In a QEMU of its own: one that has run on beyond the snapshot never takes its time stamp
        counter back, so that in the machine all that time passes at once, and systemd kills each
        service that has a watchdog.
        """
        self._check_name(name)
        if self._directory is None:
            raise TestbedError("the machine is not running")
        self.ssh.close()
        self.qemu.quit(MONITOR_TIMEOUT)
        self._plugged.clear()
        self._launch(Image(self._directory, self._image.suite), name)

    @staticmethod
    def _check_name(name: str) -> None:
        # The monitor splits its line at blanks; a number alone could be a snapshot's id.
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ValueError(f"not a name for a snapshot: {name!r}")

    def plug(self, name: str, driver: str, **properties: object) -> None:
        """Plug in a device while the machine runs, under a name of its own."""
        self.qemu.execute("device_add", driver=driver, id=name, **properties)
        self._plugged.append(name)

    def is_plugged(self, name: str) -> bool:
        return name in self._plugged

    def unplug(self, name: str, timeout: float = 60.0) -> None:
        """Unplug a device; the kernel in the machine has to let go of it."""
        self.qemu.execute("device_del", id=name)
        self._wait_unplugged(name, timeout)

    def _wait_unplugged(self, name: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while name in self._peripherals():
            if time.monotonic() > deadline:
                raise TestbedError(f"device {name} was not unplugged in {timeout:.0f} s")
            time.sleep(0.05)
        self._plugged.remove(name)

    def _peripherals(self) -> list[str]:
        found = self.qemu.execute("qom-list", path="/machine/peripheral")
        return [str(entry["name"]) for entry in found]

    def wait_settled(self, timeout: float = BOOT_TIMEOUT) -> str:
        """Wait until systemd has started everything; return its word for the outcome."""
        done = self.run("systemctl is-system-running --wait", check=False, timeout=timeout)
        return done.stdout.strip()

    def reboot(self) -> None:
        """Restart it as an admin would, and wait until it is up again."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        self._wait_for_boot(before)

    def power_cycle(self) -> None:
        """Pull the plug: what was not synced is lost, and nothing is shut down."""
        before = self.boot_id()
        self.ssh.close()
        self.qemu.monitor_quiet("system_reset")
        self._wait_for_boot(before)

    def _wait_for_boot(self, before: str) -> None:
        """Wait until a boot other than `before` is up and settled."""
        deadline = time.monotonic() + BOOT_TIMEOUT
        while True:
            self._connect(max(1.0, deadline - time.monotonic()))
            # Shutting down takes a while, in which the old boot still answers.
            if self.boot_id() != before:
                break
            time.sleep(1)
        self.wait_settled()

    def boot_id(self) -> str:
        """Return the kernel's id of this boot; empty while the machine is going down."""
        done = self._run_bytes("cat /proc/sys/kernel/random/boot_id", COMMAND_TIMEOUT, None)
        return _decode(done.stdout).strip()

    def stop(self) -> None:
        """End it at once and remove its files. Does nothing when it is not running."""
        if self._ssh is not None:
            self._ssh.close()
            self._ssh = None
        if self._qemu is not None:
            self._qemu.stop()
            self._qemu = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def make_work_directory() -> Path:
    """Make a directory for the files of this run; the caller removes it.

    Those of runs that were killed go first: their processes died with them, their files did not.
    """
    for directory in WORK.glob(f"{_PREFIX}*-*"):
        pid = directory.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(directory, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=WORK))
