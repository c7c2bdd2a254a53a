"""The XML of a VM that wakes up here: what is changed, and that nothing else is (C14N)."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path
from typing import cast

import pytest
from lxml import etree

from tests.domains import (
    besides_vgpus,
    device_of,
    domain_xml,
    hostdev,
    mark_of,
    pci_hostdev,
    renamed,
    uuid_of,
    vgpus_of,
)
from vgpu_hook import arrival, domain
from vgpu_hook.lifecycle import Lifecycle
from vgpu_hook.model import Parent, Refused, VgpuError, VgpuRequest, VgpuType
from vgpu_hook.planning import Planner
from vgpu_hook.reconcile import Reconciler
from vgpu_hook.store import Store

OWN = uuid_of("a")
V4, V5, V6, V7 = (f"0000:41:00.{n}" for n in range(4, 8))
PROFILE = "nvidia-1148"
ASKED = VgpuRequest("0", PROFILE)
GUEST = "<boot order='2'/><rom bar='off'/><address type='pci' domain='0x0000' bus='0x05' slot='0'/>"

ELABORATE = f"""<?xml version='1.0' encoding='UTF-8'?>
<!-- before --><?tool before?>
<domain type='kvm' id='7' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>a</name>
  <uuid>{OWN}</uuid>
  <title>t\u00fc &amp; t</title>
  <description><![CDATA[x < y & "z" urn:vgpu-hook:domain:1]]> 'quoted' &#13; &#9;</description>
  <metadata>
    <!-- somebody's -->
    <other:thing xmlns:other='http://example.com/x' other:a="1&#10;2"><other:b/></other:thing>
    <g:vgpus xmlns:g='urn:vgpu-hook:domain:1'>
      <g:vgpu name='0' profile='{PROFILE}' owner='{mark_of(OWN)}'/>
    </g:vgpus>
    <?tool inside?>
  </metadata>
  <currentMemory unit='KiB'>1024</currentMemory>
  <devices>
    <!-- a disk --><disk type='file'/> stray text
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
      <source><address uuid='{uuid_of("foreign")}'/></source>
      <alias name='ua-theirs'/>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <!-- within -->
      <driver name='vfio'/>
      <source>
        <address domain='0x0000' bus='0x41' slot='0x00' function='0x4'/>
      </source>
      <alias name='ua-vgpu-0'/>
      {GUEST}
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x07' slot='0x00' function='0x0'/></source>
    </hostdev>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-foo &lt;bar&gt;'/><qemu:env name='A' value=''/>
  </qemu:commandline>
