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
count reset                             forget how often files were read
writes reset                            forget the write log
"""

from __future__ import annotations

import shlex

from .faults import make_fault
from .host import Host


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


def _run(host: Host, command: str, words: list[str]) -> None:
    match [command, *words]:
        case ["hold", name]:
            host.hold(name)
        case ["hold", name, pid]:
            host.hold(name, int(pid))
        case ["hold", name, pid, comm]:
            host.hold(name, int(pid), comm)
        case ["drop", pid]:
            host.drop(int(pid))
        case ["process", pid, comm, *links]:
            host.process(int(pid), comm, links)
        case ["fault", op, glob, action, *options]:
            host.faults.append(make_fault(op, glob, action, *_options(options)))
        case ["heal"]:
            host.heal()
        case ["reboot"]:
            host.reboot()
        case ["make", uuid, parent, kind]:
            host.make(uuid, parent, kind)
        case ["assign", parent, kind]:
            host.find_vf(parent).assign(kind)
        case ["unload", parent]:
            host.find_parent(parent).unregister()
        case ["load", parent]:
            host.load(parent)
        case ["count", "reset"]:
            host.log.reads.clear()
        case ["writes", "reset"]:
            host.log.writes.clear()
        case _:
            raise ValueError("unknown command or wrong number of words")


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
