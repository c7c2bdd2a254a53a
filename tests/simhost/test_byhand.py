"""`python -m tests.simhost HOST` as a process: what it prints works, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .byhand import REPOSITORY

PATIENCE = 120


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, since a socket's path has 107 bytes at most (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="byhand-") as folder:
        yield Path(folder)


def by_hand(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simhost", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def hint(printed: str) -> list[str]:
    """The commands that are printed to be tried."""
    return [line.strip() for line in printed.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("host", ["mtty", "nvidia-two-t4", "l40s"])
def test_what_is_printed_to_be_tried_works(tmp_path: Path, host: str) -> None:
    printed = by_hand(tmp_path, host, "--", "true")
    assert printed.returncode == 0, printed.stderr
    commands = hint(printed.stdout)
    assert 6 <= len(commands) <= 10
    done = by_hand(tmp_path, host, "--", "sh", "-exc", "\n".join(commands))
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert " vm1 " in out
    assert "4242" in out  # explain: who has it open
    last_status = out.rpartition(" GPU ")[2]
    assert "vm1" not in last_status
    writes = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [write["outcome"] for write in writes] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_vfs_that_are_off_come_with_the_printed_command(tmp_path: Path) -> None:
    printed = by_hand(tmp_path, "vfs-off", "--", "true")
    commands = hint(printed.stdout)
    assert commands[0].startswith("sriov-manage -e ")
    done = by_hand(tmp_path, "vfs-off", "--", "sh", "-ec", "\n".join(commands))
    assert done.returncode == 0, done.stderr
    assert "8 VFs free" in done.stdout


def test_the_status_of_the_command_is_its_own_and_the_daemon_ends_with_it(tmp_path: Path) -> None:
    script = """
        vgpu-hookd 2>/dev/null &
        echo "daemon $!"
        while [ ! -e runtime/hook.sock ]; do kill -0 $! && sleep 0.1 || exit 9; done
        exit 7
    """
    done = by_hand(tmp_path, "mtty", "--", "sh", "-c", script)
    assert done.returncode == 7
    pid = int(done.stdout.rpartition("daemon ")[2].split()[0])
    end = time.monotonic() + PATIENCE
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def is_running(pid: int) -> bool:
    try:
        return b"vgpu_hook.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_terminated_one_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simhost", "mtty", "--", "sh", "-c", "echo up; sleep 1000"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 128 + 15
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["no-such-host"], ["mtty", "status"], ["mtty", "--"]])
def test_a_wrong_call_names_the_hosts(tmp_path: Path, arguments: list[str]) -> None:
    done = by_hand(tmp_path, *arguments)
    assert done.returncode == 2
    assert "nvidia-two-t4" in done.stderr


def test_a_bundle_is_a_host_too(tmp_path: Path) -> None:
    """What was recorded on one simulated host, without libvirt, is shown on another."""
    bundle = tmp_path / "bug.tar.gz"
    script = f"""
        sh hooks/qemu vm1 prepare begin - <vm1.xml
        echo 'hold 0000:41:00.4 4242' >host/control
        vgpu-hook status --format json >{tmp_path}/before
        vgpu-hook record -o {bundle} -c 'qemu+unix:///system?socket=/nonexistent'
    """
    done = by_hand(tmp_path, "l40s", "--", "sh", "-ec", script)
    assert done.returncode == 0, done.stderr
    assert "warning: not recorded: the domains" in done.stderr
    script = "vgpu-hook status --format json; vgpu-hook explain vm1 >&2"
    again = by_hand(tmp_path, str(bundle), "--", "sh", "-ec", script)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "before").read_text() in again.stdout
    assert "qemu-system-x86 (pid 4242, /dev/vfio/" in again.stderr
