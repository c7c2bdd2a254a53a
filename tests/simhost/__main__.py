"""Runs a simulated host by hand: python -m tests.simhost HOST [MOUNTPOINT], Ctrl-C ends it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .host import Host
from .hostfile import HOSTS, load
from .serve import serve

_HINT = """{name} is mounted at {root}. Try in another shell:

    ls {root}/sys/class/mdev_bus/
    echo $(uuidgen) > {create}
    ls -l {root}/sys/bus/mdev/devices/
    echo 'hold <uuid> 4242' > {root}/control      # now a write of `remove` blocks
    echo 'drop 4242' > {root}/control             # and now it ends
    cat {root}/writes {root}/state

The commands of `control` are in tests/simhost/control.py. Ctrl-C unmounts.
"""


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        names = ", ".join(sorted(path.stem for path in HOSTS.glob("*.toml")))
        print(f"usage: python -m tests.simhost HOST [MOUNTPOINT]\nhosts: {names}", file=sys.stderr)
        return 2
    host = Host(load(sys.argv[1]))
    own = tempfile.mkdtemp(prefix="simhost-") if len(sys.argv) == 2 else None
    root = own or sys.argv[2]
    create = "<parent>/mdev_supported_types/<type>/create"
    for parent in host.config.parents[:1]:
        kind = parent.types[0].id
        create = f"{root}/sys/class/mdev_bus/{parent.name}/mdev_supported_types/{kind}/create"
    print(_HINT.format(name=host.config.name, root=root, create=create), flush=True)
    try:
        serve(host, root, None, until_eof=False)
    finally:
        if own is not None:
            Path(own).rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
