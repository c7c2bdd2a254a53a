"""Says what a long build is doing, and runs its commands. Not a logger: for people who wait."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.errors import TestbedError, tail

HEARTBEAT = 15.0


class Progress:
    """Prints one line for each step, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last = self._started

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        print(f"testbed [{self._last - self._started:4.0f} s] {text}", file=sys.stderr, flush=True)

    def beat(self, text: str) -> None:
        """Say it only when nothing has been said for a while."""
        if time.monotonic() - self._last >= HEARTBEAT:
            self.say(text)

    @contextmanager
    def beating(self, text: str) -> Iterator[None]:
        """Say it every now and then while the body runs."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(1.0):
                self.beat(f"  {text}")

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@dataclass(frozen=True, eq=False)
class Command:
    """A command of the build; its output goes to a log file, its input is given whole."""

    name: str
    argv: Sequence[str]
    log: Path
    stdin: Path = Path("/dev/null")
    env: Mapping[str, str] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.stdin, "rb") as stdin, open(self.log, "wb") as log:
            return subprocess.Popen(
                self.argv, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, env=self.env
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def run_together(progress: Progress, *commands: Command) -> None:
    """Run the commands side by side and wait for all; when one fails, the others are killed."""
    running: dict[Command, subprocess.Popen[bytes]] = {}
    try:
        for command in commands:
            running[command] = command.start()
        while running:
            time.sleep(0.2)
            for command, process in list(running.items()):
                if process.poll() is not None:
                    del running[command]
                    _check(command, process.returncode)
            for command in running:
                last = tail(command.output(), 1).strip()
                progress.beat(f"  {command.name}: {last or 'working'}")
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _check(command: Command, code: int) -> None:
    if code:
        raise TestbedError(
            f"{command.name} failed (exit status {code})\n"
            f"{' '.join(command.argv[:8])} ...\n{tail(command.output())}"
        )
