"""Commands over one shared OpenSSH connection. Not for the machine behind it (machine.py)."""

import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.errors import TestbedError

# One try to connect. Under TCG on a busy machine the key exchange alone can take seconds.
ATTEMPT = 60


class Ssh:
    """A control master to root@127.0.0.1 and clients that use it."""

    def __init__(self, port: int, key: Path, directory: Path) -> None:
        self._control = directory / "ssh"
        self._log = directory / "ssh.log"
        self._master: subprocess.Popen[bytes] | None = None
        options = {
            "ControlPath": self._control,
            "IdentityFile": key,
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": directory / "known_hosts",
            "BatchMode": "yes",
            "ConnectTimeout": ATTEMPT,
            "LogLevel": "ERROR",
            "Port": port,
        }
        self.arguments = ["-F", "none"]
        for name, value in options.items():
            self.arguments += ["-o", f"{name}={value}"]

    def try_connect(self) -> bool:
        """Open the connection; False if the other side does not answer yet."""
        self.close()
        with open(self._log, "ab") as log:
            self._master = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *("ssh", *self.arguments, "-o", "ControlMaster=yes", "-N", "root@127.0.0.1"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + ATTEMPT
        while self._master.poll() is None and time.monotonic() < deadline:
            # The socket appears only once the other side has let us in.
            if self._control.exists():
                return True
            time.sleep(0.02)
        self.close()
        return False

    def connected(self) -> bool:
        return self._master is not None and self._master.poll() is None

    def client(self, command: str, *, terminal: bool = False) -> list[str]:
        """Return the argv that runs a shell command line on the other side."""
        flags = ["-t"] if terminal else ["-T"]
        return ["ssh", *self.arguments, *flags, "root@127.0.0.1", *([command] if command else [])]

    def run(
        self, command: str, *, timeout: float, stdin: bytes | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run it; what it prints is captured. It goes on over there when the time is up here."""
        if not self.connected():
            raise TestbedError(f"no connection to the machine; not run: {command}")
        return subprocess.run(
            self.client(command), input=stdin or b"", capture_output=True, timeout=timeout
        )

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        """Close the connection. Does nothing when there is none."""
        if self._master is not None:
            self._master.terminate()
            self._master.wait()
            self._master = None
        self._control.unlink(missing_ok=True)


def as_line(command: str | Sequence[str]) -> str:
    """Return a command as the other side's shell wants it; a str is a shell line already."""
    return command if isinstance(command, str) else shlex.join(command)
