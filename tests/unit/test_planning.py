"""Which VF a definition gets, over a real store: kept, chosen, re-pointed, inherited."""

from __future__ import annotations

import pytest

from tests.domains import device_of, domain_xml, pci_hostdev, uuid_of
from vgpu_hook import definitions, domain, placement
from vgpu_hook.model import ASSIGNED, RETAINED, Parent, VgpuError, VgpuType, new_assignment
from vgpu_hook.planning import Planner
from vgpu_hook.store import Store
from vgpu_hook.store_devices import CREATE, Failure

BOOT = "boot"
PROFILE = "nvidia-1148"


def vf(number: int, *, gpu: str = "0000:41:00.0", free: bool = True, node: int = -1) -> Parent:
    name = f"{gpu[:-1]}{number}"
    kind = VgpuType(PROFILE, "NVIDIA L40S-2Q", "", "vfio-pci", int(free), int(not free), 2048)
    devices = () if free else (name,)
    return Parent("vendor-vfio", name, gpu, (kind,), devices, card="l40s", node=node)


def planner(store: Store | None, *parents: Parent, policy: str = "spread") -> Planner:
    return Planner(parents, store, policy, lambda subject: subject.nodes)


def settle(name: str, text: bytes, plan: Planner) -> list[str]:
    """Put a definition in order; return the devices that it names, and see that it is stable."""
    settled = definitions.settle(text, plan)
    assert definitions.settle(settled.text, plan).changes == ()
    return [hostdev.address for hostdev in domain.parse(settled.text).hostdevs]


def asks(name: str, *hostdevs: str, attributes: str = "", of: str | None = None) -> bytes:
    """A definition; `of` is the domain that its VF was chosen for."""
    return domain_xml(
        name,
        {"0": PROFILE},
        hostdevs=list(hostdevs),
        attributes=attributes,
        owner=uuid_of(of) if of else None,
    )


def assign(store: Store, name: str, device: str) -> None:
    """Put on record that a domain runs on a VF."""
    (request,) = domain.parse(asks(name)).request
    parent = Parent("vendor-vfio", device, "gpu", ())
    row = new_assignment(uuid_of(name), name, request, parent, PROFILE, BOOT, device)
    made = store.intend(BOOT, lambda pending: row)
    assert store.move(made, ASSIGNED, "assigned") is not None


def test_definitions_spread_over_vfs_that_nobody_names(store: Store) -> None:
    plan = planner(store, vf(4), vf(5), vf(6))
    chosen = [settle(name, asks(name), plan)[0] for name in "abcdef"]
    assert sorted(chosen[:3]) == ["0000:41:00.4", "0000:41:00.5", "0000:41:00.6"]
    assert sorted(chosen) == sorted(chosen[:3] * 2)


def test_a_definition_keeps_its_vf_for_as_long_as_it_can_be_used(store: Store) -> None:
    (first,) = settle("a", asks("a"), planner(store, vf(4), vf(5)))
    again = asks("a", pci_hostdev(first))
    assert settle("a", again, planner(store, vf(4), vf(5), vf(6))) == [first]
    assert settle("a", again, planner(store)) == [first]


def test_a_vf_that_another_domain_runs_on_is_left_for_a_free_one(store: Store) -> None:
    (first,) = settle("a", asks("a"), planner(store, vf(4), vf(5)))
    assign(store, "b", first)
    (moved,) = settle("a", asks("a", pci_hostdev(first)), planner(store, vf(4), vf(5)))
    assert moved != first
    assert store.devices.reserved(uuid_of("a"), "0") == moved
    # With nothing free it stays where it is: there is nothing better.
    assign(store, "c", moved)
    full = planner(store, vf(4, free=False), vf(5, free=False))
    assert settle("a", asks("a", pci_hostdev(moved)), full) == [moved]


