"""A VM wakes up here, from a saved image or another host: `restore` and `migrate` by the real hook.

What they print is what libvirt goes on with (facts A6), so each test that gets XML goes on with
it: the start that follows must find it right. By the daemon, and by the hook alone. For VMs that
must not wake up see test_refused_arrivals.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.domains import (
    device_of,
    domain_xml,
    pci_hostdev,
    renamed,
    uuid_of,
    vgpus_of,
)
from tests.product import PATIENCE, Product
from tests.simulated.arrivals import (
    ARRIVALS,
    AWAY,
    PROFILE,
    V4,
    V5,
    besides_note,
    goes_on,
    image,
    is_refused,
    l40s,
    on_record,
    records,
    reservations,
    run,
    stop,
    with_note,
)
from tests.simulated.kinds import Kind
from vgpu_hook.model import VgpuRequest


def test_i5_r9_what_is_right_is_passed_without_a_word(served: Product, kind: Kind) -> None:
    a = kind.xml("a", marked=True)
    for _ in ("unknown", "known"):
        served.sim.reset_writes()
        for operation in ARRIVALS:
            assert served.hook("a", operation, a) == (0, "", "")
        assert served.sim.writes() == []
        assert served.rows() == []
        assert served.hook("a", "prepare", a) == (0, "", "")
        assert kind.present() == kind.vgpus("a")
        assert served.hook("a", "stopped", a) == (0, "", "")


@l40s
def test_r9_a_restored_vm_comes_back_on_the_vf_that_it_has_now(served: Product) -> None:
    """Though the one of the image is free, and would do."""
    run(served, "a", V5)
    stop(served, "a", V5)
    assert goes_on(served, "a", "restore", image("a", V4)) == {"0": ("pci", V5)}
    assert "restored" in served.events()


@l40s
def test_r9_a_restored_vm_gets_another_vf_when_its_current_one_is_taken(product: Product) -> None:
    run(product, "a", V5)
    stop(product, "a", V5)
    run(product, "b", V5)
    ((_, vf),) = goes_on(product, "a", "restore", image("a", V4)).values()
    assert vf != V5
    assert product.sim.current_types() == {V5: 1148, vf: 1148}


def test_r9_one_type_under_another_name_is_no_difference(product: Product, kind: Kind) -> None:
    a = kind.xml("a", marked=True)
    for spelling in kind.spellings:
        on_record(product, "a", VgpuRequest("0", spelling))
        assert product.hook("a", "restore", a) == (0, "", "")


def test_r9_an_image_that_does_not_say_its_profile_is_given_what_the_domain_asks_for(
    served: Product, kind: Kind
) -> None:
    """As of a guest whose vGPU was plugged in: QEMU finds out whether its state fits."""
    a = kind.xml("a", marked=True)
    start, end = a.index(b"<metadata>"), a.index(b"</metadata>") + len(b"</metadata>")
    on_record(served, "a", VgpuRequest("0", kind.profile))
    answer = served.hook("a", "restore", a[:start] + a[end:])
    assert (answer.status, answer.err) == (0, "")
    assert besides_note(answer.out.encode()) == besides_note(a)
    assert served.hook("a", "prepare", answer.out.encode()) == (0, "", "")
    assert kind.present() == kind.vgpus("a")


@pytest.mark.simhost("l40s-two")
def test_r9_the_gpu_that_the_domain_is_pinned_to_now_counts(product: Product) -> None:
    on_record(product, "a", VgpuRequest("0", PROFILE, gpu="0000:c1:00.0"))
    answer = product.hook("a", "restore", image("a", V4, attributes="gpu='0000:41:00.0'"))
    assert 'gpu="0000:c1:00.0"' in answer.out
    assert "0000:41:00.0" not in answer.out
    ((_, vf),) = vgpus_of(answer.out).values()
    assert vf.startswith("0000:c1:")
    assert product.hook("a", "prepare", answer.out.encode()) == (0, "", "")


def test_r8_a_restored_fork_gets_vgpus_of_its_own(product: Product, kind: Kind) -> None:
    a = kind.xml("a", kind.profile, kind.other, marked=True)
    theirs = {device for _, device in vgpus_of(a).values()}
    assert product.hook("a", "prepare", a) == (0, "", "")
    present = kind.present()
    for name in ("fork", "late"):
        got = goes_on(product, name, "restore", renamed(a, "a", name))
        devices = [device for _, device in got.values()]
        assert list(got) == ["0", "1"]
        assert not theirs & set(devices)
        if kind.name == "mdev":
            assert devices == [device_of(uuid_of(name), slot) for slot in got]
        present |= dict(zip(devices, (kind.type_id, kind.other_id), strict=True))
        assert kind.present() == present
        if name == "fork":  # the other one comes while nobody is on them
            product.hook("a", "stopped", a)
            present = {device: present[device] for device in present if device not in theirs}


@l40s
@pytest.mark.parametrize("taken", [False, True], ids=["not there", "taken"])
def test_a_vm_that_migrates_here_gets_a_vf_of_this_host(product: Product, taken: bool) -> None:
    if taken:
        run(product, "b", V4)
    ((kind, vf),) = goes_on(product, "a", "migrate", image("a", V4 if taken else AWAY)).values()
    assert kind == "pci"
    assert product.sim.current_types() == {vf: 1148} | ({V4: 1148} if taken else {})
    assert "migrated" in product.events()


@l40s
def test_a_vm_with_an_mdev_wakes_up_on_a_host_with_vfs(served: Product) -> None:
    present: dict[str, int] = {}
    for operation in ARRIVALS:
        vm = domain_xml(operation, {"0": PROFILE, "1": "1145"})
        got = goes_on(served, operation, operation, vm)
        assert [kind for kind, _ in got.values()] == ["pci", "pci"]
        devices = [device for _, device in got.values()]
        present |= dict(zip(devices, (1148, 1145), strict=True))
        assert served.sim.current_types() == present
    answer = served.hook("b", "migrate", domain_xml("b", {"0": PROFILE}))
    assert "model=" not in answer.out
    assert 'managed="no"' in answer.out


def test_a_vm_with_a_vf_wakes_up_on_a_host_with_mdevs(product: Product) -> None:
    driven = pci_hostdev(V4).replace("<source>", "<driver name='vfio'/><source>")
    for operation in ARRIVALS:
        own = uuid_of(operation)
        vm = domain_xml(operation, {"0": "mtty-1"}, hostdevs=[driven], owner=own)
        assert goes_on(product, operation, operation, vm) == {"0": ("mdev", device_of(own))}
        assert device_of(own) in product.sim.devices()
    answer = product.hook(operation, operation, vm)
    assert 'model="vfio-pci"' in answer.out
    assert "driver" not in answer.out
    assert "owner=" not in answer.out


@l40s
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_i8_vms_that_arrive_at_once_and_name_one_vf_get_one_each(
    served: Product, named: bool
) -> None:
    """`named`: each VF by the definition of a stopped domain too, as on a host with many."""
    if named:
        all_named(served)
    vms = {f"vm{n}": image(f"vm{n}", V4) for n in range(5)}
    operations = dict(zip(vms, [*ARRIVALS] * 3, strict=False))
    calls = {name: served.popen(name, operations[name], xml) for name, xml in vms.items()}
    answers = {name: call.communicate(timeout=PATIENCE) for name, call in calls.items()}
    assert [call.returncode for call in calls.values()] == [0] * 5
    arrived = {name: answers[name][0] or vms[name] for name in vms}
    vfs = {name: vgpus_of(xml)["0"][1] for name, xml in arrived.items()}
    assert len(set(vfs.values())) == 5, vfs
    starts = [served.popen(name, "prepare", xml) for name, xml in arrived.items()]
    assert [start.communicate(timeout=PATIENCE) for start in starts] == [(b"", b"")] * 5
    assert served.sim.current_types() == dict.fromkeys(vfs.values(), 1148)


@pytest.mark.parametrize("operation", ARRIVALS)
def test_a_reason_that_an_image_still_carries_is_dropped_when_it_is_right(
    served: Product, kind: Kind, operation: str
) -> None:
    a = kind.xml("a", marked=True)
    stale = with_note(a, "domain 'a': of another time; try \"again\"")
    refused = served.hook("a", "prepare", stale)
    is_refused(refused)
    assert refused.err == "vgpu-hook: domain 'a': of another time; try \"again\"\n"
    assert kind.present() == {}
    answer = served.hook("a", operation, stale)
    assert (answer.status, answer.err) == (0, "")
    assert "refused" not in answer.out
    assert besides_note(answer.out.encode()) == besides_note(a)
    assert served.hook("a", "prepare", answer.out.encode()) == (0, "", "")
    assert kind.present() == kind.vgpus("a")


def test_a_reason_is_dropped_where_no_vgpu_is_asked_for(served: Product) -> None:
    plain = with_note(domain_xml("a", {"0": "x"}, hostdevs=[]), "of another time")
    plain = plain.replace(b'<vgpu:vgpu name="0" profile="x" />', b"")
    assert b"<vgpu:vgpu " not in plain
    for operation in ARRIVALS:
        is_refused(served.hook("a", "prepare", plain), "domain 'a': of another time")
        assert goes_on(served, "a", operation, plain) == {}


def all_named(product: Product) -> None:
    """Have each VF be named by the definition of a stopped domain, as on a host with many."""
    with records(product) as store:
        for n, vf in enumerate(product.sim.state()["vfs"]):
            store.devices.reserve(uuid_of(f"stopped{n}"), "0", vf)


def rendered(product: Product, folder: Path, name: str, vf: str) -> str:
    """The VF that a definition would get which names this one."""
    file = folder / f"{name}.xml"
    file.write_bytes(image(name, vf))
    own = str(folder / "vgpu-hook.toml")  # not that of `only_client`
    answer = product.command("render", str(file), VGPU_HOOK_CONFIG=own)
    assert answer.status == 0, answer.err
    return vgpus_of(answer.out)["0"][1]


@l40s
@pytest.mark.parametrize("operation", ARRIVALS)
def test_i8_a_vf_is_kept_for_a_vm_on_its_way_and_no_longer(
    served: Product, tmp_path: Path, operation: str
) -> None:
    all_named(served)
    assert served.hook("a", operation, image("a", V4)) == (0, "", "")
    assert rendered(served, tmp_path, "b", V4) != V4
    for n, other in enumerate(ARRIVALS):
        answer = served.hook(f"c{n}", other, image(f"c{n}", V4))
        assert (answer.status, answer.err) == (0, "")
        assert vgpus_of(answer.out)["0"][1] != V4
    # For itself it is there, as often as it comes.
    assert served.hook("a", operation, image("a", V4)) == (0, "", "")
    mark = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-61 seconds')"
    served.query(f"UPDATE reservation SET arriving = {mark} WHERE arriving IS NOT NULL")
    assert rendered(served, tmp_path, "b", V4) == V4
    assert goes_on(served, "d", operation, image("d", V4)) == {"0": ("pci", V4)}


@l40s
def test_a_clock_that_went_back_keeps_no_vf(product: Product, tmp_path: Path) -> None:
    all_named(product)
    assert product.hook("a", "restore", image("a", V4)) == (0, "", "")
    product.query(
        "UPDATE reservation SET arriving = '2999-01-01T00:00:00.000Z' WHERE arriving > ''"
    )
    assert rendered(product, tmp_path, "b", V4) == V4


@l40s
@pytest.mark.parametrize("operation", ARRIVALS)
def test_what_arrives_is_reserved_for_all_its_slots(served: Product, operation: str) -> None:
    got = goes_on(served, "a", operation, image("a", AWAY, AWAY))
    named = {(uuid_of("a"), slot): vf for slot, (_, vf) in got.items()}
    assert {row[:2]: row[2] for row in reservations(served)} == named
    assert len({vf for _, vf in got.values()}) == 2
