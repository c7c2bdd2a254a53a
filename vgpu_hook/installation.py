"""`vgpu-hook install-hook`: puts the hook, the units and the settings on a host without a package.

For an installation by pip, in a virtual environment of root's. The package of a distribution brings
the same files by itself, so on a host that has it nothing is done. What is put there is written for
the Python that runs this: libvirt gives its hook no environment that could say which one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from typing import NamedTuple

from vgpu_hook import interpreter, selinux
from vgpu_hook.model import VgpuError
from vgpu_hook.sysfs import Roots

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")
MARK = "# Put here by: vgpu-hook install-hook. Taken out by: vgpu-hook install-hook --remove\n"
"""What tells our files from all others; a line of each of them."""

UNITS = "etc/systemd/system"
PACKAGED = ("usr/lib/systemd/system/vgpu-hookd.service", "lib/systemd/system/vgpu-hookd.service")
HOOKS = "etc/libvirt/hooks"
HOOK = f"{HOOKS}/qemu.d/50-vgpu-hook"
CONFIG = "etc/vgpu-hook/vgpu-hook.toml"
SERVICES = ("vgpu-hookd.socket", "vgpu-hookd.service", "vgpu-hook-boot.service")
CONFINED = ("/usr/bin/", "/usr/sbin/")
"""Where programs are that AppArmor's profile of libvirtd lets a hook run (facts A12)."""


class Part(NamedTuple):
    """One file: its name in FILES, where it goes below the root, and its mode."""

    source: str
    target: str
    mode: int = 0o644
    made_in: str = ""
    """Where it is made before it is renamed, if not beside the target."""


# In this order; and the other way round when they are removed. So the hook never runs without the
# rest. libvirt runs every executable file in qemu.d, so the hook is not made in there.
PARTS = (
    Part("tmpfiles.conf", "etc/tmpfiles.d/vgpu-hook.conf"),
    *(Part(unit, f"{UNITS}/{unit}") for unit in SERVICES),
    Part("qemu", HOOK, 0o755, HOOKS),
)


def install_hook(arguments: argparse.Namespace) -> int:
    """Put everything in place below the root, or take it out; say what is to be run next."""
    root: str = arguments.root
    if not os.path.isdir(FILES):
        raise VgpuError(
            "this vgpu-hook is a distribution's package, and has put its hook in place itself",
            "for another root, install the package there",
        )
    if not os.path.isdir(root):
        raise VgpuError(f"{root} is no folder")
    try:
        if arguments.remove:
            _remove(root)
        else:
            _install(root, sys.executable)
    except OSError as error:
        hint = "run it as root" if isinstance(error, PermissionError) else ""
        raise VgpuError(f"{error.filename or root}: {error.strerror}", hint) from error
    return 0


def text_of(source: str, python: str) -> str:
    """Return what is written for one of FILES: as it is, for this Python, and with MARK."""
    with open(os.path.join(FILES, source), encoding="utf-8") as file:
        text = file.read()
    text = text.replace(":-/usr/bin/python3}", f":-{python}}}")
    text = text.replace("ExecStart=/usr/bin/python3 ", f"ExecStart={python} ")
    text = text.replace("ExecStart=-/usr/bin/vgpu-hook ", f"ExecStart=-{python} -I -m vgpu_hook ")
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    return f"{first}\n{MARK}{rest}" if first else MARK + rest


def _install(root: str, python: str) -> None:
    for packaged in PACKAGED:
        path = os.path.join(root, packaged)
        if os.path.exists(path):
            raise VgpuError(
                f"vgpu-hook is installed from a package here ({path})",
                "use that one, or remove the package first",
            )
    interpreter.check(python, os.path.dirname(FILES))
    label = _hook_label(root)
    for part in PARTS:
        path = os.path.join(root, part.target)
        if os.path.lexists(path) and not _is_ours(path):
            raise VgpuError(
                f"{path} was not put there by `vgpu-hook install-hook`, and is left alone",
                f"see what it is; to put ours there: mv {path} /root/",
            )
    config = os.path.join(root, CONFIG)
    if os.path.lexists(config):
        print(f"{config} is kept as it is.")
    else:
        _write(config, _default(), 0o644, os.path.dirname(config))
        print(f"{config} was written.")
    for part in PARTS:
        path = os.path.join(root, part.target)
        folder = os.path.join(root, part.made_in) if part.made_in else os.path.dirname(path)
        own_label = label if part.target == HOOK else ""
        idle = part.target == HOOK and _out_of_use(path)
        _write(path, text_of(part.source, python), 0o644 if idle else part.mode, folder, own_label)
        print(f"{path} was written.")
        if idle:
            print(f"It stays out of use, as it was; to use it again: chmod +x {path}")
    _tell_next(
        root,
        "systemd-tmpfiles --create vgpu-hook.conf",
        "systemctl daemon-reload",
        f"systemctl enable {' '.join(SERVICES)}",
        "systemctl restart vgpu-hookd.socket vgpu-hookd.service",
        "systemctl reload libvirtd.service    # or virtqemud.service, whichever runs",
    )
    if not os.path.realpath(python).startswith(CONFINED):
        print(
            f"warning: {python} is not a program of /usr/bin: where AppArmor confines libvirtd, the"
            " hook can't run it; make the virtual environment by /usr/bin/python3 -m venv",
            file=sys.stderr,
        )


