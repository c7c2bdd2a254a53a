"""Calls that are given up on: what the caller sees, and what is left of them.

Both ways have one contract: a child for each call, and children that stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpu_hook import bounded, workers
from vgpu_hook.bounded import Deadline
from vgpu_hook.model import DeadlineExceeded, KernelError, VgpuError
from vgpu_hook.workers import Workers

LONG = 60
Run = Callable[..., Any]


@pytest.fixture(params=["a child for each call", "workers"])
def way(request: pytest.FixtureRequest) -> Run:
    return Workers().run if request.param == "workers" else bounded.run


@pytest.fixture
def run(way: Run) -> Run:
    def call(function: Run, *args: object, seconds: float = LONG) -> Any:
        return way(function, *args, deadline=Deadline(seconds), doing="it")

    return call


def fail() -> None:
    raise KernelError("no", "hint", 5)


def hang(note: Path) -> None:
    note.write_text(str(os.getpid()))
    time.sleep(10 * LONG)


def test_the_result_and_the_error_come_back(run: Run) -> None:
    assert run(divmod, 7, 2) == (3, 1)
    assert run(bytes, 1_000_000) == bytes(1_000_000)
    assert run(len, bytes(1_000_000)) == 1_000_000
    with pytest.raises(KernelError) as caught:
        run(fail)
    assert (caught.value.message, caught.value.hint, caught.value.code) == ("no", "hint", 5)


def test_a_programming_error_is_named_without_a_traceback(run: Run) -> None:
    with pytest.raises(VgpuError, match="internal error: ZeroDivisionError"):
        run(divmod, 1, 0)


def test_a_child_that_dies_is_no_answer(run: Run) -> None:
    with pytest.raises(VgpuError, match="it: the process that did it died"):
        run(os._exit, 0)
    assert run(divmod, 7, 2) == (3, 1)


def test_a_child_that_hangs_is_killed_and_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match="it has not returned within 1 s"):
        run(hang, tmp_path / "pid", seconds=1)
    pid = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ChildProcessError):  # it may have been reaped by bounded itself
        os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
    assert run(divmod, 7, 2) == (3, 1)


def test_nothing_is_begun_without_time(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match="no time was left for it"):
        run(hang, tmp_path / "pid", seconds=0)
    assert not (tmp_path / "pid").exists()


def open_files() -> list[str]:
    """What this process has open, but for the folder that is being read to tell."""
    with os.scandir("/proc/self/fd") as found:
        return sorted(os.readlink(entry.path) for entry in found)


def test_the_child_has_no_open_files_of_ours(way: Run, tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as kept, (tmp_path / "g").open("w"):
        for keep in ((kept.fileno(),), ()):  # nor those of the call before
            call = way(open_files, deadline=Deadline(LONG), doing="it", keep=keep)
            names = [n for n in call if not n.startswith(("pipe:", "socket:", "/proc/"))]
            assert names == ["/dev/null"] * 3 + [str(tmp_path / "f")] * len(keep)


def test_a_lock_stays_while_the_call_that_it_is_for_goes_on(way: Run, tmp_path: Path) -> None:
    """Also when its process has closed it: that is what a killed one does."""
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "lock").open("w") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = threading.Thread(
            target=way,
            args=(until, tmp_path / "go on"),
            kwargs={"deadline": Deadline(LONG), "doing": "it", "keep": (lock.fileno(),)},
        )
        done.start()
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        lock.close()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (tmp_path / "go on").touch()
        done.join()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def until(file: Path) -> None:
    (file.parent / "begun").touch()
    while not file.exists():
        time.sleep(0.01)


# -- children that stay ------------------------------------------------------------------


def test_one_worker_does_many_calls_and_is_replaced_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MOST_CALLS", 3)
    pool = Workers()
    pids = [pool.run(os.getpid, deadline=Deadline(LONG), doing="it") for _ in range(6)]
    assert pids[:3] == [pids[0]] * 3
    assert pids[3:] == [pids[3]] * 3
    assert pids[0] != pids[3]


def test_a_worker_that_was_killed_while_idle_costs_no_call(run: Run) -> None:
    pool = Workers()
    pid = pool.run(os.getpid, deadline=Deadline(LONG), doing="it")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pool.run(os.getpid, deadline=Deadline(LONG), doing="it") != pid


def test_calls_at_once_wait_for_each_other_in_nothing(tmp_path: Path) -> None:
    pool = Workers()
    notes = [tmp_path / str(number) for number in range(20)]
    threads = [
        threading.Thread(
            target=pool.run,
            args=(meet, note, notes),
            kwargs={"deadline": Deadline(LONG), "doing": "it"},
        )
        for note in notes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(note.read_text() == "met" for note in notes)


def meet(own: Path, others: list[Path]) -> None:
    own.touch()
    while not all(other.exists() for other in others):
        time.sleep(0.01)
    own.write_text("met")


def test_workers_end_with_their_process(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        worker = Workers().run(os.getpid, deadline=Deadline(LONG), doing="it")
        (tmp_path / "pid").write_text(str(worker))
        os._exit(0)
    os.waitpid(pid, 0)
    worker = int((tmp_path / "pid").read_text())
    end = time.monotonic() + LONG
    while Path(f"/proc/{worker}/cmdline").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)