def test_a_running_domain_is_never_pointed_elsewhere(store: Store) -> None:
    assign(store, "a", "0000:41:00.4")
    plan = planner(store, vf(4, free=False), vf(5))
    assert settle("a", asks("a", pci_hostdev("0000:41:00.5")), plan) == ["0000:41:00.4"]
    # Nor one whose record was lost.
    unrecorded = planner(store, vf(6, free=False), vf(7))
    unrecorded.hold(uuid_of("b"), "0", "0000:41:00.6")
    assert settle("b", asks("b", pci_hostdev("0000:41:00.6")), unrecorded) == ["0000:41:00.6"]


@pytest.mark.parametrize(("fork", "left"), [("new", 1), ("none", 0), ("refuse", 1)])
def test_r8_a_fork_gets_a_vf_of_its_own_by_its_policy(store: Store, fork: str, left: int) -> None:
    plan = planner(store, vf(4), vf(5))
    (parents,) = settle("parent", asks("parent"), plan)
    text = asks("fork", pci_hostdev(parents), attributes=f"fork='{fork}'", of="parent")
    got = settle("fork", text, plan)
    assert len(got) == left
    assert (parents in got) == (fork == "refuse")
    reserved = store.devices.reserved(uuid_of("fork"), "0")
    assert (reserved is not None) == (fork == "new")


def test_an_mdev_hostdev_of_a_host_that_has_changed_its_kernel_is_replaced(store: Store) -> None:
    own = device_of(uuid_of("a"))
    text = domain_xml("a", {"0": PROFILE})
    assert own.encode() in text
    assert settle("a", text, planner(store, vf(4))) == ["0000:41:00.4"]


def test_managed_yes_is_corrected(store: Store) -> None:
    text = asks("a", pci_hostdev("0000:41:00.4", managed="yes"))
    settled = definitions.settle(text, planner(store, vf(4)))
    (hostdev,) = domain.parse(settled.text).hostdevs
    assert (hostdev.address, hostdev.managed) == ("0000:41:00.4", "no")


def test_the_gpu_that_has_least_framebuffer_in_use_is_chosen_or_most(store: Store) -> None:
    other = "0000:81:00.0"
    parents = (vf(4, free=False), vf(5), vf(4, gpu=other), vf(5, gpu=other))
    assert settle("a", asks("a"), planner(store, *parents))[0].startswith("0000:81")
    assert settle("b", asks("b"), planner(store, *parents, policy="pack"))[0] == "0000:41:00.5"
    asked = asks("c", attributes="placement='pack'")
    assert settle("c", asked, planner(store, *parents))[0].startswith("0000:81")  # 2 GiB reserved


def test_the_numa_node_of_the_pinning_comes_first(store: Store) -> None:
    parents = (vf(4, node=0), vf(4, gpu="0000:81:00.0", node=1))
    pinned = asks("a").replace(
        b"<vcpu>", b"<numatune><memory mode='strict' nodeset='1'/></numatune><vcpu>"
    )
    assert settle("a", pinned, planner(store, *parents)) == ["0000:81:00.4"]


def test_a_quarantined_vf_is_not_chosen_and_counts_against_its_gpu(store: Store) -> None:
    for name in ("x", "y"):
        failure = Failure("0000:41:00.4", CREATE, uuid_of(name), "0", name, "", "EIO")
        store.devices.note_failure(failure)
    other = "0000:81:00.0"
    plan = planner(store, vf(4), vf(5), vf(4, gpu=other), vf(5, gpu=other))
    assert settle("a", asks("a"), plan)[0].startswith("0000:81")
    only = planner(store, vf(4), vf(5))
    assert settle("b", asks("b"), only) == ["0000:41:00.5"]


def test_a_vf_that_failed_for_this_very_slot_is_left(store: Store) -> None:
    (first,) = settle("a", asks("a"), planner(store, vf(4), vf(5)))
    store.devices.note_failure(Failure(first, CREATE, uuid_of("a"), "0", "a", "", "EIO"))
    (then,) = settle("a", asks("a", pci_hostdev(first)), planner(store, vf(4), vf(5)))
    assert then != first
    assert settle("b", asks("b"), planner(store, vf(4))) == ["0000:41:00.4"]


