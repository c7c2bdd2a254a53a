"""One QEMU process and its monitor. Not for what runs inside the machine (ssh.py, machine.py)."""

import atexit
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.testbed.errors import TestbedError, tail

_running: "set[Qemu]" = set()


class Qemu:
    """A QEMU that dies with this Python: on leaving, on an exception, SIGTERM and even SIGKILL.

    Start it from a thread that lives as long as the machine does: the kernel ties the child's
    death signal to the thread that started it.
    """

    def __init__(self, argv: Sequence[str], directory: Path) -> None:
        self.directory = directory
        self.serial_log = directory / "serial.log"
        self._error_log = directory / "qemu.log"
        self._socket_path = directory / "qmp"
        self._argv = [
            *("setpriv", "--pdeathsig", "KILL", "--", *argv),
            *("-serial", f"file:{self.serial_log}"),
            *("-qmp", f"unix:{self._socket_path},server=on,wait=off"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: socket.socket | None = None
        self._received = b""

    def start(self, timeout: float) -> None:
        """Start it, and wait until its monitor answers: a snapshot is then loaded."""
        _stop_on_sigterm()
        _running.add(self)
        with open(self._error_log, "wb") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + timeout
        while not self._connect():
            self.check_alive()
            if time.monotonic() > deadline:
                raise TestbedError(f"QEMU's monitor did not open in {timeout:.0f} s{self.tail()}")
            time.sleep(0.05)
        self._monitor_socket().settimeout(timeout)
        self._receive()
        self.execute("qmp_capabilities")

    def _connect(self) -> bool:
        if not self._socket_path.exists():
            return False
        self._monitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._monitor.connect(str(self._socket_path))
        except ConnectionRefusedError:
            self._monitor.close()
            return False
        return True

    def _monitor_socket(self) -> socket.socket:
        if self._monitor is None:
            raise TestbedError("the machine is not running")
        return self._monitor

    def check_alive(self) -> None:
        """Raise if QEMU has ended."""
        if self._process is None or self._process.poll() is not None:
            code = None if self._process is None else self._process.returncode
            raise TestbedError(f"QEMU is not running (exit status {code}){self.tail()}")

    def tail(self) -> str:
        """Return the end of QEMU's own messages and of the serial log, to end an error with."""
        parts = []
        for log in (self._error_log, self.serial_log):
            text = log.read_text(errors="replace") if log.exists() else ""
            parts.append(f"\n--- end of {log.name}:\n{tail(text) or '(empty)'}")
        return "".join(parts)

    def execute(self, command: str, **arguments: object) -> Any:
        """Run one QMP command and return its answer."""
        request = json.dumps({"execute": command, "arguments": arguments})
        try:
            self._monitor_socket().sendall(request.encode())
            while True:
                answer = self._receive()
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise TestbedError(f"QEMU refused {request}: {answer['error']['desc']}")
        except OSError as error:
            raise TestbedError(f"QEMU's monitor: {request}: {error}{self.tail()}") from error

    def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            data = self._monitor_socket().recv(65536)
            if not data:
                raise ConnectionError("closed by QEMU")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def monitor(self, line: str) -> str:
        """Run one line of the human monitor; some commands exist, or can be waited for, only so."""
        return str(self.execute("human-monitor-command", **{"command-line": line}))

    def monitor_quiet(self, line: str) -> None:
        """Run a line of the human monitor that prints something only when it fails."""
        if printed := self.monitor(line).strip():
            raise TestbedError(f"QEMU's monitor: {line}: {printed}")

    def forwarded_port(self) -> int:
        """Return the port on 127.0.0.1 that QEMU chose for the guest's ssh."""
        table = self.monitor("info usernet")
        if match := re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", table):
            return int(match[1])
        raise TestbedError(f"QEMU forwards no port to the machine's ssh:\n{table}")

    def quit(self, timeout: float) -> None:
        """End QEMU when it has written all that it holds of the disk; the machine is pulled off."""
        self.execute("quit")
        if self._process is not None:
            self._process.wait(timeout)
        self.stop()

    def stop(self) -> None:
        """End QEMU, at once. Does nothing when it is not running."""
        _running.discard(self)
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _stop_all() -> None:
    for qemu in list(_running):
        qemu.stop()


atexit.register(_stop_all)


def _stop_on_sigterm() -> None:
    """Make SIGTERM what Ctrl-C is, unless the program has its own idea of it.

    Not an ordinary exit: pytest takes that for one more test that fails, and goes on.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