</domain>
<!-- after --><?tool after?>
""".encode()


def vf(name: str) -> Parent:
    kinds = (VgpuType(PROFILE, "NVIDIA L40S-2Q", "", "vfio-pci", 1, 0, 2048),)
    return Parent("vendor-vfio", name, name[:-1] + "0", kinds)


def card(kind: VgpuType | None = None, name: str = "0000:41:00.0") -> Parent:
    """A GPU with mediated devices."""
    kinds = (kind or VgpuType(PROFILE, "NVIDIA L40S-2Q", "", "vfio-pci", 4, 0, 2048),)
    return Parent("mdev", name, name, kinds)


def planner(store: Store | None, *parents: Parent) -> Planner:
    return Planner(parents, store, "spread", lambda subject: subject.nodes)


def arrive(
    text: bytes, plan: Planner, stands: tuple[VgpuRequest, ...] | None = None
) -> arrival.Arrival:
    """Rewrite it, and see that the guest sees nothing of it, and that it is done once."""
    done = arrival.rewrite(text, domain.parse(text), plan, stands, restored=True)
    assert besides_vgpus(done.text) == besides_vgpus(text)
    assert (done.text == text) == (done.changes == ())
    again = arrival.rewrite(done.text, domain.parse(done.text), plan, stands, restored=True)
    assert (again.text, again.changes) == (done.text, ())
    return done


def vf_domain(*vfs: str, attributes: str = "", guest: str = "") -> bytes:
    hostdevs = [
        pci_hostdev(vf, str(n)).replace("</hostdev>", f"{guest}</hostdev>")
        for n, vf in enumerate(vfs)
    ]
    asked = {str(n): PROFILE for n in range(len(vfs))}
    return domain_xml("a", asked, hostdevs=hostdevs, attributes=attributes, owner=OWN)


@pytest.mark.parametrize("parents", [[vf(V5)], [card()]], ids=["vendor-vfio", "mdev"])
def test_all_that_is_not_ours_stays_canonically_the_same(
    store: Store, parents: list[Parent]
) -> None:
    done = arrive(ELABORATE, planner(store, *parents))
    expected = ("pci", V5) if parents[0].framework == "vendor-vfio" else ("mdev", device_of(OWN))
    assert vgpus_of(done.text) == {"0": expected}
    assert len(done.changes) == 1
    for kept in (b"<!-- within -->", b"<?tool before?>", b"<?tool inside?>", b"<!-- after -->"):
        assert kept in done.text


def test_i5_what_is_right_is_the_very_text_that_was_given(store: Store) -> None:
    assert arrive(ELABORATE, planner(store, vf(V4), vf(V5))).text is ELABORATE
    own = domain_xml("a", {"0": PROFILE})
    assert arrive(own, planner(store, card())).text is own


def test_an_mdev_becomes_a_vf_with_all_that_its_guest_sees(store: Store) -> None:
    mdev = hostdev(device_of(OWN)).replace("</hostdev>", f"{GUEST}</hostdev>")
    done = arrive(domain_xml("a", {"0": PROFILE}, hostdevs=[mdev]), planner(store, vf(V4)))
    (element,) = etree.fromstring(done.text).iterfind("devices/hostdev")
    assert dict(element.attrib) == {"mode": "subsystem", "type": "pci", "managed": "no"}
    assert vgpus_of(done.text) == {"0": ("pci", V4)}
    assert domain.parse(done.text).marks == {"0": mark_of(OWN)}
    assert [child.tag for child in element] == ["source", "alias", "boot", "rom", "address"]


def test_a_vf_becomes_an_mdev_with_all_that_its_guest_sees(store: Store) -> None:
    text = vf_domain(V4, guest=GUEST + "<driver name='vfio'/>")
    done = arrive(text, planner(store, card()))
    (element,) = etree.fromstring(done.text).iterfind("devices/hostdev")
    assert (element.get("type"), element.get("model")) == ("mdev", "vfio-pci")
    assert vgpus_of(done.text) == {"0": ("mdev", device_of(OWN))}
    assert element.find("driver") is None
    assert element.find("source/address").attrib == {"uuid": device_of(OWN)}
    assert domain.parse(done.text).marks == {}


def test_slots_keep_their_order_and_get_a_vf_each(store: Store) -> None:
    done = arrive(vf_domain("0000:c1:00.4", "0000:c1:00.4"), planner(store, vf(V4), vf(V5)))
    found = vgpus_of(done.text)
    assert list(found) == ["0", "1"]
    assert {device for _, device in found.values()} == {V4, V5}


def test_r9_every_slot_comes_back_on_the_vf_that_it_has_now(store: Store) -> None:
    """Also where the image names, in one slot, what another slot has by now."""
    for slot, device in (("0", V5), ("1", V6)):
        store.devices.reserve(OWN, slot, device)
    stands = (VgpuRequest("0", PROFILE), VgpuRequest("1", PROFILE))
    done = arrive(vf_domain(V4, V5), planner(store, *map(vf, (V4, V5, V6, V7))), stands)
    assert vgpus_of(done.text) == {"0": ("pci", V5), "1": ("pci", V6)}


def test_r8_a_fork_of_two_slots_gets_two_vfs_and_reserves_no_other(store: Store) -> None:
    for slot, device in (("0", V4), ("1", V5)):
        store.devices.reserve(OWN, slot, device)
    fork = renamed(vf_domain(V4, V5), "a", "fork")
    done = arrive(fork, planner(store, *map(vf, (V4, V5, V6, V7))))
    assert {device for _, device in vgpus_of(done.text).values()} == {V6, V7}
    assert set(domain.parse(done.text).marks.values()) == {mark_of(uuid_of("fork"))}
    assert {r.device for r in store.devices.reservations() if r.domain_uuid == OWN} == {V4, V5}


@pytest.mark.parametrize("policy", ["none", "refuse"])
@pytest.mark.parametrize("parent", [vf(V4), card()], ids=["vendor-vfio", "mdev"])
def test_r8_a_fork_that_may_have_none_is_refused_with_the_way_out(
    store: Store, parent: Parent, policy: str
) -> None:
    attributes = f"fork='{policy}'"
    text = vf_domain(V4, attributes=attributes)
    if parent.framework == "mdev":
        text = domain_xml("a", {"0": PROFILE}, attributes=attributes)
    assert arrive(text, planner(store, parent)).changes == ()
    fork = renamed(text, "a", "fork")
    with pytest.raises(Refused, match=r"(?s)domain 'fork'.*fork='new'"):
        arrive(fork, planner(store, parent))
    assert store.devices.reserved(uuid_of("fork"), "0") is None
    arrive(fork.replace(attributes.encode(), b"fork='new'"), planner(store, parent))


def test_r8_a_fork_that_migrates_is_left_to_its_start(store: Store) -> None:
    fork = renamed(vf_domain(V4, attributes="fork='none'"), "a", "fork")
    done = arrival.rewrite(fork, domain.parse(fork), planner(store, vf(V4), vf(V5)))
    assert (done.text, done.devices, done.changes) == (fork, (), ())
    assert store.devices.reservations() == []


def test_r9_a_pin_that_was_changed_goes_into_the_text(store: Store) -> None:
    away = "0000:c1:00.4"
    stands = (VgpuRequest("0", PROFILE, gpu="0000:c1:00.0"),)
    done = arrive(vf_domain(V4), planner(store, vf(V4), vf(away)), stands)
    assert vgpus_of(done.text) == {"0": ("pci", away)}
    assert domain.parse(done.text).request == stands
    # Also where the device stays what it is.
    mdev = arrive(domain_xml("a", {"0": PROFILE}), planner(None, card()), (ASKED,))
    assert mdev.changes == ()
    pinned = (VgpuRequest("0", PROFILE, gpu="0000:41:00.0"),)
    mdev = arrive(domain_xml("a", {"0": PROFILE}), planner(None, card()), pinned)
    assert domain.parse(mdev.text).request == pinned
    assert vgpus_of(mdev.text) == {"0": ("mdev", device_of(OWN))}


@pytest.mark.parametrize("spelling", ["1148", "NVIDIA L40S-2Q", "nvidia l40s-2q", "NVIDIA-1148"])
def test_r9_one_type_under_two_names_is_no_difference(store: Store, spelling: str) -> None:
    stands = (VgpuRequest("0", spelling),)
    text = vf_domain(V4)
    assert arrive(text, planner(store, vf(V4), vf(V5)), stands).text is text
    # Where something else is changed, the image's own word stays.
    done = arrive(text, planner(store, vf(V5)), stands)
    assert vgpus_of(done.text) == {"0": ("pci", V5)}
    assert domain.parse(done.text).request == (ASKED,)


@pytest.mark.parametrize(
    ("stands", "told"),
    [
        ((), "asks for none there now"),
        ((VgpuRequest("0", "nvidia-1145"),), "asks for 'nvidia-1145' there now"),
        ((VgpuRequest("1", PROFILE),), "detach --slot 1 a"),
        ((ASKED, VgpuRequest("1", PROFILE)), "detach --slot 1 a"),
    ],
    ids=["none", "another profile", "another slot", "one more"],
)
def test_r9_an_image_with_other_vgpus_than_are_asked_for_is_refused(
    store: Store, stands: tuple[VgpuRequest, ...], told: str
) -> None:
    text = vf_domain("0000:c1:00.4")
    plan = planner(store, vf(V4), vf(V5))
    with pytest.raises(Refused, match=told) as refused:
        arrive(text, plan, stands)
    assert "virsh managedsave-remove a" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert store.devices.reservations() == []


def test_r9_an_image_of_two_slots_whose_domain_asks_for_one_is_refused_whole(store: Store) -> None:
    plan = planner(store, vf(V4), vf(V5), vf(V6))
    with pytest.raises(Refused, match="of profile 'nvidia-1148' in slot '1'"):
        arrive(vf_domain("0000:c1:00.4", "0000:c1:00.5"), plan, (ASKED,))
    assert store.devices.reservations() == []


def test_a_type_that_is_not_offered_here_is_refused_by_name(store: Store) -> None:
    text = domain_xml("a", {"0": "GRID X-1Q"})
    for stands in (None, (VgpuRequest("0", "GRID X-1Q"),)):
        with pytest.raises(VgpuError, match="profile 'GRID X-1Q' is not offered by any GPU"):
            arrive(text, planner(store, card()), stands)


@pytest.mark.parametrize("second", ["fork='none'", "profile='GRID X-1Q'"])
def test_nothing_is_planned_when_a_later_slot_is_refused(store: Store, second: str) -> None:
    text = renamed(vf_domain(V4, V5), "a", "fork")
    fork = re.sub(rb"name=.1. profile=.nvidia-1148.", b"name='1' " + second.encode(), text)
    fork = fork.replace(b"name='1' fork", f"name='1' profile='{PROFILE}' fork".encode())
    assert fork != text
    with pytest.raises(VgpuError, match=r"fork='new'|is not offered"):
        arrive(fork, planner(store, *map(vf, (V4, V5, V6, V7))))
    assert store.devices.reservations() == []
    arrive(text, planner(store, *map(vf, (V4, V5, V6, V7))))
    assert len(store.devices.reservations()) == 2


def test_the_devices_of_all_slots_are_told(store: Store) -> None:
    """Also of those that stay as they are: they are kept for the VM until it starts."""
    done = arrive(vf_domain(V4, "0000:c1:00.4"), planner(store, vf(V4), vf(V5)))
    assert [(h.slot, h.address) for h in done.devices] == [("0", V4), ("1", V5)]
    assert done.changes == (f"slot 1: {V5} in place of 0000:c1:00.4",)
    mdev = arrive(domain_xml("a", {"0": PROFILE}), planner(store, card()))
    assert [h.address for h in mdev.devices] == [device_of(OWN)]


REASONS = ["x", '"quo\'te" <b> & ]]> &amp; ☃', "domain 'a': no; run: vgpu-hook attach -- '-x'"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("text", [ELABORATE, domain_xml("a"), domain_xml("a", {"0": PROFILE})])
def test_a_reason_is_noted_and_taken_back_and_all_else_stays(text: bytes, reason: str) -> None:
    noted = domain.set_refused(text, reason)
    assert domain.parse(noted)._replace(refused="") == domain.parse(text)
    assert domain.parse(noted).refused == reason
    assert domain.set_refused(noted, reason) == noted
    back = domain.set_refused(noted, "")
    assert domain.parse(back) == domain.parse(text)
    asked = b"urn:vgpu-hook:domain:1'" in text  # else its element is new
    for changed in (noted, back) if asked else ():
        assert besides_vgpus(changed) == besides_vgpus(text)
    if asked:
        assert etree.tostring(etree.fromstring(back), method="c14n") == etree.tostring(
            etree.fromstring(text), method="c14n"
        )


def test_a_reason_is_one_line_of_what_can_be_printed() -> None:
    noted = domain.set_refused(domain_xml("a"), "a\nb\x00c\x1b[1md\ud800e\ufffef\u2028g")
    assert domain.parse(noted).refused == "a b?c?[1md?e?f g"


@pytest.mark.parametrize("parents", [[vf(V4)], [vf(V5)]], ids=["right", "to be changed"])
def test_a_reason_of_another_time_is_dropped(store: Store, parents: list[Parent]) -> None:
    text = vf_domain(V4)
    plan = planner(store, *parents)
    done = arrival.rewrite(domain.set_refused(text, "of another time"), domain.parse(text), plan)
    assert "refused" in done.text.decode()  # the domain that was parsed says whether there is one
    stale = domain.set_refused(text, "of another time")
    done = arrival.rewrite(stale, domain.parse(stale), plan)
    assert domain.parse(done.text).refused == ""
    assert besides_vgpus(done.text) == besides_vgpus(text)
    assert vgpus_of(done.text) == {"0": ("pci", parents[0].name)}


def age(folder: Path, seconds: int) -> None:
    """Have the VMs on their way be announced some seconds ago."""
    moment = f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '{-seconds} seconds')"
    connection = sqlite3.connect(folder / "store.db")
    with contextlib.closing(connection), connection:
        connection.execute(f"UPDATE reservation SET arriving = {moment} WHERE arriving > ''")


@pytest.mark.parametrize(("seconds", "kept"), [(0, True), (55, True), (61, False), (-60, False)])
def test_i8_a_vf_is_kept_for_a_vm_on_its_way(
    store: Store, tmp_path: Path, seconds: int, kept: bool
) -> None:
    own = domain.parse(vf_domain(V4))
    other = domain.parse(renamed(vf_domain(V4), "a", "b"))
    store.devices.reserve(OWN, "0", V4, arriving=True)
    store.devices.reserve(uuid_of("c"), "0", V5)  # as one that is no better
    age(tmp_path, seconds)
    plan = Planner((vf(V4), vf(V5)), store, "spread", lambda d: d.nodes, reserve=False)
    own_plan, other_plan = plan(own, ASKED).hostdev, plan(other, ASKED).hostdev
    assert own_plan is not None
    assert other_plan is not None
    assert own_plan.address == V4
    assert (other_plan.address == V5) == kept


class Nothing:
    """The rules of a host without any parents, as far as a Reconciler asks for them."""

    def parents(self) -> tuple[Parent, ...]:
        return ()


def test_i8_reconcile_keeps_what_is_kept_for_a_vm_that_libvirt_does_not_list(
    store: Store, tmp_path: Path
) -> None:
    def reconcile(dry_run: bool = False) -> set[str]:
        rules = cast(Lifecycle, Nothing())
        run = Reconciler(store, lambda: rules, dict, lambda _: None, dry_run=dry_run).run
        assert run() == []
        return {reservation.device for reservation in store.devices.reservations()}

    store.devices.reserve(OWN, "0", V4, arriving=True)
    store.devices.reserve(uuid_of("gone"), "0", V5)
    assert reconcile(dry_run=True) == {V4, V5}
    assert reconcile() == {V4}
    age(tmp_path, 61)
    assert reconcile(dry_run=True) == {V4}
    assert reconcile() == set()


def test_names_in_hints_are_quoted_for_the_shell(store: Store) -> None:
    text = vf_domain(V4).replace(b"<name>a<", b"<name>-a b'$(id)<")
    with pytest.raises(Refused, match=r"""-- '-a b'"'"'\$\(id\)'"""):
        arrive(text, planner(store, vf(V4)), ())
