"""A virtual environment as the documents have it: /opt/vgpu-hook, root's, in a mount namespace.

Tests run in folders that install-hook refuses, such as /tmp. So one is made in such a folder, and
is what a process and its children see as /opt/vgpu-hook.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.packaging.source import REPOSITORY

PLACE = "/opt/vgpu-hook"
PYTHON = f"{PLACE}/bin/python3"
MOUNT = """
mount -t tmpfs -o mode=0755 none /opt
mkdir /opt/vgpu-hook
mount --bind "$1" /opt/vgpu-hook
shift
exec "$@"
"""


class Environment:
    """A folder that is /opt/vgpu-hook for what is run by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path) -> Environment:
        """Make one with this tree's package, and the distribution's libraries."""
        command = ["/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages"]
        subprocess.run([*command, str(folder)], check=True)
        folder.chmod(0o755)
        (site,) = folder.glob("lib/python3*/site-packages")
        shutil.copytree(REPOSITORY / "vgpu_hook", site / "vgpu_hook")  # files, where links are here
        environment = cls(folder)
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o022)
        return environment

    @property
    def package(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages/vgpu_hook")
        return found

    def command(self, *words: object) -> list[str]:
        """Return what runs a command that sees it."""
        seen = ["unshare", "--mount", "sh", "-ec", MOUNT, "sh", str(self.folder)]
        return [*seen, *map(str, words)]

    def run(self, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command that sees it; it may fail."""
        command = self.command(*words)
        return subprocess.run(command, capture_output=True, text=True, **more)  # type: ignore[call-overload,no-any-return]

    def vgpu_hook(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run vgpu-hook by its Python."""
        return self.run(PYTHON, "-I", "-B", "-m", "vgpu_hook", *words)
