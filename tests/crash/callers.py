"""Runs the product's programs under the shim, each call in a process group of its own.

A call is over when none of its processes is left: also those that its parent did not wait for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.crash.shim import Shim
from tests.product import HOOK, PATIENCE, REPOSITORY, Answer, Product

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)"""


@contextmanager
def all_children() -> Iterator[None]:
    """Become the parent of orphans, so that the end of a whole process group can be waited for."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def group_is_over(group: int) -> None:
    """Wait until no process of the group is left; under `all_children`."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            pid, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            assert time.monotonic() < end, "a process of the call does not end"
            time.sleep(0.002)


def run(argv: Sequence[str], xml: bytes, environment: dict[str, str]) -> Answer:
    """Run one program with the XML on its stdin, to the end of all of its processes."""
    with all_children():
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(xml, timeout=PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            group_is_over(process.pid)
    return Answer(process.returncode, out.decode(), err.decode())


def hook(product: Product, shim: Shim, name: str, operation: str, xml: bytes) -> Answer:
    """Run the installed hook as libvirt does, under the shim."""
    sub = "end" if operation in ("stopped", "release") else "begin"
    environment = {**product.environment, **shim.environment}
    return run([str(HOOK), name, operation, sub, "-"], xml, environment)


def command(product: Product, shim: Shim, *arguments: str) -> Answer:
    """Run the command under the shim."""
    environment = {**os.environ, **product.environment, **shim.environment}
    return run([sys.executable, "-I", "-m", "vgpu_hook", *arguments], b"", environment)


class Daemons:
    """Starts vgpu-hookd under the shim, one after the other (zygote.py)."""

    def __init__(self, product: Product, shim: Shim) -> None:
        self._product = product
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=REPOSITORY,
            env={**os.environ, **product.environment, **shim.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    @contextmanager
    def running(self, *, killed: bool = False) -> Iterator[int]:
        """Run one; yields its process id. It serves when the block begins, and is gone after it.

        `killed`: or it was killed before it did.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with all_children():
            self._process.stdin.write(b"\n")
            pid = int(self._process.stdout.readline())
            try:
                self._product.wait_for(
                    "it serves", lambda: (killed and not _runs(pid)) or self._product.is_served()
                )
                yield pid
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                group_is_over(pid)


def _runs(pid: int) -> bool:
    """Tell whether a process has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
