"""The commands of the `control` file at the root of the simulated host. One line, one command.

hold <uuid|VF|group path> [pid] [comm]  a process has the device open
drop <pid>                              that process exits
process <pid> <comm> [fd-link ...]      a process with such links in /proc/<pid>/fd
fault <write|read|open|readlink> <glob> <errno|hang|slow:S|vanish|ignore|instead:TEXT>
      [nth=N] [times=N] [data=GLOB]     on one line
heal                                    no more faults; what hangs goes on
reboot                                  new boot_id, no devices, no processes
make <uuid> <parent> <type>             a device made by somebody else
assign <VF> <type>                      a VF's type set by somebody else, 0 takes it away
unload <parent>   load <parent>         the parent's driver goes and comes
vanish <uuid|VF|parent|pid>             it is gone, in use or not
vfs <GPU> <on|off>                      sriov-manage -e, -d
mode <GPU> <heterogeneous|equal-size|same-type>         nvidia-smi vgpu -shm
instance <GPU> <id> [type ...]          a GPU instance (MIG) comes; without types: goes
after <N> <write|read|open|readlink> <glob> [outcome=GLOB] [data=GLOB] <command ...>
                                        one line: the command, once N such calls have ended
each <N> ...                            the same, at every N-th
later <seconds> <command ...>           the command, after that time
count reset                             forget how often files were read
writes reset                            forget the write log
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from . import sriov
from .faults import make_fault
from .host import Host
from .script import make_watch


class BadCommand(ValueError):
    """A control line that is not understood or cannot be done; its text says why."""


def run(host: Host, line: str) -> None:
    """Do one command. Raises BadCommand."""
    try:
        words = shlex.split(line, comments=True)
        if words:
            _run(host, words[0], words[1:])
    except (ValueError, OSError) as error:
        raise BadCommand(f"{line.strip()}: {error}") from error


def seen(host: Host, op: str, paths: list[str], number: int, data: bytes) -> None:
    """A call has ended: do what was to be done after it."""
    due = [watch for watch in host.watches if watch.is_due(op, paths, number, data)]
    host.watches = [watch for watch in host.watches if not watch.spent]
    for watch in due:
        _attempt(host, watch.command)


def _attempt(host: Host, words: list[str]) -> None:
    """Do a command that nobody waits for; what is wrong with it is in `state`."""
    try:
        _run(host, words[0], words[1:])
    except (ValueError, OSError) as error:
        host.problems.append(f"{shlex.join(words)}: {error}")


def _run(host: Host, command: str, words: list[str]) -> None:
    do = _COMMANDS.get(command)
    if do is None:
        raise ValueError("unknown command")
    try:
        do(host, *words)
    except TypeError as error:
        raise ValueError(f"wrong number of words? {error}") from error


def _fault(host: Host, op: str, glob: str, action: str, *options: str) -> None:
    host.faults.append(make_fault(op, glob, action, *_options(list(options))))


def _hold(host: Host, name: str, pid: str = "", comm: str = "qemu-system-x86") -> None:
    host.hold(name, int(pid) if pid else None, comm)


def _unload(host: Host, parent: str) -> None:
    host.find_parent(parent).unregister()


def _assign(host: Host, vf: str, kind: str) -> None:
    host.find_vf(vf).assign(kind)


def _vfs(host: Host, gpu: str, state: str) -> None:
    if state not in ("on", "off"):
        raise ValueError("on or off")
    sriov.manage(host, gpu, state == "on")


def _instance(host: Host, gpu: str, number: str, *types: str) -> None:
    sriov.set_instance(host, gpu, int(number), list(types))


def _after(host: Host, *words: str) -> None:
    _watch(host, False, list(words))


def _each(host: Host, *words: str) -> None:
    _watch(host, True, list(words))


def _watch(host: Host, again: bool, words: list[str]) -> None:
    watch = make_watch(again, words)
    _known(watch.command)
    host.watches.append(watch)


def _later(host: Host, seconds: str, *words: str) -> None:
    _known(list(words))
    host.after(float(seconds), lambda: _attempt(host, list(words)))


def _known(words: list[str]) -> None:
    """A script with a slip is refused when it is given, not when it is due."""
    if not words or words[0] not in _COMMANDS:
        raise ValueError(f"unknown command {' '.join(words[:1])!r}")


def _reset(host: Host, what: str, word: str) -> None:
    if word != "reset":
        raise ValueError("reset is all that can be done to it")
    if what == "count":
        host.log.reads.clear()
    else:
        host.log.writes.clear()


_COMMANDS: dict[str, Callable[..., None]] = {
    "hold": _hold,
    "drop": lambda host, pid: host.drop(int(pid)),
    "process": lambda host, pid, comm, *links: host.process(int(pid), comm, list(links)),
    "fault": _fault,
    "heal": lambda host: host.heal(),
    "reboot": lambda host: host.reboot(),
    "make": lambda host, uuid, parent, kind: host.make(uuid, parent, kind),
    "assign": _assign,
    "unload": _unload,
    "load": lambda host, parent: host.load(parent),
    "vanish": lambda host, name: host.vanish(name),
    "vfs": _vfs,
    "mode": lambda host, gpu, mode: sriov.set_mode(host, gpu, mode),
    "instance": _instance,
    "after": _after,
    "each": _each,
    "later": _later,
    "count": lambda host, word: _reset(host, "count", word),
    "writes": lambda host, word: _reset(host, "writes", word),
}


def _options(words: list[str]) -> tuple[int | None, int | None, str | None]:
    """nth, times and data of a fault."""
    counts: dict[str, int] = {}
    data = None
    for word in words:
        name, _, value = word.partition("=")
        if name == "data":
            data = value
        elif name in ("nth", "times") and int(value) >= 1:
            counts[name] = int(value)
        else:
            raise ValueError(f"unknown option {word!r}")
    return counts.get("nth"), counts.get("times"), data
