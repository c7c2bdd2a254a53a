"""The boot gate: runs the host's set-up commands, and waits for what domains ask for.

A oneshot before libvirt starts its autostart domains: `vgpu-hook boot-gate`. Commands are the
admin's (`sriov-manage -e ALL`, `nvidia-smi vgpu -shm 1`), in their order. It is bounded and never
keeps the host from booting: what is still missing at the end is said, and then refuses only the
start of the VM that asks for it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from vgpu_hook import placement
from vgpu_hook.bounded import Deadline
from vgpu_hook.catalogue import completed
from vgpu_hook.config import Settings
from vgpu_hook.host import Host
from vgpu_hook.model import MDEV, VgpuError, VgpuRequest
from vgpu_hook.store_devices import DeviceRecords

PAUSE = 1.0
TRIES = 5
"""Times that a command is run: sriov-manage fails for a moment while VFs come up, and
nvidia-smi answers 19 while the card is busy (facts E2, peers rows 20, 21, 70)."""


def set_up(settings: Settings, deadline: Deadline, say: Callable[[str], None]) -> bool:
    """Run the host's commands; tell whether all succeeded. Nothing of ours is asked before."""
    results = [_command(list(command), deadline, say) for command in settings.boot_commands]
    return all(results)


def wait(
    settings: Settings,
    requests: list[VgpuRequest],
    records: DeviceRecords | None,
    deadline: Deadline,
    say: Callable[[str], None],
) -> bool:
    """Wait for what domains ask for, until the deadline; tell whether everything was there.

    `records` know the types of cards that are full already.
    """
    host = Host(settings, settings.roots.boot_id())
    wanted = list(dict.fromkeys((r.profile, r.gpu) for r in requests))
    while wanted:
        wanted = [ask for ask in wanted if not _offered(host, records, *ask)]
        if not wanted:
            break
        if not deadline.remaining():
            for profile, gpu in wanted:
                say(f"still missing: profile {profile!r}" + (f" on GPU {gpu}" if gpu else ""))
            return False
        time.sleep(min(PAUSE, deadline.remaining()))
    return True


def _offered(host: Host, records: DeviceRecords | None, profile: str, gpu: str | None) -> bool:
    try:
        parents = completed(host.parents(Deadline(PAUSE * 5)), records)
        there = (c for c in placement.candidates(parents, profile, gpu))
        return any(c.type.available or c.type.in_use or c.parent.framework == MDEV for c in there)
    except VgpuError:
        return False


def _command(command: list[str], deadline: Deadline, say: Callable[[str], None]) -> bool:
    """Run a set-up command until it succeeds, a few times."""
    cause = "no time was left for it"
    for _ in range(TRIES):
        if not deadline.remaining():
            break
        try:
            # Its output goes where ours does. It is not waited for once it is given up on: a
            # process that hangs in the kernel never ends.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            status = process.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            process.kill()
            cause = f"it has not ended within {deadline.seconds:.3g} s"
            break
        except (OSError, ValueError) as error:  # ValueError: a NUL in it
            cause = str(error)
            break
        if status == 0:
            say(f"done: {' '.join(command)}")
            return True
        cause = f"exit status {status}"
        time.sleep(min(PAUSE, deadline.remaining()))
    say(f"failed: {' '.join(command)}: {cause}")
    return False