def test_a_pinned_gpu_without_room_keeps_what_is_named(store: Store) -> None:
    asked = asks("a", attributes="gpu='0000:41:00.0'")
    plan = planner(store, vf(4, free=False), vf(4, gpu="0000:81:00.0"))
    assert settle("a", asked, plan) == ["0000:41:00.4"]


def test_a_profile_that_no_vf_offers_is_left_to_the_start_to_refuse(store: Store) -> None:
    text = domain_xml("a", {"0": "nope"}, hostdevs=[])
    assert settle("a", text, planner(store, vf(4))) == []


def test_loads_count_what_is_in_use_and_what_is_reserved() -> None:
    parents = (vf(4, free=False), vf(5), vf(4, gpu="0000:81:00.0"))
    found = placement.loads(parents, {"0000:41:00.5": 1024})
    assert found == {"0000:41:00.0": 3072, "0000:81:00.0": 0}


@pytest.mark.parametrize("fork", ["new", "none", "refuse"])
def test_r8_a_definition_that_comes_back_is_no_fork(store: Store, fork: str) -> None:
    """Undefined and defined again, an old XML, a backup: whoever names that VF by now."""
    attributes = f"fork='{fork}'"
    (first,) = settle("a", asks("a", attributes=attributes), planner(store, vf(4)))
    store.devices.keep_reservations(uuid_of("a"), [])
    assign(store, "b", first)
    old = asks("a", pci_hostdev(first), attributes=attributes, of="a")
    settled = definitions.settle(old, planner(store, vf(4, free=False), vf(5)))
    (kept,) = settled.requests
    assert kept.fork == fork
    (hostdev,) = domain.parse(settled.text).hostdevs
    assert hostdev.address == "0000:41:00.5"


def test_slots_of_one_domain_never_share_a_vf(store: Store) -> None:
    two = domain_xml("a", {"0": PROFILE, "1": PROFILE}, hostdevs=[])
    assert sorted(settle("a", two, planner(store, vf(4), vf(5)))) == [vf(4).name, vf(5).name]
    with pytest.raises(VgpuError, match="no free instance"):
        definitions.settle(
            domain_xml("b", {"0": PROFILE, "1": PROFILE}, hostdevs=[]), planner(store, vf(4))
        )


def test_domains_that_share_a_vf_are_parted_when_others_are_free(store: Store) -> None:
    for name in "abc":
        settle(name, asks(name), planner(store, vf(4)))
    plan = planner(store, vf(4), vf(5), vf(6))
    (request,) = domain.parse(asks("a")).request
    for name in "abc":
        if not plan.usable((uuid_of(name), "0"), request):
            settle(name, asks(name, pci_hostdev(vf(4).name)), plan)
    named = [reservation.device for reservation in store.devices.reservations()]
    assert len(set(named)) == 3
    assert all(plan.usable((uuid_of(name), "0"), request) for name in "abc")


def test_a_retained_vf_is_left_for_another(store: Store) -> None:
    assign(store, "a", vf(4).name)
    (row,) = store.all()
    store.move(row, RETAINED, "retained", "EIO")
    text = asks("a", pci_hostdev(vf(4).name), of="a")
    assert settle("a", text, planner(store, vf(4, free=False), vf(5))) == [vf(5).name]


def test_a_profile_of_two_frameworks_never_makes_an_mdev_parent_a_pci_device(
    store: Store,
) -> None:
    kind = VgpuType(PROFILE, "NVIDIA L40S-2Q", "", "vfio-pci", 3, 0)
    mdev = Parent("mdev", "0000:02:00.0", "0000:02:00.0", (kind,))
    text = asks("a", pci_hostdev(vf(4).name), of="a")
    assert settle("a", text, planner(store, mdev, vf(4, free=False))) == [vf(4).name]