def _remove(root: str) -> None:
    """Take out what is ours, the hook first; the settings if nobody has changed them."""
    gone = 0
    for part in reversed(PARTS):
        path = os.path.join(root, part.target)
        if not os.path.lexists(path):
            continue
        if not _is_ours(path):
            print(f"{path} was not put there by this command, and is left alone.")
            continue
        os.unlink(path)
        gone += 1
        print(f"{path} was removed.")
        if part.source in SERVICES:
            _forget_enabled(root, part.source)
    config = os.path.join(root, CONFIG)
    with contextlib.suppress(FileNotFoundError):
        with open(config, encoding="utf-8", errors="replace") as file:
            changed = file.read() != _default()
        if changed:
            print(f"{config} was changed, and is left in place.")
        else:
            os.unlink(config)
            print(f"{config} was removed.")
            _remove_folder(os.path.dirname(config))
    state = os.path.join(root, "var/lib/vgpu-hook")
    if os.path.isdir(state):
        print(f"{state}, the record of vGPUs, is left in place; when none is left: rm -r {state}")
    if not gone:
        print("Nothing was there to be removed.")
        return
    _tell_next(
        root,
        "systemctl stop vgpu-hookd.socket vgpu-hookd.service",
        "systemctl daemon-reload",
    )


def _remove_folder(path: str) -> None:
    """Remove a folder of ours, unless somebody has put something there."""
    there = sorted(os.listdir(path))
    if there:
        print(f"{path} is left in place, with what is not of this command: {' '.join(there)}")
    else:
        os.rmdir(path)


def _hook_label(root: str) -> str:
    """Return the SELinux label of the hook; another system's is for its own policy to say."""
    if os.path.realpath(root) != "/":
        return ""
    return selinux.hook_label(f"/{HOOK}", os.path.join(FILES, "vgpu-hook.cil"), Roots())


def _default() -> str:
    with open(os.path.join(FILES, "vgpu-hook.toml"), encoding="utf-8") as file:
        return file.read()


def _out_of_use(path: str) -> bool:
    """Tell of a hook that somebody has taken the execute permission from: libvirt skips it."""
    return os.path.exists(path) and not os.stat(path).st_mode & 0o111


def _is_ours(path: str) -> bool:
    """Tell whether a file was put there by us; a link never is."""
    if os.path.islink(path):
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return MARK in file.read(1 << 20)


def _forget_enabled(root: str, unit: str) -> None:
    """Remove the links by which systemd has the unit enabled, which would lead nowhere."""
    folder = os.path.join(root, UNITS)
    for name in os.listdir(folder):
        link = os.path.join(folder, name, unit)
        if name.endswith((".wants", ".requires")) and os.path.islink(link):
            os.unlink(link)


def _write(path: str, text: str, mode: int, folder: str, label: str = "") -> None:
    """Write a file whole, or not at all; it is made in `folder`, on the same file system."""
    os.makedirs(folder, 0o755, exist_ok=True)
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    fd, made = tempfile.mkstemp(prefix=".vgpu-hook-", dir=folder)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            if label:
                selinux.set_label(fd, label)
            os.fchmod(fd, mode)
            file.flush()
            os.fsync(fd)
        os.rename(made, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        raise


def _tell_next(root: str, *commands: str) -> None:
    where = "" if os.path.realpath(root) == "/" else ", on the system that this will be"
    print(f"\nNow run, as root{where}:")
    for command in commands:
        print(f"  {command}")
