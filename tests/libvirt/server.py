"""A real libvirtd of the build machine, in mount and PID namespaces of its own (facts G1).

Its folders are the test's, so that nothing of the machine's own libvirt is touched and
nothing is left behind: when its first process ends, the kernel ends all others. The
machine has no VFIO, so a domain with an mdev can be defined, and is refused by libvirt at
its start after our hook has let it pass.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

import libvirt

PATIENCE = 120

UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
START = """\
set -eu
mount --make-rprivate /
for pair in etc:/etc/libvirt run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt \\
    cache:/var/cache/libvirt; do
    mkdir -p "$1/${pair%%:*}" "${pair#*:}"
    mount --bind "$1/${pair%%:*}" "${pair#*:}"
done
virtlogd --daemon --pid-file /run/libvirt/virtlogd.pid
while true; do  # the test ends it to see it come back
    libvirtd --config /etc/libvirt/libvirtd.conf --pid-file /run/libvirt/libvirtd.pid &
    wait $!  # as the first process of its namespace it reaps what others leave
done
"""


class LibvirtServer:
    """libvirtd with the hook scripts of a folder. `with LibvirtServer(folder) as server:`"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hooks = folder / "etc" / "hooks"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self.folder}/run/libvirt-sock"

    def __enter__(self) -> LibvirtServer:
        (self.hooks / "qemu.d").mkdir(parents=True, exist_ok=True)
        (self.folder / "etc" / "libvirtd.conf").write_text(
            'auth_unix_rw = "none"\nunix_sock_group = "root"\nlog_outputs = "3:stderr"\n'
        )
        (self.folder / "etc" / "qemu.conf").write_text(
            'user = "root"\ngroup = "root"\nsecurity_driver = "none"\ncgroup_controllers = []\n'
            'stdio_handler = "file"\nnamespaces = []\n'
        )
        log = (self.folder / "libvirtd.log").open("wb")
        self.process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", START, "sh", str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self._wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            # The namespace's first process; unshare, its parent, then reaps it and ends.
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            self.process.wait(PATIENCE)

    def restart(self) -> None:
        """End libvirtd and wait until it is there again; VMs go on."""
        pid = self._server_pid()
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.02)
        self._wait()

    def _server_pid(self) -> int:
        """Return libvirtd's pid as it is outside of its namespace."""
        assert self.process is not None
        todo, found = [self.process.pid], []
        while todo:
            pid = todo.pop()
            todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            if Path(f"/proc/{pid}/comm").read_text().strip() == "libvirtd":
                found.append(pid)
        return min(found)

    def connect(self) -> libvirt.virConnect:
        libvirt.registerErrorHandler(lambda *_: None, None)
        return libvirt.open(self.uri)

    def virsh(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["virsh", "--connect", self.uri, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _wait(self) -> None:
        assert self.process is not None
        for _ in range(PATIENCE * 10):
            try:
                self.connect().close()
                return
            except libvirt.libvirtError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        log = (self.folder / "libvirtd.log").read_text()[-4000:]
        raise RuntimeError(f"libvirtd did not come up:\n{log}")
