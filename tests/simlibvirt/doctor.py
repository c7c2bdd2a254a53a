"""A healthy host for `vgpu-hook doctor`: the hook is installed, libvirt and vgpu-hookd run.

systemd is the one part that is played by a script: `systemctl show` prints the file of the unit.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.domains import domain_xml, hostdev
from tests.product import HOOK, Answer

from .simulation import Simulation

SYSTEMCTL = """#!/bin/sh
[ "$1" = show ] || { echo "systemctl $*: not for a doctor" >&2; exit 1; }
for unit; do :; done
cat "{units}/$unit" 2>/dev/null || echo ActiveState=inactive
"""
LIBVIRTD = 4321


class Finding(NamedTuple):
    check: str
    severity: str
    object: str
    text: str
    fix: str


class Patient:
    """A simulated host, under a simulated libvirtd, with everything as the package installs it."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation = simulation
        self.product = simulation.product
        self.folder = folder
        self.stack = contextlib.ExitStack()
        """What is to be ended after the test."""
        self.hook = self.product.hooks / "qemu.d/50-vgpu-hook"
        self.hook.parent.mkdir(parents=True, mode=0o755)
        shutil.copy(HOOK, self.hook)
        self.hook.chmod(0o755)
        self.units = folder / "units"
        self.units.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL.replace("{units}", str(self.units)))
        (programs / "systemctl").chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LIBVIRT_DEFAULT_URI": simulation.server.uri,
            "DPKG_ADMINDIR": str(folder / "none"),  # no package, whatever this machine has
        }
        self.libvirtd(reloaded=time.time() + 3600)  # whatever the test still does to the hook
        self.unit("vgpu-hookd", "ActiveState=active", "UnitFileState=enabled")

    def libvirtd(self, *, started: float = 1_000_000_000, reloaded: float | None = None) -> None:
        """It runs since then, and was reloaded last then."""
        at = "n/a" if reloaded is None else f"@{int(reloaded)}"
        self.unit(
            "libvirtd",
            "ActiveState=active",
            f"MainPID={LIBVIRTD}",
            f"ExecMainStartTimestamp=@{int(started)}",
            "ExecReload={ path=/bin/kill ; argv[]=/bin/kill -HUP $MAINPID ; ignore_errors=no ;"
            f" start_time=[{at}] ; stop_time=[{at}] ; pid=9 ; code=exited ; status=0 }}",
        )

    def limit(self, seconds: float) -> None:
        """Let a check take no longer: for what hangs."""
        text = self.product.config.read_text()
        self.product.set_config(text.replace("hook = 60", f"hook = {seconds}"))

    def unit(self, name: str, *lines: str) -> None:
        (self.units / f"{name}.service").write_text("\n".join(lines) + "\n")

    def without_systemd(self) -> None:
        """As systemctl says where systemd is not what runs the host."""
        text = (
            "#!/bin/sh\necho System has not been booted with systemd as init system >&2; exit 1\n"
        )
        (self.folder / "bin/systemctl").write_text(text)

    def script(self, name: str, text: str, mode: int = 0o755) -> Path:
        """One more file in qemu.d."""
        path = self.hook.with_name(name)
        path.write_text(text)
        path.chmod(mode)
        return path

    def define(self, name: str, profile: str | None, *hostdevs: str, **options: Any) -> None:
        """Define a domain, of which the daemon has not heard yet."""
        asked = {} if profile is None else {"0": profile}
        xml = domain_xml(name, asked, hostdevs=list(hostdevs), **options)
        self.simulation.libvirt.define(xml.decode())

    def end_daemon(self) -> None:
        """Kill vgpu-hookd; its socket file stays."""
        daemon = self.simulation.daemon
        assert daemon is not None
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()

    def doctor(self, *arguments: str, **environment: str) -> Answer:
        return self.product.command("doctor", *arguments, **{**self.environment, **environment})

    def findings(self, **environment: str) -> list[Finding]:
        """Ask for all findings; the exit status must agree with them."""
        answer = self.doctor("--format", "json", **environment)
        assert answer.err == ""
        value = json.loads(answer.out)
        assert value["version"] == 1
        found = [Finding(**finding) for finding in value["findings"]]
        severities = [finding.severity for finding in found]
        assert (value["errors"], value["warnings"]) == (
            severities.count("error"),
            severities.count("warning"),
        )
        assert set(severities) <= {"ok", "warning", "error"}
        assert answer.status == (1 if "error" in severities else 0)
        return found

    def contents(self) -> dict[str, tuple[int, int, bytes]]:
        """What is in the folder: mode, time of change and bytes.

        Without the store while the daemon runs, which writes to it when it likes.
        """
        daemon = self.simulation.daemon
        assert daemon is not None
        store = daemon.poll() is not None
        return {
            str(path): (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and (store or path.parent != self.product.state)
            if path.suffix != ".db-shm"  # SQLite's locks
        }


def foreign_hostdev(slot: str = "0") -> str:
    """A hostdev under our alias, with another domain's device."""
    return hostdev("0d1d7a2e-8f6c-4a53-9a39-000000000001", slot)


def mute(path: Path) -> subprocess.Popen[bytes]:
    """Somebody who accepts on a socket and says nothing."""
    script = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
        "s.listen(); print(flush=True); time.sleep(3600)"
    )
    program = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", script, str(path)], stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    program.stdout.readline()
    return program
