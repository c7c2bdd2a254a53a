"""Calls that are given up on: what the caller sees, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from vgpu_hook import bounded
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import DeadlineExceeded, KernelError, VgpuError

LONG = 60


def run(call: object, *args: object, seconds: float = LONG) -> object:
    return bounded.run(call, *args, deadline=Deadline(seconds), doing="it")  # type: ignore[arg-type]


def test_the_result_and_the_error_come_back() -> None:
    assert run(divmod, 7, 2) == (3, 1)
    assert run(bytes, 1_000_000) == bytes(1_000_000)

    def fail() -> None:
        raise KernelError("no", "hint", 5)

    with pytest.raises(KernelError) as caught:
        run(fail)
    assert (caught.value.message, caught.value.hint, caught.value.code) == ("no", "hint", 5)


def test_a_programming_error_is_named_without_a_traceback() -> None:
    with pytest.raises(VgpuError, match="internal error: ZeroDivisionError"):
        run(divmod, 1, 0)


def test_a_child_that_dies_is_no_answer() -> None:
    with pytest.raises(VgpuError, match="it: the process that did it died"):
        run(os._exit, 0)


def test_a_child_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    def hang() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(10 * LONG)

    with pytest.raises(DeadlineExceeded, match="it has not returned within 1 s"):
        run(hang, seconds=1)
    pid = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ChildProcessError):  # it may have been reaped by bounded itself
        os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()


def open_files() -> list[str]:
    """What this process has open, but for the folder that is being read to tell."""
    with os.scandir("/proc/self/fd") as found:
        return sorted(os.readlink(entry.path) for entry in found)


def test_the_child_has_no_open_files_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as kept, (tmp_path / "g").open("w"):
        call = bounded.run(open_files, deadline=Deadline(LONG), doing="it", keep=(kept.fileno(),))
    names = [target for target in call if not target.startswith(("pipe:", "/proc/"))]
    assert names == ["/dev/null"] * 3 + [str(tmp_path / "f")]
