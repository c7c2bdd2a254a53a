"""Runs the product as users do, as processes on a simulated host: the hook and the command."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.simhost import SimHost

REPOSITORY = Path(__file__).resolve().parents[1]
HOOK = REPOSITORY / "hooks" / "qemu"
PATIENCE = 120
"""Seconds after which a process counts as hung; never a measure of speed."""


class Answer(NamedTuple):
    status: int
    out: str
    err: str


class Product:
    """vgpu-hook on one simulated host, with a state folder of its own."""

    def __init__(
        self, sim: SimHost, folder: Path, *, deadline: float = 60, extra: str = ""
    ) -> None:
        self.sim = sim
        self.state = folder / "state"
        self.runtime = folder / "runtime"
        self.hooks = folder / "hooks"
        """libvirt's folder of hooks, as `doctor` is told of it; not made."""
        self.config = folder / "vgpu-hook.toml"
        self.textfile = folder / "metrics" / "vgpu-hook.prom"
        """For node_exporter; it is not written before a test makes the folder."""
        self.python = [sys.executable, "-I", "-m"]
        """How a module of the product is run; tests/simlibvirt puts another libvirt in its way."""
        self.configure(deadline=deadline, extra=extra)

    def configure(self, *, deadline: float = 60, extra: str = "", metrics: str = "") -> None:
        """Write the configuration. `extra` are tables of it, `metrics` lines for that table."""
        self.set_config(
            f"[paths]\nsysfs = '{self.sim.sys}'\nproc = '{self.sim.proc}'\n"
            f"dev = '{self.sim.dev}'\nstate = '{self.state}'\nruntime = '{self.runtime}'\n"
            f"journal = '{self.state.parent}/no-journal'\nhooks = '{self.hooks}'\n"
            f"[deadlines]\nhook = {deadline}\n{extra}\n"
            f"[metrics]\ntextfile = '{self.textfile}'\n{metrics}\n"
        )

    def set_config(self, text: str) -> None:
        """Make `text` the configuration, at once: a half of it would be other settings."""
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.replace(self.config)

    @property
    def environment(self) -> dict[str, str]:
        """What libvirt leaves of it (facts A9), and where the test's things are."""
        return {
            "LC_ALL": "C",
            "PATH": os.environ["PATH"],
            "VGPU_HOOK_CONFIG": str(self.config),
            "VGPU_HOOK_PYTHON": sys.executable,
        }

    def hook(self, name: str, operation: str, xml: bytes, extra: str = "-") -> Answer:
        sub = "end" if operation in ("stopped", "release") else "begin"
        return self.hook_argv([name, operation, sub, extra], xml)

    def hook_argv(self, arguments: list[str], xml: bytes, **environment: str) -> Answer:
        done = subprocess.run(
            [str(HOOK), *arguments],
            input=xml,
            env={**self.environment, **environment},
            cwd="/",
            capture_output=True,
            timeout=PATIENCE,
        )
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def popen(
        self, name: str, operation: str, xml: bytes, *, program: tuple[str, ...] = (str(HOOK),)
    ) -> subprocess.Popen[bytes]:
        """Start a hook call and give it its input; the caller waits for it."""
        process = subprocess.Popen(
            [*program, name, operation, "begin", "-"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(xml)
        process.stdin.close()
        process.stdin = None
        return process

    def command(self, *arguments: str, **environment: str) -> Answer:
        done = subprocess.run(
            [*self.python, "vgpu_hook", *arguments],
            env={**os.environ, **self.environment, "LC_ALL": "C.UTF-8", **environment},
            capture_output=True,
            timeout=PATIENCE,
        )
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *arguments: str) -> Any:
        answer = self.command(*arguments, "--format", "json")
        assert answer.status == 0, answer.err
        return json.loads(answer.out)

    def daemon(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start vgpu-hookd and wait until it serves; the caller stops it."""
        process = subprocess.Popen(
            [*self.python, "vgpu_hook.daemon"],
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
        )
        self.wait_for("the daemon serves", lambda: self.is_served() or process.poll() is not None)
        assert process.poll() is None, "the daemon ended"
        return process

    def is_served(self) -> bool:
        """Tell whether somebody listens on the socket."""
        with socket.socket(socket.AF_UNIX) as peer:
            return peer.connect_ex(str(self.runtime / "hook.sock")) == 0

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not seen: {what}"
            time.sleep(0.05)

    # -- looking, past the product's own code -------------------------------------------

    def rows(self, columns: str = "domain_name, slot, state") -> list[tuple[Any, ...]]:
        return self.query(f"SELECT {columns} FROM assignment ORDER BY generation")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        if not (self.state / "store.db").exists():
            return []
        connection = sqlite3.connect(self.state / "store.db", timeout=60)
        try:
            found = connection.execute(statement).fetchall()
            connection.commit()
        finally:
            connection.close()
        return found

    def events(self) -> list[str]:
        return [row[0] for row in self.query("SELECT event FROM history ORDER BY id")]
