"""Asks vgpu-hook on the host that a libvirt URI leads to, over ssh as libvirt does.

https://libvirt.org/uri.html: the transport is in the scheme, and parameters say how ssh is called.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.parse
from typing import Any, NamedTuple

from vgpu_hook.model import VgpuError

YES, NO, UNKNOWN = "yes", "no", "can't tell"

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


class Finding(NamedTuple):
    """One thing that was looked at: does it let a VM go to another host?"""

    what: str
    good: str
    text: str
    fix: str = ""


class Answer(NamedTuple):
    """What another host's check-arrival says; `hostdevs` are their types, by slot."""

    findings: list[Finding]
    hostdevs: dict[str, str]
    kernel: str


class CannotAsk(VgpuError):
    """The other host's vgpu-hook can't be asked: says nothing about what it would answer."""


def check_arrival(uri: str, text: bytes, version: int, *, stopped: bool) -> Answer:
    """Return what vgpu-hook there says of a VM with this XML. Raises VgpuError.

    `version` is that of our JSON. What can't be understood is no answer (CannotAsk).
    """
    option = "--stopped " if stopped else ""
    said = ask(uri, f"vgpu-hook check-arrival {option}--format json -", text)
    try:
        answer = json.loads(said)
        if answer["version"] != version:
            raise ValueError
        rows = answer["findings"]
        found = [Finding(*(_word(row[name]) for name in Finding._fields)) for row in rows]
        hostdevs = {_word(row["slot"]): _word(row["type"]) for row in answer["hostdevs"]}
        kernel = _word(answer["kernel"])
        if not found or any(finding.good not in (YES, NO, UNKNOWN) for finding in found):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"what vgpu-hook there says is not understood ({type(error).__name__})"
        raise CannotAsk(cause, "have the same version on both hosts") from None
    return Answer(found, hostdevs, kernel)


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
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return urllib.parse.unquote(user.partition(":")[0]), urllib.parse.unquote(host)


def _parameters(query: str) -> dict[str, str]:
    """Return a URI's parameters as libvirt reads them (virURIParseParams): `+` is no space."""
    pairs = (pair.partition("=") for pair in re.split("[&;]", query) if pair)
    return {urllib.parse.unquote(key): urllib.parse.unquote(value) for key, _, value in pairs}


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="backslashreplace").strip().splitlines()
    return _word(lines[-1].removeprefix("error: ")) if lines else ""


def _word(value: Any) -> str:
    """Return a text of the other host, with nothing in it that a terminal would obey."""
    if not isinstance(value, str):
        raise TypeError
    return "".join(char if char.isprintable() else "?" for char in value)
