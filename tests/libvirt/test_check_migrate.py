"""check-migrate with a real libvirt; there is one, so that it is its own other host."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.domains import device_of, hostdev, uuid_of
from tests.libvirt.server import LibvirtServer
from tests.product import Product

REQUEST = (
    "<vgpu:vgpus xmlns:vgpu='urn:vgpu-hook:domain:1'><vgpu:vgpu name='0' profile='mtty-1'/>"
    "</vgpu:vgpus>"
)
Define = Callable[[str, str, str], None]


def test_the_same_host_and_what_goes_over_no_ssh(
    hooked: Product, server: LibvirtServer, define: Define
) -> None:
    define("a", REQUEST, hostdev(device_of(uuid_of("a"))))
    command = ["check-migrate", "--connect", server.uri, "a", server.uri]
    answer = hooked.command(*command, "--format", "json")
    assert answer.status == 1
    assert answer.err.startswith("error: domain 'a' can't: ")
    assert "is this very host" in answer.err
    found = {row["what"]: row["good"] for row in json.loads(answer.out)["findings"]}
    assert found == {"host": "no", "domain": "yes", "vGPU": "can't tell"}
    table = hooked.command(*command)
    assert table.status == 1
    assert "does not go over ssh" in table.out


def test_another_driver_is_no_destination(
    hooked: Product, server: LibvirtServer, define: Define
) -> None:
    define("a", REQUEST, hostdev(device_of(uuid_of("a"))))
    command = ["check-migrate", "--connect", server.uri, "a", "test:///default"]
    answer = hooked.command(*command)
    assert answer.status == 1
    assert len(answer.err.splitlines()) == 1
    assert answer.err.endswith(" is not the system libvirt of a host's QEMU\n")


def test_a_domain_without_a_request(hooked: Product, server: LibvirtServer, define: Define) -> None:
    define("plain", "", "")
    command = ["check-migrate", "--connect", server.uri, "plain", "qemu+ssh://nowhere/system"]
    assert hooked.command(*command) == (0, "Domain 'plain' asks for no vGPU.\n", "")
    assert json.loads(hooked.command(*command, "--format", "json").out)["findings"] == []
