"""The simulated libvirtd against this machine's: definitions, metadata, volumes, connections.

All that the product can see of both is compared (contract.py); test_contract_vms.py has the VMs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import libvirt
import pytest

from tests.domains import device_of, hostdev, pci_hostdev, uuid_of
from tests.libvirt.server import LibvirtServer

from .contract import CONFIG, LIVE, MINE, NAMESPACE, OTHER, OURS, UNDEFINE, Compare, domain, look
from .sides import MARKER, AnySide, OverSocket, Real
from .standin import libvirt as standin
from .state import SimLibvirt

NOBODY = uuid_of("nobody")


def test_what_is_not_there(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.do("by name", side.connection.lookupByName, "nobody")
        side.do("by no name", side.connection.lookupByName, "")
        side.do("by UUID", side.connection.lookupByUUIDString, NOBODY)
        side.do("by capital UUID", side.connection.lookupByUUIDString, NOBODY.upper())
        side.do("by no UUID", side.connection.lookupByUUIDString, "nobody")
        side.do("list", side.connection.listAllDomains)
        side.do("pool", side.connection.storagePoolLookupByName, "nowhere")
        side.do("volume", side.connection.storageVolLookupByPath, "/nowhere")

    compare(scenario)


def test_define_redefine_undefine(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        define = side.connection.defineXML
        side.do("define", define, domain("a", OURS + OTHER, MINE))
        found = side.domain("a")
        side.do("by UUID", side.connection.lookupByUUIDString, uuid_of("a").upper())
        look(side, found, "defined")
        side.do("redefine", define, domain("a", OURS))
        side.do("the same", define, domain("a", OURS))
        side.do("its own XML", define, found.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
        side.do("capital UUID", define, domain("a", OURS, uuid=uuid_of("a").upper()))
        look(side, found, "redefined")
        side.do("another", define, domain("b"))
        side.do("list", side.connection.listAllDomains)
        side.do("a destroy", found.destroy)
        side.do("undefine", found.undefineFlags, UNDEFINE)
        for again in (found.destroy, found.isActive, found.isPersistent, found.XMLDesc):
            side.do("gone", again)
        side.do("undefine again", found.undefineFlags, UNDEFINE)
        side.do("define again", define, domain("a"))
        look(side, found, "defined again")

    compare(scenario)


def test_definitions_that_are_refused(compare: Compare) -> None:
    other = hostdev(device_of(uuid_of("b")))
    refused = {
        "another's name": domain("a", uuid=NOBODY),
        "another's UUID": domain("b", uuid=uuid_of("a")),
        "no XML": "<domain",
        "no name": "<domain type='qemu'/>",
        "no UUID": domain("c", uuid="nothing"),
        "one alias twice": domain("c", OURS, MINE + other),
        "one mdev twice": domain("c", OURS, MINE + hostdev(device_of(uuid_of("a")), "1")),
        "one VF twice": domain(
            "c", OURS, pci_hostdev("0000:41:00.4") + pci_hostdev("0000:41:00.4", "1")
        ),
    }

    def scenario(side: AnySide) -> None:
        side.do("define", side.connection.defineXML, domain("a"))
        for what, xml in refused.items():
            side.do(what, side.connection.defineXML, xml)
        side.do("list", side.connection.listAllDomains)

    compare(scenario)


def test_what_a_definition_keeps(compare: Compare) -> None:
    twice = f"<vgpus xmlns='{NAMESPACE}'/><plain/>{OURS}<!-- note -->{OTHER}"
    capital = hostdev(device_of(uuid_of("a")).upper(), None).replace(
        "</source>", "</source><alias name='hostdev0'/>"
    )
    short = (
        pci_hostdev("0000:41:00.4", "1", managed=None).replace("0x0000", "0").replace("0x4", "4")
    )

    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", twice, capital + short))
        side.do("kept", side.domain("a").XMLDesc, libvirt.VIR_DOMAIN_XML_INACTIVE)

    compare(scenario)


def test_metadata(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OTHER))
        found = side.domain("a")

        def put(xml: str | None, flags: int) -> None:
            title = f"{xml} {flags}"
            side.do(title, found.setMetadata, 2, xml, "vgpu", NAMESPACE, flags)
            side.do(f"then {title}", found.XMLDesc, 0)
            side.do(f"defined {title}", found.XMLDesc, 2)

        for flags in (CONFIG, LIVE, 0):
            put(f"<vgpus><vgpu profile='{flags}'/></vgpus>", flags)
        put(None, CONFIG)
        put(None, CONFIG)
        side.do("start", side.start, "a")
        for flags in (LIVE, CONFIG, 0, LIVE | CONFIG):
            put(f"<vgpus><vgpu profile='{flags}'/></vgpus>", flags)
        put(None, LIVE)
        side.do("undefine", found.undefineFlags, UNDEFINE)
        put("<vgpus/>", CONFIG)

    compare(scenario)


def test_rename(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        side.connection.defineXML(domain("a", OURS, MINE))
        side.connection.defineXML(domain("b"))
        side.do("rename", side.rename, "a", "c")
        look(side, side.domain("c"), "renamed")
        side.do("by its old name", side.connection.lookupByName, "a")
        side.do("to itself", side.rename, "c", "c")
        side.do("to another's", side.rename, "c", "b")
        side.do("and back", side.rename, "c", "a")
        side.do("redefined", side.connection.defineXML, domain("a"))
        side.do("start", side.start, "a")
        side.do("while it runs", side.rename, "a", "c")

    compare(scenario)


def test_volumes(compare: Compare) -> None:
    def scenario(side: AnySide) -> None:
        path = side.add_volume("pool", "disk")

        def relative(volume: Any) -> str:
            return str(volume.path()).removeprefix(str(side.folder))

        by_path = side.connection.storageVolLookupByPath
        pool = side.connection.storagePoolLookupByName("pool")
        side.do("by path", lambda: relative(by_path(path)))
        side.do("by name", lambda: relative(pool.storageVolLookupByName("disk")))
        side.do("of another name", pool.storageVolLookupByName, "other")
        volume = by_path(path)
        side.do("delete", volume.delete)
        side.do("by name", pool.storageVolLookupByName, "disk")
        side.seen.append(
            ("by path", side.answer(by_path, path)[1], [], [])
        )  # its text has the path
        side.seen.append(("delete", side.answer(volume.delete)[1], [], []))

    compare(scenario)


def test_libvirtd_is_started_again(server: LibvirtServer, tmp_path: Path) -> None:
    """Connections are told, calls on them fail, and the domains are there on a new one."""
    simulated = SimLibvirt()
    simulated.define(domain(MARKER))
    real, ours = Real(server), OverSocket(simulated, tmp_path)
    for side, restart in ((real, server.restart), (ours, ours.server.disconnect)):
        reasons: list[int] = []
        side.connection.defineXML(domain("a", OURS))
        side.heard()
        found = side.domain("a")
        side.connection.registerCloseCallback(lambda c, reason, told: told.append(reason), reasons)
        restart()
        side.wait(reasons.__len__)
        side.answer(found.isActive)  # the first may say that it was cut off
        side.seen.append(("reasons, a call", (reasons, side.answer(found.isActive)), [], []))
        side.connection = side.connect()
        side.listen()
        look(side, side.domain("a"), "again")
    seen = [list(side.seen) for side in (real, ours)]
    for side in (real, ours):
        side.tidy()
    assert seen[0] == seen[1]


def test_nobody_serves(tmp_path: Path) -> None:
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    answers = []
    for module in (libvirt, standin):
        with pytest.raises(module.libvirtError) as refused:
            module.open(uri)
        answers.append((refused.value.get_error_code(), refused.value.get_error_message()))
    assert answers[0] == answers[1]
