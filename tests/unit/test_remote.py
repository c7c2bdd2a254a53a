"""How ssh is called for a libvirt URI."""

from __future__ import annotations

import pytest

from vgpu_hook.remote import CannotAsk, ssh_command

BEFORE = ["ssh", "-T", "-o", "BatchMode=yes"]


@pytest.mark.parametrize(
    ("uri", "options", "host"),
    [
        ("qemu+ssh://host2/system", [], "host2"),
        ("qemu+libssh://host2/system", [], "host2"),
        ("qemu+ssh://root@host2/system", ["-l", "root"], "host2"),
        ("qemu+ssh://Me%40Corp@host2/system", ["-l", "Me@Corp"], "host2"),
        ("qemu+ssh://me:secret@host2/system", ["-l", "me"], "host2"),
        ("qemu+ssh://host2:2222/system", ["-p", "2222"], "host2"),
        ("qemu+ssh://GPU-Host/system", [], "GPU-Host"),
        ("qemu+ssh://root@[2001:DB8::1]:22/system", ["-p", "22", "-l", "root"], "2001:DB8::1"),
        ("qemu+ssh://[fe80::1%25eth0]/system", [], "fe80::1%eth0"),
        ("qemu+ssh://h/system?keyfile=/k/a+b%20c", ["-i", "/k/a+b c"], "h"),
        ("qemu+ssh://h/system?no_verify=1", ["-o", "StrictHostKeyChecking=no"], "h"),
        ("qemu+ssh://h/system?no_verify=0", [], "h"),
        (
            "qemu+libssh2://h/system?known_hosts=/a%20b&keyfile=k",
            ["-o", 'UserKnownHostsFile="/a b"', "-i", "k"],
            "h",
        ),
        ("qemu+ssh://-oProxyCommand=x/system", [], "-oProxyCommand=x"),
        ("qemu+ssh://-oProxyCommand=x@h/system", ["-l", "-oProxyCommand=x"], "h"),
    ],
)
def test_ssh_is_called_as_libvirt_calls_it(uri: str, options: list[str], host: str) -> None:
    assert ssh_command(uri, "a line") == [*BEFORE, *options, "--", host, "a line"]


def test_another_ssh() -> None:
    assert ssh_command("qemu+ssh://h/system?command=/opt/ssh", "x")[0] == "/opt/ssh"


@pytest.mark.parametrize(
    "uri",
    [
        "qemu:///system",
        "qemu+tls://host2/system",
        "qemu+ssh:///system",
        "qemu+ssh://root@/system",
        "qemu+ssh://host2:port/system",
        "qemu+ssh://[host2/system",
        "qemu+ssh://h%00/system",
        "qemu+ssh://h/system?keyfile=%0a",
        "host2",
        "",
    ],
)
def test_what_ssh_can_not_be_called_for(uri: str) -> None:
    with pytest.raises(CannotAsk):
        ssh_command(uri, "a line")
