"""Runs a simulated host by hand: python -m tests.simhost HOST [MOUNTPOINT], Ctrl-C ends it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .host import Host
from .hostfile import HOSTS, load
from .serve import serve

_MDEV = """
    ls {root}/sys/class/mdev_bus/
    echo $(uuidgen) > {root}/sys/class/mdev_bus/{parent}/mdev_supported_types/{kind}/create
    ls -l {root}/sys/bus/mdev/devices/
    echo 'hold <uuid> 4242' > {root}/control      # now a write of `remove` blocks
    echo 'drop 4242' > {root}/control             # and now it ends
"""
_VENDOR = """
    cd {root}/sys/bus/pci/devices/{parent}/nvidia
    cat creatable_vgpu_types
    echo {kind} > current_vgpu_type
    echo 'hold {parent} 4242' > {root}/control    # now a write of 0 fails
    echo 'drop 4242' > {root}/control
    echo 0 > current_vgpu_type
"""
_HINT = """{name} is mounted at {root}. Try in another shell:
{examples}
    ls -l {root}/sys/bus/pci/devices/
    cat {root}/writes {root}/state

The commands of `control` are in tests/simhost/control.py. Ctrl-C unmounts.
"""


def _hint(host: Host, root: str) -> str:
    examples = []
    for kind, text in (("mdev", _MDEV), ("vendor-vfio", _VENDOR)):
        parent = next((p for p in host.config.parents if p.kind == kind and p.types), None)
        if parent is not None:
            words = {"root": root, "parent": parent.name, "kind": parent.types[0].id}
            examples.append(text.format(**words))
    return _HINT.format(name=host.config.name, root=root, examples="".join(examples))


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        names = ", ".join(sorted(path.stem for path in HOSTS.glob("*.toml")))
        print(f"usage: python -m tests.simhost HOST [MOUNTPOINT]\nhosts: {names}", file=sys.stderr)
        return 2
    host = Host(load(sys.argv[1]))
    own = tempfile.mkdtemp(prefix="simhost-") if len(sys.argv) == 2 else None
    root = own or sys.argv[2]
    print(_hint(host, root), flush=True)
    try:
        serve(host, root, None, until_eof=False)
    finally:
        if own is not None:
            Path(own).rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main())
