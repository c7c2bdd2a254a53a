"""SELinux, for install-hook: the label that the hook needs, so that libvirt may run it.

Fedora's policy lets libvirt's daemon read what is in the folder of hooks, and not run it. A hook
that libvirt can't run refuses the start of every VM. So it is not put in place without the label
that our module (packaging/selinux) gives it, and never is there without it, not even for a moment.
"""

from __future__ import annotations

import os
import subprocess

from vgpu_hook import sysfs
from vgpu_hook.model import VgpuError
from vgpu_hook.sysfs import Roots

TYPE = "vgpu_hook_exec_t"
"""Of the hook, in the module."""

ATTRIBUTE = "security.selinux"


def hook_label(hook: str, module: str, roots: Roots) -> str:
    """Return the label that the hook at this path has to have; empty if it needs none.

    Raises VgpuError if a policy that is enforced has none, with the command that loads the module.
    Debian without AppArmor has SELinux on, and neither a policy nor its tools.
    """
    enforce = sysfs.read_text(os.path.join(roots.sysfs, "fs/selinux/enforce"))
    if enforce is None:
        return ""
    ask = ["matchpathcon", "-n", hook]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        if enforce == "0":
            return ""
        raise VgpuError(
            "SELinux is on, and there is no matchpathcon, which tells the hook's label",
            "install libselinux-utils (Fedora) or selinux-utils (Debian)",
        ) from None
    label = done.stdout.strip()
    if f":{TYPE}:" not in f"{label}:":
        if enforce == "0":
            return ""
        said = label if done.returncode == 0 and label else done.stderr.strip() or "nothing"
        raise VgpuError(
            f"SELinux's policy has no label for {hook}, and would let no VM start with it"
            f" (matchpathcon says: {said})",
            f"load the module of vgpu-hook, and try again: semodule -i {module}",
        )
    return label


def set_label(fd: int, label: str) -> None:
    """Give an open file a label, before it gets the name under which it is used."""
    os.setxattr(fd, ATTRIBUTE, label.encode() + b"\0")
