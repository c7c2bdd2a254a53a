"""Runs vgpu-hookd and notes, in the file that is given, in which order it calls libvirt.

    python3 -I recorded_daemon.py FILE

The program and libvirt are the real ones; a call is noted before it is made.
"""

import sys
from typing import Any

import libvirt

WATCHED = (
    (libvirt, "virEventRegisterDefaultImpl"),
    (libvirt, "virEventRunDefaultImpl"),
    (libvirt, "open"),
    (libvirt.virConnect, "setKeepAlive"),
    (libvirt.virConnect, "domainEventRegisterAny"),
    (libvirt.virConnect, "listAllDomains"),
)


def watch(owner: Any, name: str, file: str) -> None:
    call = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        with open(file, "a") as log:
            log.write(f"{name}\n")
        return call(*arguments)

    setattr(owner, name, noted)


def main() -> None:
    for owner, name in WATCHED:
        watch(owner, name, sys.argv[1])
    from vgpu_hook import daemon

    daemon.process()


if __name__ == "__main__":
    main()