def test_a_request_is_kept_without_a_hostdev_while_the_vfs_are_off(store: Store) -> None:
    off = Parent("vendor-vfio", "0000:41:00.0", "0000:41:00.0", (), (), "VFs off", "vfs-off")
    settled = definitions.settle(asks("a"), planner(store, off))
    assert (settled.changes, len(settled.requests)) == ((), 1)
    (request,) = settled.requests
    assert not planner(store, vf(4)).usable((uuid_of("a"), "0"), request)
    assert settle("a", asks("a"), planner(store, vf(4))) == [vf(4).name]


def test_nothing_is_reserved_for_xml_that_is_only_rendered(store: Store) -> None:
    plan = Planner((vf(4),), store, "spread", lambda subject: frozenset(), reserve=False)
    assert settle("a", asks("a"), plan) == [vf(4).name]
    assert store.devices.reservations() == []


def test_display_of_a_vf_is_not_written_since_libvirt_drops_it(store: Store) -> None:
    text = asks("a", attributes="display='on'")
    settled = definitions.settle(text, planner(store, vf(4)))
    assert b'display="on"' not in settled.text.split(b"<devices>")[1]
    assert definitions.settle(settled.text, planner(store, vf(4))).changes == ()


def test_r8_each_slot_of_a_fork_has_its_own_policy(store: Store) -> None:
    """Giving one slot of a clone a VF of its own does not make the others the clone's."""
    plan = planner(store, vf(4), vf(5), vf(6))
    parent = domain_xml("parent", {"0": PROFILE, "1": PROFILE}, hostdevs=[])
    parent = parent.replace(b'name="0"', b'name="0" fork="refuse"')
    first = definitions.settle(parent, plan)
    names = (uuid_of("parent").encode(), uuid_of("fork").encode())
    fork = first.text.replace(*names).replace(b">parent<", b">fork<")
    for _ in range(2):
        settled = definitions.settle(fork, plan)
        fork = settled.text
        subject = domain.parse(fork)
        assert [subject.inherits(hostdev) for hostdev in subject.hostdevs] == [True, False]
        assert len({hostdev.address for hostdev in subject.hostdevs}) == 2


def test_a_domain_moves_to_mdev_with_its_host_and_leaves_no_mark(store: Store) -> None:
    settle("a", asks("a"), planner(store, vf(4)))
    settled = definitions.settle(asks("a"), planner(store, vf(4)))
    kind = VgpuType(PROFILE, "NVIDIA L40S-2Q", "", "vfio-pci", 3, 0)
    mdev = planner(store, Parent("mdev", "0000:41:00.0", "0000:41:00.0", (kind,)))
    (request,) = settled.requests
    assert not mdev.usable((uuid_of("a"), "0"), request)
    assert settle("a", settled.text, mdev) == [device_of(uuid_of("a"))]
    assert domain.parse(definitions.settle(settled.text, mdev).text).marks == {}


def test_a_vf_that_is_shared_is_kept_when_only_farther_ones_are_free(store: Store) -> None:
    pinned = b"<numatune><memory mode='strict' nodeset='0'/></numatune><vcpu>"
    near, far = vf(4, node=0), vf(4, gpu="0000:81:00.0", node=1)
    plan = planner(store, near, far)
    (request,) = domain.parse(asks("a")).request
    for name in "ab":
        assert settle(name, asks(name).replace(b"<vcpu>", pinned), plan) == [near.name]
        assert plan.usable((uuid_of(name), "0"), request)


def test_a_vf_that_a_user_has_chosen_by_hand_is_kept_if_it_is_good(store: Store) -> None:
    (first,) = settle("a", asks("a"), planner(store, vf(4), vf(5), vf(6)))
    other = next(vf(n).name for n in (4, 5, 6) if vf(n).name != first)
    assert settle(
        "a", asks("a", pci_hostdev(other), of="a"), planner(store, vf(4), vf(5), vf(6))
    ) == [other]
