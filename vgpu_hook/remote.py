"""Runs vgpu-hook on the host that a libvirt URI leads to, over ssh as libvirt does.

https://libvirt.org/uri.html: the transport is in the scheme, and parameters say how ssh is called.
"""

from __future__ import annotations

import subprocess
import urllib.parse

from vgpu_hook.model import VgpuError

TRANSPORTS = ("ssh", "libssh", "libssh2")
TIMEOUT = 120.0
"""Seconds. The other host may have to read hundreds of VFs, through a slow network."""

NOT_FOUND = 127
WRONG_USAGE = 2
"""What a shell, and an older vgpu-hook, answer to a command that they don't have."""


class CannotAsk(VgpuError):
    """The other host's vgpu-hook can't be asked: says nothing about what it would answer."""


def ssh_command(uri: str, line: str) -> list[str]:
    """Return the command that runs a shell line on the URI's host. Raises CannotAsk."""
    parts = urllib.parse.urlsplit(uri)
    transport = parts.scheme.partition("+")[2]
    if transport not in TRANSPORTS or not parts.hostname:
        raise CannotAsk(
            f"{uri} does not go over ssh, so vgpu-hook there can't be asked",
            "run there, with the domain's XML on stdin: vgpu-hook check-arrival -",
        )
    given = {key: values[-1] for key, values in urllib.parse.parse_qs(parts.query).items()}
    command = [given.get("command", "ssh"), "-T", "-o", "BatchMode=yes"]
    if given.get("no_verify") == "1":
        command += ["-o", "StrictHostKeyChecking=no"]
    if "known_hosts" in given:
        command += ["-o", f"UserKnownHostsFile={given['known_hosts']}"]
    if "keyfile" in given:
        command += ["-i", given["keyfile"]]
    if parts.port is not None:
        command += ["-p", str(parts.port)]
    if parts.username:
        command += ["-l", urllib.parse.unquote(parts.username)]
    return [*command, "--", parts.hostname, line]


def ask(uri: str, line: str, text: bytes) -> str:
    """Return what a command line of ours prints there, given `text`. Raises VgpuError."""
    command = ssh_command(uri, line)
    host = command[-2]
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT)
    except OSError as error:
        raise CannotAsk(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotAsk(f"{host} has not answered within {TIMEOUT:.0f} s") from error
    said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
    if done.returncode == NOT_FOUND:
        raise VgpuError(f"{host} has no vgpu-hook", "install the package there")
    if done.returncode == WRONG_USAGE:
        raise VgpuError(f"{host} has an older vgpu-hook", "upgrade the package there")
    if done.returncode not in (0, 1) or not done.stdout.strip():
        cause = said[-1] if said else f"exit status {done.returncode}"
        raise CannotAsk(f"vgpu-hook on {host} can't be asked: {cause}", f"try: ssh {host} true")
    return done.stdout.decode(errors="backslashreplace")
