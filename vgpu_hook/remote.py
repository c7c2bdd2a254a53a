"""Runs vgpu-hook on the host that a libvirt URI leads to, over ssh as libvirt does.

https://libvirt.org/uri.html: the transport is in the scheme, and parameters say how ssh is called.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import urllib.parse

from vgpu_hook.model import VgpuError

TRANSPORTS = ("ssh", "libssh", "libssh2")
TIMEOUT = 120.0
"""Seconds. The other host may have to read hundreds of VFs, through a slow network."""

NOT_FOUND = 127
WRONG_USAGE = 2
"""What a shell, and an older vgpu-hook, answer to a command that they don't have."""

SSH_FAILED = 255
"""What ssh answers if it did not come as far as the command: ssh(1)."""

PERMISSION = re.compile("permission denied|not permitted|needs root", re.IGNORECASE)
"""In what is said by a host where we have logged in, but may not do what is needed."""


class CannotAsk(VgpuError):
    """The other host's vgpu-hook can't be asked: says nothing about what it would answer."""


def ssh_command(uri: str, line: str) -> list[str]:
    """Return the command that runs a shell line on the URI's host. Raises CannotAsk."""
    try:
        parts = urllib.parse.urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise CannotAsk(f"{uri}: {error}") from None
    user, host = _user_and_host(parts.netloc)
    if parts.scheme.partition("+")[2] not in TRANSPORTS or not host:
        raise CannotAsk(
            f"{uri} does not go over ssh, so vgpu-hook there can't be asked",
            "run there, with the domain's XML on stdin: vgpu-hook check-arrival -",
        )
    given = _parameters(parts.query)
    if not "".join((user, host, *given.values())).isprintable():
        raise CannotAsk(f"{uri} has a character that can't be given to ssh")
    command = [given.get("command", "ssh"), "-T", "-o", "BatchMode=yes"]
    if given.get("no_verify") == "1":
        command += ["-o", "StrictHostKeyChecking=no"]
    if "known_hosts" in given:
        # In quotes, else ssh takes a name with a space for two.
        command += ["-o", f'UserKnownHostsFile="{given["known_hosts"]}"']
    if "keyfile" in given:
        command += ["-i", given["keyfile"]]
    if port is not None:
        command += ["-p", str(port)]
    if user:
        command += ["-l", user]
    return [*command, "--", host, line]


def ask(uri: str, line: str, text: bytes) -> str:
    """Return what a command line of ours prints there, given `text`. Raises VgpuError."""
    command = ssh_command(uri, line)
    host = command[-2]
    again = f"try: {shlex.join(command)} </dev/null"
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT)
    except OSError as error:
        raise CannotAsk(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotAsk(f"{host} has not answered within {TIMEOUT:.0f} s", again) from error
    if done.returncode == NOT_FOUND:
        raise VgpuError(f"{host} has no vgpu-hook", "install the package there")
    if done.returncode == WRONG_USAGE:
        raise VgpuError(f"{host} has an older vgpu-hook", "upgrade the package there")
    if done.returncode not in (0, 1) or not done.stdout.strip():
        cause = _last_line(done.stderr) or f"exit status {done.returncode}"
        hint = again
        if done.returncode != SSH_FAILED and PERMISSION.search(cause):
            hint = f"root is needed there: use root@{host}"
        raise CannotAsk(f"vgpu-hook on {host} can't be asked: {cause}", hint)
    return done.stdout.decode(errors="backslashreplace")


def _user_and_host(netloc: str) -> tuple[str, str]:
    """Return both as they are written: ssh_config tells upper from lower case in an alias.

    Without the password, if there is one, and the brackets of an IPv6 address.
    """
    user, _, host = netloc.rpartition("@")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    else:
        host = host.partition(":")[0]
    return urllib.parse.unquote(user.partition(":")[0]), urllib.parse.unquote(host)


def _parameters(query: str) -> dict[str, str]:
    """Return a URI's parameters as libvirt reads them (virURIParseParams): `+` is no space."""
    pairs = (pair.partition("=") for pair in re.split("[&;]", query) if pair)
    return {urllib.parse.unquote(key): urllib.parse.unquote(value) for key, _, value in pairs}


def _last_line(stderr: bytes) -> str:
    """Return the last line, with nothing in it that a terminal would obey."""
    lines = stderr.decode(errors="backslashreplace").strip().splitlines()
    last = lines[-1].removeprefix("error: ") if lines else ""
    return "".join(char if char.isprintable() else "?" for char in last)
